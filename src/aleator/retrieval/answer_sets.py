"""Answer sets: sets of items for a question that hold a right answer as often as the index promises.

Each item needs a level to belong to the set of a question. The set of a level holds all items that need at most this
level, so sets are nested. `set_calibration.py` finds the level at which sets hold a right answer as often as promised.
That works whatever the needs are. Good needs give small sets:

    share        One item stands for each label. A label needs -log of its share among the neighbours, where the
                 neighbour of rank j counts r / j. Sets of this form are the smallest if the shares are the
                 probabilities of the labels (Sadinle, Lei, Wasserman 2019).
    mass         The j-th neighbour needs -log of the share of all labels that no nearer neighbour has. After the first
                 item of a label, others of the same label add nothing.
    rank-kappa   The j-th neighbour needs (j - 1) kappa of the question: the surer, the fewer (as Cai et al. 2023 do).
    rank         The j-th neighbour needs j - 1: the same number of neighbours for every question.

Two items of one label are right or wrong together. So sets of one item for each label ("labels") are smaller than sets
of nearest items ("ranked"), which hold many items of the likeliest label before the first of another.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from aleator.matching import pairwise_log_positivity
from aleator.retrieval.hits import Hit, make_hits
from aleator.retrieval.items import decode_metadata
from aleator.retrieval.match_scoring import posteriors
from aleator.retrieval.mixture_search import MixtureRequest, find_by_density, place, whole_log_ratios
from aleator.retrieval.promise import Need, Promise
from aleator.retrieval.search import ScoredCandidates, SearchRequest, calibrated, find_by_cosine, log_ratios
from aleator.retrieval.stores.base import Candidates, Store

_PAIRS = 131_072  # pairs of question and item at a time
_TABLE = 8  # computing r for all of a table is faster than for single pairs, if up to this many times as many


class AnswerSet(NamedTuple):
    """The answer to one question, with the promise of the index.

    Attributes:
        hits: Items of the set, likeliest first.
        confidence: How sure the first hit is right, in [0, 1]: the share of its label among the neighbours or, where
            items have no labels, its match probability at the prior 1/2.
        sure: False if the confidence is too low for the error that was asked for. Then the first hit alone should not
            be taken as the answer. The set keeps its promise. True for all if no error was asked for.

    Examples:
        >>> from aleator.retrieval import AnswerSet
        >>> AnswerSet([], confidence=0.4, sure=False).sure
        False
    """

    hits: list[Hit]
    confidence: float
    sure: bool


@dataclass(frozen=True)
class NearestItems:
    """The m nearest items of one question, nearest first."""

    candidates: Candidates
    cosine: np.ndarray  # (m,)
    log_ratio: np.ndarray  # (m,) log r of question and item
    label: np.ndarray  # (m,) a number for each label; -1 for an item without a label
    kappa: float  # of the question


@dataclass(frozen=True)
class Ranking:
    """The n items that the sets of a question may hold, in the order in which the sets grow."""

    position: np.ndarray  # (n,) among the neighbours
    need: np.ndarray  # (n,) ascending
    confidence: float  # that the first one is right


class ItemNotes:
    """Labels and keys of items, read once for each item.

    A label is a string or a number under "label" in the metadata. As in filters, 1 and 1.0 are the same label, and 1
    and "1" are not. `numbers` has the number of each label that was asked for or read.
    """

    def __init__(self, store: Store):
        self._store = store
        self.numbers: dict[str | int | float, int] = {}
        self._notes: dict[int, tuple[int, str]] = {}  # by row

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """The number (n,) of each item's label; -1 for an item without a label."""
        distinct = np.unique(rows).tolist()
        unknown = np.array([row for row in distinct if row not in self._notes], np.int64)
        described = self._store.describe(unknown) if len(unknown) else {}
        for row in unknown.tolist():
            key, metadata = described.get(row, ("", "{}"))  # removed while this runs
            self._notes[row] = self.label_number(decode_metadata(metadata).get("label")), key
        return np.array([self._notes[row][0] for row in rows.tolist()], np.int64)

    def keys(self, rows: np.ndarray) -> list[str]:
        """The ids, as JSON text, of items whose labels were read."""
        return [self._notes[row][1] for row in rows.tolist()]

    def label_number(self, label: Any) -> int:
        """The number of a label; -1 for what is not a label, such as None or a list of probabilities."""
        if isinstance(label, bool) or not isinstance(label, str | int | float):
            return -1
        return self.numbers.setdefault(label, len(self.numbers))


