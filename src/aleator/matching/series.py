r"""The sum of the series of expected positivity, and its slopes.

    r(c) = sum_n dim_n lambda_n A_n(kappa) A_n(kappa') P_n(c),     c = mu.mu'

**Row weights.** dim_n overflows while A_n underflows. So each posterior gets a row of weights,
w_n = sqrt(dim_n |lambda_n|) A_n(kappa), scaled to length one; the signs of lambda_n go into the rows of one side. Then

    r(c) = length length' s(c),     s(c) = sum_n w_n w'_n P_n(c),     |s(c)| <= 1.

**One pass.** With d_n, the slopes of the weights in kappa, the pass over n sums the slopes of s together with s:

    s_c = ds/dc,     s_1 = sum_n d_n w'_n P_n,     s_2 = sum_n w_n d'_n P_n.

P_n and P_n' come from their recurrences, so no term is stored: memory is a few numbers per pair, however many terms
there are. On a GPU the whole pass is one kernel (fused/series.py). The plain version is here; tests compare the two.

**Far away.** The sum has an absolute error of about 1e-16 of its maximum, s(1). Far below that maximum its logarithm
would be noise. Two things keep log r finite and increasing there:

- For the vMF kernel, the series is summed only down to about e^-14 of the maximum. From there on, log r continues as a
  straight line in c, the *tail*, as the logarithm of a vMF density does.
- For every kernel, a smooth floor at 1e-10 of the maximum keeps r positive. It is too low to matter above 1e-5:

    u = s/s(1),   log r = log s(1) + log( (u + sqrt(u^2 + 4 FLOOR^2))/2 ) + TILT FLOOR^2/(FLOOR^2 + u^2) (c - 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from aleator.foundation import Backward, Saved, with_gradient
from aleator.fused import fused_kernels
from aleator.special import (
    bessel_ratio,
    log_harmonic_dimensions,
    log_ratios_and_slopes,
    recurrence,
    recurrence_start,
    representable,
)

FLOOR = 1e-10
TILT = 1e-2
DEPTH = 14.0
# Pairs per block on a CPU, small enough for the working set of a block to stay in the cache.
_BLOCK = 2**15


@dataclass(frozen=True, eq=False)
class KernelSeries:
    """A kernel in D dimensions, as its series is summed."""

    dim: int
    log_lam: Tensor  # (T,): log |lambda_n|, with a graph if the kernel is learned
    sign: Tensor  # (T,): signs of lambda_n
    kappa_pos: float | Tensor | None  # of a vMF kernel, which has a tail; None for any other kernel
    tolerance: float = 0.0  # how much of the series a tile may leave out, relative to the largest r

    @property
    def parameters(self) -> tuple[Tensor, Tensor | None]:
        """What can have a gradient: log |lambda_n|, and kappa_pos if it is a tensor."""
        return self.log_lam, self.kappa_pos if isinstance(self.kappa_pos, Tensor) else None

    @cached_property
    def tail(self) -> "TailScale | None":
        """What the tail takes from the kernel, as numbers. A GPU is not asked for them."""
        if self.kappa_pos is None:
            return None
        if self.log_lam.is_cuda and isinstance(self.kappa_pos, float):
            return _fixed_tail(self.dim, self.kappa_pos)
        return tail_scale(self.dim, float(self.log_lam[1].exp()), float(self.kappa_pos))


@dataclass(frozen=True, eq=False)
class Rows:
    """One side of a comparison: G groups of N posteriors, or of components of posteriors."""

    mu: Tensor  # (G, N, D)
    kappa: Tensor  # (G, N)
    log_weights: Tensor | None = None  # (G, N): with which the rows count, finite
    modes: int = 1  # so many consecutive rows are one posterior; a divisor of N

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.mu, self.kappa, self.log_weights


@dataclass(frozen=True)
class TailScale:
    """What the tail of a vMF kernel takes from the kernel."""

    lam: float  # lambda_1
    scale: float  # kappa_pos / inverse(lambda_1)
    own_turn: float  # lambda_1 inverse'(lambda_1) / inverse(lambda_1)
    kappa_pos: float

    def steepness(self, dim: int, mean_length1: Tensor, mean_length2: Tensor) -> Tensor:
        """The slope of log r in the tail, from mean lengths A_1 that broadcast."""
        return self.scale * inverse_mean_length(dim, self.mean_length(mean_length1, mean_length2))

    def mean_length(self, mean_length1: Tensor, mean_length2: Tensor) -> Tensor:
        """R = A_1 lambda_1 A_1' of every pair."""
        return (mean_length1 * (mean_length2 * self.lam)).clamp_(1e-150, 1 - 1e-15)


