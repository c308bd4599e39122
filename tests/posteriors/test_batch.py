"""Batches of posteriors: mu and kappa follow the same operation on a tensor, and so do their gradients."""

import copy
import math

import pytest
import torch

from aleator import VonMisesFisher
from tests.posteriors.mixture_cases import mixture


def posteriors(*shape: int, dim: int = 3, seed: int = 0, validate_args: bool | None = None) -> VonMisesFisher:
    """Leaves of a graph, so that gradients can be asked for."""
    generator = torch.Generator().manual_seed(seed)
    mu = torch.nn.functional.normalize(torch.randn(*shape, dim, generator=generator, dtype=torch.float64), dim=-1)
    kappa = torch.rand(shape, generator=generator, dtype=torch.float64) * 10
    return VonMisesFisher(mu.requires_grad_(), kappa.requires_grad_(), validate_args)


PICKED = torch.tensor([3, 0, 3])
# name -> (the operation on posteriors or on kappa, the same on mu, whose dimensions count one more from the end)
SAME_ON_BOTH = {
    "reshape": (lambda x: x.reshape(2, 10), lambda mu: mu.reshape(2, 10, 3)),
    "reshape by a sequence": (lambda x: x.reshape((5, 4)), lambda mu: mu.reshape(5, 4, 3)),
    "reshape by -1": (lambda x: x.reshape(-1), lambda mu: mu.reshape(20, 3)),
    "reshape with -1": (lambda x: x.reshape(2, -1, 1), lambda mu: mu.reshape(2, 10, 1, 3)),
    "unsqueeze first": (lambda x: x.unsqueeze(0), lambda mu: mu.unsqueeze(0)),
    "unsqueeze middle": (lambda x: x.unsqueeze(1), lambda mu: mu.unsqueeze(1)),
    "unsqueeze last": (lambda x: x.unsqueeze(-1), lambda mu: mu.unsqueeze(-2)),
    "unsqueeze negative": (lambda x: x.unsqueeze(-2), lambda mu: mu.unsqueeze(-3)),
    "flatten": (lambda x: x.flatten(), lambda mu: mu.flatten(0, 1)),
    "flatten negative": (lambda x: x.flatten(-2, -1), lambda mu: mu.flatten(-3, -2)),
    "flatten one": (lambda x: x.flatten(1), lambda mu: mu.flatten(1, 1)),
    "unflatten": (lambda x: x.unflatten(0, (2, -1)), lambda mu: mu.unflatten(0, (2, -1))),
    "unflatten negative": (lambda x: x.unflatten(-1, (5, 1)), lambda mu: mu.unflatten(-2, (5, 1))),
    "split": (lambda x: x.split((1, 3))[1], lambda mu: mu.split((1, 3))[1]),
    "split evenly": (lambda x: x.split(2, 1)[2], lambda mu: mu.split(2, 1)[2]),
    "split negative": (lambda x: x.split((4, 1), -1)[0], lambda mu: mu.split((4, 1), -2)[0]),
    "index_select": (lambda x: x.index_select(0, PICKED), lambda mu: mu.index_select(0, PICKED)),
    "index_select negative": (lambda x: x.index_select(-1, PICKED), lambda mu: mu.index_select(-2, PICKED)),
    "roll": (lambda x: x.roll(1, 0), lambda mu: mu.roll(1, 0)),
    "roll negative": (lambda x: x.roll(-2, -1), lambda mu: mu.roll(-2, -2)),
    "index": (lambda x: x[1:, None, 2], lambda mu: mu[1:, None, 2]),
    "index with an ellipsis": (lambda x: x[..., 2:], lambda mu: mu[:, 2:]),
    "float": (lambda x: x.float(), lambda mu: mu.float()),
    "double": (lambda x: x.double(), lambda mu: mu),
    "cpu": (lambda x: x.cpu(), lambda mu: mu),
    "to a dtype": (lambda x: x.to(torch.float32), lambda mu: mu.float()),
    "to a device": (lambda x: x.to("cpu"), lambda mu: mu),
    "to a device and a dtype": (lambda x: x.to("cpu", torch.float32), lambda mu: mu.float()),
    "to a tensor": (lambda x: x.to(torch.zeros(1), non_blocking=True), lambda mu: mu.float()),
    "to with keywords": (lambda x: x.to(dtype=torch.float32, copy=True), lambda mu: mu.float()),
}


