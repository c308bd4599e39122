r"""One pass over the series of expected positivity: its value and its three slopes, term by term.

    s(c) = sum_n w_n w'_n P_n(c),     s_c = ds/dc,     s_1 = sum_n d_n w'_n P_n,     s_2 = sum_n w_n d'_n P_n

for every pair of a row (w, d) of the first table with a row (w', d') of the second. P_n and P_n' run along by their
recurrences, so the memory is a few numbers per pair however many terms there are. On a GPU the whole pass is one kernel
(kernels.py); here is the plain version, to which the tests hold that one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .harmonics import recurrence

# Pairs per block on a CPU: the working set of a block stays in the cache.
_BLOCK = 2**15


@dataclass(frozen=True)
class Rows:
    """Per posterior: w_n = sqrt(dim_n |lambda_n|) A_n / norm and d_n = w_n (log A_n)'; both (N, 1, T), (1, M, T) or (N, M, T)."""

    weight: Tensor
    slope: Tensor

    def block(self, start: int, stop: int) -> "Rows":
        if self.weight.shape[0] == 1:
            return self
        return Rows(self.weight[start:stop], self.slope[start:stop])


def series(dim: int, cosine: Tensor, first: Rows, second: Rows, slopes: bool) -> tuple[Tensor, ...]:
    """(s,) or (s, s_c, s_1, s_2) at cosines (N, M)."""
    if cosine.is_cuda:
        from .kernels import fused_series, triton_available

        if triton_available():
            return fused_series(dim, cosine, first, second, slopes)
    if cosine.device.type != "cpu" or cosine.numel() <= _BLOCK:
        return plain_series(dim, cosine, first, second, slopes)
    rows = max(1, _BLOCK // cosine.shape[1])
    out = tuple(torch.empty_like(cosine) for _ in range(4 if slopes else 1))
    for start in range(0, len(cosine), rows):
        stop = min(start + rows, len(cosine))
        block = plain_series(dim, cosine[start:stop], first.block(start, stop), second.block(start, stop), slopes)
        for whole, part in zip(out, block, strict=True):
            whole[start:stop] = part
    return out


def plain_series(dim: int, cosine: Tensor, first: Rows, second: Rows, slopes: bool) -> tuple[Tensor, ...]:
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
                a, b = recurrence(dim + 2, n - 1)
                Q_before.mul_(-b).addcmul_(cosine, Q, value=a)
                Q, Q_before = Q_before, Q
        a, b = recurrence(dim, n)
        before.mul_(-b).addcmul_(cosine, P, value=a)
        P, before = before, P
    return (s, s_c, s_1, s_2) if slopes else (s,)


def term_totals(dim: int, cosine: Tensor, first: Rows, second: Rows, factor: Tensor) -> Tensor:
    """sum over pairs of factor * w_n w'_n P_n, for each n: the gradient with respect to log lambda_n; (T,)."""
    P, before = torch.ones_like(cosine), torch.zeros_like(cosine)
    totals = []
    for n, (w1, w2) in enumerate(zip(first.weight.unbind(-1), second.weight.unbind(-1), strict=True)):
        totals.append((factor * P * w2 * w1).sum())
        a, b = recurrence(dim, n)
        before.mul_(-b).addcmul_(cosine, P, value=a)
        P, before = before, P
    return torch.stack(totals)
