"""The columns of the table: numbers with bootstrap intervals from the answers of a method."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aleator.evaluation import (
    augrc,
    aurc,
    auroc,
    coverage_at_risk,
    expected_calibration_error,
    interval,
    match_log_likelihood,
    r_auroc,
    rank_correlation,
    reject_curve,
)
from benchmarks.own_data.data_sets import DataSet
from benchmarks.own_data.rivals import Answers

_PAIRS = 20_000


@dataclass(frozen=True)
class Column:
    """A column of the table: its title, and whether more is better (None: nobody wins or loses by it)."""

    title: str
    more_is_better: bool | None


COLUMNS = {
    "recall_at_1": Column("Recall@1", True),
    "r_auroc": Column("R-AUROC", True),
    "recall_at_1_surer_half": Column("Recall@1 of the surer half", True),
    "aurc": Column("AURC", False),
    "augrc": Column("AUGRC", False),
    "coverage_at_5": Column("coverage at 5 % risk", True),
    "disagreement_rank": Column("correlation with disagreement", True),
    "disagreed_auroc": Column("AUROC of 'people disagreed'", True),
    "label_log_likelihood": Column("label log-likelihood", True),
    "match_log_likelihood": Column("match log-likelihood", True),
    "match_ece_top": Column("match ECE, top hits", False),
    "match_ece_random": Column("match ECE, random pairs", False),
    "cpu_seconds": Column("CPU s", None),
}

Measured = dict[str, float] | None


@dataclass(frozen=True)
class Matches:
    """Match probabilities of a method.

    Args:
        top: Of each question with its first hit, (Q,).
        random: Of random pairs of a question and a gallery item, (P,).
        half_log_odds: Log odds of pairs of questions, half of which are drawn to match, (P,).
    """

    top: Tensor
    random: Tensor
    half_log_odds: Tensor


@dataclass(frozen=True)
class DrawnPairs:
    """The pairs on which match probabilities are measured; the same for every method.

    Args:
        questions: Question numbers of random pairs, (P,).
        items: Gallery numbers of random pairs, (P,).
        random_match: Probability that the labels of a random pair are equal, (P,); 0 or 1 without votes.
        first: Questions, (P',): the first half is drawn to match `second`, the other half independently.
        second: Questions, (P',).
        half_match: 1 for the pairs that were drawn to match, 0 for the others, (P',).
    """

    questions: Tensor
    items: Tensor
    random_match: Tensor
    first: Tensor
    second: Tensor
    half_match: Tensor


def draw_pairs(data: DataSet, seed: int = 0) -> DrawnPairs:
    """Draw random pairs of question and gallery item, and pairs of questions half of which match."""
    from aleator.own_data import Labels
    from aleator.own_data.evaluation import matching_pairs

    generator = np.random.default_rng(seed)
    gallery, asked = data.train.labels, data.questions.labels
    q, g = (generator.integers(len(labels), size=_PAIRS) for labels in (asked, gallery))
    names = tuple(str(c) for c in range(asked.shape[1]))
    halves = matching_pairs(Labels("soft", asked, names), _PAIRS, seed)
    return DrawnPairs(
        *(torch.as_tensor(part) for part in (q, g, (asked[q] * gallery[g]).sum(1))),
        halves.first,
        halves.second,
        halves.match,
    )


def classifier_matches(data: DataSet, answers: Answers, pairs: DrawnPairs) -> Matches | None:
    """Match probabilities that follow from label probabilities; the labels of the gallery are known.

    Two questions that are drawn to match share a class, so their odds are sum_c P(c|x) P(c|x') / P(c).
    """
    if answers.probability is None:
        return None
    p = torch.as_tensor(answers.probability).double()
    known = torch.as_tensor(data.train.labels).double()
    share = known.mean(0).clamp_min(1e-12)
    odds = (p[pairs.first] * p[pairs.second] / share).sum(1)
    top = p[torch.arange(len(p)), torch.as_tensor(answers.answer)]
    return Matches(top, (p[pairs.questions] * known[pairs.items]).sum(1), odds.clamp_min(1e-30).log())


def measure(
    data: DataSet, answers: Answers, matches: Matches | None, pairs: DrawnPairs, resamples: int = 200
) -> dict[str, Measured]:
    """All columns but the time: value, low and high; None where a method does not have it."""
    truth = torch.as_tensor(data.questions.hard)
    hits = (torch.as_tensor(answers.answer) == truth).double()
    certainty = torch.as_tensor(answers.certainty).double()

    def number(metric: Callable[..., float | None], *arrays: Any) -> Measured:
        value = metric(*arrays)
        if value is None:
            return None
        ends = interval(metric, *arrays, resamples=resamples)
        low, high = (value, value) if ends is None else ends
        return {"value": value, "low": low, "high": high}

    def mean(values: Tensor) -> float:
        return values.mean().item()

    row: dict[str, Measured] = {
        "recall_at_1": number(mean, hits),
        "r_auroc": number(r_auroc, certainty, hits),
        "recall_at_1_surer_half": number(lambda c, h: reject_curve(c, h, (0.5,))[0], certainty, hits),
        "aurc": number(aurc, certainty, 1 - hits),
        "augrc": number(augrc, certainty, 1 - hits),
        "coverage_at_5": number(coverage_at_risk, certainty, 1 - hits),
    }
    labels = torch.as_tensor(data.questions.labels).double()
    if data.votes:
        entropy = torch.special.entr(labels).sum(1)
        disagreed = (labels.max(1).values < 1 - 1e-6).double()
        row["disagreement_rank"] = number(rank_correlation, -certainty, entropy)
        if 0 < disagreed.mean() < 1:
            row["disagreed_auroc"] = number(auroc, -certainty, disagreed)
    if answers.probability is not None:
        logs = torch.as_tensor(answers.probability).double().clamp_min(1e-12).log()
        row["label_log_likelihood"] = number(mean, (labels * logs).sum(1))
    if matches is not None:
        right = labels[torch.arange(len(labels)), torch.as_tensor(answers.answer)]  # P(the first hit is right)
        row["match_ece_top"] = number(expected_calibration_error, matches.top, right)
        row["match_ece_random"] = number(expected_calibration_error, matches.random, pairs.random_match)
        row["match_log_likelihood"] = number(match_log_likelihood, matches.half_log_odds, pairs.half_match)
    return row
