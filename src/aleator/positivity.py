r"""Expected positivity in closed form, and the probability that two ambiguous inputs show the same latent.

For posteriors q, q' and a positive kernel g with coefficients lambda_n (harmonics.py),

    r(q, q') = E g(z.z') / E_uniform g = sum_n dim_n lambda_n A_n(kappa) A_n(kappa') P_n(mu.mu')

is the expected positivity of the paper's Proposition 2 times the sphere's area: the density ratio P(x'|x)/P(x') that a
contrastive task asks for (docs/theory.md has the proof). kappa -> inf leaves the InfoNCE similarity, kappa_pos -> inf the
expected likelihood kernel, kappa -> 0 gives 1.

Numerics. dim_n overflows while A_n underflows, so each posterior gets the row w_n = sqrt(dim_n |lambda_n|) A_n, scaled to
length one; the product of two rows is then a number in [-1, 1]. The sum has an absolute error of about 1e-16 of its
maximum over the cosine. Two things keep log r right far below that maximum, where a plain logarithm would meet noise:
for the vMF kernel the series is evaluated no further out than where r has fallen by about e^-14, and log r goes on from
there as a straight line, as the logarithm of a vMF does; and for any kernel a floor at 1e-10 of the maximum, too low to
matter above 1e-5, keeps r positive and increasing.
"""

import math

import torch
from torch import Tensor
from torch.distributions import Distribution, MixtureSameFamily

from .bessel import bessel_ratio, log_growth, log_ratios_and_slopes
from .checks import reject, require
from .harmonics import VMFKernel, ZonalKernel, check_kernel, log_harmonic_dimensions
from .series import Rows, series, term_totals
from .vmf import VonMisesFisher

Posterior = VonMisesFisher | MixtureSameFamily

# How much of the series may be left out, relative to the largest r.
_TOLERANCE = {torch.float32: 1e-12, torch.float64: 1e-17}
_FLOOR = 1e-10
_TILT = 1e-2
# log r of the vMF kernel is continued as a line from where a moment-matched vMF has fallen by e^-14.
_DEPTH = 14.0


def log_positivity(q1: Posterior, q2: Posterior, kernel: ZonalKernel, terms: int | None = None) -> Tensor:
    """log r of the paired posteriors, whose batch shapes broadcast; equation (3) of docs/theory.md.

    Args:
        q1, q2: `VonMisesFisher`, or a `torch.distributions.MixtureSameFamily` of them.
        kernel: what counts as a match.
        terms: how many terms of the series to sum; by default as many as the kernel and the dtype need.
    """
    q1, q2 = _check(q1, q2, kernel)
    if isinstance(q1, VonMisesFisher) and isinstance(q2, VonMisesFisher):
        return _log_r(q1, q2, kernel, terms)
    weights1, parts1 = _mixture(q1)
    weights2, parts2 = _mixture(q2)
    log_r = _log_r(parts1[..., :, None], parts2[..., None, :], kernel, terms)
    return torch.logsumexp(log_r + weights1[..., :, None] + weights2[..., None, :], dim=(-2, -1))


def pairwise_log_positivity(q1: Posterior, q2: Posterior, kernel: ZonalKernel, terms: int | None = None) -> Tensor:
    """log r of every posterior of a batch (N,) with every one of another (M,): (N, M)."""
    q1, q2 = _check(q1, q2, kernel)
    for name, q in (("q1", q1), ("q2", q2)):
        require(len(q.batch_shape) == 1, name, tuple(q.batch_shape), "expected one batch dimension", "flatten the batch")
    if isinstance(q1, VonMisesFisher) and isinstance(q2, VonMisesFisher):
        return _log_r(q1[:, None], q2[None, :], kernel, terms)
    weights1, parts1 = _mixture(q1)
    weights2, parts2 = _mixture(q2)
    log_r = _log_r(_flat(parts1)[:, None], _flat(parts2)[None, :], kernel, terms)
    log_r = log_r.view(*weights1.shape, *weights2.shape) + weights1[:, :, None, None] + weights2[None, None]
    return torch.logsumexp(log_r, dim=(1, 3))


