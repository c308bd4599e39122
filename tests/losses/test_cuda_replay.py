"""A loss that is replayed from a recording has the value and the gradients of the plain one."""

import pytest
import torch
from torch.nn import functional as F

from aleator import AcceptanceKernel, ExactInfoNCE, VMFKernel, VMFMixture, VonMisesFisher
from aleator.losses import cuda_replay

KERNELS = {"vmf": VMFKernel, "acceptance": AcceptanceKernel}


def leaves(batch: int, dim: int = 8, device: str = "cuda") -> list[torch.Tensor]:
    mu, near = (F.normalize(torch.randn(batch, dim), dim=-1) for _ in range(2))
    kappas = (torch.empty(batch).uniform_(5.0, 100.0) for _ in range(2))
    return [x.to(device).requires_grad_() for x in (mu, next(kappas), near, next(kappas))]


def posteriors(tensors: list[torch.Tensor]) -> list[VonMisesFisher]:
    return [
        VonMisesFisher(mu, kappa, validate_args=False) for mu, kappa in zip(tensors[::2], tensors[1::2], strict=True)
    ]


def with_gradients(loss: torch.nn.Module, tensors: list[torch.Tensor], scale: float = 1.0) -> list[torch.Tensor]:
    value = loss(*posteriors(tensors))
    return [value.detach(), *torch.autograd.grad(scale * value, tensors)]


def plain(loss: ExactInfoNCE, tensors: list[torch.Tensor], scale: float = 1.0) -> list[torch.Tensor]:
    anchor, positive, *negative = posteriors(tensors)
    value = loss.per_anchor(anchor, positive, negative[0] if negative else None).mean()
    return [value.detach(), *torch.autograd.grad(scale * value, tensors)]


@pytest.fixture(autouse=True)
def nothing_recorded():
    cuda_replay.forget_recordings()
    yield
    cuda_replay.forget_recordings()


def test_on_a_cpu_nothing_is_recorded():
    loss, tensors = ExactInfoNCE(), leaves(16, device="cpu")
    for _ in range(cuda_replay.ORDINARY + 2):
        loss(*posteriors(tensors)).backward()
    assert not cuda_replay._calls
    assert not cuda_replay._recordings


def test_counts_of_old_shapes_are_forgotten():
    for number in range(3 * cuda_replay._COUNTED):
        cuda_replay._count(number)
    assert len(cuda_replay._calls) == cuda_replay._COUNTED
    assert cuda_replay._count(3 * cuda_replay._COUNTED - 1) == 2
    assert cuda_replay._count(0) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", KERNELS)
def test_replays_equal_the_plain_loss(kernel):
    loss = ExactInfoNCE(KERNELS[kernel]())
    for call in range(cuda_replay.ORDINARY + 4):
        tensors = leaves(300, 16)
        torch.testing.assert_close(with_gradients(loss, tensors, 2.0), plain(loss, tensors, 2.0), rtol=0, atol=0)
        assert len(cuda_replay._recordings) == (call >= cuda_replay.ORDINARY)


@pytest.mark.gpu
def test_a_result_is_not_overwritten_by_the_next_replay():
    loss = ExactInfoNCE()
    for _ in range(cuda_replay.ORDINARY + 1):
        with_gradients(loss, leaves(64))
    batches = [leaves(64) for _ in range(3)]
    values = [loss(*posteriors(tensors)) for tensors in batches]  # three forward passes, then the backward passes
    for value, tensors in zip(values, batches, strict=True):
        found = [value.detach(), *torch.autograd.grad(value, tensors)]
        torch.testing.assert_close(found, plain(loss, tensors), rtol=0, atol=0)


@pytest.mark.gpu
def test_another_kernel_group_or_number_of_terms_is_another_recording():
    tensors = leaves(64)
    loss = ExactInfoNCE(VMFKernel(10.0))
    changes = [{}, {"kernel": VMFKernel(30.0)}, {"group": 16}, {"terms": 6}]
    for change in changes:
        for name, value in change.items():
            setattr(loss, name, value)
        for _ in range(cuda_replay.ORDINARY + 2):
            torch.testing.assert_close(with_gradients(loss, tensors), plain(loss, tensors), rtol=0, atol=0)
    assert len(cuda_replay._recordings) == len(changes)


@pytest.mark.gpu
def test_shared_negatives_are_recorded_too():
    loss, negative = ExactInfoNCE(), leaves(40)[:2]
    for _ in range(cuda_replay.ORDINARY + 2):
        tensors = [*leaves(32), *(x.detach().view(2, 20, *x.shape[1:]).requires_grad_() for x in negative)]
        torch.testing.assert_close(with_gradients(loss, tensors), plain(loss, tensors), rtol=0, atol=0)
    assert len(cuda_replay._recordings) == 1


@pytest.mark.gpu
def test_only_the_last_recordings_are_kept():
    loss = ExactInfoNCE()
    for batch in range(16, 16 + 2 * cuda_replay._KEPT):
        tensors = leaves(batch)
        for _ in range(cuda_replay.ORDINARY + 2):
            torch.testing.assert_close(with_gradients(loss, tensors), plain(loss, tensors), rtol=0, atol=0)
    assert len(cuda_replay._recordings) == cuda_replay._KEPT


@pytest.mark.gpu
def test_other_streams_wait_for_each_other():
    loss, streams = ExactInfoNCE(), [torch.cuda.Stream() for _ in range(2)]
    batches = [leaves(512, 64) for _ in range(12)]
    for tensors in batches[: cuda_replay.ORDINARY + 1]:
        with_gradients(loss, tensors)
    torch.cuda.synchronize()
    found = []
    for number, tensors in enumerate(batches):
        with torch.cuda.stream(streams[number % 2]):
            found.append(with_gradients(loss, tensors))
    torch.cuda.synchronize()
    for tensors, one in zip(batches, found, strict=True):
        torch.testing.assert_close(one, plain(loss, tensors), rtol=0, atol=0)


@pytest.mark.gpu
def test_what_cannot_be_recorded_is_computed_as_usual():
    tensors = leaves(32)
    double = [x.detach().double().requires_grad_() for x in tensors]
    weights = torch.zeros(32, 2, device="cuda")
    parts = VonMisesFisher(tensors[0][:, None].expand(-1, 2, -1), tensors[1][:, None].expand(-1, 2))
    mixture = VMFMixture(weights, parts)
    learned = ExactInfoNCE(VMFKernel(20.0, requires_grad=True)).cuda()

    class Twice(ExactInfoNCE):
        def per_anchor(self, anchor, positive, negative):
            return 2 * super().per_anchor(anchor, positive, negative)

    for _ in range(cuda_replay.ORDINARY + 2):
        ExactInfoNCE()(*posteriors(double)).backward()
        ExactInfoNCE()(mixture, mixture).backward()
        learned(*posteriors(tensors)).backward()
        Twice()(*posteriors(tensors)).backward()
        with torch.no_grad():
            ExactInfoNCE()(*posteriors(tensors))
    assert not cuda_replay._recordings


@pytest.mark.gpu
def test_a_graph_of_ones_own_holds_the_plain_loss():
    loss, tensors = ExactInfoNCE(), leaves(64)
    expected = plain(loss, tensors)
    for _ in range(cuda_replay.ORDINARY + 1):
        with_gradients(loss, tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = with_gradients(loss, tensors)
    graph.replay()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
