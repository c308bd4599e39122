r"""Summing the series of expected positivity, with its slopes, in one pass and without storing a term.

    s(c) = sum_n w_n w'_n P_n(c),     s_c = ds/dc,     s_1 = sum_n d_n w'_n P_n,     s_2 = sum_n w_n d'_n P_n

for every pair of a posterior's row (w, d) with another's (w', d'). dim_n overflows while A_n underflows, so a row is
w_n = sqrt(dim_n |lambda_n|) A_n(kappa), scaled to length one; the product of two rows is then in [-1, 1]. P_n and
P_n' run along by their recurrences, so the memory is a few numbers per pair however many terms there are. On a GPU the
whole pass is one kernel (kernels/); here is the plain version, to which the tests hold that one.

The sum has an absolute error of about 1e-16 of its maximum over the cosine, s(1). Two things keep log r right far below
that maximum, where a plain logarithm would meet noise. For the vMF kernel the series is evaluated no further out than
where r has fallen by about e^-14, and log r goes on from there as a straight line, as the logarithm of a vMF does. And
for any kernel a floor at 1e-10 of the maximum, too low to matter above 1e-5, keeps r positive and increasing:

    u = s/s(1),   log r = log s(1) + log( (u + sqrt(u^2 + 4 FLOOR^2))/2 ) + TILT FLOOR^2/(FLOOR^2 + u^2) (c - 1).
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from aleator.fused import fused_kernels
from aleator.special import log_harmonic_dimensions, log_ratios_and_slopes, recurrence, recurrence_start, representable

FLOOR = 1e-10
TILT = 1e-2
DEPTH = 14.0
# Pairs per block on a CPU: the working set of a block stays in the cache.
_BLOCK = 2**15


@dataclass(frozen=True)
class Rows:
    """What the pass needs of one side: posteriors of a shape that broadcasts to the table's, (N, M) or (G, N, M), as
    (N, 1) and (1, M) do; times T terms where it says so."""

    weight: Tensor  # (..., T): w_n
    slope: Tensor  # (..., T): d_n, the slope in kappa of the row before scaling, scaled like it
    log_length: Tensor  # log of the row's length before scaling
    mean: Tensor  # A_1
    mean_slope: Tensor  # A_1'

    def block(self, start: int, stop: int) -> "Rows":
        return self if len(self.log_length) == 1 else self._at(slice(start, stop))

    def group(self, number: int) -> "Rows":
        return self._at(0 if len(self.log_length) == 1 else number)

    def _at(self, index: int | slice) -> "Rows":
        return Rows(*(getattr(self, name)[index] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Pairs:
    """log r of every pair and, if asked for, its slopes, as a table. The last five serve a learnable kernel."""

    log_r: Tensor
    slope_c: Tensor | None = None
    slope_1: Tensor | None = None
    slope_2: Tensor | None = None
    inside: Tensor | None = None  # the cosine at which the series was summed
    of_series: Tensor | None = None  # d log r / ds
    of_peak: Tensor | None = None  # d log r / ds(1)
    line_pos: Tensor | None = None  # through the line: d log r / d kappa_pos
    line_lam: Tensor | None = None  # through the line: d log r / d log lambda_1


def rows(dim: int, kappa: Tensor, log_lam: Tensor, sign: Tensor | None = None) -> Rows:
    """The rows of posteriors with concentrations kappa; the sign of lambda_n goes with one side only."""
    order, terms = dim / 2 - 1, len(log_lam)
    log_weight = (log_harmonic_dimensions(dim, terms, kappa.device) + log_lam) / 2
    fused = fused_kernels(kappa)
    if fused:
        steps, top, start = recurrence_start(order, terms)
        return Rows(*fused.fused_rows(order, representable(kappa), log_weight, sign, top, steps, start))
    return plain_rows(order, kappa, log_weight, sign)


def plain_rows(order: float, kappa: Tensor, log_weight: Tensor, sign: Tensor | None) -> Rows:
    log_a, log_slope = log_ratios_and_slopes(order, kappa, len(log_weight))
    log_w = log_weight + log_a
    log_length = torch.logsumexp(2 * log_w, -1) / 2
    weight = torch.exp(log_w - log_length.unsqueeze(-1))
    if sign is not None:
        weight = weight * sign
    mean = log_a[..., 1].exp()
    return Rows(weight, weight * log_slope, log_length, mean, mean * log_slope[..., 1])


def log_series(
    dim: int,
    cosine: Tensor,
    first: Rows,
    second: Rows,
    log_lam: Tensor,
    kappa_pos: float | Tensor | None,
    slopes: bool,
    learnable: bool = False,
) -> Pairs:
    """log r at cosines (N, M) or (G, N, M), a table for each of G groups; with kappa_pos, the vMF kernel's straight
    continuation. `learnable`: more slopes."""
    fused = None if learnable else fused_kernels(cosine)
    if fused:
        table = _recurrences(dim, len(log_lam), cosine.device)
        constants = (DEPTH, FLOOR, TILT)
        return Pairs(*fused.fused_log_series(dim, cosine, first, second, table, log_lam, kappa_pos, constants, slopes))
    if learnable or cosine.device.type != "cpu" or cosine.numel() <= _BLOCK:
        return plain_log_series(dim, cosine, first, second, log_lam, kappa_pos, slopes)
    out = [torch.empty_like(cosine) for _ in range(4 if slopes else 1)]

    def put(place: int | slice, part: Pairs) -> None:
        for whole, piece in zip(out, (part.log_r, part.slope_c, part.slope_1, part.slope_2), strict=False):
            whole[place] = piece  # type: ignore[assignment]

    if cosine.dim() == 3:
        for g, table in enumerate(cosine):
            put(g, log_series(dim, table, first.group(g), second.group(g), log_lam, kappa_pos, slopes))
        return Pairs(*out)
    step = max(1, _BLOCK // cosine.shape[1])
    for start in range(0, len(cosine), step):
        rows = slice(start, min(start + step, len(cosine)))
        sides = first.block(rows.start, rows.stop), second.block(rows.start, rows.stop)
        put(rows, plain_log_series(dim, cosine[rows], *sides, log_lam, kappa_pos, slopes))
    return Pairs(*out)


def plain_log_series(
    dim: int,
    cosine: Tensor,
    first: Rows,
    second: Rows,
    log_lam: Tensor,
    kappa_pos: float | Tensor | None,
    slopes: bool,
) -> Pairs:
    c = cosine.clamp(-1, 1)
    peak = _inner(first.weight, second.weight)
    inside = c
    if kappa_pos is not None:
        line, line_1, line_2, line_lam = _line(dim, first, second, log_lam, kappa_pos)
        inside = torch.maximum(c, 1 - DEPTH / line)

    s, *rest = _sums(dim, inside, first, second, slopes)
    u = s / peak
    root = torch.sqrt(u.square() + 4 * FLOOR**2)
    fade = FLOOR**2 / (FLOOR**2 + u.square())
    log_r = first.log_length + second.log_length + peak.log() + ((u + root) / 2).log() + TILT * fade * (inside - 1)
    if kappa_pos is not None:
        log_r = log_r + line * (c - inside)
    if not slopes:
        return Pairs(log_r)

    s_c, s_1, s_2 = rest
    peak_1, peak_2 = _inner(first.slope, second.weight), _inner(first.weight, second.slope)
    du = 1 / root - 2 * TILT * fade.square() * u / FLOOR**2 * (inside - 1)
    slope_c = du * s_c / peak + TILT * fade
    slope_1 = (peak_1 + du * (s_1 - u * peak_1)) / peak
    slope_2 = (peak_2 + du * (s_2 - u * peak_2)) / peak
    pairs = Pairs(log_r, slope_c, slope_1, slope_2, inside, du / peak, (1 - du * u) / peak)
    if kappa_pos is None:
        return pairs
    beyond = c < inside
    # What one more unit of the line's slope does: it turns the line, and moves its start by DEPTH/line^2.
    turn = torch.where(beyond, (slope_c - line) * DEPTH / line.square() + (c - inside), 0.0)
    return replace(
        pairs,
        slope_c=torch.where(beyond, line, slope_c),
        slope_1=slope_1 + turn * line_1,
        slope_2=slope_2 + turn * line_2,
        line_pos=turn * line / kappa_pos,
        line_lam=turn * line_lam,
    )


def term_totals(dim: int, cosine: Tensor, first: Rows, second: Rows, factor: Tensor) -> Tensor:
    """sum over pairs of factor * w_n w'_n P_n, for each n: the gradient with respect to log lambda_n; (T,)."""
    P, before = torch.ones_like(cosine), torch.zeros_like(cosine)
    totals = []
    for n, (w1, w2) in enumerate(zip(first.weight.unbind(-1), second.weight.unbind(-1), strict=True)):
        totals.append((factor * P * w2 * w1).sum())
        P, before = _next(dim, n, cosine, P, before)
    return torch.stack(totals)