def tail_scale(dim: int, lam: float, kappa_pos: float) -> TailScale:
    """The tail's numbers of a vMF kernel with these lambda_1 and kappa_pos."""
    length = torch.tensor(lam, dtype=torch.float64)
    own, slope = (float(inverse(dim, length)) for inverse in (inverse_mean_length, inverse_mean_length_slope))
    return TailScale(lam, kappa_pos / own, lam * slope / own, kappa_pos)


@lru_cache(maxsize=256)
def _fixed_tail(dim: int, kappa_pos: float) -> TailScale:
    return tail_scale(dim, float(bessel_ratio(dim / 2 - 1, torch.tensor(kappa_pos, dtype=torch.float64))), kappa_pos)


def inverse_mean_length(dim: int, R: Tensor) -> Tensor:
    """Banerjee's approximation of the inverse of A_1."""
    R2 = R.square()
    return R * (dim - R2) / (1 - R2)


def inverse_mean_length_slope(dim: int, R: Tensor) -> Tensor:
    R2 = R.square()
    return ((dim - 3 * R2) * (1 - R2) + 2 * R2 * (dim - R2)) / (1 - R2).square()


@dataclass(frozen=True)
class RowWeights:
    """The rows of one side's posteriors, which broadcast to the table of pairs, (N, M) or (G, N, M).

    For a table (N, M), one side has shape (N, 1) and the other (1, M). T is the number of terms.
    """

    weights: Tensor  # (..., T): w_n, a row of length one
    slopes: Tensor  # (..., T): d_n, the slopes in kappa of the unscaled row, divided by its length; (..., 1): left out
    log_length: Tensor  # (...): log of the length of the unscaled row
    mean_length: Tensor  # (...): A_1(kappa), the mean resultant length
    mean_length_slope: Tensor  # (...): A_1'(kappa)

    def signed(self, sign: Tensor) -> "RowWeights":
        """The same rows with the signs of lambda_n, for the other side."""
        slopes = self.slopes * sign if self.slopes.shape == self.weights.shape else self.slopes
        return replace(self, weights=self.weights * sign, slopes=slopes)

    def weighted(self, log_weights: Tensor | None) -> "RowWeights":
        """The rows of posteriors that count with weights, which are part of their length."""
        return self if log_weights is None else replace(self, log_length=self.log_length + log_weights)

    def block(self, rows: slice) -> "RowWeights":
        """The part for some rows of a table (N, M), or for some groups of a table (G, N, M)."""
        return self if len(self.log_length) == 1 else self.at(rows)

    def group(self, number: int) -> "RowWeights":
        """The part for one group of a table (G, N, M)."""
        return self.at(0 if len(self.log_length) == 1 else number)

    def at(self, index: int | slice | tuple | Tensor) -> "RowWeights":
        """The part at an index of the shape of `log_length`."""
        return RowWeights(*(getattr(self, name)[index] for name in self.__dataclass_fields__))

    def shaped(self, shape: torch.Size) -> "RowWeights":
        """Rows in a line, in the shape of their side."""
        parts = (getattr(self, name) for name in self.__dataclass_fields__)
        return RowWeights(*(part.reshape(shape + part.shape[1:]) for part in parts))


