r"""log r as a polynomial in three numbers, for sums over very many pairs (fused/interpolant.py).

log r depends on a pair through kappa, kappa' and c = mu.mu' alone, and it is smooth in all three. So the series need
not be summed for every pair. Each side is sorted by kappa and cut into *classes* of neighbours. For each two classes
the series is summed in float64 on a small grid of Chebyshev nodes, and log r on the grid becomes a polynomial

    log r = sum_k T_k(y) sum_ab G_abk T_a(z) z'^b,     y = 1 - 2 (1 - c)/w.

z and z' in [-1, 1] are the places of kappa/(kappa + s) and kappa'/(kappa' + s) in their classes. The logarithm has no
cancellation, so a pair is evaluated in float32, and its cost does not depend on the number of terms of the series.

A vMF kernel has a tail (series.py): the series is summed at inside = max(c, 1 - DEPTH/steepness) and continued as a
straight line. So the grid of two classes covers only the cosines c >= 1 - w at which the series of some pair of theirs
is summed, and the steepness is a polynomial too.

The other kernels have a floor where the series cancels (series.py), and a polynomial that follows it would need many
more nodes. So w is chosen such that pairs with c < 1 - w, the *far* pairs, have r below exp(-_DROP) of its maximum.
There log r goes on as a straight line. `too_far` finds out whether any anchor's far pairs matter for its sum.

**Accuracy.** Each axis has one more node than the polynomial needs, where the error of Chebyshev interpolation is
largest. How far the polynomial is from the series there says whether two classes are `usable`: at most TOLERANCE. This
is decided on the device. The pairs of classes that are not usable are summed by the series.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from aleator.fused import fused_kernels
from aleator.matching.series import DEPTH, KernelSeries, RowWeights, positivity_table, recurrences, row_weights

TOLERANCE = 1e-6  # of log r, absolute
# Nodes in kappa, kappa' and the cosine. Rows have more, because their slope in kappa is needed.
ROW_NODES, COLUMN_NODES, COSINE_NODES = 8, 4, 40
ROW_CLASSES, COLUMN_CLASSES = 16, 64
CLASS_UNIT = 64  # a class has a multiple of so many members, so that no tile of pairs is in two classes
_SCALE = 20.0  # s = D/2 + this
_NARROWEST = 1e-2  # half of the width of a class in kappa/(kappa + s)
_NOISE = 4.0  # by how much the error of one node is larger than what it adds to each coefficient
_DROP = 14.0  # log r of a far pair is at least this far below its maximum
_SCAN = 65  # cosines at which far pairs are looked for
FAR_SHARE = 1e-6  # of an anchor's sum, which far pairs may have
_ROOM = 1.05  # the nodes of a class do not reach its ends, so its tails may start a little earlier


# put(k, after): c_k - after, in the memory of `after`
Put = Callable[[int, Tensor], Tensor]


class Classes(NamedTuple):
    """One side: N posteriors sorted by kappa, in P classes of `size` members (the last may have fewer)."""

    size: int
    middle: Tensor  # (P,) float64
    half: Tensor  # (P,) float64: z = (kappa/(kappa + s) - middle)/half
    nodes: Tensor  # (P, n + 1) float64: kappas; the last of each class is for the check


class Interpolant(NamedTuple):
    """The polynomials of all pairs of P row classes and Q column classes."""

    rows: Classes
    columns: Classes
    # (K + 1 or K + 2, P, a + 1, Q, b + 1) float64: G; the last index of each axis is the check; then the steepness
    coefficients: Tensor
    width: Tensor  # (P, Q) float64: w
    slope: Tensor  # (P, Q) float64: d log r/dc of far pairs, for kernels without a tail
    usable: Tensor  # (P, Q) int32
    degree: Tensor  # (P, Q) int32: how many k are needed, an even number

    @property
    def cosine_nodes(self) -> int:
        """K."""
        return COSINE_NODES


def interpolant(kernel: KernelSeries, kappa1: Tensor, kappa2: Tensor) -> Interpolant:
    """The polynomials for concentrations kappa1 (N,) of the rows and kappa2 (M,) of the columns, float64, ascending.

    Nothing waits for the device.
    """
    return polynomials(kernel, *_classes(kernel.dim, kappa1, kappa2), True, TOLERANCE)


def polynomials(kernel: KernelSeries, rows: Classes, columns: Classes, powers: bool, tolerance: float) -> Interpolant:
    """The polynomials of given classes, usable where their error is at most `tolerance`.

    `powers`: sums of powers of z', and not of T_b(z').
    """
    values, width, slope = _grid(kernel, rows, columns)
    shape = rows.nodes.shape[1] - 1, columns.nodes.shape[1] - 1
    by_k, by_a, by_b, weights, degrees = _transforms(*shape, kernel.tail is not None, powers, kernel.log_lam.device)
    table = (by_k @ values.flatten(1)).view_as(values) @ by_b.mT
    table = (by_a @ table.flatten(3)).view_as(values)
    size = table.abs()
    usable = (size * weights).sum((0, 2, 4)) <= tolerance  # False for a NaN
    needed = ((size[:COSINE_NODES].amax((2, 4)) > TOLERANCE / 32) * degrees).amax(0)
    return Interpolant(rows, columns, table, width, slope, usable.int(), needed.clamp(min=2))


def too_far(largest: Tensor, total: Tensor, far: Tensor) -> Tensor:
    """Whether the far pairs of any anchor have more than their share of its sum, () bool.

    `total` and `far` (S, N) are parts of the sums over all pairs and over far pairs, both times exp(-largest).
    """
    scale = (largest - largest.amax(0)).exp()
    return ((far * scale).sum(0) > FAR_SHARE * (total * scale).sum(0)).any()


def class_size(count: int, classes: int) -> int:
    """Members of a class, for a side of `count` posteriors."""
    return -(-count // (classes * CLASS_UNIT)) * CLASS_UNIT


def kappa_scale(dim: int) -> float:
    """s of kappa/(kappa + s). Any number of about this size does."""
    return dim / 2 + _SCALE


def _classes(dim: int, kappa1: Tensor, kappa2: Tensor) -> tuple[Classes, Classes]:
    """Of the rows and of the columns. Both at once, because each operation is a launch."""
    size1, size2 = class_size(len(kappa1), ROW_CLASSES), class_size(len(kappa2), COLUMN_CLASSES)
    edges = [_edges(len(x), size, x.device) for x, size in ((kappa1, size1), (kappa2, size2))]
    s, number = kappa_scale(dim), edges[0].shape[1]
    middle, half = _intervals(*squeezed(dim, torch.cat([kappa1[edges[0]], kappa2[edges[1]]], 1)))
    parts = [(middle[:number], half[:number], ROW_NODES), (middle[number:], half[number:], COLUMN_NODES)]
    x = [torch.addcmul(m[:, None], h[:, None], _nodes_and_check(n, half.device)) for m, h, n in parts]
    nodes = (s / (1 / torch.cat([part.flatten() for part in x]) - 1)).split([part.numel() for part in x])
    first, second = (node.view_as(part) for node, part in zip(nodes, x, strict=True))
    return Classes(size1, *parts[0][:2], first), Classes(size2, *parts[1][:2], second)


def even_classes(dim: int, kappa: Tensor, width: float, nodes: int) -> tuple[Classes, list[slice]]:
    """Classes of about equal width in kappa/(kappa + s), at most `width`, and the members of each.

    On a CPU; `kappa` (N,) is sorted, and not NaN. Classes differ in size, and `size` has no meaning.
    """
    place = squeezed(dim, kappa)
    low, high = float(place[0]), float(place[-1])
    count = max(1, math.ceil((high - low) / width))
    edges = torch.searchsorted(place, torch.linspace(low, high, count + 1, dtype=place.dtype)[1:-1]).tolist()
    members = [slice(a, b) for a, b in pairwise([0, *edges, len(kappa)]) if a < b]
    first, last = (torch.tensor(x) for x in ([m.start for m in members], [m.stop - 1 for m in members]))
    return classes_between(dim, place[first], place[last], nodes), members


def classes_between(dim: int, low: Tensor, high: Tensor, nodes: int) -> Classes:
    """Classes with the given ends in kappa/(kappa + s), (P,) each. On a CPU; `size` has no meaning."""
    middle, half = _intervals(low, high)
    x = torch.addcmul(middle[:, None], half[:, None], _nodes_and_check(nodes, low.device))
    return Classes(0, middle, half, kappa_scale(dim) / (1 / x - 1))


def squeezed(dim: int, kappa: Tensor) -> Tensor:
    """kappa/(kappa + s), from 0 to 1."""
    return 1 / (1 + kappa_scale(dim) / kappa)


def place_in_class(dim: int, kappa: Tensor, middle: Tensor | float, half: Tensor | float) -> tuple[Tensor, Tensor]:
    """z, the place of kappa in a class with this middle and half width, and its slope in kappa."""
    s = kappa_scale(dim)
    return (squeezed(dim, kappa) - middle) / half, 1 / ((1 + kappa / s).square() * s * half)


def turn_of_tail(slope: Tensor, steepness: Tensor, beyond: Tensor) -> Tensor:
    """d log r / d steepness in the tail, 0 elsewhere: a steeper line turns about its start, and its start moves.

    `slope` is that of log r in the cosine where the tail starts; `beyond` is c - inside, negative in the tail.
    """
    return (slope - steepness).div_(steepness).div_(steepness).mul_(DEPTH).add_(beyond).mul_(beyond < 0)


def _intervals(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Middle and half width of intervals that hold [low, high], within [0, 1] and not too narrow."""
    half = ((high - low) / 2).clamp(min=_NARROWEST)
    return torch.maximum(torch.minimum((high + low) / 2, 1 - half), half), half


