"""Train a pretrained network itself, after the head on its features has been trained.

The head comes first, on features of the frozen network. Then network and head are trained together, slowly. A head that
knows nothing would send large random gradients into the network and spoil it (Kumar et al., ICLR 2022).

    last    the last quarter of the layers
    all     all layers
    lora    changes of low rank to all layers (encoders/low_rank.py); norms and convolutions in groups, which have few
            weights, are trained themselves

Activations take most of the memory. "last" keeps none of the layers before. "lora" sends a few items at a time through
the network and keeps their features alone; the backward pass computes each few again, with their activations (as
GradCache does; Gao et al., 2021). The loss still sees the whole batch. The statistics of batch normalisation stay as
they are, and dropout is off, so that an item's features do not depend on the others, and the network computes the same
in training and afterwards.

What has been trained is kept only if held-out labels are likelier with it than before.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from aleator.data import Inputs
from aleator.encoders import Chain, Encoder, HubText, LowRank, add_low_rank, merge_low_rank
from aleator.foundation import reject, require
from aleator.losses import PrototypeLoss
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.parts import select_labels
from aleator.own_data.learning.defaults import Tuning
from aleator.own_data.learning.plan import Plan
from aleator.own_data.learning.preparation import Job, PreparedTraining, decoded_images
from aleator.own_data.learning.recipe import (
    Loss,
    label_likelihood,
    one_cycle,
    steps_of_passes,
    training_batches,
)
from aleator.own_data.learning.time_limit import limit_time
from aleator.training import fit

_LAST_SHARE = 0.25  # of the layers, for "last"
_AT_ONCE = 4  # items whose activations "lora" keeps
# Layers with few weights, if they cannot be adapted: norms, and convolutions of single channels.
_SMALL_LAYERS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.Conv2d)
_MOST_PASSES, _VALIDATIONS = 10, 4
_LARGEST_BATCH = 64  # more items would take much memory for little


class TunedTraining(PreparedTraining):
    """Items as a pretrained network takes them, and the encoder with the network in it.

    Args:
        inputs: How raw items are prepared.
        encoder: The encoder, whose first part is a `_Steady` network.
        items: Images (N, 3, S, S) uint8, or tokens (N, 2, T) int64.
    """

    def __init__(self, inputs: Inputs, encoder: Encoder, items: Tensor):
        super().__init__(inputs, encoder, items)

    def complete_encoder(self) -> Encoder:
        """The encoder from raw inputs on, with the plain network."""
        backbone = self.encoder.backbone
        assert isinstance(backbone, Chain)
        front, *head = backbone.parts
        assert isinstance(front, _Steady)
        return self.encoder.with_backbone(Chain([front.network, *head])).eval()


class _Steady(nn.Module):
    """A network that stays in evaluation mode. Texts come as tokens (B, 2, T): ids, and 1 where there is a token.

    Args:
        network: The network.

    Attributes:
        at_once: Number of items whose activations are in memory at the same time in training; None: all.
    """

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network
        self.out_features = network.out_features
        self.at_once: int | None = None

    def train(self, mode: bool = True) -> "_Steady":
        super().train(mode)
        self.network.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        if self.at_once is None or not torch.is_grad_enabled():
            return self._features(x)
        few = x.split(self.at_once)
        # Nothing in the network is random, so there is no random state to keep.
        return torch.cat([checkpoint(self._features, x, use_reentrant=False, preserve_rng_state=False) for x in few])

    def _features(self, x: Tensor) -> Tensor:
        if not isinstance(self.network, HubText):
            return self.network(x)
        longest = int(x[:, 1].sum(1).max())
        return self.network({"input_ids": x[:, 0, :longest], "attention_mask": x[:, 1, :longest]})


def tune_network(
    training: PreparedTraining,
    loss: Loss,
    plan: Plan,
    job: Job,
    evaluated: int,
) -> tuple[int, PreparedTraining, Loss]:
    """Train network and head together; the log and checkpoints are in RUN/tuning/.

    Args:
        training: The trained head and the frozen network. They are not changed.
        loss: The loss with the class posteriors that the head learned. It is not changed.
        plan: The items and their labels, which of them are trained on, and the settings.
        job: Where it runs.
        evaluated: Number of items that are encoded when it ends and afterwards.

    Returns:
        The number of steps; the tuned network with its items, and its loss; what was given if tuning did not help.
    """
    labels, split, settings = plan.data.labels, plan.split, plan.settings
    assert training.frozen is not None
    assert settings.tune is not None
    assert settings.tune_learning_rate is not None
    tuned = _with_network(training, plan.data.collection, job)
    loss_of_head, loss = loss, copy.deepcopy(loss)
    trained = choose_parameters(tuned.encoder, settings.tune, settings.rank)
    own_labels = select_labels(labels, split.train)
    small = replace(settings, batch_size=min(settings.batch_size, _LARGEST_BATCH))
    batches = training_batches(tuned, own_labels, split, small, job.torch_device)
    most = settings.tune_steps or steps_of_passes(_MOST_PASSES, batches, small.batch_size)
    limit = limit_time("tuning", tuned, evaluated, settings, job)
    if job.group.first:
        job.log(f"tune = {settings.tune}: {trained:,} weights of the network are trained")
    validate = label_likelihood(tuned, loss, labels, split) if isinstance(loss, PrototypeLoss) else None
    tuned.encoder.to(job.torch_device)
    loss.to(job.torch_device)
    at_first = validate(tuned.encoder.eval()) if validate else None
    rate = settings.tune_learning_rate
    result = fit(
        tuned.encoder,
        loss,
        batches,
        # Not captured in a CUDA graph: the lengths of texts are read on the CPU.
        one_cycle(settings, most, rate, validate is not None, _VALIDATIONS, 4, capture=False, limit=limit),
        afterwards=limit.afterwards if limit else None,
        folder=job.folder / "tuning",
        validate=limit.timed(validate, len(split.calibration)) if limit and validate else validate,
        device=job.device,
        loggers=("csv",),
        progress=job.progress,
        config={"data": plan.identity},
    )
    merge_low_rank(tuned.encoder)
    tuned.encoder.requires_grad_(True)
    at_last = validate(tuned.encoder.eval()) if validate else None
    if job.group.first:
        passes = result.steps * small.batch_size / len(batches)
        job.log(f"tuned for {result.steps} steps, {passes:.2g} passes over the items, in {result.seconds:.0f} s")
    if at_first and at_last:
        before, after = (value["label_log_likelihood"] for value in (at_first, at_last))
        kept = _improved(before, after)
        if job.group.first:
            outcome = "it is kept" if kept else "the network stays as it was, and the head alone is kept"
            job.log(f"log-likelihood of held-out labels: {before:.4f} with the head, {after:.4f} tuned; {outcome}")
        if not kept:
            return result.steps, training, loss_of_head
    return result.steps, tuned, loss


def choose_parameters(encoder: Encoder, tune: Tuning, rank: int | None) -> int:
    """Decide what of an encoder is trained: the head always, and of its network what `tune` says.

    Args:
        encoder: An encoder whose first part is a `_Steady` network. Layers are replaced for "lora".
        tune: "last", "all" or "lora".
        rank: Rank of the changes, for "lora".

    Returns:
        Number of weights of the network that are trained.
    """
    backbone = encoder.backbone
    assert isinstance(backbone, Chain)
    front = backbone.parts[0]
    assert isinstance(front, _Steady)
    encoder.requires_grad_(True)
    front.requires_grad_(False)
    if tune == "lora":
        assert rank is not None
        layers = last_layers(front.network, 1.0)
        count = add_low_rank(front.network, layers, rank)
        problem = "none of its layers is linear or a convolution without groups"
        require(count > 0, "tune", tune, problem, "choose last or all")
        adapted = {id(module.layer) for module in front.modules() if isinstance(module, LowRank)}
        for layer in layers:
            if isinstance(layer, _SMALL_LAYERS) and id(layer) not in adapted:
                layer.requires_grad_(True)
        front.at_once = _AT_ONCE
    else:
        layers = last_layers(front.network, 1.0 if tune == "all" else _LAST_SHARE)
        for layer in layers:
            layer.requires_grad_(True)
    return sum(p.numel() for p in front.parameters() if p.requires_grad)


def last_layers(network: nn.Module, share: float = _LAST_SHARE) -> Sequence[nn.Module]:
    """The last layers of a network: modules with weights of their own, in the order in which they were built.

    Args:
        network: The network.
        share: Share of the layers.

    Returns:
        The layers. Poolers, whose output our pooling does not use, are not among them.
    """
    layers = [
        module
        for name, module in network.named_modules()
        if any(True for _ in module.parameters(recurse=False)) and "pooler" not in name.split(".")
    ]
    return layers[len(layers) - max(1, round(share * len(layers))) :]


def _with_network(training: PreparedTraining, collection: Collection, job: Job) -> TunedTraining:
    """A copy of head and network as one encoder, and the items as the network takes them."""
    network, head = copy.deepcopy(training.frozen), copy.deepcopy(training.encoder)
    assert isinstance(network, nn.Module)
    assert isinstance(head.backbone, Chain)
    if training.inputs.kind == "images":
        items, _ = decoded_images(collection, training.inputs, job)
    elif isinstance(network, HubText):
        items = _tokens(network, [str(item) for item in collection.raw(0, len(collection))])
    else:
        reject("tune", type(network).__name__, "cannot be trained on text", "leave --tune out")
    encoder = head.with_backbone(Chain([_Steady(network), *head.backbone.parts]))
    return TunedTraining(training.inputs, encoder, items)


def _tokens(network: HubText, texts: list[str]) -> Tensor:
    """Tokens (N, 2, T) of all texts: ids, and 1 where there is a token."""
    batch = network.tokenise(texts)
    return torch.stack([batch["input_ids"], batch["attention_mask"]], 1).cpu()


def _improved(before: float, after: float) -> bool:
    """Whether the tuned network is kept, by the log-likelihoods of held-out labels."""
    return after > before
