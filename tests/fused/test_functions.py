"""Fused functions against the plain functions that they replace, and CUDA graphs of a step against plain steps."""

import math

import pytest
import torch
from scipy import stats
from torch.nn import functional as F

from aleator import (
    ELK,
    HIB,
    AcceptanceKernel,
    ExactInfoNCE,
    GenerativeProcess,
    InfoNCE,
    MCInfoNCE,
    Recipe,
    VMFKernel,
    VonMisesFisher,
    controlled_encoder,
    fit,
)
from aleator.foundation.precision import matmul_precision
from aleator.fused import functions
from aleator.losses import sampled_cosines, softmax_share
from aleator.matching import series
from aleator.matching.positivity import log_positivity
from aleator.matching.zonal import ZonalKernel
from aleator.posteriors import sampling
from aleator.special import LEAST_DIM, angle_series, angles, bessel
from aleator.special.angles import angle_table
from aleator.special.polynomials import log_harmonic_dimensions

pytestmark = pytest.mark.gpu


def posteriors(*shape: int, dim: int, dtype: torch.dtype = torch.float64) -> VonMisesFisher:
    mu = F.normalize(torch.randn(*shape, dim, dtype=torch.float64), dim=-1)
    kappa = torch.exp(torch.empty(shape, dtype=torch.float64).uniform_(math.log(1e-3), math.log(1e6)))
    kappa.view(-1)[0], kappa.view(-1)[-1] = 0.0, math.inf
    return VonMisesFisher(mu.to("cuda", dtype), kappa.to("cuda", dtype), validate_args=False)


@pytest.mark.parametrize(
    ("samples", "negatives", "dim"), [(1, 1, 2), (100, 30, 3), (512, 33, 10), (33, 7, 64), (9, 2, 700)]
)
def test_sampled_cosines(samples, negatives, dim):
    q = posteriors(17, negatives, dim=dim, dtype=torch.float32)
    z = F.normalize(torch.randn(samples, 17, dim, device="cuda"), dim=-1)
    noise = sampled_cosines.draw_noise((samples, 17, negatives), dim, z)
    table = angle_series(dim, z.device) if dim >= LEAST_DIM else angle_table(dim, torch.float32, z.device)
    plain = sampled_cosines.plain_sampled_cosines(z, q.mu, q.kappa, noise, table, True)
    for name, ours, theirs in zip(
        ("cosine", "slope_c", "slope_kappa"),
        functions.fused_sampled_cosines(z, q.mu, q.kappa, noise, table, True),
        plain,
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4, msg=name)
    grad = torch.randn_like(plain[0])
    for needed in ((True, True), (True, False), (False, True)):
        for ours, theirs in zip(
            functions.fused_sampled_cosines_backward(grad, z, q.mu, *plain[1:], needed),
            sampled_cosines.plain_sampled_cosines_backward(grad, z, q.mu, *plain[1:], needed),
            strict=True,
        ):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dim", [2, 3, 10, 65])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_of_sampled_cosines(dim, dtype):
    """Noise drawn inside the fused function has the distribution of `draw_noise`, and differs from sample to sample."""
    q = VonMisesFisher(
        F.normalize(torch.ones(1, 4, dim, dtype=dtype, device="cuda"), dim=-1),
        torch.full((1, 4), 5.0, dtype=dtype, device="cuda"),
    )
    z = F.normalize(torch.arange(1.0, dim + 1, dtype=dtype, device="cuda"), dim=0).expand(50_000, 1, dim)
    cosines = sampled_cosines.sampled_cosines(z, q, torch.Generator("cuda").manual_seed(1))
    assert cosines.flatten().unique().numel() > 0.9 * cosines.numel()
    noise = sampled_cosines.draw_noise((50_000, 1, 4), dim, z)
    expected, *_ = sampled_cosines.plain_sampled_cosines(
        z, q.mu, q.kappa, noise, angle_table(dim, dtype, z.device), False
    )
    assert stats.ks_2samp(cosines.flatten().cpu().numpy(), expected.flatten().cpu().numpy()).pvalue > 1e-4
    again = sampled_cosines.sampled_cosines(z, q, torch.Generator("cuda").manual_seed(1))
    assert torch.equal(cosines, again)


