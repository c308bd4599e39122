"""What each process of `torchrun --nproc-per-node 2 two_processes.py FOLDER` does in test_training."""

import sys
from pathlib import Path

import torch

from aleator.data import SoftBatch
from aleator.encoders.backbones import MLP
from aleator.encoders.encoder import Encoder
from aleator.losses import ExactInfoNCE
from aleator.matching.kernels import VMFKernel
from aleator.training.loop import fit
from aleator.training.recipe import Recipe
from tests.training.training_cases import build, mean_kappa, pairs

RECIPE = Recipe(steps=12, optimiser="sgd", learning_rate=0.005, checkpoint_every=4, log_every=4)


def global_pairs(step, generator, rank=0, processes=1):
    """This process's share of the one batch that all of them see at this step."""
    shared = torch.Generator().manual_seed(step)
    return tuple(torch.rand(8, 4, generator=shared).chunk(processes)[rank] for _ in range(2))


def soft_batch(step, generator, rank=None):
    """One process's half of eight items with match weights; for one process all of them, compared within each half."""
    shared = torch.Generator().manual_seed(step)
    items, targets = torch.rand(8, 4, generator=shared), torch.rand(8, 8, generator=shared)
    if rank is None:
        half = torch.arange(8) // 4
        return SoftBatch(items, targets, half[:, None] == half)
    part = slice(4 * rank, 4 * rank + 4)
    return SoftBatch(items[part], targets[part, part])


def plain_run(batches=global_pairs, modes=1):
    torch.manual_seed(1)
    encoder = Encoder(MLP(4, (8,)), 3, kappa="head", kappa_hidden=(6,), modes=modes)
    loss = ExactInfoNCE(VMFKernel(20.0, requires_grad=True))  # negatives: the anchors of all processes
    fit(encoder, loss, batches, RECIPE, device="cpu")
    return weights(encoder, loss)


def weights(encoder, loss):
    return {
        **encoder.state_dict(),
        **{f"loss.{name}": value.detach() for name, value in loss.state_dict().items()},
    }


def main(folder: Path) -> None:
    torch.set_num_threads(1)

    def share(step, generator):
        return global_pairs(step, generator, torch.distributed.get_rank(), 2)

    def soft_share(step, generator):
        return soft_batch(step, generator, torch.distributed.get_rank())

    results = {"plain": plain_run(share), "soft": plain_run(soft_share), "modes": plain_run(share, 2)}

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
