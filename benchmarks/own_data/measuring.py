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
    label_entropy,
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
        half: Of pairs half of which are drawn to match, (P',).
    """

    top: Tensor
    random: Tensor
    half: Tensor


@dataclass(frozen=True)
class DrawnPairs:
    """Pairs of a question and a gallery item, on which match probabilities are measured; the same for every method.

    Args:
        questions: Question numbers of random pairs, (P,).
        items: Gallery numbers of random pairs, (P,).
        random_match: Probability that the labels of a random pair are equal, (P,); 0 or 1 without votes.
        half_questions: Question numbers of pairs half of which are drawn to match, (P',).
        half_items: Their gallery numbers, (P',).
        half_match: 1 for the pairs that were drawn to match, 0 for the others, (P',).
        prior: Share of matches among all pairs.
    """

    questions: Tensor
    items: Tensor
    random_match: Tensor
    half_questions: Tensor
    half_items: Tensor
    half_match: Tensor
    prior: float


def draw_pairs(data: DataSet, seed: int = 0) -> DrawnPairs:
    """Draw random pairs, and pairs half of which are drawn to match: in proportion to their probability of a match."""
    generator = np.random.default_rng(seed)
    asked, gallery = data.questions.labels.astype(float), data.train.labels.astype(float)
    q, g = (generator.integers(len(labels), size=_PAIRS) for labels in (asked, gallery))
    weight = asked.mean(0) * gallery.mean(0)
    classes = generator.choice(len(weight), size=_PAIRS // 2, p=weight / weight.sum())
    matched = [np.empty(len(classes), int), np.empty(len(classes), int)]
    for c in np.unique(classes):
        drawn = classes == c
        for numbers, labels in zip(matched, (asked, gallery), strict=True):
            share = labels[:, c] / labels[:, c].sum()
            numbers[drawn] = generator.choice(len(labels), size=drawn.sum(), p=share)
    half = np.arange(_PAIRS // 2)
    return DrawnPairs(
        *(torch.as_tensor(part) for part in (q, g, (asked[q] * gallery[g]).sum(1))),
        torch.as_tensor(np.concatenate([matched[0], q[half]])),
        torch.as_tensor(np.concatenate([matched[1], g[half]])),
        torch.cat([torch.ones(len(half)), torch.zeros(len(half))]),
        float(weight.sum()),
    )


def classifier_matches(data: DataSet, answers: Answers, pairs: DrawnPairs) -> Matches | None:
    """Match probabilities that follow from label probabilities: the labels of the gallery are known."""
    if answers.probability is None:
        return None
    p = torch.as_tensor(answers.probability).double()
    known = torch.as_tensor(data.train.labels).double()
    top = p[torch.arange(len(p)), torch.as_tensor(answers.answer)]
    random, half = (
        (p[questions] * known[items]).sum(1)
        for questions, items in ((pairs.questions, pairs.items), (pairs.half_questions, pairs.half_items))
    )
    return Matches(*(each.clamp(0, 1) for each in (top, random, half)))


def _auroc(score: Tensor, positive: Tensor) -> float | None:
    """AUROC; None if all are of one kind, as a resample can be if nearly all are."""
    return auroc(score, positive) if 0 < positive.mean() < 1 else None


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
        entropy = label_entropy(labels)
        disagreed = (labels.max(1).values < 1 - 1e-6).double()
        row["disagreement_rank"] = number(rank_correlation, -certainty, entropy)
        row["disagreed_auroc"] = number(_auroc, -certainty, disagreed)
    if answers.probability is not None:
        logs = torch.as_tensor(answers.probability).double().clamp_min(1e-12).log()
        row["label_log_likelihood"] = number(mean, (labels * logs).sum(1))
    if matches is not None:
        right = labels[torch.arange(len(labels)), torch.as_tensor(answers.answer)]  # P(the first hit is right)
        row["match_ece_top"] = number(expected_calibration_error, matches.top, right)
        row["match_ece_random"] = number(expected_calibration_error, matches.random, pairs.random_match)
        # P(match) / prior is the density of pairs that are drawn to match, relative to independent ones.
        log_odds = (matches.half.double() / pairs.prior).clamp(1e-9, 1e9).log()
        row["match_log_likelihood"] = number(match_log_likelihood, log_odds, pairs.half_match)
    return row