def match_probability(q1: Posterior, q2: Posterior, kernel: ZonalKernel, prior: float | Tensor = 0.5) -> Tensor:
    """P(the two inputs match | both posteriors) = prior r / (prior r + 1 - prior); batch shapes broadcast.

    `prior` is the share of matches among the pairs under question. For all pairs of two batches pass `q1[:, None]`.
    """
    inside = (prior > 0) & (prior < 1) if isinstance(prior, Tensor) else 0 < prior < 1
    require(inside, "prior", prior, "not a probability inside (0, 1)", "pass the share of matching pairs, for example 0.5")
    log_r = log_positivity(q1, q2, kernel)
    share = torch.as_tensor(prior, dtype=log_r.dtype, device=log_r.device)
    return torch.sigmoid(log_r + torch.logit(share))


def _check(q1: Posterior, q2: Posterior, kernel: ZonalKernel) -> tuple[Posterior, Posterior]:
    check_kernel(kernel)
    for name, q in (("q1", q1), ("q2", q2)):
        vmf = q.component_distribution if isinstance(q, MixtureSameFamily) else q
        if not isinstance(vmf, VonMisesFisher):
            reject(name, type(q).__name__, "not a posterior", "pass VonMisesFisher, or MixtureSameFamily of it")
    dim1, dim2 = q1.event_shape[0], q2.event_shape[0]
    require(dim1 == dim2, "q2", f"dimension {dim2}", f"q1 has dimension {dim1}", "embed both in one space")
    type1, type2 = _vmf_of(q1).mu.dtype, _vmf_of(q2).mu.dtype
    require(type1 == type2, "q2", type2, f"q1 has dtype {type1}", "cast one to the other")
    return q1, q2


def _vmf_of(q: Distribution) -> VonMisesFisher:
    return q.component_distribution if isinstance(q, MixtureSameFamily) else q  # type: ignore[return-value]


def _mixture(q: Posterior) -> tuple[Tensor, VonMisesFisher]:
    """log weights (..., C) and components with batch shape (..., C); a single vMF is a mixture of one."""
    if isinstance(q, VonMisesFisher):
        return torch.zeros_like(q.kappa)[..., None], q[..., None]
    return q.mixture_distribution.logits, q.component_distribution  # type: ignore[return-value]


def _flat(q: VonMisesFisher) -> VonMisesFisher:
    return VonMisesFisher(q.mu.reshape(-1, q.dim), q.kappa.reshape(-1), validate_args=False)


def _log_r(q1: VonMisesFisher, q2: VonMisesFisher, kernel: ZonalKernel, terms: int | None) -> Tensor:
    dim, dtype = q1.dim, q1.mu.dtype
    shape = torch.broadcast_shapes(q1.batch_shape, q2.batch_shape)
    cosine = _cosine(q1, q2)
    kappa1, kappa2 = q1.kappa.double(), q2.kappa.double()
    if isinstance(kernel, VMFKernel) and kernel.is_identity:
        return _log_likelihood_kernel(dim, cosine, kappa1, kappa2).to(dtype)
    if len(shape) != 2:  # the series works on a table of pairs; any other shape is a table of one column
        kappa1, kappa2 = kappa1.expand(shape).reshape(-1, 1), kappa2.expand(shape).reshape(-1, 1)
        cosine = cosine.reshape(-1, 1)
    count = terms if terms is not None else _count_terms(kernel, dim, dtype, kappa1, kappa2)
    require(count >= 2, "terms", count, "the series needs two terms or more", "leave it out")
    log_lam, sign = kernel.series(dim, count, cosine.device)
    kappa_pos = kernel.concentration(cosine) if isinstance(kernel, VMFKernel) else None
    log_r = _LogSeries.apply(cosine, kappa1, kappa2, log_lam, sign, dim, kappa_pos)
    return log_r.view(shape).to(dtype)


def _cosine(q1: VonMisesFisher, q2: VonMisesFisher) -> Tensor:
    """mu.mu' in float64: sharp kernels multiply its error by kappa_pos, and a matrix product may round to ten bits."""
    mu1, mu2 = q1.mu.double(), q2.mu.double()
    b1, b2 = q1.batch_shape, q2.batch_shape
    if len(b1) == len(b2) == 2 and b1[1] == 1 and b2[0] == 1:
        return mu1[:, 0] @ mu2[0].T
    return (mu1 * mu2).sum(-1)