@pytest.mark.parametrize("kernel", [VMFKernel(20.0), AcceptanceKernel(20.0)], ids=repr)
@pytest.mark.parametrize(("samples", "negatives"), [(1, 1), (512, 1), (300, 33)])
def test_candidate_log_softmax_share(kernel, samples, negatives):
    cosines = torch.empty(samples, 17, 1 + negatives, device="cuda").uniform_(-1, 1).requires_grad_()
    plain = softmax_share.plain_candidate_log_softmax_share(cosines, 10, kernel)
    grad = torch.randn_like(plain)
    (expected,) = torch.autograd.grad(plain, cosines, grad)
    for laid_out in (cosines, cosines.permute(1, 2, 0).contiguous().permute(2, 0, 1)):
        share = softmax_share.candidate_log_softmax_share(laid_out, 10, kernel)
        torch.testing.assert_close(share, plain, rtol=1e-4, atol=1e-4)
        (gradient,) = torch.autograd.grad(share, cosines, grad)
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", [VMFKernel(20.0), AcceptanceKernel(20.0)], ids=repr)
@pytest.mark.parametrize(
    ("samples", "groups", "group", "negatives", "dim"),
    [(512, 32, 16, 32, 10), (512, 8, 64, 32, 10), (3, 1, 50, 7, 2), (2, 5, 3, 70, 100), (2, 3, 40, 33, 5)],
)
def test_shared_log_softmax_share(kernel, samples, groups, group, negatives, dim):
    z = F.normalize(torch.randn(samples, groups * group, dim, device="cuda"), dim=-1).requires_grad_()
    shared = F.normalize(torch.randn(samples, groups, negatives, dim, device="cuda"), dim=-1).requires_grad_()
    to_positive = torch.empty(samples, groups * group, device="cuda").uniform_(-1, 1).requires_grad_()
    share = softmax_share.shared_log_softmax_share(z, to_positive, shared, kernel)
    grad = torch.randn_like(share)
    gradients = torch.autograd.grad(share, (z, to_positive, shared), grad)
    with matmul_precision("highest"):
        plain = softmax_share.plain_shared_log_softmax_share(z, to_positive, shared, kernel)
        expected = torch.autograd.grad(plain, (z, to_positive, shared), grad)
    torch.testing.assert_close(share, plain, rtol=1e-4, atol=1e-4)
    for name, ours, theirs in zip(("z", "to_positive", "negatives"), gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3, msg=name)


@pytest.mark.parametrize("slopes", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-7), (torch.float64, 1e-12)])
def test_basis_of_angles(slopes, dtype, tolerance):
    kappa = posteriors(1000, dim=2, dtype=dtype).kappa
    plain, fused = angles.plain_basis(kappa.double(), 8.5, 48, slopes), functions.fused_basis(kappa, 8.5, 48, slopes)
    assert fused[0].dtype == dtype
    torch.testing.assert_close(fused[0].double(), plain[0], rtol=0, atol=tolerance)
    assert (fused[1] is None) == (plain[1] is None) == (not slopes)
    if slopes:
        torch.testing.assert_close(fused[1].double(), plain[1], rtol=0, atol=tolerance)


# on both sides of 20, from where the expansion needs no recurrence, and of 10, from where that is scaled only once
ORDERS = (0.0, 0.3, 0.5, 1.0, 4.0, 7.0, 9.5, 10.0, 19.0, 19.5, 20.0, 31.0, 63.0, 255.5, 511.0)