def _grid(kernel: KernelSeries, rows: Classes, columns: Classes) -> tuple[Tensor, Tensor, Tensor]:
    """log r at the nodes (K + 1, P, a + 1, Q, b + 1), after them the steepness of the tail; w and slopes (P, Q)."""
    (P, a), (Q, b) = rows.nodes.shape, columns.nodes.shape
    weights = row_weights(kernel, torch.cat([rows.nodes.flatten(), columns.nodes.flatten()]))
    if kernel.tail is None:
        width = _near_width(kernel, weights, (P, a, Q, b))
        log_r = _log_r(kernel, weights, width / 2, (a, b))
        last = log_r[COSINE_NODES - 2 : COSINE_NODES, :, a // 2, :, b // 2]
        return log_r, width, ((last[0] - last[1]) / (_last_spacing() * width)).clamp(min=0.0)
    lengths = weights.mean_length
    steep = kernel.tail.steepness(kernel.dim, lengths[: P * a, None], lengths[None, P * a :]).view(1, P, a, Q, b)
    lowest = steep[0, :, a - 2, :, b - 2]  # the nodes descend, and the last is that of the check
    width = (_ROOM * DEPTH / lowest).clamp(max=2.0)
    log_r = _log_r(kernel, weights, width / 2, (a, b))
    return torch.cat([log_r, steep]), width, width


def _log_r(kernel: KernelSeries, weights: RowWeights, half: Tensor, nodes: tuple[int, int]) -> Tensor:
    """log r without its floor at the nodes of all pairs of classes, (K + 1, P, a + 1, Q, b + 1)."""
    (P, Q), (a, b) = half.shape, nodes
    y = _nodes_and_check(COSINE_NODES, half.device)
    if fused := fused_kernels(half):
        factors = recurrences(kernel.dim, len(kernel.log_lam), half.device)
        return fused.fused_log_grid(weights.weights, weights.log_length, kernel.sign, factors, y, half, nodes)
    half = half.view(P, 1, Q, 1).expand(P, a, Q, b).reshape(P * a, Q * b)
    first, second = weights.at((None, slice(P * a), None)), weights.at((None, None, slice(P * a, None)))
    cosine = torch.addcmul(1 - half, half, y[:, None, None])
    without_tail = replace(kernel, kappa_pos=None)
    table = positivity_table(without_tail, cosine, first, second.signed(kernel.sign), False, floor=1e-30, tilt=0.0)
    return table.log_r.view(-1, P, a, Q, b)


def _near_width(kernel: KernelSeries, weights: RowWeights, nodes: tuple[int, int, int, int]) -> Tensor:
    """w (P, Q) of a kernel without a tail. The widest posteriors of two classes, whose log r falls last, decide."""
    P, a, Q, b = nodes
    first = weights.at((None, slice(a - 2, P * a, a), None))
    second = weights.at((None, None, slice(P * a + b - 2, None, b))).signed(kernel.sign)
    cosine = _scan(kernel.log_lam.device).expand(-1, P, Q).contiguous()
    log_r = positivity_table(kernel, cosine, first, second, False).log_r
    near = log_r >= log_r.amax(0) - _DROP
    return torch.where(near, 1 - cosine, 1 / _SCAN).amax(0)


def _last_spacing() -> float:
    """Half of the distance of the last two nodes in y: their distance in the cosine, for w = 1."""
    return math.sin(math.pi / COSINE_NODES) * math.sin(math.pi / (2 * COSINE_NODES))


@lru_cache(maxsize=64)
def _scan(device: torch.device) -> Tensor:
    """Cosines from 1 to -1, (_SCAN, 1, 1)."""
    return torch.linspace(1, -1, _SCAN, dtype=torch.float64, device=device)[:, None, None]


@lru_cache(maxsize=64)
def _edges(count: int, size: int, device: torch.device) -> Tensor:
    """(2, P): the first and the last member of each class."""
    first = torch.arange(0, count, size)
    return torch.stack([first, (first + size).clamp(max=count) - 1]).to(device)


@lru_cache(maxsize=64)
def _nodes_and_check(count: int, device: torch.device) -> Tensor:
    """Chebyshev nodes on [-1, 1], and 0, where the polynomial is compared with the series; (count + 1,)."""
    angles = math.pi * (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return torch.cat([angles.cos(), torch.zeros(1, dtype=torch.float64)]).to(device)


@lru_cache(maxsize=64)
def _transforms(
    row_nodes: int, column_nodes: int, tail: bool, powers: bool, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Matrices that turn values into coefficients along each axis, weights of the check, and degrees in k."""
    counts = (COSINE_NODES, row_nodes, column_nodes)
    by_k, by_a, by_b = (_coefficients(count) for count in counts)
    if powers:
        by_b = _chebyshev_as_powers(column_nodes).mT @ by_b
    checks = [torch.arange(count + 1) == count for count in counts]
    if tail:
        by_k = torch.block_diag(by_k, torch.ones(1, 1, dtype=torch.float64))
        checks[0] = torch.cat([checks[0], torch.zeros(1, dtype=torch.bool)])
    weights = (checks[0][:, None, None, None, None] | checks[1][:, None, None] | checks[2]).double()
    # The noise of a single node is spread over all k. The last ones show it.
    weights[COSINE_NODES - 4 : COSINE_NODES] = _NOISE
    degrees = 2 + 2 * (torch.arange(COSINE_NODES, dtype=torch.int32)[:, None, None] // 2)
    tensors = (by_k, by_a, by_b, weights, degrees)
    return tuple(x.to(device).contiguous() for x in tensors)  # type: ignore[return-value]


def _chebyshev_as_powers(count: int) -> Tensor:
    """T_0, ..., T_{count-1} as sums of powers, one in each row; (count + 1, count + 1), the last for the check."""
    powers = torch.eye(count + 1, dtype=torch.float64)
    for b in range(2, count):
        powers[b, 1:count] = 2 * powers[b - 1, : count - 1]
        powers[b, 0] = 0.0
        powers[b] -= powers[b - 2]
    return powers


def _coefficients(count: int) -> Tensor:
    """From values at nodes and check: coefficients of T_0, T_1, ..., and how far the polynomial is off at the check."""
    k, angle = torch.arange(count, dtype=torch.float64), _nodes_and_check(count, torch.device("cpu"))[:-1].acos()
    matrix = torch.zeros(count + 1, count + 1, dtype=torch.float64)
    matrix[:count, :count] = torch.cos(k[:, None] * angle) * 2 / count
    matrix[0] /= 2
    matrix[count] = torch.cos(k * math.pi / 2) @ matrix[:count]
    matrix[count, count] = -1.0
    return matrix


def chebyshev_values(z: Tensor, slope: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """T_0(z), T_1(z), ..., and their derivatives times the slope of z; (R, count) each."""
    values, slopes = [torch.ones_like(z), z], [torch.zeros_like(z), torch.ones_like(z)]
    for _ in range(2, count):
        slopes.append(2 * (values[-1] + z * slopes[-1]) - slopes[-2])
        values.append(2 * z * values[-1] - values[-2])
    return torch.stack(values, 1), torch.stack(slopes, 1) * slope[:, None]


def chebyshev_sum(twice: Tensor, degree: int, put: Put) -> Tensor:
    """sum_k c_k T_k(y) over k < degree, of the shape of twice = 2 y.

    By Clenshaw's rule, from the last coefficient to the first. It needs few tables, which stay in the cache, however
    many terms there are.
    """
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
