r"""Expected positivity in closed form, and the probability that two ambiguous inputs show the same latent.

For posteriors q, q' and a positive kernel g with coefficients lambda_n (harmonics.py),

    r(q, q') = E g(z.z') / E_uniform g = sum_n dim_n lambda_n A_n(kappa) A_n(kappa') P_n(mu.mu')

is the expected positivity of the paper's Proposition 2 times the sphere's area: the density ratio P(x'|x)/P(x') that
a contrastive task asks for (docs/theory.md has the proof). kappa -> inf leaves the InfoNCE similarity, kappa_pos ->
inf the expected likelihood kernel, kappa -> 0 gives 1.

series.py says how it is summed and what keeps log r right where r is tiny. A kernel's series resolves posteriors up to
some kappa (harmonics.py), infinite for the vMF kernel; sharper ones are treated as that sharp.
"""

import math

import torch
from torch import Tensor
from torch.distributions import Distribution, MixtureSameFamily

from aleator.foundation import reject, require
from aleator.matching.kernels import VMFKernel, ZonalKernel, check_kernel
from aleator.matching.series import log_series, rows, term_totals
from aleator.posteriors import VonMisesFisher
from aleator.special import log_growth

Posterior = VonMisesFisher | MixtureSameFamily
DEFAULT_PRIOR = 0.5  # share of matches among the pairs in question

# How much of the series may be left out, relative to the largest r.
_TOLERANCE = {torch.float32: 1e-10, torch.float64: 1e-17}


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
        require(
            len(q.batch_shape) == 1,
            name,
            tuple(q.batch_shape),
            "expected one batch dimension",
            "flatten the batch",
        )
    if isinstance(q1, VonMisesFisher) and isinstance(q2, VonMisesFisher):
        return _log_r(q1[:, None], q2[None, :], kernel, terms)
    weights1, parts1 = _mixture(q1)
    weights2, parts2 = _mixture(q2)
    log_r = _log_r(parts1.flatten()[:, None], parts2.flatten()[None, :], kernel, terms)
    log_r = log_r.view(*weights1.shape, *weights2.shape) + weights1[:, :, None, None] + weights2[None, None]
    return torch.logsumexp(log_r, dim=(1, 3))


def match_probability(
    q1: Posterior, q2: Posterior, kernel: ZonalKernel, prior: float | Tensor = DEFAULT_PRIOR
) -> Tensor:
    """P(the two inputs match | both posteriors) = prior r / (prior r + 1 - prior); batch shapes broadcast.

    `prior` is the share of matches among the pairs under question. For all pairs of two batches pass `q1[:, None]`.
    """
    inside = (prior > 0) & (prior < 1) if isinstance(prior, Tensor) else 0 < prior < 1
    require(
        inside,
        "prior",
        prior,
        "not a probability inside (0, 1)",
        "pass the share of matching pairs, for example 0.5",
    )
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


def _log_r(q1: VonMisesFisher, q2: VonMisesFisher, kernel: ZonalKernel, terms: int | None) -> Tensor:
    dim, dtype = q1.dim, q1.mu.dtype
    shape = torch.broadcast_shapes(q1.batch_shape, q2.batch_shape)
    cosine = _cosine(q1, q2)
    kappa1, kappa2 = q1.kappa.double(), q2.kappa.double()
    if isinstance(kernel, VMFKernel) and kernel.is_identity:
        return _log_likelihood_kernel(dim, cosine, kappa1, kappa2).to(dtype)
    if len(shape) not in (2, 3):  # the series works on tables of pairs; any other shape is a table of one column
        kappa1, kappa2 = kappa1.expand(shape).reshape(-1, 1), kappa2.expand(shape).reshape(-1, 1)
        cosine = cosine.reshape(-1, 1)
    kappa1, kappa2 = (kappa[(None,) * (cosine.dim() - kappa.dim())] for kappa in (kappa1, kappa2))
    reach = kernel.reach(dim)
    if math.isfinite(reach):  # beyond, the series would be noise; this is as sharp as it can tell
        kappa1, kappa2 = kappa1.clamp(max=reach), kappa2.clamp(max=reach)
    count = terms if terms is not None else _count_terms(kernel, dim, dtype, kappa1, kappa2)
    require(count >= 2, "terms", count, "the series needs two terms or more", "leave it out")
    log_lam, sign = kernel.series(dim, count, cosine.device)
    kappa_pos = kernel.concentration(cosine) if isinstance(kernel, VMFKernel) else None
    log_r = _LogSeries.apply(cosine, kappa1, kappa2, log_lam, sign, dim, kappa_pos)
    return log_r.view(shape).to(dtype)


