"""Beyond the usual sizes: right, or refused with the reason."""

import copy
import logging
import math
import os
import pickle
import random

import mpmath
import pytest
import torch

import aleator as al
from aleator import VonMisesFisher
from aleator.matching import positivity

F64 = torch.float64
NIGHTLY = int(os.environ.get("ALEATOR_NUMERICS", "100"))  # random sizes that `make test-all` tries


def log_normaliser(dim, kappa):
    """log of the density's constant, in forty digits."""
    half = mpmath.mpf(dim) / 2
    if kappa == 0:
        return mpmath.loggamma(half) - mpmath.log(2) - half * mpmath.log(mpmath.pi)
    bessel = mpmath.log(mpmath.besseli(half - 1, kappa))
    return (half - 1) * mpmath.log(kappa) - half * mpmath.log(2 * mpmath.pi) - bessel


def near(mu, distance):
    other = mu + distance * torch.nn.functional.normalize(torch.randn(len(mu), dtype=F64), dim=0)
    return torch.nn.functional.normalize(other, dim=0)


@pytest.mark.parametrize(
    ("dim", "kappa", "kappa_pos"),
    [(3, 1e8, 1.0), (10, 1e-6, 1e4), (10, 1e8, 1e3), (512, 1e8, 100.0), (5000, 1e8, 100.0), (5000, 1e3, 100.0)],
)
def test_positivity_against_a_point_in_closed_form(dim, kappa, kappa_pos):
    """E g(z.mu') of z ~ vMF(mu, kappa) is a ratio of normalisers, of |kappa mu + kappa_pos mu'|."""
    mu = torch.nn.functional.normalize(torch.randn(dim, dtype=F64), dim=0)
    other = near(mu, 0.2)
    q, point = (VonMisesFisher(m, torch.tensor(k, dtype=F64)) for m, k in ((mu, kappa), (other, math.inf)))
    found = al.log_positivity(q, point, al.VMFKernel(kappa_pos)).item()
    with mpmath.workdps(40):
        cosine = mpmath.fdot(map(mpmath.mpf, mu.tolist()), map(mpmath.mpf, other.tolist()))
        k, p = mpmath.mpf(kappa), mpmath.mpf(kappa_pos)
        both = mpmath.sqrt(k**2 + p**2 + 2 * k * p * cosine)
        wanted = log_normaliser(dim, k) - log_normaliser(dim, both) - log_normaliser(dim, 0) + log_normaliser(dim, p)
        assert abs(found - wanted) <= 1e-9 * max(1, abs(wanted))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [2, 100, 5000])
def test_density_entropy_and_loss_are_finite_with_gradients(dim, dtype):
    mu = torch.nn.functional.normalize(torch.randn(4, dim, dtype=dtype), dim=-1)
    kappa = torch.tensor([0.0, 1e-6, 1e3, 1e8], dtype=dtype, requires_grad=True)
    q = VonMisesFisher(mu, kappa)
    total = q.entropy().sum() + q.log_prob(mu).sum() + al.ExactInfoNCE(al.VMFKernel(50.0))(q, q)
    total.backward()
    assert torch.isfinite(total)
    assert torch.isfinite(kappa.grad).all()


def exact_log_r(dim, kappa, kappa_pos, mu, other):
    """log r of vMF(mu, kappa) and the point `other` in forty digits, and how far it is below its maximum."""
    with mpmath.workdps(40):
        cosine = mpmath.fdot(map(mpmath.mpf, mu.tolist()), map(mpmath.mpf, other.tolist()))
        k, p = mpmath.mpf(kappa), mpmath.mpf(kappa_pos)
        before = log_normaliser(dim, k) - log_normaliser(dim, 0) + log_normaliser(dim, p)
        here, top = (before - log_normaliser(dim, mpmath.sqrt(k**2 + p**2 + 2 * k * p * c)) for c in (cosine, 1))
        return here, float(top - here)