def find_neighbours(
    store: Store, request: SearchRequest | MixtureRequest, depth: int, notes: ItemNotes
) -> Iterator[NearestItems]:
    """The `depth` nearest items of each question of a request; of several modes, those where its density is highest."""
    block = max(1, _PAIRS // depth)
    for start in range(0, len(request), block):
        questions = request.block(start, start + block).with_limit(depth)
        if isinstance(questions, SearchRequest):
            candidates, cosine = find_by_cosine(store, questions)
            log_ratio = _log_ratios(questions, candidates)
        else:
            candidates, log_ratio = whole_log_ratios(store, questions, find_by_density(store, questions)[0])
            cosine = place(questions, candidates)[0]
        label = notes.labels(candidates.row)
        ends = np.searchsorted(candidates.query, np.arange(len(questions) + 1))
        for query, kappa in enumerate(questions.kappa.tolist()):
            own = np.arange(ends[query], ends[query + 1])
            yield NearestItems(candidates.take(own), cosine[own], log_ratio[own], label[own], kappa)


def rank(found: NearestItems, need: Need) -> Ranking:
    """The items that the sets of a question may hold, with what they need."""
    if len(found.cosine) == 0:
        return Ranking(np.empty(0, np.int64), np.empty(0), 0.0)
    if need == "share":
        return _one_of_each_label(found)
    position = np.arange(len(found.cosine))
    if need == "mass":
        return Ranking(position, *_unseen_labels(found))
    confidence = float(1 / (1 + np.exp(-found.log_ratio[0])))
    needs = position * 1.0
    if need == "rank-kappa":
        needs[1:] *= found.kappa  # the nearest item needs nothing, also if kappa is infinite: 0 times that is NaN
    return Ranking(position, needs, confidence)


def answer(store: Store, request: SearchRequest | MixtureRequest, promise: Promise) -> list[AnswerSet]:
    """The sets of the promised level."""
    notes = ItemNotes(store)
    chosen: list[ScoredCandidates] = []
    confidences: list[float] = []
    for query, found in enumerate(find_neighbours(store, request, promise.depth, notes)):
        ranking = rank(found, promise.need)
        inside = ranking.position[ranking.need <= promise.level]
        candidates = replace(found.candidates.take(inside), query=np.full(len(inside), query))
        chosen.append(ScoredCandidates(candidates, found.cosine[inside], found.log_ratio[inside]))
        confidences.append(ranking.confidence)
    if not chosen:
        return []
    candidates = Candidates.concatenate([one.candidates for one in chosen])
    cosine = np.concatenate([one.cosine for one in chosen])
    log_ratio = np.concatenate([one.match_probability for one in chosen])
    if isinstance(request, SearchRequest):
        plain, mode = request, None
    else:
        plain, mode = request.components, place(request, candidates)[1]
    probability = calibrated(plain, log_ratio, np.ones(len(candidates)), len(store), "match")
    hits = make_hits(store, ScoredCandidates(candidates, cosine, probability, mode), len(chosen))
    least = -np.inf if promise.rejection is None else promise.rejection.threshold
    return [
        AnswerSet(own, confidence, bool(confidence >= least)) for own, confidence in zip(hits, confidences, strict=True)
    ]


def _one_of_each_label(found: NearestItems) -> Ranking:
    """The likeliest item of each label, the label with the largest share first."""
    labels, log_share = _label_shares(found)
    if len(labels) == 0:
        return Ranking(np.empty(0, np.int64), np.empty(0), 0.0)
    by_ratio = np.argsort(-found.log_ratio, kind="stable")
    order = np.argsort(-log_share, kind="stable")
    present, first = np.unique(found.label[by_ratio], return_index=True)
    position = by_ratio[first[present >= 0]][order]  # labels are in ascending order in both
    need = -log_share[order]
    confidence = float(np.exp(-need[0]))
    need[0] = 0.0  # the likeliest label belongs to every set
    return Ranking(position, need, confidence)


def _unseen_labels(found: NearestItems) -> tuple[np.ndarray, float]:
    """-log of the share of labels that no nearer neighbour has, (m,), and the share of the first one's label."""
    labels, log_share = _label_shares(found)
    first = np.array([np.argmax(found.label == label) for label in labels], np.int64)  # where each label comes first
    order = np.argsort(first)
    first, log_share = first[order], log_share[order]
    unseen = np.logaddexp.accumulate(log_share[::-1])[::-1]  # of each label and those that come first after it
    labels_before = np.searchsorted(first, np.arange(len(found.label)))
    need = -np.append(unseen, -np.inf)[labels_before]
    need[: first[0] + 1 if len(first) else 1] = 0.0  # the nearest item belongs to every set
    confidence = float(np.exp(log_share[0])) if len(first) and first[0] == 0 else 0.0
    return np.maximum(need, 0.0), confidence


def _label_shares(found: NearestItems) -> tuple[np.ndarray, np.ndarray]:
    """The labels (l,) of the neighbours, and the log of their shares (l,); the neighbour of rank j counts r / j."""
    log_weight = found.log_ratio - np.log(np.arange(1, len(found.cosine) + 1))
    labelled = found.label >= 0
    labels, which = np.unique(found.label[labelled], return_inverse=True)
    weights = log_weight[labelled]
    highest = np.full(len(labels), -np.inf)
    np.maximum.at(highest, which, weights)  # so that a label with little weight does not vanish
    total = highest + np.log(np.bincount(which, np.exp(weights - highest[which]), minlength=len(labels)))
    return labels, total - np.logaddexp.reduce(total) if len(labels) else total


def _log_ratios(request: SearchRequest, candidates: Candidates) -> np.ndarray:
    """`log_ratios`, from one table of all pairs if the queries share most of their candidates."""
    _, first, which = np.unique(candidates.row, return_index=True, return_inverse=True)
    if len(first) * len(request) > _TABLE * len(candidates):
        return log_ratios(request, candidates)
    queries = posteriors(request.mu, request.kappa).double()
    items = posteriors(candidates.mu[first], candidates.kappa[first]).double()
    table = pairwise_log_positivity(queries, items, request.kernel).numpy()
    return table[candidates.query, which]
