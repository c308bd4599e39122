r"""Modified Bessel functions of the first kind, of any real order v >= 0, where the usual ones overflow or underflow.

Everything rests on two well-scaled quantities:

    log_growth(v, kappa)   = log[ Gamma(v+1) (2/kappa)^v I_v(kappa) ] = log 0F1(; v+1; kappa^2/4),  0 at kappa = 0
    bessel_ratio(v, kappa) = I_{v+1}(kappa) / I_v(kappa), its derivative, which lies in [0, 1)

Method. At a large order V the uniform (Debye) expansion in p = sqrt(V^2 + kappa^2) and t = V/p holds for every kappa
(DLMF 10.41; Olver 1974), here in its logarithmic form

    log I_V = p + V log(kappa / (V + p)) - log(2 pi p)/2 + sum_k D_k(t) / V^k.

A small order v is reached from V = v + m by the three-term recurrence, run downwards, where every term is positive
and errors shrink (Gautschi, SIAM Review 1967):

    I_{v+1}/I_v = kappa / (2(v+1) + kappa I_{v+2}/I_{v+1}).

All of it is elementwise arithmetic, so it runs where its input lives. The inside is float64 whatever the input's
dtype (these functions see one number per posterior, never one per pair); the result is rounded to that dtype.
"""

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.polynomial import Chebyshev, Polynomial
from torch import Tensor

from aleator.foundation import require, require_float
from aleator.fused import fused_kernels

# From this order on, so many terms of the Debye expansion are exact to float64: the largest error over all kappa is
# 6e-16 in the logarithm and 2e-15 in the ratio, and the recurrence shrinks it further.
_DEBYE_ORDER = 20.0
_DEBYE_TERMS = 12
# Beyond these, the leading term is exact in float64; within them, no power or product below over- or underflows.
_SMALLEST, _LARGEST = 1e-150, 1e25
_CHUNK = 2**16


def log_iv(order: float, kappa: Tensor) -> Tensor:
    """log I_v(kappa) for a real order v >= 0 and kappa in [0, inf], of any shape; twice differentiable in kappa."""
    _check(order, kappa)
    scale = torch.special.xlogy(torch.as_tensor(order, dtype=torch.float64), kappa.double() / 2) - math.lgamma(
        order + 1
    )
    growth = _LogGrowth.apply(kappa.double(), order)
    return torch.where(torch.isinf(kappa), math.inf, growth + scale).to(kappa.dtype)


def log_growth(order: float, kappa: Tensor) -> Tensor:
    """log[Gamma(v+1) (2/kappa)^v I_v(kappa)], the part of log I_v that is smooth at 0; its derivative is the ratio."""
    _check(order, kappa)
    return _LogGrowth.apply(kappa.double(), order).to(kappa.dtype)


def bessel_ratio(order: float, kappa: Tensor) -> Tensor:
    """I_{v+1}(kappa) / I_v(kappa); at v = D/2 - 1 the mean resultant length A_1 of a vMF in D dimensions."""
    _check(order, kappa)
    return _Ratio.apply(kappa.double(), order).to(kappa.dtype)


def bessel_ratios(order: float, kappa: Tensor, terms: int) -> Tensor:
    """A_n(kappa) = I_{v+n}(kappa) / I_v(kappa) for n = 0 .. terms-1; shape (..., terms)."""
    return log_bessel_ratios(order, kappa, terms).exp()


def log_bessel_ratios(order: float, kappa: Tensor, terms: int) -> Tensor:
    """log A_n(kappa), n = 0 .. terms-1, in float64 and shape (..., terms): A_n itself underflows where D is large."""
    _check(order, kappa)
    return _LogRatios.apply(kappa.double(), order, terms)