def check_random_size(draw: random.Random, most_dim: int) -> bool:
    """log r and a loss at a random size against mpmath; False if the kernel was refused."""
    dim = round(math.exp(draw.uniform(math.log(2), math.log(most_dim))))
    kappa, kappa_pos = 10 ** draw.uniform(-6, 8), 10 ** draw.uniform(-2, 4)
    dtype = draw.choice([torch.float32, F64])
    kappa = torch.tensor(kappa, dtype=dtype)
    torch.manual_seed(draw.randrange(10**6))
    mu = torch.nn.functional.normalize(torch.randn(dim, dtype=F64), dim=0).to(dtype)
    steepness = kappa.item() * kappa_pos / (kappa.item() + kappa_pos)
    size = f"dim {dim}, kappa {kappa:g}, kappa_pos {kappa_pos:g}, {dtype}"
    found, wanted, drops = [], [], []
    for _ in range(2):  # a positive and a negative; from the mode down to about 40 below it
        other = near(mu.double(), math.sqrt(2 * draw.uniform(0, 40) / max(steepness, 40))).to(dtype)
        try:
            point = VonMisesFisher(other, torch.tensor(math.inf, dtype=dtype))
            found.append((al.log_positivity(VonMisesFisher(mu, kappa), point, al.VMFKernel(kappa_pos)).item(), point))
        except ValueError as refusal:
            if "does not converge within" not in str(refusal):
                raise
            return False
        exact, drop = exact_log_r(dim, kappa.item(), kappa_pos, mu, other)
        wanted.append(float(exact))
        drops.append(drop)
    digits = 1e-7 if dtype == F64 else 2e-6
    limits = []
    for (value, _), exact, drop in zip(found, wanted, drops, strict=True):
        limit = digits * max(1.0, abs(exact), steepness if dtype == torch.float32 else 1.0)
        limit += 0.03 * (drop - 13) if drop > 13 else 0.0  # the tail, which is a straight line
        assert abs(value - exact) <= limit, f"{size}: {value}, not {exact}, {drop:.3g} below the maximum"
        limits.append(limit)
    anchor, positive, negative = (
        VonMisesFisher(q.mu[None], q.kappa[None]) for q in (VonMisesFisher(mu, kappa), found[0][1], found[1][1])
    )
    loss = al.ExactInfoNCE(al.VMFKernel(kappa_pos))(anchor, positive, negative[None]).item()
    exact = float(mpmath.log1p(mpmath.exp(wanted[1] - wanted[0])))
    assert abs(loss - exact) <= sum(limits) + digits, f"{size}: loss {loss}, not {exact}"
    return True


def test_a_few_random_sizes():
    draw = random.Random(0)
    assert sum(check_random_size(draw, 300) for _ in range(4)) >= 3


@pytest.mark.slow
def test_many_random_sizes():
    draw = random.Random(1)
    assert sum(check_random_size(draw, 5000) for _ in range(NIGHTLY)) >= 0.8 * NIGHTLY


@pytest.mark.slow
def test_a_kernel_that_is_too_steep_is_refused():
    q = VonMisesFisher.uniform(5000, (2,), dtype=F64)
    with pytest.raises(ValueError, match="does not converge within 4096 terms in 5000 dimensions; use a smoother"):
        al.log_positivity(q[0], q[1], al.VMFKernel(1e4))


def test_a_reach_that_is_exceeded_is_told_once(caplog, monkeypatch):
    monkeypatch.setattr(positivity, "_TOLD", set())
    q = VonMisesFisher(torch.eye(2, 64, dtype=F64), torch.tensor(1e8, dtype=F64))
    kernel = al.AcceptanceKernel(20.0)
    assert math.isfinite(kernel.reach(64))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            al.log_positivity(q[0], q[1], kernel)
    (told,) = caplog.records
    assert "counts as that" in told.getMessage()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda q: pickle.loads(pickle.dumps(q))])
def test_copies_are_the_same_distribution(copied):
    mu = torch.nn.functional.normalize(torch.randn(3, 4), dim=-1)
    one = VonMisesFisher(mu, torch.rand(3))
    for q in (one, al.VMFMixture(torch.zeros(1, 3), one[None])):
        again = copied(q)
        z = torch.eye(1, 4)
        assert torch.equal(again.log_prob(z), q.log_prob(z))
        assert again.batch_shape == q.batch_shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused_with_the_way_out(dtype):
    with pytest.raises(ValueError, match=r"expected a float32 or float64 tensor; pass mu\.float\(\)"):
        VonMisesFisher(torch.eye(2, dtype=dtype), torch.ones(2, dtype=dtype))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, in its own transforms
@pytest.mark.parametrize("transform", ["vmap", "grad", "jacrev", "jacfwd"])
def test_transforms_of_torch_func_are_refused_with_the_way_out(transform):
    mu, kappa = torch.eye(3), torch.tensor([1.0, 2.0, 3.0])

    def entropy(kappa):
        return VonMisesFisher(mu if kappa.dim() else mu[0], kappa).entropy().sum()

    call = torch.func.vmap(entropy) if transform == "vmap" else getattr(torch.func, transform)(entropy)
    with pytest.raises(ValueError, match=r"do not work inside torch\.func.*pass a batch in place of vmap"):
        call(kappa)


def test_tracing_by_torch_compile_is_refused_with_the_way_out(monkeypatch):
    q = VonMisesFisher(torch.eye(3), torch.ones(3))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    calls = (
        lambda: VonMisesFisher(torch.eye(3), torch.ones(3)),
        lambda: al.log_positivity(q, q, al.VMFKernel(20.0)),
        lambda: al.InfoNCE(5.0)(q, q),
    )
    for call in calls:
        with pytest.raises(ValueError, match=r"do not work inside torch\.compile.*compile the network"):
            call()