def _count_terms(kernel: ZonalKernel, dim: int, dtype: torch.dtype, kappa1: Tensor, kappa2: Tensor) -> int:
    """Enough terms for point masses, which bounds all; on a CPU, where looking is free, enough for the batch at hand."""
    tolerance = _TOLERANCE[dtype]
    count = kernel.terms(dim, tolerance)
    if kappa1.device.type != "cpu" or kappa1.numel() == 0 or kappa2.numel() == 0:
        return count
    with torch.no_grad():
        log_lam, _ = kernel.log_abs_coefficients(dim, count)
        sharpest = torch.stack([kappa1.max(), kappa2.max()])
        log_a, _ = log_ratios_and_slopes(dim / 2 - 1, sharpest, count)
        weight = log_harmonic_dimensions(dim, count) + log_lam + log_a.sum(0)
        rest = torch.logcumsumexp(weight.flip(0), 0).flip(0)
        return min(count, max(2, int((rest >= rest[0] + math.log(tolerance)).sum())))


def _log_likelihood_kernel(dim: int, cosine: Tensor, kappa1: Tensor, kappa2: Tensor) -> Tensor:
    """kappa_pos = inf: r = S int vMF vMF' dz = S C(kappa) C(kappa') / C(|kappa mu + kappa' mu'|), in closed form."""
    order = dim / 2 - 1
    point1, point2 = torch.isinf(kappa1), torch.isinf(kappa2)
    k1, k2 = torch.where(point1, 1.0, kappa1), torch.where(point2, 1.0, kappa2)
    k1, k2, cosine, point1, point2 = torch.broadcast_tensors(k1, k2, cosine, point1, point2)
    length = torch.sqrt(((k1 + k2).square() - 2 * k1 * k2 * (1 - cosine)).clamp_min(1e-300))
    g1, g2 = log_growth(order, k1), log_growth(order, k2)
    both = log_growth(order, length) - g1 - g2
    value = torch.where(point1, k2 * cosine - g2, torch.where(point2, k1 * cosine - g1, both))
    coincide = torch.where(cosine >= 1, math.inf, -math.inf)
    return torch.where(point1 & point2, coincide, value)


class _LogSeries(torch.autograd.Function):
    """log r at cosines (N, M); kappa1, kappa2 broadcast to (N, M). Value and slopes come from one pass (series.py)."""

    @staticmethod
    def forward(ctx, cosine, kappa1, kappa2, log_lam, sign, dim, kappa_pos):  # type: ignore[override]
        slopes = any(ctx.needs_input_grad)
        half = (log_harmonic_dimensions(dim, len(log_lam), cosine.device) + log_lam) / 2
        norm1, rows1 = _rows(dim, kappa1, half)
        norm2, rows2 = _rows(dim, kappa2, half, sign)
        peak, peak_1, peak_2 = _at_one(rows1, rows2, slopes)

        c = cosine.clamp(-1, 1)
        line, inside, turn, line_lam = None, c, None, None
        if kappa_pos is not None:
            line, line_1, line_2, line_lam = _line_slope(dim, kappa1, kappa2, log_lam, kappa_pos)
            inside = torch.maximum(c, 1 - _DEPTH / line)

        s, *rest = series(dim, inside, rows1, rows2, slopes)
        u = s / peak
        root = torch.sqrt(u.square() + 4 * _FLOOR**2)
        floored = (u + root) / 2
        fade = _FLOOR**2 / (_FLOOR**2 + u.square())
        log_r = norm1 + norm2 + peak.log() + floored.log() + _TILT * fade * (inside - 1)
        if line is not None:
            log_r = log_r + line * (c - inside)
        if not slopes:
            return log_r

        s_c, s_1, s_2 = rest
        # d/du of log(floored) + tilt: 1/root, and the fade's own slope
        du = 1 / root - 2 * _TILT * fade.square() * u / _FLOOR**2 * (inside - 1)
        g_c = du * s_c / peak + _TILT * fade
        g_1 = peak_1 / peak + du * (s_1 - u * peak_1) / peak
        g_2 = peak_2 / peak + du * (s_2 - u * peak_2) / peak
        if line is not None:
            beyond = c < inside
            # What one more unit of the line's slope does: it turns the line, and moves its start by DEPTH/line^2.
            turn = torch.where(beyond, (g_c - line) * _DEPTH / line.square() + (c - inside), 0.0)
            g_1 = g_1 + turn * line_1
            g_2 = g_2 + turn * line_2
            g_c = torch.where(beyond, line, g_c)
        ctx.shapes = (kappa1.shape, kappa2.shape)
        ctx.save_for_backward(g_c, g_1, g_2)
        ctx.kernel = None
        if ctx.needs_input_grad[3]:  # a learnable kernel: rare, and paid for only then
            lines = None if turn is None else (turn * line / kappa_pos, turn * line_lam)
            ctx.kernel = (dim, inside, rows1, rows2, du / peak, (1 - du * u) / peak, lines)
        return log_r

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):  # type: ignore[override]
        g_c, g_1, g_2 = ctx.saved_tensors
        grad_1 = (grad * g_1).sum_to_size(ctx.shapes[0]) if ctx.needs_input_grad[1] else None
        grad_2 = (grad * g_2).sum_to_size(ctx.shapes[1]) if ctx.needs_input_grad[2] else None
        grad_lam = grad_pos = None
        if ctx.kernel is not None:
            dim, inside, rows1, rows2, of_series, of_peak, lines = ctx.kernel
            grad_lam = term_totals(dim, inside, rows1, rows2, grad * of_series)
            grad_lam += term_totals(dim, torch.ones_like(inside), rows1, rows2, grad * of_peak)
            if lines is not None:
                grad_pos = (grad * lines[0]).sum()
                grad_lam[1] += (grad * lines[1]).sum()
        return grad * g_c, grad_1, grad_2, grad_lam, None, None, grad_pos