@pytest.mark.parametrize("order", ORDERS)
def test_log_growth(order, monkeypatch):
    ends = torch.tensor([0.0, 1e-300, 1e-160, 1e-20, 1e25, 1e30, 1e300, math.inf], dtype=torch.float64)
    kappa = torch.cat([ends, torch.logspace(-8, 24, 1000, dtype=torch.float64)]).to("cuda")
    value, ratio = bessel.plain_log_growth(order, kappa)
    monkeypatch.delattr(bessel, "plain_log_growth")  # from here on the fused version is used, or the test fails
    fused_value, fused_ratio = bessel.log_growth_and_ratio(order, kappa)
    torch.testing.assert_close(fused_value, value, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(fused_ratio, ratio, rtol=1e-13, atol=0)
    assert (fused_value >= 0).all()
    assert (fused_ratio <= 1).all()
    assert fused_ratio[0] == 0


@pytest.mark.parametrize("order", ORDERS)
def test_derivatives_of_log_growth(order):
    """Up to the second of log_growth and the first of bessel_ratio, in both precisions, against the CPU's."""

    def derivatives(function, kappa: torch.Tensor, count: int) -> list[torch.Tensor]:
        kappa = kappa.clone().requires_grad_()
        out = [function(order, kappa)]
        for _ in range(count):
            out.append(torch.autograd.grad(out[-1].sum(), kappa, create_graph=True)[0])
        return [x.detach().cpu() for x in out]

    kappa = torch.cat([torch.tensor([0.0, 1e30, math.inf]), torch.logspace(-6, 8, 100)])
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
        for function, count in ((bessel.log_growth, 2), (bessel.bessel_ratio, 1)):
            ours = derivatives(function, kappa.to("cuda", dtype), count)
            for a, b in zip(ours, derivatives(function, kappa.to(dtype), count), strict=True):
                torch.testing.assert_close(a, b, rtol=tolerance, atol=1e-15)


def test_log_growth_of_any_shape():
    table = torch.rand(3, 1, 5, dtype=torch.float64, device="cuda") * 50
    for kappa in (
        table.expand(3, 7, 5),
        table.transpose(0, 2),
        table[..., ::2],
        table[0, 0, 0],
        table[:0],
        table.float(),
    ):
        value, ratio = bessel.log_growth_and_ratio(4.0, kappa)
        expected = bessel.plain_log_growth(4.0, kappa.double())
        torch.testing.assert_close((value, ratio), expected, rtol=1e-13, atol=1e-15)
        assert bessel.log_growth(4.0, kappa).dtype == kappa.dtype
    for x in bessel.log_growth_and_ratio(4.0, torch.tensor([math.nan], dtype=torch.float64, device="cuda")):
        assert x.isnan().all()  # a run that has diverged must show it


@pytest.mark.parametrize("dim", [2, 3, 10, 64, 1024])
@pytest.mark.parametrize("kernel", [VMFKernel(20.0), AcceptanceKernel(20.0)], ids=repr)
def test_rows(dim, kernel: ZonalKernel):
    kappa = posteriors(200, dim=2).kappa
    log_lam, sign = kernel.series(dim, kernel.terms(dim, 1e-12), torch.device("cuda"))
    log_scale = (log_harmonic_dimensions(dim, len(log_lam), torch.device("cuda")) + log_lam) / 2
    fused = series.row_weights(series.KernelSeries(dim, log_lam, sign, None), kappa, signed=True)
    plain = series.plain_row_weights(dim / 2 - 1, kappa, log_scale, sign)
    for name in plain.__dataclass_fields__:
        torch.testing.assert_close(getattr(fused, name), getattr(plain, name), rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("dim", [2, 3, 10, 64, 512])
@pytest.mark.parametrize("kernel", [VMFKernel(20.0), VMFKernel(200.0), AcceptanceKernel(20.0)], ids=repr)
@pytest.mark.parametrize("layout", ["pairwise", "elementwise", "negatives", "groups"])
def test_series(dim, kernel: ZonalKernel, layout):
    shapes = {"pairwise": ((37, 1), (1, 53)), "elementwise": ((41, 1), (41, 1)), "negatives": ((29, 1), (29, 7))}
    shapes["groups"] = ((3, 8, 1), (3, 1, 9))
    first, second = (posteriors(*shape, dim=dim) for shape in shapes[layout])
    terms = kernel.terms(dim, 1e-12)
    log_lam, sign = kernel.series(dim, terms, torch.device("cuda"))
    kappa_pos = kernel.concentration(first.mu) if isinstance(kernel, VMFKernel) else None
    kappa1, kappa2 = (q.kappa.clamp(max=kernel.reach(dim)) for q in (first, second))
    of_kernel = series.KernelSeries(dim, log_lam, sign, kappa_pos)
    rows1, rows2 = series.row_weights(of_kernel, kappa1), series.row_weights(of_kernel, kappa2, signed=True)
    cosine = (first.mu * second.mu).sum(-1).contiguous()
    fused = series.positivity_table(of_kernel, cosine, rows1, rows2, slopes=True)
    plain = series.plain_positivity_table(of_kernel, cosine, rows1, rows2, slopes=True)
    for name in ("log_r", "slope_cosine", "slope_kappa1", "slope_kappa2"):
        a, b = getattr(fused, name), getattr(plain, name)
        # Below 1e-8 of the largest r both are at the mercy of rounding.
        sure = plain.log_r > torch.maximum(rows1.log_length, rows2.log_length) * 0 + plain.log_r.max() - 18
        torch.testing.assert_close(a[sure], b[sure], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kernel", [VMFKernel(20.0), AcceptanceKernel(20.0)], ids=repr)
def test_nan_is_not_hidden(kernel: ZonalKernel):
    """A run that has diverged must not show a finite loss."""
    q, other = posteriors(4, 1, dim=10), posteriors(1, 3, dim=10)
    mu, kappa = q.mu.clone(), q.kappa.clone()
    mu[1], kappa[2] = math.nan, math.nan
    log_r = log_positivity(VonMisesFisher(mu, kappa, validate_args=False), other, kernel)
    assert log_r.isnan().all(1).tolist() == [False, True, True, False]
    assert log_r[[0, 3]].isfinite().all()


@pytest.mark.parametrize("dim", [2, 3, 10, 128, 700])
def test_sampler(dim):
    q = posteriors(64, dim=dim, dtype=torch.float32)
    noise = torch.randn(33, 64, dim, device="cuda")
    table = angle_table(dim, torch.float32, q.mu.device)
    fused, plain = noise.clone(), noise.clone()
    fused_slope = functions.fused_sample(fused, q.mu, *table.rows(q.kappa, True), table.first, table.spacing)
    plain_slope = sampling.plain_sample(plain, q.mu, q.kappa, table, slopes=True)
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fused_slope, plain_slope, rtol=1e-2, atol=1e-4)
    grad = torch.randn_like(noise)
    for slope, need_mu in ((plain_slope, True), (plain_slope, False), (None, True)):
        for a, b in zip(
            functions.fused_sample_backward(grad, plain, q.mu, slope, need_mu),
            sampling.plain_sample_backward(grad, plain, q.mu, slope, need_mu),
            strict=True,
        ):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("phases", ["joint", "mu-then-kappa"])
def test_training_in_a_cuda_graph_equals_ordinary_training(phases, tmp_path):
    """The same weights from a graph, from ordinary steps, and from a graph that was stopped and resumed."""
    process = GenerativeProcess(4, seed=1, device="cuda", smoothing_steps=100)

    class StopError(Exception):
        pass

    def stop(encoder) -> dict[str, float]:
        raise StopError

    def run(capture: bool, folder=None, validate=None) -> torch.Tensor:
        torch.manual_seed(0)
        encoder = controlled_encoder(4)
        recipe = Recipe(24, phases=phases, capture=capture, learning_rate=1e-3, checkpoint_every=7, validate_every=18)
        fit(
            encoder,
            ExactInfoNCE(process.kernel),
            process.batches(64, negatives=3),
            recipe,
            folder=folder,
            device="cuda",
            validate=validate or (lambda encoder: {}),
        )
        return torch.cat([p.detach().flatten() for p in encoder.parameters()])

    ordinary = run(False)
    torch.testing.assert_close(run(True), ordinary, rtol=1e-3, atol=1e-4)
    with pytest.raises(StopError):
        run(True, tmp_path / "run", stop)
    torch.testing.assert_close(run(True, tmp_path / "run"), ordinary, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("learnable", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda learnable: ExactInfoNCE(VMFKernel(20.0, learnable), terms=64 if learnable else None),
        lambda learnable: MCInfoNCE(VMFKernel(20.0, learnable), 4),
        lambda learnable: MCInfoNCE(AcceptanceKernel(20.0, learnable), 4),
        lambda learnable: HIB(1.0, 0.0, 4, learnable),
        lambda learnable: ELK(20.0, learnable),
        lambda learnable: InfoNCE(20.0, learnable),
    ],
    ids=["exact", "mcinfonce", "mcinfonce-acceptance", "hib", "elk", "infonce"],
)
@pytest.mark.parametrize("negatives", [0, 3])
def test_every_loss_trains_in_a_cuda_graph(make, learnable, negatives):
    process = GenerativeProcess(4, seed=1, device="cuda", smoothing_steps=10)
    phases = "mu" if isinstance(make(learnable), InfoNCE) else "joint"
    recipe = Recipe(8, phases=phases, mu_negatives="given", capture=True, learning_rate=1e-3)
    batches = process.batches(16, negatives=negatives)
    result = fit(controlled_encoder(4), make(learnable), batches, recipe, device="cuda", loggers=())
    assert math.isfinite(result.history[-1]["loss"])