REFUSED = {
    "VonMisesFisher(q.mu, q.kappa).mu", "VonMisesFisher.fit(q.mu).kappa", "q.certainty", "q.mean", "q.log_normaliser",
    "q.log_prob(z)", "q.entropy()", "q.rsample((5,))", "q.cap(0.9)", "q.cap_probability(0.5)", "q.cap_angle(0.9)",
    "q.cap_angle_probability(0.5)", "q.region(0.9).contains(z)", "q.region_level(z)",
    "torch.distributions.kl_divergence(q, q)", "torch.distributions.kl_divergence(m, m)",
    "m.certainty", "m.mean", "m.mode", "m.log_prob(z)", "m.entropy_bounds()[0]", "m.entropy()", "m.rsample()",
    "m.weighted_rsample((5,))[0]", "m.closest_vmf().kappa", "m.region(0.9).contains(z)", "m.region_level(z)",
    "al.log_positivity(q, q, al.VMFKernel(20.0))", "al.ExactInfoNCE(al.VMFKernel(20.0))(q, q)", "al.InfoNCE(5.0)(q, q)",
}  # fmt: skip
RIGHT = {
    "q.pool().kappa", "q.scale_kappa(2.0).kappa", "q.rotate(torch.eye(3).flip(0)).mu", "q[1:].mu", "q.double().kappa",
    "VonMisesFisher.cat([q, q]).mu", "al.VMFMixture(torch.zeros(1, 3), q[None]).weights", "m[0].weights",
    "m.scale_kappa(2.0).components.kappa", "m.detach_kappa().weights",
}  # fmt: skip
QUICK = {"q.entropy()", "q[1:].mu"}


@pytest.mark.filterwarnings("ignore")  # of torch, while it traces
@pytest.mark.parametrize(
    "code",
    [pytest.param(code, marks=() if code in QUICK else pytest.mark.slow) for code in sorted(REFUSED | RIGHT)],
)
def test_compiled_methods_are_right_or_refused_each_time(code):
    """Twice the same compiled function, and once a new one. The eager backend traces as all others do."""
    q = VonMisesFisher(torch.eye(3), torch.tensor([1.0, 2.0, 3.0]))
    m, z = al.VMFMixture(torch.zeros(1, 3), q[None]), torch.eye(1, 3)
    call = eval(f"lambda q, m, z: {code}", {"torch": torch, "al": al, "VonMisesFisher": VonMisesFisher})
    expected = call(q, m, z)
    try:
        first, new = (torch.compile(call, backend="eager") for _ in range(2))
        for compiled in (first, first, new):
            if code in RIGHT:
                torch.testing.assert_close(compiled(q, m, z), expected)
                continue
            with pytest.raises(ValueError, match=r"do not work inside torch\.compile.*compile the network"):
                compiled(q, m, z)
        call(q, m, z)  # and without torch.compile it works as before
    finally:
        torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch, while it traces
def test_a_full_graph_is_refused_with_our_reason():
    q = VonMisesFisher(torch.eye(3), torch.ones(3))
    try:
        with pytest.raises(Exception, match=r"do not work inside torch\.compile.*compile the network"):
            torch.compile(lambda q: q.entropy(), backend="eager", fullgraph=True)(q)
    finally:
        torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch, while it traces
def test_a_compiled_backbone_works():
    encoder, x = al.Encoder(torch.nn.Linear(2, 8), 3), torch.randn(4, 2)
    expected = encoder(x).mu
    try:
        encoder.backbone = torch.compile(encoder.backbone, backend="eager")
        torch.testing.assert_close(encoder(x).mu, expected)
    finally:
        torch.compiler.reset()


@pytest.mark.parametrize("dim", [2, 3, 64, 1024])
def test_certainty_of_tiny_kappas(dim):
    """2 log C(kappa) - log C(2 kappa) - log C(0): a difference that float64 would lose."""
    kappa = torch.tensor([1e-12, 1e-9, 1e-6, 1e-4 * dim, 0.99e-3 * dim, 1.01e-3 * dim, 0.1 * dim], dtype=F64)
    found = VonMisesFisher(torch.eye(dim, dtype=F64)[0], kappa).certainty
    with mpmath.workdps(60):
        wanted = [
            2 * log_normaliser(dim, mpmath.mpf(k)) - log_normaliser(dim, mpmath.mpf(2 * k)) - log_normaliser(dim, 0)
            for k in kappa.tolist()
        ]
        torch.testing.assert_close(found, torch.tensor([float(w) for w in wanted], dtype=F64), rtol=3e-9, atol=0)
    assert (found.diff() > 0).all()
