r"""Expected positivity of a tile of pairs on a CPU: what one tile adds to the sums over negatives, and to gradients.

A tile compares some rows of one side with some rows of the other. The formulas are those of series.py, written for sums
over many pairs (totals.py): nothing of a tile is kept, and the backward pass computes it again.

**Few passes over the tile.** The polynomials are rescaled, P_n = h_n p_n, so that their recurrence is

    p_{n+1} = m_n c p_n + p_{n-1},

which is one `addcmul_` in place. Clenshaw's rule then sums the series with two of them for each term:

    y_n = h_n w_n w'_n + m_n c y_{n+1} + y_{n+2},     s = y_0.

**Slopes in kappa.** With B_ij the gradient of the loss with respect to s_ij, the gradient of row i is

    sum_n d_in M_in,     M_in = sum_j B_ij w'_jn P_n(c_ij).

B P_n follows the recurrence of P_n, so M takes one pass and one matrix-vector product for each term and side. M also
gives the gradient of a learned kernel: sum_i w_in M_in is that of log lambda_n.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from aleator.matching.series import DEPTH, FLOOR, TILT
from aleator.special import recurrence


@dataclass(frozen=True)
class Side:
    """Posteriors of one side of the tiles. N posteriors, T terms; everything in float64."""

    mu: Tensor  # (N, D)
    weights: Tensor  # (T, N): w_n, with the signs of lambda_n on the second side
    log_length: Tensor  # (N,)
    mean_length: Tensor  # (N,): A_1

    def part(self, rows: slice) -> "Side":
        return Side(self.mu[rows], self.weights[:, rows], self.log_length[rows], self.mean_length[rows])


@dataclass(frozen=True)
class TailScale:
    """What the tail of a vMF kernel takes from the kernel (series.py, `Tail`)."""

    lam: float  # lambda_1
    scale: float  # kappa_pos / inverse(lambda_1)
    own_turn: float  # lambda_1 inverse'(lambda_1) / inverse(lambda_1)
    kappa_pos: float


class FixedKernel(NamedTuple):
    """A kernel that is not learned, in D dimensions: its series, and how much of it may be left out."""

    dim: int
    log_lam: Tensor  # (T,): log |lambda_n|
    sign: Tensor  # (T,): signs of lambda_n
    tail: TailScale | None  # of a vMF kernel
    tolerance: float  # relative to the largest r


@dataclass(frozen=True)
class TileValues:
    """r of the pairs of a tile without the lengths of the rows, and what its slopes are made of."""

    values: Tensor  # (R, C): v, with r = v exp(log_length + log_length')
    peak: Tensor
    s: Tensor
    s_c: Tensor
    square: Tensor  # (FLOOR peak)^2
    fade: Tensor
    cosine: Tensor
    inside: Tensor  # where the series was summed
    steepness: Tensor | None  # of the tail, if any pair of the tile is in it


@dataclass
class TileGradients:
    """What a tile adds to the gradients of its two sides."""

    cosine: Tensor  # (R, C)
    terms1: Tensor  # (T, R): with respect to the weights of the first side
    terms2: Tensor  # (T, C): with respect to the weights of the second side
    mean1: Tensor | None = None  # (R,): with respect to A_1 of the first side, through the tail
    mean2: Tensor | None = None
    kappa_pos: float = 0.0
    log_lam1: float = 0.0


@lru_cache(maxsize=256)
def rescaled_recurrence(dim: int, terms: int) -> tuple[tuple[float, ...], Tensor]:
    """m_n and h_n (terms, 1) with P_n = h_n p_n and p_{n+1} = m_n c p_n + p_{n-1}."""
    h = [1.0, 1.0]
    for n in range(1, terms):
        h.append(-recurrence(dim, n)[1] * h[n - 1])
    m = [recurrence(dim, n)[0] * h[n] / h[n + 1] for n in range(terms)]
    return tuple(m), torch.tensor(h[:terms], dtype=torch.float64)[:, None]


def tile_values(dim: int, first: Side, second: Side, terms: int, tail: TailScale | None, slopes: bool) -> TileValues:
    """r of a tile."""
    m, h = rescaled_recurrence(dim, terms)
    w1, w2 = first.weights[:terms], second.weights[:terms]
    cosine = (first.mu @ second.mu.mT).clamp_(-1, 1)
    peak = w1.mT @ w2
    inside, steep = cosine, None
    if tail is not None:
        steep = steepness(dim, first.mean_length[:, None], second.mean_length, tail)
        inside = torch.maximum(cosine, 1 - DEPTH / steep)
        if torch.equal(inside, cosine):
            steep = None
    s, s_c = _clenshaw(inside, w1, w2 * h, m, slopes)
    square = (FLOOR * peak).square_()
    s2 = s.square()
    fade = square / (square + s2)
    exponent = TILT * fade * (inside - 1)
    if steep is not None:
        exponent += steep * (cosine - inside)
    values = s2.add_(square, alpha=4).sqrt_().add_(s).mul_(0.5).mul_(exponent.exp_())
    return TileValues(values, peak, s, s_c, square, fade, cosine, inside, steep)


def tile_gradients(
    dim: int,
    first: Side,
    second: Side,
    terms: int,
    tail: TailScale | None,
    tile: TileValues,
    share: Tensor,
) -> TileGradients:
    """Gradients of sum_ij share_ij log r_ij, with the shares held fixed."""
    m, h = rescaled_recurrence(dim, terms)
    w1, w2 = first.weights[:terms], second.weights[:terms]
    ds = 1 / (tile.s.square() + 4 * tile.square).sqrt_()  # d log r / ds
    ds -= 2 * TILT * tile.fade.square() * tile.s / tile.square * (tile.inside - 1)
    slope = ds * tile.s_c + TILT * tile.fade
    by_sum = share * ds
    by_peak = share * (1 - ds * tile.s) / tile.peak
    terms1, terms2 = _term_totals(tile.inside, by_sum, w1 * h, w2 * h, m)
    terms1 += w2 @ by_peak.mT
    terms2 += w1 @ by_peak
    result = TileGradients(slope, terms1, terms2)
    if tail is not None and tile.steepness is not None:
        _add_tail(dim, first, second, tail, tile, share, result)
    result.cosine = share * result.cosine
    return result


def _add_tail(
    dim: int, first: Side, second: Side, tail: TailScale, tile: TileValues, share: Tensor, out: TileGradients
) -> None:
    """The gradients through the tail. A steeper tail turns about its start, and its start moves."""
    steepness: Tensor = tile.steepness  # type: ignore[assignment]
    beyond = tile.cosine - tile.inside
    in_tail = beyond < 0
    turn = torch.where(in_tail, (out.cosine - steepness) * DEPTH / steepness.square() + beyond, 0.0).mul_(share)
    out.cosine = torch.where(in_tail, steepness, out.cosine)
    R = _mean_length(first.mean_length[:, None], second.mean_length, tail)
    by_length = turn * (tail.scale * _inverse_slope(dim, R))  # with respect to R
    out.mean1 = (by_length @ second.mean_length).mul_(tail.lam)
    out.mean2 = (by_length.mT @ first.mean_length).mul_(tail.lam)
    by_steepness = float((turn * steepness).sum())
    out.kappa_pos = by_steepness / tail.kappa_pos
    out.log_lam1 = float((by_length * R).sum()) - by_steepness * tail.own_turn


def tail_scale(dim: int, lam: float, kappa_pos: float) -> TailScale:
    """The tail's numbers of a vMF kernel with these lambda_1 and kappa_pos."""
    length = torch.tensor(lam, dtype=torch.float64)
    own, slope = float(_inverse(dim, length)), float(_inverse_slope(dim, length))
    return TailScale(lam, kappa_pos / own, lam * slope / own, kappa_pos)