def log_ratios_and_slopes(order: float, kappa: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    """log A_n(kappa) and its derivative A_n'/A_n, both (..., terms) in float64, for code with its own backward pass.

    A_n' = A_{n+1} + (n/kappa - A_1) A_n  gives  (log A_n)' = rho_n - rho_0 + n/kappa  with rho_n = A_{n+1}/A_n.
    """
    inner = representable(kappa)
    steps, top, _ = recurrence_start(order, terms)
    y = _debye(top, inner)[1] * inner.square()  # kappa * rho at the highest order
    rho = inner.new_empty((terms, *inner.shape))
    for j in range(steps - 1, -1, -1):
        y = inner.square() / y.add_(2 * (order + j + 1))
        if j < terms:
            torch.div(y, inner, out=rho[j]).clamp_(max=1.0)
    log_a = torch.zeros_like(rho)
    torch.cumsum(rho[:-1].log(), 0, out=log_a[1:])
    degree = torch.arange(terms, dtype=torch.float64, device=inner.device).view(-1, *[1] * inner.dim())
    slope = rho - rho[:1] + degree / inner
    slope[:1].zero_()
    return log_a.movedim(0, -1), slope.movedim(0, -1)


def representable(kappa: Tensor) -> Tensor:
    """kappa in float64, clipped to where no power of it over- or underflows; beyond, nothing would change."""
    return kappa.detach().double().clamp(_SMALLEST, _LARGEST)


def recurrence_start(order: float, terms: int) -> tuple[int, float, tuple[float, ...]]:
    """How many steps the recurrence takes down to `order`, the order it starts from, and Debye's polynomial G there."""
    steps = math.ceil(max(order + terms, _DEBYE_ORDER) - order)
    return steps, order + steps, _debye_polynomials(order + steps)[1]


def _check(order: float, kappa: Tensor) -> None:
    require(order >= 0 and math.isfinite(order), "order", order, "a Bessel order v >= 0 is needed", "pass D/2 - 1")
    require_float("kappa", kappa)


class _LogGrowth(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kappa: Tensor, order: float) -> Tensor:
        value, ratio = _log_growth_and_ratio(order, kappa, with_ratio=ctx.needs_input_grad[0])
        ctx.save_for_backward(kappa, ratio)
        ctx.order = order
        return value

    @staticmethod
    def backward(ctx, grad):
        kappa, ratio = ctx.saved_tensors
        # Under double backward the ratio must carry its own graph; otherwise the saved one is free.
        slope = _Ratio.apply(kappa, ctx.order) if torch.is_grad_enabled() and kappa.requires_grad else ratio
        return grad * slope, None


class _Ratio(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kappa: Tensor, order: float) -> Tensor:
        ctx.save_for_backward(kappa)
        ctx.order = order
        return _log_growth_and_ratio(order, kappa)[1]

    @staticmethod
    def backward(ctx, grad):
        (kappa,) = ctx.saved_tensors
        return grad * _RatioSlope.apply(kappa, ctx.order), None


class _RatioSlope(torch.autograd.Function):
    """rho' = d/dkappa I_{v+1}/I_v."""

    @staticmethod
    def forward(ctx: Any, kappa: Tensor, order: float) -> Tensor:
        ctx.save_for_backward(kappa)
        ctx.order = order
        return _ratio_slope(order, kappa)

    @staticmethod
    def backward(ctx, grad):
        (kappa,) = ctx.saved_tensors
        v = ctx.order
        ratio, slope = _Ratio.apply(kappa, v), _RatioSlope.apply(kappa, v)
        # From rho' = 1 - rho^2 - (2v+1) rho/kappa. Near 0 the quotient cancels, and the power series is used.
        near_zero = kappa < 1e-2
        safe = torch.where(near_zero, 1.0, kappa)
        curvature = -2 * ratio * slope - (2 * v + 1) * (slope - ratio / safe) / safe
        series = -0.75 * kappa / ((v + 1) ** 2 * (v + 2))
        return grad * torch.where(near_zero, series, curvature), None


class _LogRatios(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kappa: Tensor, order: float, terms: int) -> Tensor:
        log_a, slope = log_ratios_and_slopes(order, kappa, terms)
        ctx.save_for_backward(slope)
        return log_a

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        (slope,) = ctx.saved_tensors
        return (grad * slope).sum(-1), None, None


def _log_growth_and_ratio(order: float, kappa: Tensor, with_ratio: bool = True) -> tuple[Tensor, Tensor]:
    """The value of `log_growth` and its derivative, in one downward pass, in float64 and without a graph.

    Without the ratio, what stands in its place means nothing.
    """
    kappa = kappa.detach()
    fused = fused_kernels(kappa)
    if fused:
        steps = _steps_down(order)
        value, ratio, _ = _debye_polynomials(order + steps)
        return fused.fused_log_growth(order, kappa, steps, value, ratio, _LARGEST)
    if kappa.device.type != "cpu" or kappa.numel() <= _CHUNK:
        return plain_log_growth(order, kappa, with_ratio)
    out = kappa.new_empty(2, kappa.numel())  # about eighty passes: keep them in the cache
    for part, place in zip(kappa.flatten().split(_CHUNK), out.split(_CHUNK, 1), strict=True):
        place[0], ratio_of_part = plain_log_growth(order, part, with_ratio)
        if with_ratio:
            place[1] = ratio_of_part
    return out[0].view(kappa.shape), out[1].view(kappa.shape)


def plain_log_growth(order: float, kappa: Tensor, with_ratio: bool = True) -> tuple[Tensor, Tensor]:
    steps = _steps_down(order)
    inner = kappa.clamp(0.0, _LARGEST)
    growth, ratio_over_kappa = _debye(order + steps, inner, with_ratio or steps > 0)
    if steps:
        # In f_v = 0F1(; v+1; kappa^2/4) the recurrence is f_{v-1} = f_v + kappa^2 f_{v+1} / 4v(v+1): one pass a step.
        kappa2 = inner.square()
        f, above = torch.ones_like(inner), ratio_over_kappa.mul_(2 * (order + steps + 1))
        for j in range(steps, 0, -1):
            v = order + j
            torch.addcmul(f, kappa2, above, value=1 / (4 * v * (v + 1)), out=above)
            f, above = above, f
            if j % 10 == 1:  # ten factors of at most 1e25 stay finite
                growth += f.log()
                above.div_(f)
                f.fill_(1.0)
        ratio_over_kappa = above
    growth.clamp_(min=0.0)  # 0 <= growth and rho <= 1 to the last bit
    growth = torch.where(kappa > _LARGEST, kappa, growth)
    if not with_ratio:
        return growth, growth
    if steps:
        ratio_over_kappa.div_(2 * (order + 1))
    return growth, ratio_over_kappa.mul_(inner).clamp_(max=1.0)


def _ratio_slope(order: float, kappa: Tensor) -> Tensor:
    """rho' by differentiating the expansion and the recurrence: b_j = kappa^2 rho_j' = rho_j^2 (2(v+j+1) - b_{j+1}).

    The textbook form 1 - rho^2 - (2v+1) rho/kappa loses all digits for large kappa; this keeps them.
    """
    kappa = kappa.detach()
    steps = _steps_down(order)
    inner = kappa.clamp(0.0, _LARGEST)
    top = order + steps
    p = torch.hypot(inner, torch.full_like(inner, top))
    t = top / p
    _, g, h = _debye_polynomials(top)
    G, tG = _horner(g, t), _horner(h, t)
    sine2 = (inner / p).square()
    slope = top / (p * (p + top)) - (G * (1 - 2 * sine2) - sine2 * tG) / p.square()
    if steps:
        kappa2 = inner.square()
        e = 1 / (p + top) - G / p.square()  # rho_j / kappa
        for j in range(steps - 1, -1, -1):
            c = 2 * (order + j + 1)
            e = 1 / (c + kappa2 * e)
            slope = e.square() * (c - kappa2 * slope)
    return torch.where(kappa > _LARGEST, 0.0, slope)


def _steps_down(order: float) -> int:
    """How many orders above this one the expansion is exact."""
    return max(0, math.ceil(_DEBYE_ORDER - order))


def _debye(order: float, kappa: Tensor, with_ratio: bool = True) -> tuple[Tensor, Tensor]:
    """log_growth and, unless it is not wanted, I_{V+1}/(kappa I_V) at an order V >= _DEBYE_ORDER.

    With lgamma(V+1) = V log V - V + log(2 pi V)/2 + stirling(V) every difference below is free of cancellation:
    log_growth = (p-V) - V log1p((p-V)/2V) + log(t)/2 + stirling(V) + E(t),
    and since dt/dkappa = -t kappa/p^2, its derivative over kappa is 1/(p+V) - (1/2 + t E'(t))/p^2.
    """
    e, g, _ = _debye_polynomials(order)
    p = kappa.square().add_(order**2).sqrt_()
    t = order / p
    excess = kappa / (p + order)
    excess.mul_(kappa).div_(order)  # (p - V) / V
    growth = _horner(e, t)
    growth.add_(excess, alpha=order)
    growth.sub_(torch.log1p(excess / 2), alpha=order)
    growth.add_(t.log(), alpha=0.5)  # t = 1/(1 + excess)
    if not with_ratio:
        return growth, growth
    ratio = _horner(g, t).div_(p).div_(p).neg_()
    ratio.add_(p.add_(order).reciprocal_())
    return growth, ratio


def _horner(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    value = torch.full_like(x, coefficients[-1])
    for c in _constants(coefficients[-2::-1], x.dtype, x.device):
        torch.addcmul(c, value, x, out=value)
    return value


@lru_cache(maxsize=1024)
def _constants(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    """Scalars on the device, sent there once: nothing may come from the host while a CUDA graph is recorded."""
    return torch.tensor(values, dtype=dtype, device=device).unbind()


@lru_cache(maxsize=4096)
def _debye_polynomials(order: float) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """For one order V: stirling(V) + E(t), G = 1/2 + t E'(t) and t G'(t) as polynomials in t on [0, 1].

    E = sum_k D_k(t)/V^k has degree 36; written in Chebyshev polynomials, most of its terms are below rounding.
    """
    E = sum((polynomial / order**k for k, polynomial in enumerate(_debye_table(), start=1)), Polynomial([0.0]))
    t = Polynomial([0.0, 1.0])
    G = 0.5 + t * E.deriv()
    # At kappa = 0 (t = 1) log_growth is 0: the Stirling remainder is -E(1), to all digits that matter.
    # G and t G' are divided by p^2 >= 400: less of them is needed.
    return tuple(_economise(q, tail) for q, tail in ((E - E(1.0), 5e-17), (G, 5e-16), (t * G.deriv(), 5e-16)))  # type: ignore[return-value]


def _economise(polynomial: Polynomial, tail: float) -> tuple[float, ...]:
    chebyshev = polynomial.convert(kind=Chebyshev, domain=[0.0, 1.0]).trim(tail)
    return tuple(float(c) for c in chebyshev.convert(kind=Polynomial).coef)


@lru_cache(maxsize=1)
def _debye_table() -> tuple[Polynomial, ...]:
    """D_1 .. D_K with log sum_k U_k(t)/V^k = sum_k D_k(t)/V^k, in exact rational arithmetic.

    U_{k+1} = t^2 (1-t^2) U_k'/2 + (1/8) int_0^t (1 - 5 s^2) U_k(s) ds   (DLMF 10.41.9).
    """
    U: list[dict[int, Fraction]] = [{0: Fraction(1)}]
    for _ in range(_DEBYE_TERMS):
        following: dict[int, Fraction] = {}
        for n, c in U[-1].items():
            following[n + 1] = following.get(n + 1, Fraction(0)) + c * (Fraction(n, 2) + Fraction(1, 8 * (n + 1)))
            following[n + 3] = following.get(n + 3, Fraction(0)) - c * (Fraction(n, 2) + Fraction(5, 8 * (n + 3)))
        U.append(following)
    D: list[dict[int, Fraction]] = [{}]
    for k in range(1, _DEBYE_TERMS + 1):  # k U_k = sum_j j D_j U_{k-j}
        term = dict(U[k])
        for j in range(1, k):
            for n, c in D[j].items():
                for m, u in U[k - j].items():
                    term[n + m] = term.get(n + m, Fraction(0)) - Fraction(j, k) * c * u
        D.append(term)
    table = []
    for term in D[1:]:
        coefficients = np.zeros(max(term) + 1)
        for n, c in term.items():
            coefficients[n] = float(c)
        table.append(Polynomial(coefficients))
    return tuple(table)
