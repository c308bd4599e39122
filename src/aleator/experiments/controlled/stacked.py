"""Several runs of one setting, trained as one: the networks of all runs are stacked, layer on layer.

A step of one run is more than a hundred small kernels, and a GPU takes longer to start them than to compute them. A
stacked step has as many kernels, whatever the number of runs.

No run changes another: it has its own weights, its own pairs, and its own share of the loss, which is the sum over the
runs. So it has the gradient of a run of its own, and Adam moves every weight by its own gradient alone.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from aleator.encoders import Encoder, StackedLinear
from aleator.posteriors import PosteriorBatch, VonMisesFisher


class StackedEncoder(Encoder):
    """The encoders of S runs as one encoder. Batches hold the inputs of all runs.

    The inputs of a batch come part by part: S B anchors, S B positives, and what negatives there are. Each part has the
    inputs of the first run, then those of the second one, and so on. The posteriors come back in the same order.

    Args:
        encoders: Encoders of the runs, alike but for their weights and the range of kappa at the start: one mode, and
            a head for kappa.
        anchors: B, the number of anchors in a batch of one run.
    """

    def __init__(self, encoders: Sequence[Encoder], anchors: int):
        first, heads = encoders[0], [encoder.kappa_head for encoder in encoders]
        assert first.modes == 1
        assert first.kappa_head is not None
        super().__init__(
            copy.deepcopy(first.backbone),
            first.dim,
            first.kappa,
            kappa_hidden=first.kappa_head.hidden,
            kappa_of=first.kappa_of,
            kappa_backbone=copy.deepcopy(first.kappa_backbone),
            kappa_range=first.kappa_range,
            kappa_bounds=first.kappa_bounds,
        )
        self.runs, self.anchors = len(encoders), anchors
        for name, module in list(self.named_modules()):
            if isinstance(module, nn.Linear):
                self.set_submodule(name, StackedLinear([each.get_submodule(name) for each in encoders]))  # type: ignore[misc]
        # Each run starts with its own range of kappa: its scale and shift follow its last layer.
        assert self.kappa_head is not None
        self.kappa_head.layers.append(_OwnScale([head.scale for head in heads], [head.shift for head in heads]))  # type: ignore[union-attr]
        self.kappa_head.scale.fill_(1.0)
        self.kappa_head.shift.fill_(0.0)
        self.to(first.axis.device)

    def forward(self, inputs: Tensor) -> VonMisesFisher:
        """Posteriors of the inputs of a batch, in their order."""
        pairs = self.runs * self.anchors
        sizes = [size for size in (pairs, pairs, len(inputs) - 2 * pairs) if size]
        by_run = [part.unflatten(0, (self.runs, -1)) for part in inputs.split(sizes)]
        q = super().forward(torch.cat(by_run, 1).flatten(0, 1))
        assert isinstance(q, VonMisesFisher)

        def by_part(x: Tensor) -> Tensor:
            parts = x.unflatten(0, (self.runs, -1)).split([size // self.runs for size in sizes], 1)
            return torch.cat([part.flatten(0, 1) for part in parts])

        return VonMisesFisher(by_part(q.mu), by_part(q.kappa), validate_args=False)

    @torch.no_grad()
    def write_to(self, encoders: Sequence[Encoder]) -> None:
        """Copy the weights of each run to its own encoder."""
        for name, stacked in self.named_modules():
            if isinstance(stacked, StackedLinear):
                for run, encoder in enumerate(encoders):
                    layer = encoder.get_submodule(name)
                    assert isinstance(layer, nn.Linear)
                    layer.weight.copy_(stacked.weight[run])
                    layer.bias.copy_(stacked.bias[run])


class _OwnScale(nn.Module):
    """u -> scale u + shift, with numbers of its own for each of S runs: (S N, 1) -> (S N, 1)."""

    scale: Tensor
    shift: Tensor

    def __init__(self, scales: Sequence[Tensor], shifts: Sequence[Tensor]):
        super().__init__()
        self.register_buffer("scale", torch.stack(list(scales)).view(-1, 1, 1))
        self.register_buffer("shift", torch.stack(list(shifts)).view(-1, 1, 1))

    def forward(self, u: Tensor) -> Tensor:
        return (u.unflatten(0, (len(self.scale), -1)) * self.scale + self.shift).flatten(0, 1)


class StackedLoss(nn.Module):
    """The sum of the losses of S runs.

    Args:
        losses: The loss of each run. If they have nothing to learn, they are alike, and the first one serves for all.
    """

    def __init__(self, losses: Sequence[nn.Module]):
        super().__init__()
        self.runs = len(losses)
        learnable = any(parameter.requires_grad for parameter in losses[0].parameters())
        self.losses = nn.ModuleList(losses if learnable else losses[:1])
        self.capturable = getattr(losses[0], "capturable", True)

    def forward(self, anchor: PosteriorBatch, positive: PosteriorBatch, negative: PosteriorBatch) -> Tensor:
        if len(self.losses) == 1:  # the mean over all anchors is the mean of the runs' losses
            return self.runs * self.losses[0](anchor, positive, negative)
        parts = (q.split(len(q) // self.runs) for q in (anchor, positive, negative))
        return torch.stack([loss(*q) for loss, *q in zip(self.losses, *parts, strict=True)]).sum()
