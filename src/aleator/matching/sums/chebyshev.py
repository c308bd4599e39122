"""Sums of Chebyshev polynomials T_k over tables of pairs, and their slopes.

A sum of c_k T_k(y) is taken by Clenshaw's rule, from the last coefficient to the first. It needs few tables, which stay
in the cache, however many terms there are.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# put(k, after): c_k - after, in the memory of `after`
Put = Callable[[int, Tensor], Tensor]


def chebyshev_values(z: Tensor, slope: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """T_0(z), T_1(z), ..., and their derivatives times the slope of z; (R, count) each."""
    values, slopes = [torch.ones_like(z), z], [torch.zeros_like(z), torch.ones_like(z)]
    for _ in range(2, count):
        slopes.append(2 * (values[-1] + z * slopes[-1]) - slopes[-2])
        values.append(2 * z * values[-1] - values[-2])
    return torch.stack(values, 1), torch.stack(slopes, 1) * slope[:, None]


def chebyshev_sum(twice: Tensor, degree: int, put: Put) -> Tensor:
    """sum_k c_k T_k(y) over k < degree, of the shape of twice = 2 y."""
    now, after = (torch.zeros_like(twice) for _ in range(2))
    for k in range(degree - 1, -1, -1):
        put(k, after).addcmul_(twice, now)
        now, after = after, now
    return now.addcmul_(twice, after, value=-0.5)


def chebyshev_sum_and_slope(twice: Tensor, degree: int, put: Put) -> tuple[Tensor, Tensor]:
    """The sum, and its slope in y."""
    now, after, d_now, d_after = (torch.zeros_like(twice) for _ in range(4))  # d: halves of slopes in y
    for k in range(degree - 1, -1, -1):
        torch.sub(now, d_after, out=d_after).addcmul_(twice, d_now)
        d_now, d_after = d_after, d_now
        put(k, after).addcmul_(twice, now)
        now, after = after, now
    slope = d_now.mul_(2).addcmul_(twice, d_after, value=-1).sub_(after)
    return now.addcmul_(twice, after, value=-0.5), slope
