"""Compare our answers with those of simple methods (rivals) on the same questions: raw neighbours and a linear head.

Questions are items that were neither trained on nor used for calibration. They are asked against a gallery, usually the
training items. Every number has a bootstrap interval over the questions.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aleator.evaluation import (
    augrc,
    aurc,
    coverage_at_risk,
    interval,
    label_entropy,
    nearest_neighbours,
    r_auroc,
    rank_correlation,
    reject_curve,
)
from aleator.foundation import require, sample_numbers
from aleator.own_data.collection.labels import Labels
from aleator.own_data.collection.parts import labels_at
from aleator.own_data.measuring.answers import label_rows
from aleator.own_data.measuring.evaluation import evaluation_labels
from aleator.own_data.measuring.one_mode import certainty_score, one_mode
from aleator.own_data.measuring.rivals import (
    ScoredAnswers,
    cross_fitted_answers,
    input_rows,
    label_answers,
    linear_answers,
    raw_neighbours,
    text_rows,
)
from aleator.posteriors import PosteriorBatch

MOST_GALLERY, MOST_QUESTIONS = 20_000, 5_000  # of more items, random samples are compared

# Metric, whether more is better, and how a winner is described.
METRICS = {
    "recall_at_1": (True, "find more"),
    "r_auroc": (True, "tell right answers from wrong ones better (R-AUROC)"),
    "recall_at_1_surer_half": (True, "are right more often in the surer half"),
    "aurc": (False, "have the smaller risk over all coverages (AURC)"),
    "augrc": (False, "have the smaller generalised risk (AUGRC)"),
    "coverage_at_5": (True, "answer more questions at a risk of 5 %"),
    "log_likelihood": (True, "predict held-out labels better (log-likelihood)"),
    "disagreement_rank": (True, "agree more with people's disagreement"),
}
# For tables, in their order there: a short name, and what it means. One line explains the two areas.
COMPARISON_WORDS = {
    "recall_at_1": (
        "Recall@1",
        "Recall@1: share of questions whose nearest item, or likeliest label, is right",
    ),
    "recall_at_1_surer_half": (
        "  surer half",
        "surer half: Recall@1 of the half of the questions with the higher certainty",
    ),
    "r_auroc": (
        "R-AUROC",
        "R-AUROC: how well the certainty tells right answers from wrong ones; 0.5 is chance, 1 is perfect",
    ),
    "aurc": (
        "AURC",
        "AURC, AUGRC: wrong answers, averaged over all shares of questions that are answered; less is better",
    ),
    "augrc": ("AUGRC", ""),
    "coverage_at_5": (
        "coverage at 5 %",
        "coverage at 5 %: share of questions that can be answered with at most 5 % wrong answers",
    ),
    "log_likelihood": (
        "log-likelihood",
        "log-likelihood: of the labels of the questions; closer to 0 is better",
    ),
    "disagreement_rank": (
        "disagreement",
        "disagreement: rank correlation of the uncertainty with that of people's votes",
    ),
}


@dataclass(frozen=True)
class Items:
    """Items of a comparison.

    Args:
        raw: Raw inputs: images (N, C, H, W) of uint8, features (N, F), or a list of N texts.
        q: Posteriors, batch shape (N,).
        labels: Labels. Questions and gallery name the same classes in the same order.

    Examples:
        >>> import numpy as np, torch, aleator as al
        >>> from aleator.own_data import Items, Labels
        >>> labels = Labels("classes", np.array([0, 0, 1]), ("cat", "dog"))
        >>> len(Items(torch.eye(3), al.VonMisesFisher(torch.eye(3), 20.0), labels))
        3
    """

    raw: Tensor | list[str]
    q: PosteriorBatch
    labels: Labels

    def __len__(self) -> int:
        return len(self.q)

    def select(self, numbers: np.ndarray) -> "Items":
        """Some of the items. Their labels must not be pairs.

        Args:
            numbers: Item numbers.

        Returns:
            These items, in this order.
        """
        chosen = torch.as_tensor(numbers)
        raw = [self.raw[i] for i in numbers] if isinstance(self.raw, list) else self.raw[chosen]
        return Items(raw, self.q[chosen], labels_at(self.labels, numbers))


def compare_with_rivals(
    questions: Items,
    gallery: Items | None = None,
    *,
    label_probabilities: Tensor | None = None,
    inputs: str = "raw inputs",
    seed: int = 0,
) -> dict[str, Any]:
    """Compare posteriors with raw neighbours and a linear head, on the same questions.

    Of more than 5,000 questions and 20,000 gallery items, random samples are compared. The linear head needs classes;
    with groups and pairs there is none.

    Args:
        questions: Items that the encoder was not trained on.
        gallery: Items that the questions are asked against. None: each question is asked against the others, and the
            linear head is cross-fitted.
        label_probabilities: Our P(class | question), shape (Q, C), if there are any.
        inputs: What the rivals compare, such as "pixels", for the table.
        seed: Seed of the samples and of the intervals.

    Returns:
        JSON values: "questions" and "gallery" (numbers of items), "inputs", "rows" (one for each method: its name, its
        certainty score, whether it is ours, and for each metric value, low and high, or None), and "verdicts", plain
        sentences that say who wins.

    Raises:
        ValueError: If there are fewer than two questions, or no other item to compare them with.

    Examples:
        >>> import numpy as np, torch, aleator as al
        >>> from aleator.own_data import Items, Labels, compare_with_rivals
        >>> classes = np.arange(60) % 3
        >>> labels = Labels("classes", classes, ("cat", "dog", "owl"))
        >>> q = al.VonMisesFisher(torch.eye(3)[classes], torch.linspace(10, 50, 60))
        >>> noise = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
        >>> compare_with_rivals(Items(noise, q, labels))["verdicts"][0]
        'ours find more: 1.00 against 0.28 of the raw neighbours'
    """
    require(len(questions) >= 2, "questions", len(questions), "too few to compare", "pass two or more")
    questions, gallery, own, label_probabilities = _samples(questions, gallery, label_probabilities, seed)
    alone = bool((own >= 0).any())
    labels, gallery_labels = (side.labels.hard() for side in (questions, gallery))
    assert labels is not None
    assert gallery_labels is not None
    asked, items = _rows(questions.raw, gallery.raw)

    nearest = nearest_neighbours(one_mode(questions.q).mu, one_mode(gallery.q).mu, own=own)[:, 0].numpy()
    found = torch.as_tensor(gallery_labels[nearest] == labels).double()
    rows = [("ours", "kappa", True, ScoredAnswers(found, certainty_score(questions.q).double()))]
    if label_probabilities is not None:
        rows.append(
            ("our labels", "label entropy", True, label_answers(label_probabilities, label_rows(questions.labels)))
        )
    rivals = [("raw neighbours", "agreement of ten", raw_neighbours(asked, items, own, labels, gallery_labels))]
    if questions.labels.kind in ("classes", "soft"):
        asked_labels, item_labels = (label_rows(side.labels).float() for side in (questions, gallery))
        answers = (
            cross_fitted_answers(asked, asked_labels)
            if alone
            else linear_answers(asked, items, asked_labels, item_labels)
        )
        rivals.append(("linear head", "softmax entropy", answers))
    rows += [(name, score, False, answers) for name, score, answers in rivals]

    disagreement = None
    if questions.labels.kind == "soft":
        disagreement = label_entropy(torch.as_tensor(questions.labels.values).double())
    return {
        "questions": len(questions),
        "gallery": None if alone else len(gallery),
        "inputs": inputs,
        "rows": [
            {"method": name, "score": score, "ours": ours} | _measure(answers, disagreement, seed)
            for name, score, ours, answers in rows
        ],
        "verdicts": _verdicts(rows, disagreement, seed),
    }


def with_interval(measured: dict[str, float] | None) -> str:
    """A number of a comparison and half the width of its 95 % interval, for tables; "-" if there is none."""
    if measured is None:
        return "-"
    return f"{measured['value']:.3f} ± {(measured['high'] - measured['low']) / 2:.3f}"


def _samples(
    questions: Items, gallery: Items | None, probabilities: Tensor | None, seed: int
) -> tuple[Items, Items, np.ndarray, Tensor | None]:
    """Questions and gallery of a size that takes seconds, where each question is in the gallery, and probabilities."""
    grouped = evaluation_labels(questions.labels, len(questions))
    questions = Items(questions.raw, questions.q, grouped)
    chosen = sample_numbers(np.arange(len(questions)), MOST_QUESTIONS, seed)
    questions = questions.select(chosen)
    if probabilities is not None:
        probabilities = probabilities[torch.as_tensor(chosen)]
    if gallery is None:
        hard = questions.labels.hard()
        assert hard is not None
        if grouped.kind == "groups":  # an item that is alone in its group has no right answer
            shared = np.flatnonzero(np.bincount(hard)[hard] > 1)
            require(len(shared) >= 2, "labels", len(hard), "no two items share a group", "pass more items")
            questions = questions.select(shared)
        return questions, questions, np.arange(len(questions)), probabilities
    require(len(gallery) > 0, "gallery", 0, "has no item", "leave it out to compare the questions with each other")
    gallery = gallery.select(sample_numbers(np.arange(len(gallery)), MOST_GALLERY, seed))
    return questions, gallery, np.full(len(questions), -1), probabilities


def _rows(questions: Tensor | list[str], gallery: Tensor | list[str]) -> tuple[Tensor, Tensor]:
    """Raw inputs as rows that can be compared."""
    if isinstance(questions, list) or isinstance(gallery, list):
        return text_rows(list(questions), list(gallery))
    return input_rows(questions, gallery)


def _columns(answers: ScoredAnswers, disagreement: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Certainty, rightness, log-likelihood and people's disagreement of each question; NaN where there is none."""
    none = torch.full_like(answers.right, math.nan)
    likelihood = none if answers.log_likelihood is None else answers.log_likelihood
    return answers.certainty, answers.right, likelihood, none if disagreement is None else disagreement