@pytest.mark.parametrize("validate_args", [True, False])
@pytest.mark.parametrize("case", SAME_ON_BOTH)
def test_the_same_operation_on_mu_and_kappa(case, validate_args):
    on_batch, on_mu = SAME_ON_BOTH[case]
    q = posteriors(4, 5, validate_args=validate_args)
    derived = on_batch(q)
    kappa, mu = on_batch(q.kappa), on_mu(q.mu)
    assert isinstance(derived, VonMisesFisher)
    assert torch.equal(derived.kappa, kappa)
    assert torch.equal(derived.mu, mu)
    assert derived.kappa.dtype == derived.mu.dtype == kappa.dtype
    assert derived.batch_shape == kappa.shape
    assert derived.event_shape == (3,)
    assert derived.dim == 3
    assert derived._validate_args is validate_args
    weight = torch.linspace(1, 2, mu.numel(), dtype=mu.dtype).view(mu.shape)
    ours = torch.autograd.grad((weight * derived.mu).sum() + (weight[..., 0] * derived.kappa).sum(), (q.mu, q.kappa))
    expected = torch.autograd.grad((weight * mu).sum() + (weight[..., 0] * kappa).sum(), (q.mu, q.kappa))
    assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))


def test_detach():
    q = posteriors(4)
    detached = q.detach()
    assert q.mu.requires_grad
    assert not detached.mu.requires_grad
    assert not detached.kappa.requires_grad
    assert detached.mu.data_ptr() == q.mu.data_ptr()
    assert not detached.rsample().requires_grad


def test_expand_repeats_without_a_copy():
    q = posteriors(4, 1)
    for shape, expected in (((4, 5), (4, 5)), ((2, 4, 3), (2, 4, 3)), ((-1, 6), (4, 6))):
        wide = q.expand(shape)
        assert wide.batch_shape == expected
        assert wide.mu.shape == (*expected, 3)
        assert wide.mu.data_ptr() == q.mu.data_ptr()


def test_a_single_posterior():
    q = posteriors()
    assert q.batch_shape == ()
    for batch in (q.flatten(), q.reshape(1), q.unsqueeze(0), q.unsqueeze(-1), q[None]):
        assert batch.batch_shape == (1,)
        assert batch.mu.shape == (1, 3)
    assert q.unsqueeze(0).reshape(()).mu.shape == (3,)


def test_no_posteriors():
    q = posteriors(0, 4)
    assert q.flatten().mu.shape == (0, 3)
    assert q.unsqueeze(-1).mu.shape == (0, 4, 1, 3)
    assert VonMisesFisher.cat([q, posteriors(2, 4)]).batch_shape == (2, 4)


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
def test_cat(dim):
    a, b = posteriors(2, 3), posteriors(2, 3, seed=1)
    joined = VonMisesFisher.cat([a, b[:1] if dim in (0, -2) else b[:, :1]], dim)
    assert joined.batch_shape == ((3, 3) if dim in (0, -2) else (2, 4))
    place = (slice(0, 2), slice(0, 3))
    assert torch.equal(joined.mu[place], a.mu)
    assert torch.equal(joined.kappa[place], a.kappa)
    assert torch.equal(joined[-1, -1].mu, (b[0, 2] if dim in (0, -2) else b[1, 0]).mu)
    grads = torch.autograd.grad(joined.mu.sum() + 2 * joined.kappa.sum(), (a.mu, a.kappa))
    assert all((g == value).all() for g, value in zip(grads, (1, 2), strict=True))


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_stack(dim):
    parts = [posteriors(2, 3, seed=seed) for seed in range(4)]
    joined = VonMisesFisher.stack(parts, dim)
    assert torch.equal(joined.kappa, torch.stack([q.kappa for q in parts], dim))
    assert torch.equal(joined.mu, torch.stack([q.mu for q in parts], dim if dim >= 0 else dim - 1))
    single = VonMisesFisher.stack([posteriors(), posteriors(seed=1)])
    assert single.batch_shape == (2,)


@pytest.mark.parametrize("join", [VonMisesFisher.cat, VonMisesFisher.stack])
def test_a_joined_batch_checks_its_inputs_if_one_part_does(join):
    checked, unchecked = posteriors(2, validate_args=True), posteriors(2, validate_args=False)
    assert join([unchecked, checked])._validate_args
    assert not join([unchecked, unchecked])._validate_args


def test_scale_kappa():
    q = posteriors(2, 3)
    twice = q.scale_kappa(2.0)
    assert twice.mu is q.mu
    assert torch.equal(twice.kappa, q.kappa * 2.0)
    factor = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64, requires_grad=True)
    each = q.scale_kappa(factor)
    assert torch.equal(each.kappa, q.kappa * factor)
    (grad,) = torch.autograd.grad(each.kappa.sum(), factor)
    assert torch.equal(grad, q.kappa.detach().sum(0))