@dataclass(frozen=True)
class PositivityTable:
    """log r of every pair and, if asked for, its slopes; all of the shape of the table.

    The last five are for the gradient of a learned kernel.
    """

    log_r: Tensor
    slope_cosine: Tensor | None = None
    slope_kappa1: Tensor | None = None
    slope_kappa2: Tensor | None = None
    summed_at: Tensor | None = None  # the cosine at which the series was summed
    slope_sum: Tensor | None = None  # d log r / ds
    slope_peak: Tensor | None = None  # d log r / ds(1)
    tail_slope_kappa_pos: Tensor | None = None  # d log r / d kappa_pos, through the tail
    tail_slope_log_lam1: Tensor | None = None  # d log r / d log lambda_1, through the tail


class Tail(NamedTuple):
    """The straight continuation of log r: how steep it is, and slopes of that. All have the shape of the table."""

    steepness: Tensor  # kappa*, the slope of log r in the cosine
    slope_kappa1: Tensor  # d kappa* / d kappa
    slope_kappa2: Tensor  # d kappa* / d kappa'
    slope_log_lam1: Tensor  # d kappa* / d log lambda_1


def log_series(kernel: KernelSeries, cosine: Tensor, kappa1: Tensor, kappa2: Tensor) -> Tensor:
    """log r of a table of pairs, with gradients in the cosines, the kappas and the kernel.

    Args:
        kernel: What counts as a match.
        cosine: mu.mu', shape (N, M) or (G, N, M), float64.
        kappa1: Concentrations of one side; they broadcast to the table.
        kappa2: Concentrations of the other side; they broadcast to the table.

    Returns:
        log r, the shape of the table.
    """

    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        slopes, learned = any(needed), needed[3]
        first, second = _both_sides(kernel, kappa1, kappa2, slopes)
        table = positivity_table(kernel, cosine, first, second, slopes, learned)
        rest = (first, second, table) if learned else None  # much memory, so only where it is needed
        shapes = kappa1.shape, kappa2.shape

        def gradients(grad: Tensor, by_cosine: Tensor, by_kappa1: Tensor, by_kappa2: Tensor) -> list[Tensor | None]:
            return [
                grad * by_cosine if needed[0] else None,
                (grad * by_kappa1).sum_to_size(shapes[0]) if needed[1] else None,
                (grad * by_kappa2).sum_to_size(shapes[1]) if needed[2] else None,
                *(_kernel_gradients(kernel.dim, grad, *rest) if rest is not None else (None, None)),
            ]

        return table.log_r, (table.slope_cosine, table.slope_kappa1, table.slope_kappa2), gradients

    return with_gradient(compute, cosine, kappa1, kappa2, *kernel.parameters)


def _kernel_gradients(
    dim: int, grad: Tensor, first: RowWeights, second: RowWeights, table: PositivityTable
) -> tuple[Tensor, Tensor | None]:
    """In log |lambda_n| and in the kappa_pos of a vMF kernel."""
    assert table.summed_at is not None
    assert table.slope_sum is not None
    assert table.slope_peak is not None
    log_lam = _term_totals(dim, table.summed_at, first, second, grad * table.slope_sum)
    log_lam += _term_totals(dim, torch.ones_like(table.summed_at), first, second, grad * table.slope_peak)
    if table.tail_slope_log_lam1 is None or table.tail_slope_kappa_pos is None:
        return log_lam, None
    log_lam[1] += (grad * table.tail_slope_log_lam1).sum()
    return log_lam, (grad * table.tail_slope_kappa_pos).sum()


