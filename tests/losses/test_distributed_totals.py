"""Negatives of all processes, part by part: equal to one table of all pairs, in values and gradients."""

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F

from aleator import ELK, AcceptanceKernel, ExactInfoNCE, InfoNCE, VMFKernel, VMFMixture, VonMisesFisher
from aleator.losses import similarity
from aleator.losses.distributed_totals import log_totals_in_parts
from tests.ranks import run_ranks

PROCESSES, BATCH, DIM = 3, 5, 4
LOSSES = {
    "InfoNCE": partial(InfoNCE, 5.0, requires_grad=True),
    "ELK": partial(ELK, 3.0, requires_grad=True),
    "exact": lambda: ExactInfoNCE(VMFKernel(20.0, requires_grad=True)),
    "exact, acceptance": lambda: ExactInfoNCE(AcceptanceKernel(8.0)),
    "exact, too steep for tiles": lambda: ExactInfoNCE(VMFKernel(200.0, requires_grad=True)),
}


def evaluate(name: str, modes: int, batch: int, part: slice) -> list[torch.Tensor]:
    """Loss of a part of the batch, gradients in its anchors, gradients in the loss's own parameters."""
    torch.manual_seed(0)
    shape = (batch, modes) if modes > 1 else (batch,)
    mu = F.normalize(torch.randn(*shape, DIM, dtype=torch.float64), dim=-1)
    leaves = [x[part].clone().requires_grad_() for x in (mu, 2 + 40 * torch.rand(shape).double(), torch.randn(shape))]
    anchor = VonMisesFisher(*leaves[:2])
    if modes > 1:
        anchor = VMFMixture(leaves[2].double(), anchor)
    loss = LOSSES[name]()
    value = loss(anchor, anchor.map_tensors(torch.Tensor.detach))
    learned = [p for p in loss.parameters() if p.requires_grad]
    inputs = [*leaves, *learned]
    gradients = torch.autograd.grad(value, inputs, allow_unused=True)
    return [value.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip(inputs, gradients, strict=True))]


CASES = [(name, 1, PROCESSES * BATCH) for name in LOSSES]
CASES += [("exact", 2, PROCESSES * BATCH), ("exact", 1, PROCESSES), ("InfoNCE", 1, PROCESSES)]  # one anchor for each


def nothing_is_gathered(*arguments):
    raise AssertionError("a batch of all processes was gathered")


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=PROCESSES)
    dist.all_gather = nothing_is_gathered
    similarity.PAIRS = 2 * BATCH  # two rows in a part
    results = []
    for name, modes, batch in CASES:
        size = batch // PROCESSES
        results.append(evaluate(name, modes, batch, slice(rank * size, (rank + 1) * size)))
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def shares(tmp_path_factory) -> list[list]:
    folder = tmp_path_factory.mktemp("ring")
    run_ranks(work, str(folder), PROCESSES)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(PROCESSES)]


@pytest.mark.parametrize("case", range(len(CASES)), ids=str)
def test_three_processes_equal_one(shares, case):
    whole = evaluate(*CASES[case], slice(None))
    parts = list(zip(*(share[case] for share in shares), strict=True))
    for index, (together, pieces) in enumerate(zip(whole, parts, strict=True)):
        # Anchors are split between the processes; the loss and its parameters belong to all. The loss is a mean.
        joined = torch.cat(pieces) / PROCESSES if 1 <= index <= 3 else sum(pieces) / PROCESSES
        torch.testing.assert_close(joined, together, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("rows", [1, 3, 100])
def test_parts_equal_the_table(name, rows):
    torch.manual_seed(0)
    mu = F.normalize(torch.randn(7, DIM, dtype=torch.float64), dim=-1).requires_grad_()
    kappa = (1 + 30 * torch.rand(7, dtype=torch.float64)).requires_grad_()
    anchor, loss = VonMisesFisher(mu, kappa), LOSSES[name]()
    learned = [p for p in loss.parameters() if p.requires_grad]
    table = loss.similarity(anchor[:, None], anchor[None, :])
    expected = table.masked_fill(torch.eye(7, dtype=torch.bool), -torch.inf).logsumexp(1)
    totals = log_totals_in_parts(anchor, loss._part_of_table, rows, learned)
    torch.testing.assert_close(totals, expected)
    weight, inputs = torch.randn(7, dtype=torch.float64), [mu, kappa, *learned]
    pair = (torch.autograd.grad((weight * x).sum(), inputs, allow_unused=True) for x in (totals, expected))
    for ours, twin in zip(*pair, strict=True):
        torch.testing.assert_close(ours, twin)


@pytest.mark.parametrize("name", ["InfoNCE", "ELK"])
def test_a_large_batch_of_one_process_goes_part_by_part(name, monkeypatch):
    whole = evaluate(name, 1, 12, slice(None))
    monkeypatch.setattr(similarity, "LARGEST_TABLE", 100)
    monkeypatch.setattr(similarity, "PAIRS", 40)
    rows, of_table = [], similarity.SimilarityLoss._part_of_table

    def counted(loss, q, *rest):
        rows.append(len(q))
        return of_table(loss, q, *rest)

    monkeypatch.setattr(similarity.SimilarityLoss, "_part_of_table", counted)
    torch.testing.assert_close(evaluate(name, 1, 12, slice(None)), whole)
    assert rows == [3] * 8  # four parts, forward and backward