def _cosine(q1: VonMisesFisher, q2: VonMisesFisher) -> Tensor:
    """mu.mu' in float64: a sharp kernel multiplies its error by kappa_pos, and GPUs may round products to ten bits."""
    mu1, mu2 = q1.mu.double(), q2.mu.double()
    b1, b2 = q1.batch_shape, q2.batch_shape
    if len(b1) == len(b2) >= 2 and b1[-1] == 1 and b2[-2] == 1:  # every row with every column
        return mu1.squeeze(-2) @ mu2.squeeze(-3).mT
    return (mu1 * mu2).sum(-1)


def _count_terms(kernel: ZonalKernel, dim: int, dtype: torch.dtype, kappa1: Tensor, kappa2: Tensor) -> int:
    """Enough terms for the sharpest posteriors of all; on a CPU, where looking is free, for those of the batch."""
    # Without the line that continues the vMF kernel, what is left out shows wherever r comes close to its floor.
    tolerance = _TOLERANCE[dtype if isinstance(kernel, VMFKernel) else torch.float64]
    if kappa1.device.type != "cpu" or kappa1.numel() == 0 or kappa2.numel() == 0:
        return kernel.terms(dim, tolerance)
    # A kappa that is not a number makes its own pairs NaN, whatever is summed.
    sharpest = (k.detach().nan_to_num(0.0, math.inf).max().item() for k in (kappa1, kappa2))
    return kernel.terms(dim, tolerance, *sharpest)


def _log_likelihood_kernel(dim: int, cosine: Tensor, kappa1: Tensor, kappa2: Tensor) -> Tensor:
    """kappa_pos = inf: r = S int vMF vMF' dz = S C(kappa) C(kappa') / C(|kappa mu + kappa' mu'|), in closed form."""
    order = dim / 2 - 1
    point1, point2 = torch.isinf(kappa1), torch.isinf(kappa2)
    k1, k2 = torch.where(point1, 1.0, kappa1), torch.where(point2, 1.0, kappa2)
    g1, g2 = log_growth(order, k1), log_growth(order, k2)  # before they broadcast: once a posterior, not once a pair
    length = torch.sqrt(((k1 + k2).square() - 2 * k1 * k2 * (1 - cosine)).clamp_min(1e-300))
    both = log_growth(order, length) - g1 - g2
    value = torch.where(point1, k2 * cosine - g2, torch.where(point2, k1 * cosine - g1, both))
    coincide = torch.where(cosine >= 1, math.inf, -math.inf)
    return torch.where(point1 & point2, coincide, value)


class _LogSeries(torch.autograd.Function):
    """log r at cosines (N, M) or (G, N, M), to which kappa1 and kappa2 broadcast. Value and slopes come from one pass
    (series.py)."""

    @staticmethod
    def forward(ctx, cosine, kappa1, kappa2, log_lam, sign, dim, kappa_pos):
        learnable = ctx.needs_input_grad[3]
        first, second = rows(dim, kappa1, log_lam), rows(dim, kappa2, log_lam, sign)
        pairs = log_series(dim, cosine, first, second, log_lam, kappa_pos, any(ctx.needs_input_grad), learnable)
        ctx.shapes = (kappa1.shape, kappa2.shape)
        ctx.save_for_backward(pairs.slope_c, pairs.slope_1, pairs.slope_2)
        ctx.kernel = (dim, first, second, pairs) if learnable else None  # rare, and paid for only then
        return pairs.log_r

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        slope_c, slope_1, slope_2 = ctx.saved_tensors
        grad_c = grad * slope_c if ctx.needs_input_grad[0] else None
        grad_1 = (grad * slope_1).sum_to_size(ctx.shapes[0]) if ctx.needs_input_grad[1] else None
        grad_2 = (grad * slope_2).sum_to_size(ctx.shapes[1]) if ctx.needs_input_grad[2] else None
        grad_lam = grad_pos = None
        if ctx.kernel is not None:
            dim, first, second, pairs = ctx.kernel
            grad_lam = term_totals(dim, pairs.inside, first, second, grad * pairs.of_series)
            grad_lam += term_totals(dim, torch.ones_like(pairs.inside), first, second, grad * pairs.of_peak)
            if pairs.line_lam is not None:
                grad_pos = (grad * pairs.line_pos).sum()
                grad_lam[1] += (grad * pairs.line_lam).sum()
        return grad_c, grad_1, grad_2, grad_lam, None, None, grad_pos
