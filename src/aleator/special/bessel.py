r"""Modified Bessel functions of the first kind I_v, of any real order v >= 0, without overflow or underflow.

Two well-scaled quantities carry everything:

    log_growth(v, kappa)   = log[ Gamma(v+1) (2/kappa)^v I_v(kappa) ] = log 0F1(; v+1; kappa^2/4),  0 at kappa = 0
    bessel_ratio(v, kappa) = I_{v+1}(kappa) / I_v(kappa), the derivative of log_growth, in [0, 1)

At a large order V = v + m Debye's expansion is exact for every kappa (debye.py). The three-term recurrence then leads
down to the order v. Downwards every term is positive, and errors shrink (Gautschi, SIAM Review 1967):

    I_{v+1}/I_v = kappa / (2(v+1) + kappa I_{v+2}/I_{v+1}).

All of this is elementwise, and runs on the device of its input. It is computed in float64, since there is one kappa for
each posterior, not for each pair. The result is rounded to the dtype of the input unless a function says float64.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aleator.foundation import Backward, Saved, require, require_float, require_not_compiled, with_gradient
from aleator.fused import fused_kernels
from aleator.special.debye import DEBYE_ORDER, debye_expansion, debye_polynomials, horner, steps_to_debye

# Outside of these bounds the leading term is exact in float64. Inside, no power or product overflows or underflows.
_SMALLEST, _LARGEST = 1e-150, 1e25
_CHUNK = 2**16
_FEW = 2**10  # kappas for which numpy is faster than torch


def log_iv(order: float, kappa: Tensor) -> Tensor:
    """Log of the Bessel function, log I_v(kappa). Twice differentiable in kappa.

    Args:
        order: Real order v >= 0.
        kappa: Numbers in [0, inf], any shape, float32 or float64.

    Returns:
        The logarithms, in shape and dtype of kappa.

    Examples:
        >>> import torch
        >>> from aleator.special import log_iv
        >>> log_iv(500.0, torch.tensor([0.1, 1.0, 1000.0]))  # I_500(0.1) is far below the smallest float64
        tensor([-4109.1968, -2957.9036,   872.9996])
    """
    check_bessel(order, kappa)
    value = _log_growth(order, kappa.double()) - math.lgamma(order + 1)
    if order > 0:  # for order 0 the term is 0, but its derivative at 0 would be NaN
        value = value + order * torch.log(kappa.double() / 2)
    return torch.where(torch.isinf(kappa), math.inf, value).to(kappa.dtype)


def log_growth(order: float, kappa: Tensor) -> Tensor:
    """The part of log I_v that is smooth at 0: log[Gamma(v+1) (2/kappa)^v I_v(kappa)].

    Its derivative in kappa is `bessel_ratio`. Three times differentiable.

    Args:
        order: Real order v >= 0. D/2 - 1 for a von Mises-Fisher distribution in D dimensions.
        kappa: Numbers in [0, inf], any shape, float32 or float64.

    Returns:
        log_growth, in shape and dtype of kappa. It is 0 at kappa = 0.

    Examples:
        >>> import torch
        >>> from aleator.special import log_growth
        >>> log_growth(0.5, torch.tensor([0.5, 1.0, 10.0]))  # in three dimensions log(sinh(kappa) / kappa)
        tensor([0.0413, 0.1614, 7.0043])
    """
    check_bessel(order, kappa)
    return _log_growth(order, kappa.double()).to(kappa.dtype)


def bessel_ratio(order: float, kappa: Tensor) -> Tensor:
    """I_{v+1}(kappa) / I_v(kappa). Twice differentiable in kappa.

    At v = D/2 - 1 this is the mean resultant length A_1 of a von Mises-Fisher distribution in D dimensions.

    Args:
        order: Real order v >= 0.
        kappa: Numbers in [0, inf], any shape, float32 or float64.

    Returns:
        Ratios in [0, 1], in shape and dtype of kappa.

    Examples:
        >>> import torch
        >>> from aleator.special import bessel_ratio
        >>> bessel_ratio(0.5, torch.tensor([0.0, 1.0, 10.0]))  # in three dimensions coth(kappa) - 1/kappa
        tensor([0.0000, 0.3130, 0.9000])
    """
    check_bessel(order, kappa)
    return _ratio(order, kappa.double()).to(kappa.dtype)


def bessel_ratios(order: float, kappa: Tensor, terms: int) -> Tensor:
    """A_n(kappa) = I_{v+n}(kappa) / I_v(kappa) for n = 0 .. terms-1.

    Args:
        order: Real order v >= 0.
        kappa: Numbers in [0, inf], shape (...), float32 or float64.
        terms: Number of ratios.

    Returns:
        Ratios in float64, shape (..., terms). In high dimensions they underflow: use `log_bessel_ratios`.

    Examples:
        >>> import torch
        >>> from aleator.special import bessel_ratios
        >>> bessel_ratios(4.0, torch.tensor(20.0), 4)
        tensor([1.0000, 0.7955, 0.6022, 0.4342], dtype=torch.float64)
    """
    return log_bessel_ratios(order, kappa, terms).exp()


def log_bessel_ratios(order: float, kappa: Tensor, terms: int) -> Tensor:
    """Log A_n(kappa) = log I_{v+n}(kappa) - log I_v(kappa) for n = 0 .. terms-1. Differentiable in kappa.

    Args:
        order: Real order v >= 0.
        kappa: Numbers in [0, inf], shape (...), float32 or float64.
        terms: Number of ratios.

    Returns:
        Logarithms in float64, shape (..., terms).

    Examples:
        >>> import torch
        >>> from aleator.special import log_bessel_ratios
        >>> log_bessel_ratios(511.0, torch.tensor(20.0), 3)
        tensor([ 0.0000, -3.9361, -7.8742], dtype=torch.float64)
    """
    check_bessel(order, kappa)

    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        log_a, slope = log_ratios_and_slopes(order, kappa, terms)
        return log_a, (slope,), lambda grad, slope: ((grad * slope).sum(-1),)

    kappa = kappa.double()
    return with_gradient(compute, kappa)


def log_ratios_and_slopes(order: float, kappa: Tensor, terms: int, slopes: bool = True) -> tuple[Tensor, Tensor]:
    """log A_n(kappa) and its derivative A_n'/A_n, both (..., terms) in float64, without gradients.

    Without `slopes` there are two derivatives only, n = 0 and 1, which saves a third of the time.

    For code that has its own backward pass. A_n' = A_{n+1} + (n/kappa - A_1) A_n gives
    (log A_n)' = rho_n - rho_0 + n/kappa with rho_n = A_{n+1}/A_n.
    """
    require_not_compiled("kappa")
    inner = representable(kappa)
    steps, top, _ = recurrence_start(order, terms)
    square = inner.square()
    y = debye_expansion(top, inner)[1] * square  # kappa * rho at the highest order
    scratch, rho = torch.empty_like(y), inner.new_empty((terms, *inner.shape))
    # For a handful of kappas the calls decide the time, and numpy's are several times as fast as torch's.
    ops: Any = torch
    parts: list[Any] = [square, y, scratch, rho]
    if inner.device.type == "cpu" and inner.numel() <= _FEW:
        ops, parts = np, [x.numpy() for x in parts]  # the same memory
    square, y, scratch, below = parts
    for j in range(steps - 1, -1, -1):
        y = ops.divide(square, ops.add(y, 2 * (order + j + 1), out=scratch), out=below[j, ...] if j < terms else None)
    rho.div_(inner).clamp_(max=1.0)
    log_a = torch.zeros_like(rho)
    torch.cumsum(rho[:-1].log(), 0, out=log_a[1:])
    rho = rho if slopes else rho[:2]
    degree = torch.arange(len(rho), dtype=torch.float64, device=inner.device).view(-1, *[1] * inner.dim())
    slope = rho - rho[:1] + degree / inner
    slope[:1].zero_()
    return log_a.movedim(0, -1), slope.movedim(0, -1)


def representable(kappa: Tensor) -> Tensor:
    """kappa in float64, clipped to where no power of it overflows or underflows. Results do not change beyond."""
    return kappa.detach().double().clamp(_SMALLEST, _LARGEST)


def recurrence_start(order: float, terms: int) -> tuple[int, float, tuple[float, ...]]:
    """Start of the recurrence for A_n, n < terms: number of steps down to `order`, first order, and Debye's G there."""
    steps = math.ceil(max(order + terms, DEBYE_ORDER) - order)
    return steps, order + steps, debye_polynomials(order + steps)[1]


