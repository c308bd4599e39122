"""Two processes, each with half of a batch, against one process with the whole: the same loss, the same gradients."""

import math
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F

from aleator import ELK, HIB, AcceptanceKernel, ExactInfoNCE, InfoNCE, MCInfoNCE, VMFKernel, VonMisesFisher
from aleator.foundation.distributed import LaunchedProcess, launched_process, process_group
from tests.ranks import run_ranks

BATCH, DIM, NEGATIVES, SAMPLES = 8, 4, 3, 5
LOSSES = {
    "InfoNCE": partial(InfoNCE, 20.0, requires_grad=True),
    "ExactInfoNCE": lambda: ExactInfoNCE(VMFKernel(20.0, requires_grad=True)),
    "ExactInfoNCE, acceptance": lambda: ExactInfoNCE(AcceptanceKernel(20.0)),
    "ELK": partial(ELK, 3.0, requires_grad=True),
    "MCInfoNCE": lambda: MCInfoNCE(VMFKernel(20.0, requires_grad=True), SAMPLES),
    "HIB": partial(HIB, 2.0, -0.5, SAMPLES, requires_grad=True),
}


def evaluate(name: str, in_batch: bool, part: slice) -> tuple[torch.Tensor, ...]:
    """The loss of a part of the batch; gradients in mu, kappa of its anchors and positives, and in the loss's own."""
    torch.manual_seed(0)
    mus = [F.normalize(torch.randn(*shape, DIM), dim=-1) for shape in ((BATCH,), (BATCH,), (BATCH, NEGATIVES))]
    kappas = [torch.empty(mu.shape[:-1]).uniform_(2, 50) for mu in mus]
    noise = [torch.randn(SAMPLES, *mu.shape) for mu in mus]
    leaves = [x[part].clone().requires_grad_() for pair in zip(mus, kappas, strict=True) for x in pair]
    q = [VonMisesFisher(mu, kappa) for mu, kappa in zip(leaves[::2], leaves[1::2], strict=True)]
    loss = LOSSES[name]()
    options = {}
    if isinstance(loss, MCInfoNCE | HIB):
        options["noise"] = (*(n[:, part] for n in noise[:2]), None if in_batch else noise[2][:, part])
    value = loss(q[0], q[1], None if in_batch else q[2], **options)
    value.backward()
    grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves]
    return value.detach(), *grads, *(p.grad for p in loss.parameters() if p.requires_grad)


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    half = slice(rank * BATCH // 2, (rank + 1) * BATCH // 2)
    results = {}
    for name in LOSSES:
        for in_batch in (True, False):
            results[name, in_batch] = evaluate(name, in_batch, half)
    uneven = VonMisesFisher(F.normalize(torch.randn(2 + rank, DIM), dim=-1), torch.ones(2 + rank))
    try:
        ExactInfoNCE()(uneven, uneven)
    except ValueError as error:
        results["uneven"] = str(error)
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def halves(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("gathering")
    run_ranks(work, str(folder), 2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("in_batch", [True, False])
@pytest.mark.parametrize("name", LOSSES)
def test_two_processes_equal_one(halves, name, in_batch):
    whole = evaluate(name, in_batch, slice(None))
    first, second = (half[name, in_batch] for half in halves)
    torch.testing.assert_close((first[0] + second[0]) / 2, whole[0], rtol=1e-5, atol=1e-5)
    # Leaves are split between the processes; each half holds half of the mean's weight, as DDP's average gives it.
    for a, b, together in zip(first[1:7], second[1:7], whole[1:7], strict=True):
        torch.testing.assert_close(torch.cat([a, b]) / 2, together, rtol=1e-4, atol=1e-5)
    for a, b, together in zip(first[7:], second[7:], whole[7:], strict=True):
        torch.testing.assert_close((a + b) / 2, together, rtol=1e-4, atol=1e-5)


def test_the_gather_matters(halves):
    """Without the other process's anchors the loss would differ: there would be fewer negatives."""
    whole = evaluate("ExactInfoNCE", True, slice(None))[0]
    alone = evaluate("ExactInfoNCE", True, slice(0, BATCH // 2))[0]
    assert math.isfinite(alone)
    assert abs(alone - halves[0]["ExactInfoNCE", True][0]) > 1e-3
    assert abs(alone - whole) > 1e-3


def test_without_torchrun_there_is_one_process(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert launched_process() == LaunchedProcess(0, 1, 0, 1)
    assert launched_process().first
    with process_group() as group:
        assert (group.rank, group.count, group.first) == (0, 1, True)
        group.wait()
        assert not dist.is_initialized()


def test_torchruns_environment_is_read(monkeypatch):
    for name, value in {"RANK": 5, "WORLD_SIZE": 8, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 4}.items():
        monkeypatch.setenv(name, str(value))
    assert launched_process() == LaunchedProcess(rank=5, count=8, local_rank=1, local_count=4)
    assert not launched_process().first
    monkeypatch.delenv("LOCAL_WORLD_SIZE")  # a launcher other than torchrun: all on one machine
    assert launched_process().local_count == 8


def test_unequal_batches_are_refused(halves):
    for half in halves:
        assert "equal batches on every process" in half["uneven"]