def _metric(name: str, certainty: Tensor, right: Tensor, likelihood: Tensor, disagreement: Tensor) -> float | None:
    """One of `METRICS`, from `_columns`; None where it is not defined."""
    if name == "recall_at_1":
        return right.mean().item()
    if name == "r_auroc":
        return r_auroc(certainty, right)
    if name == "recall_at_1_surer_half":
        return reject_curve(certainty, right, (0.5,))[0]
    if name == "log_likelihood":
        return _defined(likelihood.mean().item())
    if name == "disagreement_rank":
        return None if disagreement.isnan().any() else _defined(rank_correlation(-certainty, disagreement))
    area = {"aurc": aurc, "augrc": augrc, "coverage_at_5": coverage_at_risk}[name]
    return area(certainty, 1 - right)


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value


def _measure(answers: ScoredAnswers, disagreement: Tensor | None, seed: int) -> dict[str, dict[str, float] | None]:
    """Value, low and high of each metric."""
    measured: dict[str, dict[str, float] | None] = {}
    columns = _columns(answers, disagreement)
    for name in METRICS:
        value = _metric(name, *columns)
        if value is None:
            measured[name] = None
            continue
        low, high = interval(partial(_metric, name), *columns, seed=seed) or (value, value)
        measured[name] = {"value": value, "low": low, "high": high}
    return measured