def _log_growth(order: float, kappa: Tensor) -> Tensor:
    """log_growth of float64 kappas. Its derivative is rho = I_{v+1}/I_v."""

    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        value, ratio = log_growth_and_ratio(order, kappa, with_ratio=needed[0])
        return value, (kappa, ratio), gradient

    def gradient(grad: Tensor, kappa: Tensor, ratio: Tensor) -> tuple[Tensor]:
        # For second derivatives the ratio needs a graph of its own. Otherwise the saved ratio is enough.
        return (grad * (_ratio(order, kappa) if torch.is_grad_enabled() and kappa.requires_grad else ratio),)

    return with_gradient(compute, kappa, differentiable_again=True)


def _ratio(order: float, kappa: Tensor) -> Tensor:
    """rho = I_{v+1}/I_v of float64 kappas."""

    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        ratio = log_growth_and_ratio(order, kappa)[1]
        return ratio, (kappa,), lambda grad, kappa: (grad * ratio_slope(order, kappa),)

    return with_gradient(compute, kappa, differentiable_again=True)


def ratio_slope(order: float, kappa: Tensor) -> Tensor:
    """rho' = d/dkappa I_{v+1}/I_v of float64 kappas, differentiable, without checks."""

    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        return _ratio_slope(order, kappa), (kappa,), gradient

    def gradient(grad: Tensor, kappa: Tensor) -> tuple[Tensor]:
        ratio, slope = _ratio(order, kappa), ratio_slope(order, kappa)
        # The derivative of rho' = 1 - rho^2 - (2v+1) rho/kappa. Near 0 the quotient cancels: there, the power series.
        near_zero = kappa < 1e-2
        safe = torch.where(near_zero, 1.0, kappa)
        curvature = -2 * ratio * slope - (2 * order + 1) * (slope - ratio / safe) / safe
        series = -0.75 * kappa / ((order + 1) ** 2 * (order + 2))
        return (grad * torch.where(near_zero, series, curvature),)

    return with_gradient(compute, kappa, differentiable_again=True)


