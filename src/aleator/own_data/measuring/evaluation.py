"""How good are posteriors, given labels? Does kappa tell hits from misses, and are match probabilities right?

Everything is measured on queries against one gallery (questions.py). A query whose label no item of the gallery has
cannot be answered, so Recall@1 leaves it out. Match probabilities are measured on the first ten hits of each query, and
on random pairs.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from aleator.evaluation import (
    MatchCalibration,
    MatchPairs,
    calibrate_matches,
    expected_calibration_error,
    interval,
    linked_groups,
    plots,
    r_auroc,
    reject_curve,
    reliability_diagram,
)
from aleator.foundation import require, sample_numbers
from aleator.matching import DEFAULT_PRIOR, LogOddsMap, MatchMaps, VMFKernel, match_probability
from aleator.own_data.collection.labels import Labels
from aleator.own_data.collection.parts import labels_at
from aleator.own_data.measuring.one_mode import certainty_score, one_mode
from aleator.own_data.measuring.questions import Questions, draw_columns, label_probabilities, ranks
from aleator.posteriors import PosteriorBatch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEPT = tuple(round(0.05 * i, 2) for i in range(1, 21))  # shares of items in a reject curve
# What a metric says, for people: of `evaluate`, of the labels, and of what is unlike anything seen.
METRIC_WORDS = {
    "recall_at_1": "Recall@1: share of queries whose nearest item has the same label",
    "recall_at_1_surer_half": "Recall@1 of the surer half",
    "r_auroc": "R-AUROC: how well kappa tells hits from misses",
    "first_match": "the same of the likeliest match (a search by match)",
    "match_ece_hits": "calibration error of match probabilities: ten nearest items of each query",
    "match_ece_likeliest": "calibration error of match probabilities: ten likeliest items of each query",
    "match_ece_random": "calibration error of match probabilities: random pairs",
    "label_log_likelihood": "log-likelihood of the labels",
    "label_accuracy": "share of items whose likeliest label is right",
    "label_ece": "calibration error of label probabilities",
    "label_auroc": "how well the label's certainty tells right from wrong",
    "unlike": "share of items unlike anything seen",
    "mean_kappa": "mean kappa",
}
_BINS = 10  # of the reliability diagram
_PAIRS = 20_000
_MOST_ITEMS = 10_000  # of more items, a random sample is evaluated
# Calibration may only lower kappa: log kappa_scale lies in [-3, 0], and log factor in [-6, 6].
_CALIBRATION_BOUNDS = ((-3.0, 0.0), (-6.0, 6.0))
_CALIBRATION_STEPS = (-0.7, 0.7)


def evaluation_labels(labels: Labels, count: int) -> Labels:
    """Labels with one group for each set of items that pairs link. Other kinds of labels are returned unchanged."""
    if labels.kind != "pairs":
        return labels
    group = linked_groups(labels.values, count)
    return Labels("groups", group, tuple(str(g) for g in range(group.max(initial=-1) + 1)))


def evaluate(
    q: PosteriorBatch,
    labels: Labels,
    kernel: VMFKernel,
    prior: float = DEFAULT_PRIOR,
    *,
    maps: MatchMaps | None = None,
    questions: Questions | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Evaluate posteriors against labels.

    Of more than 10,000 items, a random sample is evaluated.

    Args:
        q: Posteriors, batch shape (N,).
        labels: Labels of the items.
        kernel: Kernel of the match probabilities.
        prior: Prior of the match probabilities.
        maps: Maps of calibrated match probabilities. Default: the identity.
        questions: Queries and the gallery that they are asked against. Default: each item, against all others.
        seed: Seed of the pairs and of the sample.

    Returns:
        Metrics and the data of the figures, ready for JSON:

        - items: number of items
        - gallery: number of items that the queries are asked against; None: each item is asked against all others
        - recall_at_1, and recall_at_1_surer_half for the more certain half of the queries
        - r_auroc: how well certainty (kappa) tells hits from misses; None if there are only hits or only misses
        - reject_curve: recall_at_1 of the most certain queries, for each share that is kept
        - first_match: recall_at_1 of a search by match
        - match_ece, reliability: calibration error and reliability diagram of match probabilities, on pairs of which
          half are drawn to match; the prior is then 1/2
        - match_ece_hits, reliability_hits: the same on the first ten hits of each query, the nearest items
        - match_ece_likeliest, reliability_likeliest: the same on the first ten hits of a search by match
        - match_ece_random, reliability_random: the same on random pairs of a query and an item
        - mean_kappa, kappa_quantiles, kappa_histogram; for several modes of the closest vMF
        - notes: sentences on what the numbers mean for the user

    Raises:
        ValueError: If no two items share a label, or all do.

    Examples:
        >>> import numpy as np, torch, aleator as al
        >>> from aleator.own_data import Labels, evaluate
        >>> classes = np.arange(60) % 3
        >>> q = al.VonMisesFisher(torch.eye(3)[classes], torch.linspace(10, 50, 60))
        >>> metrics = evaluate(q, Labels("classes", classes, ("cat", "dog", "owl")), al.VMFKernel(20.0))
        >>> metrics["recall_at_1"], metrics["items"]
        (1.0, 60)
    """
    labels = evaluation_labels(labels, len(q))
    if len(q) > _MOST_ITEMS:
        chosen = sample_numbers(np.arange(len(q)), _MOST_ITEMS, seed)
        q, labels = q[torch.as_tensor(chosen)], labels_at(labels, chosen)
    if questions is None:
        questions = Questions(q, labels, q, labels, own=np.arange(len(q)))
    partnered = questions.has_match
    require(
        int(partnered.sum()) >= 2 and questions.kinds >= 2,
        "labels",
        len(labels.values),
        "no two items share a label, or all do",
        "evaluate items of two classes or more, some of them shared",
    )
    shown = one_mode(q)
    maps = MatchMaps() if maps is None else maps
    nearest, likeliest = questions.hits(), questions.likeliest(kernel)
    hits, by_match = (questions.first_right(found)[partnered] for found in (nearest, likeliest))
    certainty = certainty_score(questions.q)[partnered]
    curve = reject_curve(certainty, hits, KEPT)
    quantiles = torch.quantile(shown.kappa.double(), torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64))
    return {
        "items": len(q),
        "gallery": None if questions.alone else len(questions.gallery),
        "recall_at_1": hits.mean().item(),
        "recall_at_1_surer_half": curve[KEPT.index(0.5)],
        "r_auroc": r_auroc(certainty, hits),
        "reject_curve": {"kept": list(KEPT), "recall_at_1": curve},
        **_reliability("", _predict_half_matching(questions, kernel, prior, maps, seed)),
        **_reliability("_hits", _predict_hits(questions, nearest, kernel, prior, maps.of_hits("cosine"))),
        **_reliability("_likeliest", _predict_likeliest_hits(questions, likeliest, kernel, prior, maps)),
        **_reliability("_random", _predict_pairs(questions, questions.random_pairs(seed), kernel, prior, maps.pair)),
        "first_match": by_match.mean().item(),
        "mean_kappa": shown.kappa.double().mean().item(),
        "kappa_quantiles": dict(zip(("5%", "25%", "50%", "75%", "95%"), quantiles.tolist(), strict=True)),
        "kappa_histogram": _histogram(shown.kappa),
        "notes": _advice(hits, by_match, seed),
    }