@pytest.mark.parametrize("shape", [(3,), (2, 1), (2, 3), (4, 2, 3), (4, 1, 1)])
def test_scale_kappa_with_a_factor_of_another_shape(shape):
    """Each posterior of the wider batch is the same as when it is scaled alone."""
    for q in (posteriors(2, 3), mixture(2, 3, modes=2)):
        factor = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        scaled = q.scale_kappa(factor)
        batch = torch.broadcast_shapes(shape, (2, 3))
        assert scaled.batch_shape == batch
        factor, wide = factor.expand(batch), q.expand(batch)
        for i in torch.cartesian_prod(*map(torch.arange, batch)).tolist():
            one = wide[tuple(i)].scale_kappa(factor[tuple(i)].item())
            for ours, expected in zip(scaled[tuple(i)]._tensors(), one._tensors(), strict=True):
                torch.testing.assert_close(ours, expected)
        assert scaled.rsample().shape == (*batch, q.dim)


def test_scale_kappa_keeps_the_dtype():
    q = posteriors(2).float()
    assert q.scale_kappa(torch.ones(2, dtype=torch.float64)).kappa.dtype == torch.float32
    assert q[0].scale_kappa(torch.tensor(2.0, dtype=torch.float64)).kappa.dtype == torch.float32


def test_rotate():
    q = posteriors(2, 4, dim=5)
    rotation = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    turned = q.rotate(rotation)
    assert torch.equal(turned.mu, q.mu @ rotation)
    assert turned.kappa is q.kappa
    torch.testing.assert_close(turned.log_prob((q.mu @ rotation).detach()), q.log_prob(q.mu.detach()))


def test_values_and_gradients_pass_through_a_chain_of_operations():
    q = posteriors(4, 6)
    z = torch.nn.functional.normalize(torch.ones(3, dtype=torch.float64), dim=0)
    direct = torch.autograd.grad(q.log_prob(z).sum(), (q.mu, q.kappa))
    chain = VonMisesFisher.cat(q.flatten().unflatten(0, (2, 12)).unsqueeze(1).split(1)).reshape(-1)
    assert torch.equal(chain.log_prob(z), q.log_prob(z).flatten())
    ours = torch.autograd.grad(chain.log_prob(z).sum(), (q.mu, q.kappa))
    assert all(torch.equal(a, b) for a, b in zip(ours, direct, strict=True))


def test_a_derived_posterior_is_not_checked_again():
    """No operation reads values, which would wait for the device: all work on meta tensors, which have none."""
    q = VonMisesFisher(torch.empty(4, 5, 3, device="meta"), torch.empty(4, 5, device="meta"), validate_args=False)
    for name, (operation, _) in SAME_ON_BOTH.items():
        if name != "cpu" and not name.startswith("to a"):
            assert operation(q).mu.is_meta
    VonMisesFisher.stack([q.detach(), q.scale_kappa(2.0), q.rotate(torch.empty(3, 3, device="meta"))])
    bad = VonMisesFisher(torch.full((4, 3), 7.0), torch.full((4,), math.nan), validate_args=False)
    assert bad.reshape(2, 2)[0].unsqueeze(0).double().batch_shape == (1, 2)


def test_a_part_keeps_the_checks_of_its_source():
    q = posteriors(4, validate_args=True)
    with pytest.raises(ValueError, match=r"value = 2\.0"):
        q[0].log_prob(torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64))
    posteriors(4, validate_args=False)[0].log_prob(torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64))


def test_a_copy_is_whole():
    q = copy.deepcopy(posteriors(4).detach()[1:])
    assert q.rsample((2,)).shape == (2, 3, 3)


BAD_INPUT = {
    "integers": (lambda: posteriors(2).to(torch.int64), ("mu = torch.int64", "float32")),
    "half precision": (lambda: posteriors(2).to(torch.float16), ("mu = torch.float16",)),
    "nothing to join": (lambda: VonMisesFisher.cat([]), ("posteriors", "at least one")),
    "two dimensions D": (lambda: VonMisesFisher.cat([posteriors(2), posteriors(2, dim=4)]), ("dimension 4", "3")),
    "no batch dimension": (lambda: VonMisesFisher.cat([posteriors(), posteriors()]), ("stack",)),
    "a negative factor": (lambda: posteriors(2).scale_kappa(-1.0), ("factor = -1.0",)),
    "a factor of NaN": (lambda: posteriors(2).scale_kappa(math.nan), ("factor = nan",)),
    "a factor that does not fit": (
        lambda: posteriors(2, 3).scale_kappa(torch.ones(2)),
        (r"factor = \(2,\)", r"does not broadcast with the batch shape \(2, 3\)", "one for each posterior"),
    ),
    "a factor for each component": (
        lambda: mixture(3, modes=2).scale_kappa(torch.ones(3, 2)),
        (r"factor = \(3, 2\)", r"does not broadcast with the batch shape \(3,\)"),
    ),
    "no rotation": (lambda: posteriors(2).rotate(2 * torch.eye(3, dtype=torch.float64)), ("rotation", "orthogonal")),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input(case):
    call, words = BAD_INPUT[case]
    with pytest.raises(ValueError) as caught:
        call()
    for word in words:
        caught.match(word)