def check_bessel(order: float, kappa: Tensor) -> None:
    """Raise unless order and kappa are valid. Values of kappa are not checked: that would wait for a GPU."""
    require(order >= 0 and math.isfinite(order), "order", order, "a Bessel order v >= 0 is needed", "pass D/2 - 1")
    require_float("kappa", kappa)
    require_not_compiled("kappa")


def log_growth_and_ratio(order: float, kappa: Tensor, with_ratio: bool = True) -> tuple[Tensor, Tensor]:
    """`log_growth` and its derivative, the ratio, in one downward pass; in the shape of kappa, float64, no gradients.

    With `with_ratio=False` the second tensor is undefined: the ratio is not computed.
    """
    kappa = kappa.detach()
    fused = fused_kernels(kappa)
    if fused:
        steps = steps_to_debye(order)
        value, ratio, _ = debye_polynomials(order + steps)
        return fused.fused_log_growth(order, kappa, steps, value, ratio, _LARGEST)
    if kappa.device.type != "cpu" or kappa.numel() <= _CHUNK:
        return plain_log_growth(order, kappa, with_ratio)
    out = kappa.new_empty(2, kappa.numel())  # about eighty passes over the data: chunks stay in the cache
    for part, place in zip(kappa.flatten().split(_CHUNK), out.split(_CHUNK, 1), strict=True):
        place[0], ratio_of_part = plain_log_growth(order, part, with_ratio)
        if with_ratio:
            place[1] = ratio_of_part
    return out[0].view(kappa.shape), out[1].view(kappa.shape)


def plain_log_growth(order: float, kappa: Tensor, with_ratio: bool = True) -> tuple[Tensor, Tensor]:
    """`log_growth_and_ratio` without chunks: the plain version of the fused function."""
    steps = steps_to_debye(order)
    inner = kappa.clamp(0.0, _LARGEST)
    growth, ratio_over_kappa = debye_expansion(order + steps, inner, with_ratio or steps > 0)
    if steps:
        # For f_v = 0F1(; v+1; kappa^2/4) the recurrence is f_{v-1} = f_v + kappa^2 f_{v+1} / 4v(v+1), in one pass.
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
    growth.clamp_(min=0.0)  # rounding must not make it negative, nor the ratio larger than 1
    growth = torch.where(kappa > _LARGEST, kappa, growth)
    if not with_ratio:
        return growth, growth
    if steps:
        ratio_over_kappa.div_(2 * (order + 1))
    return growth, ratio_over_kappa.mul_(inner).clamp_(max=1.0)


def _ratio_slope(order: float, kappa: Tensor) -> Tensor:
    """rho' in the shape of kappa, float64, no gradients.

    Expansion and recurrence are differentiated: b_j = kappa^2 rho_j' = rho_j^2 (2(v+j+1) - b_{j+1}). The textbook form
    1 - rho^2 - (2v+1) rho/kappa loses all digits for large kappa.
    """
    kappa = kappa.detach()
    steps = steps_to_debye(order)
    inner = kappa.clamp(0.0, _LARGEST)
    top = order + steps
    p = torch.hypot(inner, torch.full_like(inner, top))
    t = top / p
    _, g, h = debye_polynomials(top)
    G, tG = horner(g, t), horner(h, t)
    sine2 = (inner / p).square()
    slope = top / (p * (p + top)) - (G * (1 - 2 * sine2) - sine2 * tG) / p.square()
    if steps:
        kappa2 = inner.square()
        e = 1 / (p + top) - G / p.square()  # rho_j / kappa
        for j in range(steps - 1, -1, -1):
            c = 2 * (order + j + 1)
            e = 1 / (c + kappa2 * e)
            slope = e.square() * (c - kappa2 * slope)
    return torch.where(kappa > _LARGEST, slope * (_LARGEST / kappa).square(), slope)  # (v + 1/2) / kappa^2