def figures(metrics: dict[str, Any]) -> dict[str, "Figure"]:
    """Figures of what `evaluate` returned, by name: reject-curve, kappa, and reliability diagrams."""
    diagrams = {name: metrics[name] for name in metrics if name.startswith("reliability")}
    return {
        "reject-curve": plots.reject_curve(**metrics["reject_curve"]),
        "kappa": plots.histogram(**metrics["kappa_histogram"], label="kappa"),
        **{name.replace("_", "-"): plots.reliability_diagram(**diagram) for name, diagram in diagrams.items()},
    }


Prediction = tuple[Tensor, Tensor]  # match probabilities of pairs, and whether they match; (P,) each


def _reliability(ending: str, prediction: Prediction) -> dict[str, Any]:
    """Calibration error and reliability diagram, as metrics whose names have this ending."""
    diagram = reliability_diagram(*prediction, _BINS)
    return {
        f"match_ece{ending}": expected_calibration_error(*prediction),
        f"reliability{ending}": {name: column.tolist() for name, column in vars(diagram).items()},
    }


def _predict_pairs(
    questions: Questions, pairs: MatchPairs, kernel: VMFKernel, prior: float, calibration: LogOddsMap
) -> Prediction:
    """Predictions for pairs of questions and items."""
    first, second = questions.q[pairs.first], questions.gallery[pairs.second]
    return match_probability(first, second, kernel, prior, calibration), pairs.match


def _predict_hits(
    questions: Questions, hits: MatchPairs, kernel: VMFKernel, prior: float, calibration: LogOddsMap
) -> Prediction:
    """Predictions for the first hits of searches."""
    first, second = questions.q[hits.first], questions.gallery[hits.second]
    return match_probability(first, second, kernel, prior, calibration, ranks(hits)), hits.match


def _predict_likeliest_hits(
    questions: Questions, hits: MatchPairs, kernel: VMFKernel, prior: float, maps: MatchMaps
) -> Prediction:
    """Predictions for the first hits of searches by match, which shows no hit as likelier than the one before it."""
    predicted, match = _predict_hits(questions, hits, kernel, prior, maps.of_hits("match"))
    return predicted.view(len(questions.q), -1).cummin(1).values.flatten(), match


