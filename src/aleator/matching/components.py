r"""Compare mixtures by comparing all pairs of their components, as expected positivity allows.

For mixtures q = sum_k w_k q_k and q' = sum_j w'_j q'_j, expected positivity is r(q, q') = sum_kj w_k w'_j r(q_k, q'_j).
All pairs of components go through one table, in which each component is one row or one column.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from aleator.posteriors import PosteriorBatch, VonMisesFisher, log_weighted


def log_bilinear(
    q1: PosteriorBatch, q2: PosteriorBatch, compare: Callable[[VonMisesFisher, VonMisesFisher], Tensor]
) -> Tensor:
    """log sum_kj w_k w'_j exp(compare(q_k, q'_j)) for posteriors of one mode or several.

    Args:
        q1: Posteriors, batch shape (...).
        q2: Posteriors. The batch shapes broadcast.
        compare: Log value of pairs of components, whose batch shapes broadcast.

    Returns:
        Logarithms, shape (...).

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.matching import log_bilinear
        >>> q = al.VMFMixture(torch.zeros(2), al.VonMisesFisher(torch.eye(3)[:2], 10.0))
        >>> log_bilinear(q, q, lambda a, b: (a.mu * b.mu).sum(-1).log()).exp()  # the mean cosine of the directions
        tensor(0.5000)
    """
    if isinstance(q1, VonMisesFisher) and isinstance(q2, VonMisesFisher):
        return compare(q1, q2)
    shape = torch.broadcast_shapes(q1.batch_shape, q2.batch_shape)
    q1, q2 = _as_table(*(q[(None,) * (len(shape) - len(q.batch_shape))] for q in (q1, q2)))
    K, J = q1.modes, q2.modes
    N, M = q1.batch_shape[-2], q2.batch_shape[-1]
    lead1, lead2 = q1.batch_shape[:-2], q2.batch_shape[:-2]
    values = compare(q1.components.reshape(*lead1, N * K, 1), q2.components.reshape(*lead2, 1, M * J))
    log_weights = q1.log_weights.reshape(*lead1, N, K, 1, 1) + q2.log_weights.reshape(*lead2, 1, 1, M, J)
    weighted = log_weighted(log_weights, values.unflatten(-1, (M, J)).unflatten(-3, (N, K)))
    return torch.logsumexp(weighted, (-3, -1)).view(shape)


def _as_table(q1: PosteriorBatch, q2: PosteriorBatch) -> tuple[PosteriorBatch, PosteriorBatch]:
    """Posteriors of batch shapes (N, 1) and (1, M), or (G, N, 1) and (G, 1, M), from shapes of one length."""
    shape1, shape2 = q1.batch_shape, q2.batch_shape
    if not (len(shape1) >= 2 and shape1[-1] == 1 and shape2[-2] == 1):
        if not (shape1 and shape1[-1] == 1):  # no posterior of the first meets several of the second
            q1, q2 = q1.unsqueeze(-1), q2.unsqueeze(-1)
        q1, q2 = q1.unsqueeze(-2), q2.unsqueeze(-2)
    if len(q1.batch_shape) <= 3:
        return q1, q2
    lead = torch.broadcast_shapes(q1.batch_shape[:-2], q2.batch_shape[:-2])
    last = len(lead) - 1
    return tuple(q.expand((*lead, *q.batch_shape[-2:])).flatten(0, last) for q in (q1, q2))  # type: ignore[return-value]