def row_weights(
    kernel: KernelSeries,
    kappa: Tensor,
    signed: bool = False,
    unused: Tensor | None = None,
    slopes: bool = True,
) -> RowWeights:
    """The rows of posteriors with concentrations kappa. Those of one side only are `signed`.

    If `unused` (an int32 scalar on a GPU) is not 0, the rows are left out: no one will look at them. Without `slopes`,
    the plain version leaves those of the weights out.
    """
    dim, log_lam = kernel.dim, kernel.log_lam
    order, terms, sign = dim / 2 - 1, len(log_lam), kernel.sign if signed else None
    log_scale = _log_scale(dim, log_lam) if log_lam.requires_grad else _fixed_log_scale(dim, log_lam)
    fused = fused_kernels(kappa)
    if fused:
        steps, top, start = recurrence_start(order, terms)
        arguments = (order, representable(kappa), log_scale, sign, top, steps, start, unused)
        return RowWeights(*fused.fused_row_weights(*arguments))
    return plain_row_weights(order, kappa, log_scale, sign, slopes)


def _both_sides(kernel: KernelSeries, kappa1: Tensor, kappa2: Tensor, slopes: bool) -> tuple[RowWeights, RowWeights]:
    """The rows of both sides of a table; the second has the signs.

    On a CPU they are made together. For few rows the many small steps of the recurrence decide the time, and a search
    scores few.
    """
    if fused_kernels(kappa1):
        return row_weights(kernel, kappa1), row_weights(kernel, kappa2, signed=True)
    together, count = torch.cat([kappa1.flatten(), kappa2.flatten()]), kappa1.numel()
    rows = row_weights(kernel, together, slopes=slopes)
    first, second = rows.at(slice(count)).shaped(kappa1.shape), rows.at(slice(count, None)).shaped(kappa2.shape)
    return first, second.signed(kernel.sign)


def _log_scale(dim: int, log_lam: Tensor) -> Tensor:
    """log(dim_n |lambda_n|)/2, shape (T,)."""
    return (log_harmonic_dimensions(dim, len(log_lam), log_lam.device) + log_lam) / 2


_fixed_log_scale = lru_cache(maxsize=64)(_log_scale)  # a fixed kernel has one tensor of coefficients for all batches


def plain_row_weights(
    order: float, kappa: Tensor, log_scale: Tensor, sign: Tensor | None, slopes: bool = True
) -> RowWeights:
    """`row_weights` from log_scale = log(dim_n |lambda_n|)/2, shape (T,); order = D/2 - 1."""
    log_a, log_slope = log_ratios_and_slopes(order, kappa, len(log_scale), slopes)
    log_w = log_scale + log_a
    log_length = torch.logsumexp(2 * log_w, -1) / 2
    weights = torch.exp(log_w - log_length.unsqueeze(-1))
    if sign is not None:
        weights = weights * sign
    mean_length = log_a[..., 1].exp()
    weight_slopes = weights * log_slope if slopes else weights[..., :1]
    return RowWeights(weights, weight_slopes, log_length, mean_length, mean_length * log_slope[..., 1])