def _rows(dim: int, kappa: Tensor, half_log_weight: Tensor, sign: Tensor | None = None) -> tuple[Tensor, Rows]:
    """log of the row's length and the row scaled to length one; the slopes are those of the unscaled row, so scaled."""
    log_a, slope = log_ratios_and_slopes(dim / 2 - 1, kappa, len(half_log_weight))
    log_w = half_log_weight + log_a
    norm = torch.logsumexp(2 * log_w, -1, keepdim=True) / 2
    weight = torch.exp(log_w - norm)
    if sign is not None:
        weight = weight * sign
    return norm.squeeze(-1), Rows(weight, weight * slope)


def _at_one(first: Rows, second: Rows, slopes: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The series and its slopes in kappa at c = 1, where every P_n is 1: plain inner products."""

    def inner(a: Tensor, b: Tensor) -> Tensor:
        if a.shape[1] == 1 and b.shape[0] == 1:
            return a[:, 0] @ b[0].T
        return (a * b).sum(-1)

    value = inner(first.weight, second.weight)
    if not slopes:
        return value, value, value
    return value, inner(first.slope, second.weight), inner(first.weight, second.slope)


def _line_slope(dim: int, kappa1: Tensor, kappa2: Tensor, log_lam: Tensor, kappa_pos: Tensor | float) -> tuple[Tensor, ...]:
    """The concentration of the vMF with the mean of the two posteriors and the kernel convolved; its slopes in kappa1,
    kappa2 and log lambda_1.

    A_1 multiplies under convolution; its inverse is Banerjee's approximation, scaled to be exact for point masses, where
    log r really is the line kappa_pos c.
    """

    def inverse(R: Tensor) -> tuple[Tensor, Tensor]:
        R2 = R.square()
        slope = ((dim - 3 * R2) * (1 - R2) + 2 * R2 * (dim - R2)) / (1 - R2).square()
        return R * (dim - R2) / (1 - R2), slope

    with torch.enable_grad():
        k1, k2 = kappa1.detach().requires_grad_(), kappa2.detach().requires_grad_()
        a1, a2 = bessel_ratio(dim / 2 - 1, k1), bessel_ratio(dim / 2 - 1, k2)
        slope1, slope2 = torch.autograd.grad([a1.sum(), a2.sum()], [k1, k2])
    a1, a2 = a1.detach(), a2.detach()
    lam = log_lam[1].exp()
    own, own_slope = inverse(lam)
    R = (lam * a1 * a2).clamp(1e-150, 1 - 1e-15)
    line, turn = (x * kappa_pos / own for x in inverse(R))
    return line, turn * lam * a2 * slope1, turn * lam * a1 * slope2, turn * R - line * lam * own_slope / own