def _advice(nearest: Tensor, by_match: Tensor, seed: int) -> list[str]:
    """What to search by, if one way finds less than the other by more than chance; 1 for right first hits, (Q,)."""
    ends = interval(lambda a, b: (a - b).mean().item(), nearest, by_match, seed=seed)
    if ends is None or ends[0] <= 0:
        return []
    said = "the likeliest match is right for {:.3f} of the queries, the nearest item for {:.3f}: search by nearest"
    return [said.format(by_match.mean(), nearest.mean())]


def _predict_half_matching(
    questions: Questions, kernel: VMFKernel, prior: float, maps: MatchMaps, seed: int
) -> Prediction:
    """Predictions for pairs of which half are drawn to match and half independently."""
    halves = questions.matching_pairs(seed + 1), questions.random_pairs(seed + 2)
    predicted = torch.cat([_predict_pairs(questions, half, kernel, prior, maps.pair)[0] for half in halves])
    drawn_to_match = torch.cat([torch.full((len(half),), float(i == 0)) for i, half in enumerate(halves)])
    if maps.calibrated:
        # Independent pairs match as well, with the share `prior`. By Bayes' rule P(match) / prior is the density of
        # pairs that are drawn to match, relative to independent ones. An older prior was fitted to such pairs as is.
        predicted = predicted / (predicted + prior)
    return predicted, drawn_to_match


def matching_pairs(labels: Labels, count: int, seed: int) -> MatchPairs:
    """Draw pairs of different items, half of them to match and half independently.

    A pair that matches is an item, a class drawn from the item's labels, and another item drawn from that class. Some
    of the independent pairs share a class by chance.
    """
    generator = np.random.default_rng(seed)
    probability = label_probabilities(labels)
    n = probability.shape[0]
    halves = []
    for matching in (True, False):
        first, second = np.empty(0, np.int64), np.empty(0, np.int64)
        for _ in range(100):  # pairs of an item with itself are dropped and drawn again
            a = generator.integers(n, size=count)
            b = _partners(probability, a, generator) if matching else generator.integers(n, size=count)
            first, second = np.concatenate([first, a[a != b]]), np.concatenate([second, b[a != b]])
            if len(first) >= count // 2:
                break
        halves.append((first[: count // 2], second[: count // 2]))
    least = min(len(first) for first, _ in halves)
    require(least > 0, "labels", n, "no two items match", "evaluate more items")
    first, second = (np.concatenate([half[side][:least] for half in halves]) for side in (0, 1))
    match = np.concatenate([np.ones(least), np.zeros(least)])
    return MatchPairs(*(torch.as_tensor(part) for part in (first, second, match)))


def calibrate_on_labels(q: PosteriorBatch, labels: Labels, kernel: VMFKernel, seed: int = 0) -> MatchCalibration:
    """Fit kappa scale, kernel and prior so that match probabilities of held-out items are right.

    See `aleator.evaluation.calibrate_matches`. The pairs are drawn from the labels, half of them to match.

    Args:
        q: Posteriors of held-out items, batch shape (N,).
        labels: Their labels.
        kernel: Kernel that the encoder was trained with.
        seed: Seed of the pairs.

    Returns:
        The calibration. Its `kappa_scale` is at most 1.
    """
    count = min(_PAIRS // 4, 25 * len(q))  # few items make few different pairs
    pairs = matching_pairs(evaluation_labels(labels, len(q)), count, seed)
    return calibrate_matches(
        q, pairs, kernel, fit_kernel=True, first_steps=_CALIBRATION_STEPS, bounds=_CALIBRATION_BOUNDS
    )


def _histogram(values: Tensor) -> dict[str, list[float]]:
    """Histogram over 40 bins of equal width in the logarithm, between the 0.1 % and 99.9 % quantiles.

    Values outside, 0 and inf among them, are counted in the first and the last bin.
    """
    logs = values.double().log()
    ordinary = logs[logs.isfinite()]
    ends = torch.tensor([0.001, 0.999], dtype=torch.float64)
    low, high = torch.quantile(ordinary, ends).tolist() if len(ordinary) else (0.0, 0.0)
    if high - low < 1e-6:
        low, high = low - 0.5, high + 0.5
    count, edges = np.histogram(logs.clamp(low, high).numpy(), 40, (low, high))
    return {"edges": np.exp(edges).tolist(), "count": count.tolist()}


def _partners(probability: Any, anchors: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """For each anchor x, draw a class c from P(c | x), then an item in proportion to P(c | item); shape (P,)."""
    classes = draw_columns(probability, anchors, generator)
    return draw_columns(probability.T.tocsr(), classes, generator)