def _verdicts(rows: list[tuple[str, str, bool, ScoredAnswers]], disagreement: Tensor | None, seed: int) -> list[str]:
    """Who wins by each metric: the best of ours against the best rival, where the difference is not chance."""
    lines, measured = [], [(name, ours, _columns(answers, disagreement)) for name, _, ours, answers in rows]
    for metric, (more, words) in METRICS.items():
        sign = 1 if more else -1
        best: dict[bool, tuple[float, str, tuple[Tensor, ...]]] = {}
        for name, ours, columns in measured:
            value = _metric(metric, *columns)
            if value is not None and (ours not in best or sign * value > sign * best[ours][0]):
                best[ours] = (value, name, columns)
        if len(best) < 2:
            continue
        (our_value, our_name, a), (value, name, b) = best[True], best[False]

        def difference(*both: Tensor, metric: str = metric) -> float | None:
            first, second = _metric(metric, *both[:4]), _metric(metric, *both[4:])
            return None if first is None or second is None else first - second

        ends = interval(difference, *a, *b, seed=seed)
        if ends is None or ends[0] <= 0 <= ends[1]:
            continue
        if sign * our_value > sign * value:
            lines.append(f"{our_name} {words}: {our_value:.2f} against {value:.2f} of the {name}")
        else:
            verb = words if name.endswith("s") else _singular(words)
            lines.append(f"{name} {verb}: {value:.2f} against {our_value:.2f} of {our_name}")
    return lines or ["no difference between ours and the rivals is larger than chance"]


def _singular(words: str) -> str:
    """The words for one winner: "tells" in place of "tell"."""
    verb, _, rest = words.partition(" ")
    return f"{ {'have': 'has', 'are': 'is'}.get(verb, verb + 's') } {rest}"