def steepness(dim: int, mean_length1: Tensor, mean_length2: Tensor, tail: TailScale) -> Tensor:
    """The slope of log r in the tail, from mean lengths A_1 that broadcast."""
    return tail.scale * _inverse(dim, _mean_length(mean_length1, mean_length2, tail))


def _mean_length(mean_length1: Tensor, mean_length2: Tensor, tail: TailScale) -> Tensor:
    """R = A_1 lambda_1 A_1' of every pair."""
    return (mean_length1 * (mean_length2 * tail.lam)).clamp_(1e-150, 1 - 1e-15)


def _inverse(dim: int, R: Tensor) -> Tensor:
    """Banerjee's approximation of the inverse of A_1."""
    R2 = R.square()
    return R * (dim - R2) / (1 - R2)


def _inverse_slope(dim: int, R: Tensor) -> Tensor:
    R2 = R.square()
    return ((dim - 3 * R2) * (1 - R2) + 2 * R2 * (dim - R2)) / (1 - R2).square()


def _clenshaw(cosine: Tensor, w1: Tensor, w2: Tensor, m: tuple[float, ...], slopes: bool) -> tuple[Tensor, Tensor]:
    """s and ds/dc. Without `slopes` the second is undefined."""
    y, after = w1[-1][:, None] * w2[-1], torch.zeros_like(cosine)
    dy, d_after = (torch.zeros_like(cosine) for _ in range(2)) if slopes else (y, after)
    for n in range(len(w1) - 2, -1, -1):
        if slopes:
            d_after.addcmul_(cosine, dy, value=m[n]).add_(y, alpha=m[n])
            dy, d_after = d_after, dy
        after.addcmul_(cosine, y, value=m[n]).addcmul_(w1[n][:, None], w2[n])
        y, after = after, y
    return y, dy


def _term_totals(cosine: Tensor, factor: Tensor, w1: Tensor, w2: Tensor, m: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """sum_j factor_ij w'_jn p_n(c_ij) for every n and row i, and the same for the other side; (T, R) and (T, C)."""
    terms = len(w1)
    out1, out2 = factor.new_empty(terms, factor.shape[0]), factor.new_empty(terms, factor.shape[1])
    now, before = factor.clone(), torch.zeros_like(factor)
    for n in range(terms):
        torch.mv(now, w2[n], out=out1[n])
        torch.mv(now.mT, w1[n], out=out2[n])
        if n < terms - 1:
            before.addcmul_(cosine, now, value=m[n])
            now, before = before, now
    return out1, out2
