"""Selective prediction: how good is a certainty score, if the least certain questions may be left unanswered?

Questions are answered from the most certain one down. The coverage is the share that is answered; the selective risk is
the mean loss of these. Questions of equal certainty cannot be told apart: they count with the mean over their orders.
"""

from typing import Any

import torch
from torch import Tensor

from aleator.evaluation.agreement import as_vectors
from aleator.foundation import require_probability


def aurc(certainty: Any, loss: Any) -> float:
    """AURC: the selective risk, averaged over all coverages (Geifman, Uziel and El-Yaniv, ICLR 2019).

    With the questions in the order of certainty, it is the mean over k = 1 .. N of the mean loss of the first k.

    Args:
        certainty: Certainty of each answer, shape (N,), for example kappa.
        loss: Loss of each answer, shape (N,): 1 or True if it is wrong, 0 if it is right.

    Returns:
        The area; smaller is better.

    Examples:
        >>> from aleator.evaluation import aurc
        >>> aurc([0.9, 0.8, 0.2, 0.1], [0, 0, 0, 1])  # (0 + 0 + 0 + 1/4) / 4
        0.0625
    """
    total = _total_loss(certainty, loss)
    answered = torch.arange(1, len(total) + 1, device=total.device)
    return (total / answered).mean().item()


def augrc(certainty: Any, loss: Any) -> float:
    """AUGRC: the area under the generalised risk over coverage (Traub et al., NeurIPS 2024, arXiv 2407.01032).

    The generalised risk at a threshold is the probability that a question is answered and the answer is wrong. Of
    losses 0 and 1 with mean e, the area is (1 - AUROC) e (1 - e) + e^2 / 2.

    Args:
        certainty: Certainty of each answer, shape (N,), for example kappa.
        loss: Loss of each answer, shape (N,): 1 or True if it is wrong, 0 if it is right.

    Returns:
        The area; smaller is better. It is at most 1/2.

    Examples:
        >>> from aleator.evaluation import augrc
        >>> augrc([0.9, 0.8, 0.2, 0.1], [0, 0, 0, 1])  # e = 1/4, and the score is perfect
        0.03125
    """
    total = _total_loss(certainty, loss)
    n = len(total)
    return ((total.sum() - total[-1] / 2) / n**2).item()  # trapezia between coverages 0, 1/N, ..., 1


def coverage_at_risk(certainty: Any, loss: Any, risk: float = 0.05) -> float:
    """The largest share of questions that can be answered with at most this risk.

    A threshold on the certainty decides which questions are answered, so equally certain ones are answered together.

    Args:
        certainty: Certainty of each answer, shape (N,), for example kappa.
        loss: Loss of each answer, shape (N,): 1 or True if it is wrong, 0 if it is right.
        risk: The mean loss that is allowed, inside (0, 1).

    Returns:
        The coverage, in [0, 1]; 0 if no threshold keeps the risk.

    Raises:
        ValueError: If `risk` is not inside (0, 1).

    Examples:
        >>> from aleator.evaluation import coverage_at_risk
        >>> coverage_at_risk([0.9, 0.8, 0.2, 0.1], [0, 0, 0, 1])
        0.75
    """
    require_probability("risk", risk, "pass for example 0.05")
    certainty, loss = as_vectors(certainty=certainty, loss=loss)
    _, group, count = (-certainty).unique(return_inverse=True, return_counts=True)
    answered = count.cumsum(0)
    total = torch.zeros_like(count, dtype=torch.float64).index_add_(0, group, loss).cumsum(0)
    kept = answered[total <= risk * answered * (1 + 1e-12)]
    return kept[-1].item() / len(loss) if len(kept) else 0.0


def _total_loss(certainty: Any, loss: Any) -> Tensor:
    """Sum of the losses of the k most certain answers for k = 1 .. N, in the mean over the orders of ties; (N,)."""
    certainty, loss = as_vectors(certainty=certainty, loss=loss)
    _, group, count = (-certainty).unique(return_inverse=True, return_counts=True)
    total = torch.zeros_like(count, dtype=torch.float64).index_add_(0, group, loss)
    return (total / count).repeat_interleave(count).cumsum(0)
