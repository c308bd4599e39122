"""Compare our answers with those of baselines on the same queries: raw cosine, ten neighbours, and a linear head.

The comparison has one precondition, and its output states it: ours and the baselines learned from the same items, and
answer the same unseen queries. Every number has a bootstrap interval over the queries. There is no verdict on few
queries, on a small gallery, on a difference within its interval, or on numbers that print alike.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from aleator.evaluation import (
    LinearHead,
    augrc,
    aurc,
    coverage_at_risk,
    interval,
    label_entropy,
    r_auroc,
    rank_correlation,
    reject_curve,
)
from aleator.foundation import require
from aleator.own_data.measuring.answers import label_rows
from aleator.own_data.measuring.baselines import ScoredAnswers, label_answers, raw_cosine, ten_neighbours
from aleator.own_data.measuring.one_mode import certainty_score
from aleator.own_data.measuring.questions import Questions

# With fewer, there is no verdict: one wrong answer more or less decides.
LEAST_QUERIES, LEAST_GALLERY, LEAST_CLASSES, LEAST_GROUPS = 100, 100, 2, 30

# Metric, whether more is better, and how a winner is described.
METRICS = {
    "recall_at_1": (True, "find more"),
    "r_auroc": (True, "tell right answers from wrong ones better (R-AUROC)"),
    "recall_at_1_surer_half": (True, "are right more often in the surer half"),
    "aurc": (False, "have the smaller risk over all coverages (AURC)"),
    "augrc": (False, "have the smaller generalised risk (AUGRC)"),
    "coverage_at_5": (True, "answer more queries at a risk of 5 %"),
    "log_likelihood": (True, "predict held-out labels better (log-likelihood)"),
    "disagreement_rank": (True, "agree more with people's disagreement"),
}
# For tables, in their order there: a short name, and what it means. One line explains the two areas.
COMPARISON_WORDS = {
    "recall_at_1": (
        "Recall@1",
        "Recall@1: share of queries whose nearest item, or likeliest label, is right",
    ),
    "recall_at_1_surer_half": (
        "  surer half",
        "surer half: Recall@1 of the half of the queries with the higher certainty",
    ),
    "r_auroc": (
        "R-AUROC",
        "R-AUROC: how well the certainty tells right answers from wrong ones; 0.5 is chance, 1 is perfect",
    ),
    "aurc": (
        "AURC",
        "AURC, AUGRC: wrong answers, averaged over all shares of queries that are answered; less is better",
    ),
    "augrc": ("AUGRC", ""),
    "coverage_at_5": (
        "coverage at 5 %",
        "coverage at 5 %: share of queries that can be answered with at most 5 % wrong answers",
    ),
    "log_likelihood": (
        "log-likelihood",
        "log-likelihood: of the labels of the queries; closer to 0 is better",
    ),
    "disagreement_rank": (
        "disagreement",
        "disagreement: rank correlation of the uncertainty with that of people's votes",
    ),
}


def compare_with_baselines(
    queries: Questions,
    features: Tensor,
    gallery_features: Tensor,
    *,
    head: LinearHead | None = None,
    label_probabilities: Tensor | None = None,
    learned_from: int | None = None,
    inputs: str = "features",
    seed: int = 0,
) -> dict[str, Any]:
    """Compare posteriors with what their features can do without them, on the same queries.

    The precondition is yours: our encoder, our label probabilities and the linear head learned from the same items, and
    no query is among these items. Queries without a match in the gallery are left out.

    Args:
        queries: Q queries that the encoder was not trained on, and the gallery of N items.
        features: Features of the queries as they came, before the encoder, shape (Q, K).
        gallery_features: Those of the gallery, shape (N, K).
        head: A linear head on the features that learned from the same items; see `aleator.evaluation.linear_head`.
        label_probabilities: Our P(class | query), shape (Q, C), if there are any. The classes of head and probabilities
            are those of `queries.labels`, in their order.
        learned_from: Number of items that ours and the head learned from, to state it.
        inputs: What the features are, in words.
        seed: Seed of the intervals.

    Returns:
        JSON values: "precondition", a sentence; "queries" and "gallery" (numbers of items; None if the queries are
        asked against each other), "inputs", "rows" (one for each method: its name, its certainty score, whether it is
        ours, and for each metric value, low and high, or None), and "verdicts", plain sentences that say who wins, or
        why there is no verdict.

    Raises:
        ValueError: If the numbers of rows differ, or fewer than two queries have a match in the gallery.

    Examples:
        >>> import numpy as np, torch, aleator as al
        >>> from aleator.own_data import Labels, Questions, compare_with_baselines
        >>> classes = np.arange(120) % 3
        >>> labels = Labels("classes", classes, ("cat", "dog", "owl"))
        >>> q = al.VonMisesFisher(torch.eye(3)[classes], torch.linspace(10, 50, 120))
        >>> noise = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
        >>> queries = Questions(q, labels, q, labels, own=np.arange(120))
        >>> compare_with_baselines(queries, noise, noise)["verdicts"][0]
        'ours find more: 1.000 compared with 0.333 of ten neighbours'
    """
    for name, given, batch in (
        ("features", features, queries.q),
        ("gallery_features", gallery_features, queries.gallery),
    ):
        problem = f"there are {len(batch)} items"
        require(given.dim() == 2 and len(given) == len(batch), name, tuple(given.shape), problem, "pass a row for each")
    has_match, alone = queries.has_match, queries.alone
    way_out = "evaluate items of the classes or groups of the gallery"
    require(int(has_match.sum()) >= 2, "queries", int(has_match.sum()), "too few have a match to compare with", way_out)
    queries, features = queries.select(has_match.numpy()), features[has_match].float()
    gallery_features = gallery_features.float()
    ours = ScoredAnswers(queries.first_right(queries.hits(1)), certainty_score(queries.q).double())
    rows = [("ours", "kappa", True, ours)]
    asked = label_rows(queries.labels) if queries.labels.kind in ("classes", "soft") else None
    if label_probabilities is not None:
        assert asked is not None
        rows.append(("our labels", "label entropy", True, label_answers(label_probabilities[has_match], asked)))
    rows += [
        ("raw cosine", "cosine", False, raw_cosine(queries, features, gallery_features)),
        ("ten neighbours", "agreement", False, ten_neighbours(queries, features, gallery_features)),
    ]
    if head is not None:
        assert asked is not None
        rows.append(("linear head", "softmax entropy", False, label_answers(head(features), asked)))
    disagreement = None
    if queries.labels.kind == "soft":
        disagreement = label_entropy(torch.as_tensor(queries.labels.values).double())
    return {
        "precondition": _precondition(queries, learned_from, alone),
        "queries": len(queries.q),
        "gallery": None if alone else len(queries.gallery),
        "inputs": inputs,
        "rows": [
            {"method": name, "score": score, "ours": is_ours} | _measure(answers, disagreement, seed)
            for name, score, is_ours, answers in rows
        ],
        "verdicts": [_too_few(queries)] if _too_few(queries) else _verdicts(rows, disagreement, seed),
    }


def _precondition(queries: Questions, learned_from: int | None, alone: bool) -> str:
    """What the comparison rests on, as a sentence."""
    learned = "the same items" if learned_from is None else f"the same {learned_from} items"
    against = "each other" if alone else f"{len(queries.gallery)} items"
    return (
        f"ours and the baselines learned from {learned}, and answer the same {len(queries.q)} unseen queries, compared "
        f"with {against}"
    )


def _too_few(queries: Questions) -> str:
    """Why there is no verdict; empty if there are enough queries, items and classes."""
    kind = "groups" if queries.labels.kind == "groups" else "classes"
    asked, items = queries.hard
    counts = {
        "queries": (len(asked), LEAST_QUERIES),
        f"{kind} of queries": (len(set(asked.tolist())), LEAST_GROUPS if kind == "groups" else LEAST_CLASSES),
        "items to compare with": (len(items), LEAST_GALLERY),
    }
    few = [f"{count} {name}, of {least} that are needed" for name, (count, least) in counts.items() if count < least]
    return f"no verdict: {'; '.join(few)}" if few else ""


def with_interval(measured: dict[str, float] | None) -> str:
    """A number of a comparison and half the width of its 95 % interval, for tables; "-" if there is none."""
    if measured is None:
        return "-"
    return f"{measured['value']:.3f} ± {(measured['high'] - measured['low']) / 2:.3f}"


def _columns(answers: ScoredAnswers, disagreement: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Certainty, rightness, log-likelihood and people's disagreement of each query; NaN where there is none."""
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
    """Who wins by each metric: the best of ours and the best baseline, where the difference is not chance."""
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
        our_number, number = f"{our_value:.3f}", f"{value:.3f}"
        if ends is None or ends[0] <= 0 <= ends[1] or our_number == number:
            continue
        if sign * our_value > sign * value:
            lines.append(f"{our_name} {words}: {our_number} compared with {number} of {_named(name)}")
        else:
            verb = words if name.endswith("s") else _singular(words)
            lines.append(f"{_named(name)} {verb}: {number} compared with {our_number} of {our_name}")
    return lines or ["no difference between ours and the baselines is larger than chance"]


def _named(baseline: str) -> str:
    return "the linear head" if baseline == "linear head" else baseline


def _singular(words: str) -> str:
    """The words for one winner: "tells" in place of "tell"."""
    verb, _, rest = words.partition(" ")
    return f"{ {'have': 'has', 'are': 'is'}.get(verb, verb + 's') } {rest}"