def positivity_table(
    kernel: KernelSeries,
    cosine: Tensor,
    first: RowWeights,
    second: RowWeights,
    slopes: bool,
    learned: bool = False,
    floor: float = FLOOR,
    tilt: float = TILT,
) -> PositivityTable:
    """log r at cosines (N, M) or (G, N, M), with `slopes` if asked for, and those of a `learned` kernel."""
    fused = None if learned else fused_kernels(cosine)
    if fused:
        factors, constants = recurrences(kernel.dim, len(kernel.log_lam), cosine.device), (DEPTH, floor, tilt)
        of_kernel = factors, kernel.log_lam, kernel.kappa_pos, constants
        return PositivityTable(*fused.fused_positivity_table(kernel.dim, cosine, first, second, *of_kernel, slopes))
    if learned or cosine.device.type != "cpu" or cosine.numel() <= _BLOCK:
        return plain_positivity_table(kernel, cosine, first, second, slopes, floor, tilt)

    # On a CPU, in blocks of rows.
    out = [torch.empty_like(cosine) for _ in range(4 if slopes else 1)]

    def put(place: int | slice, part: PositivityTable) -> None:
        columns = (part.log_r, part.slope_cosine, part.slope_kappa1, part.slope_kappa2)
        for whole, column in zip(out, columns, strict=False):
            whole[place] = column  # type: ignore[assignment]

    if cosine.dim() == 3 and cosine[0].numel() > _BLOCK:
        for g, table in enumerate(cosine):
            sides = first.group(g), second.group(g)
            put(g, positivity_table(kernel, table, *sides, slopes, False, floor, tilt))
        return PositivityTable(*out)
    step = max(1, _BLOCK // cosine[0].numel())  # rows of a table, or small tables
    for start in range(0, len(cosine), step):
        rows = slice(start, min(start + step, len(cosine)))
        sides = first.block(rows), second.block(rows)
        put(rows, plain_positivity_table(kernel, cosine[rows], *sides, slopes, floor, tilt))
    return PositivityTable(*out)


def plain_positivity_table(
    kernel: KernelSeries,
    cosine: Tensor,
    first: RowWeights,
    second: RowWeights,
    slopes: bool,
    floor: float = FLOOR,
    tilt: float = TILT,
) -> PositivityTable:
    """`positivity_table` in one block: the formulas at the top of this file, and their derivatives."""
    dim, kappa_pos, c = kernel.dim, kernel.kappa_pos, cosine.clamp(-1, 1)
    peak = _inner(first.weights, second.weights)  # s(1)
    inside = c
    tail = _tail(dim, first, second, kernel.log_lam, kappa_pos) if kappa_pos is not None else None
    if tail is not None:
        inside = torch.maximum(c, 1 - DEPTH / tail.steepness)

    s, *sum_slopes = _sums(dim, inside, first, second, slopes)
    u = s / peak
    root = torch.sqrt(u.square() + 4 * floor**2)
    fade = floor**2 / (floor**2 + u.square())
    log_r = first.log_length + second.log_length + peak.log() + ((u + root) / 2).log() + tilt * fade * (inside - 1)
    if tail is not None:
        log_r = log_r + tail.steepness * (c - inside)
    if not slopes:
        return PositivityTable(log_r)

    s_c, s_1, s_2 = sum_slopes
    peak_1, peak_2 = _inner(first.slopes, second.weights), _inner(first.weights, second.slopes)
    du = 1 / root - 2 * tilt * fade.square() * u / floor**2 * (inside - 1)  # d log r / du
    slope_cosine = du * s_c / peak + tilt * fade
    slope_kappa1 = (peak_1 + du * (s_1 - u * peak_1)) / peak
    slope_kappa2 = (peak_2 + du * (s_2 - u * peak_2)) / peak
    table = PositivityTable(log_r, slope_cosine, slope_kappa1, slope_kappa2, inside, du / peak, (1 - du * u) / peak)
    if tail is None or kappa_pos is None:
        return table

    in_tail = c < inside
    steepness = tail.steepness
    # d log r / d steepness: a steeper tail turns about its start, and its start moves by DEPTH/steepness^2.
    turn = torch.where(in_tail, (slope_cosine - steepness) * DEPTH / steepness.square() + (c - inside), 0.0)
    return replace(
        table,
        slope_cosine=torch.where(in_tail, steepness, slope_cosine),
        slope_kappa1=slope_kappa1 + turn * tail.slope_kappa1,
        slope_kappa2=slope_kappa2 + turn * tail.slope_kappa2,
        tail_slope_kappa_pos=turn * steepness / kappa_pos,
        tail_slope_log_lam1=turn * tail.slope_log_lam1,
    )


def _tail(dim: int, first: RowWeights, second: RowWeights, log_lam: Tensor, kappa_pos: float | Tensor) -> Tail:
    """The tail of every pair: the vMF with the mean resultant length of the two posteriors and the kernel convolved.

    A_1 multiplies under convolution: A_1(kappa*) = A_1(kappa) lambda_1 A_1(kappa'). The inverse of A_1 is Banerjee's
    approximation, scaled to be exact for point masses, where log r is the line kappa_pos c plus a constant.
    """
    lam = log_lam[1].exp()
    own, own_slope = inverse_mean_length(dim, lam), inverse_mean_length_slope(dim, lam)
    R = (lam * first.mean_length * second.mean_length).clamp(1e-150, 1 - 1e-15)
    scale = kappa_pos / own
    steepness, turn = inverse_mean_length(dim, R) * scale, inverse_mean_length_slope(dim, R) * scale
    return Tail(
        steepness,
        turn * lam * second.mean_length * first.mean_length_slope,
        turn * lam * first.mean_length * second.mean_length_slope,
        turn * R - steepness * lam * own_slope / own,
    )


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """sum_n a_n b_n for every pair: the sum at c = 1, where every P_n is 1."""
    if a.shape[-2] == 1 and b.shape[-3] == 1:
        return a.squeeze(-2) @ b.squeeze(-3).mT
    return (a * b).sum(-1)


def _sums(dim: int, cosine: Tensor, first: RowWeights, second: RowWeights, slopes: bool) -> tuple[Tensor, ...]:
    """(s,) or (s, s_c, s_1, s_2) at the cosines."""
    w1, w2 = first.weights.unbind(-1), second.weights.unbind(-1)
    d1, d2 = first.slopes.unbind(-1), second.slopes.unbind(-1)
    s = torch.zeros_like(cosine)
    s_c, s_1, s_2 = (torch.zeros_like(cosine) for _ in range(3)) if slopes else (s, s, s)
    P, before = torch.ones_like(cosine), torch.zeros_like(cosine)
    # P_n' = n (n+D-2)/(D-1) Q_{n-1}, where Q are the polynomials of dimension D + 2.
    Q, Q_before = torch.ones_like(cosine), torch.zeros_like(cosine)
    scratch = torch.empty_like(cosine)
    for n in range(len(w1)):
        torch.mul(P, w2[n], out=scratch)
        s.addcmul_(scratch, w1[n])
        if slopes:
            s_1.addcmul_(scratch, d1[n])
            torch.mul(P, w1[n], out=scratch)
            s_2.addcmul_(scratch, d2[n])
            if n:
                torch.mul(w1[n], w2[n], out=scratch)
                s_c.addcmul_(scratch, Q, value=n * (n + dim - 2) / (dim - 1))
                Q, Q_before = _next(dim + 2, n - 1, cosine, Q, Q_before)
        P, before = _next(dim, n, cosine, P, before)
    return (s, s_c, s_1, s_2) if slopes else (s,)


def _term_totals(dim: int, cosine: Tensor, first: RowWeights, second: RowWeights, factor: Tensor) -> Tensor:
    """sum over pairs of factor * w_n w'_n P_n, for each n: the gradient with respect to log lambda_n, shape (T,)."""
    P, before = torch.ones_like(cosine), torch.zeros_like(cosine)
    totals = []
    for n, (w1, w2) in enumerate(zip(first.weights.unbind(-1), second.weights.unbind(-1), strict=True)):
        totals.append((factor * P * w2 * w1).sum())
        P, before = _next(dim, n, cosine, P, before)
    return torch.stack(totals)


def _next(dim: int, n: int, cosine: Tensor, P: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """(P_{n+1}, P_n) from (P_n, P_{n-1}), in the memory of P_{n-1}."""
    a, b = recurrence(dim, n)
    return before.mul_(-b).addcmul_(cosine, P, value=a), P


@lru_cache(maxsize=256)
def recurrences(dim: int, terms: int, device: torch.device) -> Tensor:
    """(5, terms), for the fused pass: a, b of P_n; the factor of P_n' and a, b of the Q_{n-1} that it multiplies."""
    columns = []
    for n in range(terms):
        factor = n * (n + dim - 2) / (dim - 1)
        columns.append([*recurrence(dim, n), factor, *(recurrence(dim + 2, n - 1) if n else (0.0, 0.0))])
    return torch.tensor(columns, dtype=torch.float64, device=device).T.contiguous()