def _sums(dim: int, cosine: Tensor, first: Rows, second: Rows, slopes: bool) -> tuple[Tensor, ...]:
    """(s,) or (s, s_c, s_1, s_2) at the cosines."""
    w1, w2 = first.weight.unbind(-1), second.weight.unbind(-1)
    d1, d2 = first.slope.unbind(-1), second.slope.unbind(-1)
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


def _next(dim: int, n: int, cosine: Tensor, P: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """(P_{n+1}, P_n) from (P_n, P_{n-1}), in the memory of P_{n-1}."""
    a, b = recurrence(dim, n)
    return before.mul_(-b).addcmul_(cosine, P, value=a), P


@lru_cache(maxsize=256)
def _recurrences(dim: int, terms: int, device: torch.device) -> Tensor:
    """(5, terms): a, b of P_n; the factor of P_n' and a, b of the Q_{n-1} that it multiplies."""
    columns = []
    for n in range(terms):
        factor = n * (n + dim - 2) / (dim - 1)
        columns.append([*recurrence(dim, n), factor, *(recurrence(dim + 2, n - 1) if n else (0.0, 0.0))])
    return torch.tensor(columns, dtype=torch.float64, device=device).T.contiguous()


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """sum_n a_n b_n for every pair: the series at c = 1, where every P_n is 1."""
    if a.shape[-2] == 1 and b.shape[-3] == 1:
        return a.squeeze(-2) @ b.squeeze(-3).mT
    return (a * b).sum(-1)


def _line(dim: int, first: Rows, second: Rows, log_lam: Tensor, kappa_pos: float | Tensor) -> tuple[Tensor, ...]:
    """The concentration of the vMF with the mean of the two posteriors and the kernel convolved; its slopes in kappa1,
    kappa2 and log lambda_1.

    A_1 multiplies under convolution; its inverse is Banerjee's approximation, scaled to be exact for point masses,
    where log r really is the line kappa_pos c.
    """

    def inverse(R: Tensor) -> tuple[Tensor, Tensor]:
        R2 = R.square()
        slope = ((dim - 3 * R2) * (1 - R2) + 2 * R2 * (dim - R2)) / (1 - R2).square()
        return R * (dim - R2) / (1 - R2), slope

    lam = log_lam[1].exp()
    own, own_slope = inverse(lam)
    R = (lam * first.mean * second.mean).clamp(1e-150, 1 - 1e-15)
    line, turn = (x * (kappa_pos / own) for x in inverse(R))
    line_1, line_2 = turn * lam * second.mean * first.mean_slope, turn * lam * first.mean * second.mean_slope
    return line, line_1, line_2, turn * R - line * lam * own_slope / own
