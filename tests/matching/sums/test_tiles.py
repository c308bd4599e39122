"""One tile of pairs against the table of series.py, pair by pair."""

import torch
from torch.nn import functional as F

from aleator import AcceptanceKernel, VMFKernel
from aleator.matching.series import positivity_table, row_weights
from aleator.matching.sums.tiles import Side, rescaled_recurrence, tail_scale, tile_gradients, tile_values
from aleator.special import gegenbauer


def test_the_rescaled_recurrence_gives_the_polynomials():
    c = torch.linspace(-1, 1, 7, dtype=torch.float64)
    for dim in (2, 3, 10, 500):
        m, h = rescaled_recurrence(dim, 12)
        before, now = torch.zeros_like(c), torch.ones_like(c)
        for n, expected in enumerate(gegenbauer(dim, 12, c)):
            torch.testing.assert_close(h[n] * now, expected)
            before, now = now, m[n] * c * now + before


def test_values_and_slopes_of_every_pair():
    """A share of one for a single pair picks out the slopes of that pair."""
    torch.manual_seed(0)
    for dim, kernel in ((3, VMFKernel(60.0)), (10, VMFKernel(20.0)), (10, AcceptanceKernel(20.0))):
        terms = kernel.terms(dim, 1e-17)
        log_lam, sign = kernel.series(dim, terms, torch.device("cpu"))
        kappa_pos = float(kernel.kappa_pos) if isinstance(kernel, VMFKernel) else None
        mu1, mu2 = (F.normalize(torch.randn(n, dim, dtype=torch.float64), dim=-1) for n in (3, 4))
        rows = row_weights(dim, torch.tensor([3.0, 30.0, 300.0]).double()[:, None], log_lam)
        columns = row_weights(dim, torch.tensor([1.0, 20.0, 90.0, 1e4]).double()[None], log_lam, sign)
        table = positivity_table(dim, mu1 @ mu2.T, rows, columns, log_lam, kappa_pos, slopes=True)
        first, second = (
            Side(mu, r.weights.flatten(0, 1).mT.contiguous(), r.log_length.flatten(), r.mean_length.flatten())
            for mu, r in ((mu1, rows), (mu2, columns))
        )
        tail = None if kappa_pos is None else tail_scale(dim, float(log_lam[1].exp()), kappa_pos)
        tile = tile_values(dim, first, second, terms, tail, True)
        log_r = tile.values.log() + rows.log_length + columns.log_length
        torch.testing.assert_close(log_r, table.log_r, rtol=1e-9, atol=1e-9)
        for i in range(3):
            for j in range(4):
                share = torch.zeros(3, 4, dtype=torch.float64)
                share[i, j] = 1
                part = tile_gradients(dim, first, second, terms, tail, tile, share)
                slope1 = (rows.slopes[i, 0] * part.terms1[:, i]).sum()
                slope2 = (columns.slopes[0, j] * part.terms2[:, j]).sum()
                if part.mean1 is not None:
                    slope1 = slope1 + rows.mean_length_slope[i, 0] * part.mean1[i]
                    slope2 = slope2 + columns.mean_length_slope[0, j] * part.mean2[j]
                expected = (table.slope_cosine[i, j], table.slope_kappa1[i, j], table.slope_kappa2[i, j])
                ours = (part.cosine[i, j], slope1, slope2)
                torch.testing.assert_close(ours, expected, rtol=1e-7, atol=1e-9)
