"""What each process of `torchrun --nproc-per-node 2 two_processes.py FOLDER` does in test_training."""

import sys
from pathlib import Path

import torch

from aleator.backbones import MLP
from aleator.encoders import Encoder
from aleator.recipe import Recipe
from aleator.training import fit
from training_cases import SmallLoss, build, mean_kappa

RECIPE = Recipe(steps=12, optimiser="sgd", learning_rate=0.005, checkpoint_every=4, log_every=4)


class PlainLoss(SmallLoss):
    """The same on one process and on many: a mean over anchors, without noise."""

    def forward(self, anchor, positive, negative=None):
        logits = self.temperature * (anchor.mu[:, None] * negative.mu).sum(-1)
        return (logits.exp().sum(1) - (anchor.mu * positive.mu).sum(-1) + anchor.kappa.log() ** 2).mean()


def global_pairs(step, generator, rank=0, processes=1):
    """This process's share of the one batch that all of them see at this step."""
    shared = torch.Generator().manual_seed(step)
    parts = (
        torch.rand(8, 4, generator=shared),
        torch.rand(8, 4, generator=shared),
        torch.rand(8, 3, 4, generator=shared),
    )
    return tuple(part.chunk(processes)[rank] for part in parts)


def plain_run(batches=global_pairs, device="cpu"):
    torch.manual_seed(1)
    encoder, loss = Encoder(MLP(4, (8,)), 3, kappa="head", kappa_hidden=(6,)), PlainLoss()
    fit(encoder, loss, batches, RECIPE, device=device)
    return weights(encoder, loss)


def weights(encoder, loss):
    return {
        **encoder.state_dict(),
        **{f"loss.{name}": value.detach() for name, value in loss.state_dict().items()},
    }


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    from training_cases import pairs

    def share(step, generator):
        return global_pairs(step, generator, torch.distributed.get_rank(), 2)

    results = {"plain": plain_run(share)}

    class StoppedError(Exception):
        pass

    def stopping(step, generator):
        if step == 7:
            raise StoppedError
        return pairs(step, generator)

    # The same run once in one piece, and once stopped and taken up again: the processes' noise differs.
    for name, sources in {"whole": [pairs], "resumed": [stopping, pairs]}.items():
        for batches in sources:
            encoder, loss = build()
            try:
                result = fit(
                    encoder,
                    loss,
                    batches,
                    RECIPE,
                    folder=folder / name,
                    validate=mean_kappa,
                    device="cpu",
                    loggers=("csv",),
                )
            except StoppedError:
                continue
        results[name] = weights(encoder, loss)
        assert result.resumed_from == (4 if name == "resumed" else None)
    from safetensors.torch import save_file

    rank = torch.distributed.get_rank()
    for name, tensors in results.items():
        save_file(tensors, folder / f"{name}-{rank}.safetensors")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
