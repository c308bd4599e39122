r"""How far log_growth stays below kappa, and the ratio of Bessel functions below 1, with all digits for every kappa.

    kappa_minus_log_growth(v, kappa) = kappa - log_growth(v, kappa)
    one_minus_bessel_ratio(v, kappa)  = 1 - I_{v+1}(kappa)/I_v(kappa), its derivative

As differences they lose their digits where kappa is large. There the series in 1/kappa is taken. Its coefficients
follow from the equation of Riccati, rho' = 1 - rho^2 - (2v+1) rho/kappa, for rho = 1 - sum_n a_n / kappa^n:

    2 a_n = (n - 2v - 2) a_{n-1} + sum_{i+j=n} a_i a_j,    a_1 = v + 1/2.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

from aleator.foundation import Backward, Saved, with_gradient
from aleator.special.bessel import check_bessel, log_growth_and_ratio, ratio_slope
from aleator.special.debye import horner

# For kappa >= _FAR (v + 1), a term of the series is about _FAR times as small as the one before it.
_FAR = 64.0
_TERMS = 10


def kappa_minus_log_growth(order: float, kappa: Tensor) -> Tensor:
    """kappa - log_growth(v, kappa), without cancellation. Three times differentiable in kappa.

    Its derivative is `one_minus_bessel_ratio`. With v = D/2 - 1 it is the log density of a von Mises-Fisher
    distribution at its mode, relative to the uniform density.

    Args:
        order: Real order v >= 0.
        kappa: Numbers in [0, inf], any shape, float32 or float64.

    Returns:
        Numbers >= 0, in shape and dtype of kappa. They grow like (v + 1/2) log kappa.

    Examples:
        >>> import torch
        >>> from aleator.special import kappa_minus_log_growth
        >>> kappa_minus_log_growth(0.5, torch.tensor([1.0, 1e20]))  # for D = 3 log(2 kappa), but for small kappa
        tensor([ 0.8386, 46.7449])
    """
    check_bessel(order, kappa)
    return _kappa_minus_log_growth(order, kappa.double()).to(kappa.dtype)


def one_minus_bessel_ratio(order: float, kappa: Tensor) -> Tensor:
    """1 - I_{v+1}(kappa) / I_v(kappa), without cancellation. Twice differentiable in kappa.

    Args:
        order: Real order v >= 0.
        kappa: Numbers in [0, inf], any shape, float32 or float64.

    Returns:
        Numbers in [0, 1], in shape and dtype of kappa. They fall like (v + 1/2) / kappa.

    Examples:
        >>> import torch
        >>> from aleator.special import one_minus_bessel_ratio
        >>> one_minus_bessel_ratio(0.5, torch.tensor([0.0, 1.0, 1e20]))  # in three dimensions 1 - coth(kappa) + 1/kappa
        tensor([1.0000e+00, 6.8696e-01, 1.0000e-20])
    """
    check_bessel(order, kappa)
    return _one_minus_bessel_ratio(order, kappa.double()).to(kappa.dtype)


def _kappa_minus_log_growth(order: float, kappa: Tensor) -> Tensor:
    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        value, slope = _complements(order, kappa, with_ratio=needed[0])
        return value, (kappa, slope), gradient

    def gradient(grad: Tensor, kappa: Tensor, slope: Tensor) -> tuple[Tensor]:
        again = torch.is_grad_enabled() and kappa.requires_grad  # for second derivatives it needs a graph of its own
        return (grad * (_one_minus_bessel_ratio(order, kappa) if again else slope),)

    return with_gradient(compute, kappa, differentiable_again=True)


def _one_minus_bessel_ratio(order: float, kappa: Tensor) -> Tensor:
    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        return _complements(order, kappa)[1], (kappa,), lambda grad, kappa: (-grad * ratio_slope(order, kappa),)

    return with_gradient(compute, kappa, differentiable_again=True)


def _complements(order: float, kappa: Tensor, with_ratio: bool = True) -> tuple[Tensor, Tensor]:
    """Both functions, in the shape of kappa, float64, no gradients. Without `with_ratio` the second is undefined."""
    kappa = kappa.detach()
    growth, ratio = log_growth_and_ratio(order, kappa, with_ratio)
    value, slope = (kappa - growth).clamp_(min=0.0), 1 - ratio if with_ratio else ratio
    far = kappa >= _FAR * (order + 1)
    if kappa.device.type == "cpu" and not far.any():  # asking a GPU would wait for it
        return value, slope
    of_slope, of_value, constant = _series(order)
    inverse = 1 / torch.where(far, kappa, math.inf)
    value = torch.where(far, constant + of_slope[1] * kappa.log() - horner(of_value, inverse), value)
    return value, torch.where(far, horner(of_slope, inverse), slope) if with_ratio else slope


@lru_cache(maxsize=4096)
def _series(order: float) -> tuple[tuple[float, ...], tuple[float, ...], float]:
    """a_0 = 0, a_1, ... by power of 1/kappa; the same of their integral, without a_1 log kappa; and its constant.

    The constant is that of I_v(kappa) ~ exp(kappa) / sqrt(2 pi kappa).
    """
    v = Fraction(order)
    a = [Fraction(0), v + Fraction(1, 2)]
    for n in range(2, _TERMS + 1):
        a.append(((n - 2 * v - 2) * a[n - 1] + sum(a[i] * a[n - i] for i in range(1, n))) / 2)
    integral = (0.0, *(float(c / (n - 1)) for n, c in enumerate(a) if n >= 2))
    constant = math.log(2 * math.pi) / 2 - order * math.log(2) - math.lgamma(order + 1)
    return tuple(map(float, a)), integral, constant
