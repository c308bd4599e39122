"""Calibration of answer sets: the level and the threshold that keep a promise, from questions with known answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch

from aleator.evaluation import Rejection, conformal_quantile, questions_needed, rejection_threshold
from aleator.foundation import reject, require, require_one_of, require_probability
from aleator.retrieval.answer_sets import ItemNotes, NearestItems, find_neighbours, rank
from aleator.retrieval.items import Id, encode_id
from aleator.retrieval.mixture_search import MixtureRequest
from aleator.retrieval.promise import Need, Promise, SetsOf
from aleator.retrieval.search import SearchRequest
from aleator.retrieval.stores.base import Store

Label = str | int | float
Right = Sequence[Label] | Sequence[Sequence[Id]]

_FIRST_DEPTH, _LARGEST_DEPTH = 128, 16_384  # nearest items to look at
_PILOT_SHARE = 0.2  # of the questions that choose a need, where there is a choice; as in `rejection_threshold`
_SEED = 0
_ITSELF = 1e-9  # an item whose cosine with a question is this close to 1 may be the question itself


@dataclass(frozen=True)
class _Trial:
    """The calibration questions, ranked with one kind of need."""

    need: Need
    needs: list[np.ndarray]  # of each question, ascending
    level: np.ndarray  # (n,) smallest level whose set holds a right answer; infinity if none does
    confidence: np.ndarray  # (n,) in the first item
    wrong: np.ndarray  # (n,) whether the first item is wrong

    def mean_size(self, level: float, questions: np.ndarray) -> float:
        """Mean size of the sets of a level."""
        return float(np.mean([np.searchsorted(self.needs[i], level, side="right") for i in questions.tolist()]))


def calibrate_sets(
    store: Store,
    request: SearchRequest | MixtureRequest,
    right: Right,
    coverage: float,
    error: float | None,
    assurance: float,
    sets: SetsOf | None,
    kernel: dict[str, Any],
) -> Promise:
    """Find the promise; see `CredibleIndex.calibrate`. The kernel is that of the request, as a dict."""
    require_probability("coverage", coverage, "pass for example 0.95")
    count, needed = len(request), questions_needed(coverage)
    problem = f"too few to promise a coverage of {coverage:g}"
    require(count >= needed, "questions", count, problem, f"pass at least {needed}, or a smaller coverage")
    answers = _RightAnswers(store, right, count)
    if sets is None:
        sets = "labels" if answers.by_label else "ranked"
    require_one_of("sets", sets, ("labels", "ranked"))
    if sets == "labels" and not answers.by_label:
        reject("sets", sets, "right answers are ids here", 'pass labels as `right`, or sets="ranked"')

    state = store.state()  # first: the promise is void if items change from here on
    depth, trials = _look_deep_enough(store, request, answers, coverage, sets)
    trial, used = _choose(trials, coverage)
    # Few questions promise the coverage on average over calibrations only.
    assured = assurance if len(used) >= questions_needed(coverage, assurance) else None
    level = conformal_quantile(trial.level[used], coverage, assured)
    if not np.isfinite(level):  # an assured level is higher: too many right answers lie too deep for it
        assured, level = None, conformal_quantile(trial.level[used], coverage)
    if not np.isfinite(level):
        missed = int(np.isinf(trial.level).sum())
        if missed == count:
            answers.reject_all()
        reject(
            "coverage",
            coverage,
            f"for {missed} of {count} questions no right answer is among the nearest {depth} items",
            f"promise less than {1 - missed / count:.3g}, or add items that answer them",
        )
    rejection = None
    if error is not None:
        # The same seed gives it the same pilot, so the questions that chose the need do not test its confidence.
        rejection = rejection_threshold(trial.confidence, trial.wrong, error, assurance, seed=_SEED)
        _require_promise(rejection, trial)
    return Promise(
        coverage=coverage,
        sets=sets,
        need=trial.need,
        level=level,
        depth=depth,
        questions=len(used),
        state=state,
        kernel=kernel,
        mean_size=trial.mean_size(level, used),
        covered=float(np.mean(trial.level[used] <= level)),
        rejection=rejection,
        assurance=assured,
    )


class _RightAnswers:
    """The right answers of questions: labels, or ids of items."""

    def __init__(self, store: Store, right: Right, count: int):
        values = right.tolist() if isinstance(right, np.ndarray | torch.Tensor) else list(right)
        values = [value.item() if isinstance(value, np.generic) else value for value in values]
        require(len(values) == count, "right", len(values), f"there are {count} questions", "pass one entry for each")
        self.notes = ItemNotes(store)
        self.by_label = isinstance(values[0], str | int | float)
        if self.by_label:
            self._labels = np.array([self._label_number(value) for value in values])
        else:
            self._keys = [self._encoded(value) for value in values]
            named = set().union(*self._keys)
            unknown = sorted(named - store.existing(sorted(named)))
            require(
                not unknown, "right", unknown[:3], "not in the index", "pass ids of items, or one label per question"
            )

    def among(self, found: NearestItems, question: int) -> np.ndarray:
        """Which of a question's neighbours are right answers, (m,) bool."""
        if self.by_label:
            return found.label == self._labels[question]
        keys = self._keys[question]
        return np.array([key in keys for key in self.notes.keys(found.candidates.row)], bool)

    def reject_all(self) -> NoReturn:
        """Raise, because no item that was looked at is a right answer of any question."""
        if not self.by_label:
            reject("right", self._keys[0], "not among the nearest items of its question", "pass ids of near items")
        asked = set(self._labels.tolist())
        given, others = list[Label](), list[Label]()
        for label, number in self.notes.numbers.items():
            (given if number in asked else others).append(label)
        problem = "no item near to any question has its label"
        some = f"items have labels such as {', '.join(map(repr, others[:3]))}" if others else "items have no labels"
        reject("right", given[:3], problem, f"{some}; pass labels of items, where 3 and '3' differ")

    def _label_number(self, value: Any) -> int:
        number = self.notes.label_number(value)
        require(
            number >= 0, "right", value, "not a label", "pass one string or number for each question, or lists of ids"
        )
        return number

    @staticmethod
    def _encoded(value: Any) -> set[str]:
        listed = isinstance(value, list | tuple | set | frozenset | np.ndarray)
        require(listed, "right", value, "not a list of ids", "pass a list of ids for every question, or one label each")
        return {encode_id(id) for id in value}


def _look_deep_enough(
    store: Store,
    request: SearchRequest | MixtureRequest,
    answers: _RightAnswers,
    coverage: float,
    sets: SetsOf,
) -> tuple[int, list[_Trial]]:
    """Four times as many neighbours in each round, until few questions have no right answer among them."""
    depth, size = _FIRST_DEPTH, max(1, len(store))
    needs: list[Need] = ["share"] if sets == "labels" else ["rank-kappa", "rank"]
    if sets == "ranked" and answers.by_label:
        needs.insert(0, "mass")
    while True:
        depth = min(depth, size, _LARGEST_DEPTH)
        trials = _try(store, request, answers, depth, needs)
        missed = np.isinf(trials[0].level).mean()
        if missed <= (1 - coverage) / 10 or depth in (size, _LARGEST_DEPTH):
            return depth, trials
        depth *= 4


def _try(
    store: Store,
    request: SearchRequest | MixtureRequest,
    answers: _RightAnswers,
    depth: int,
    needs: list[Need],
) -> list[_Trial]:
    """Rank the neighbours of all questions with each kind of need."""
    found = [([], [], [], []) for _ in needs]  # type: list[tuple[list, list, list, list]]
    for question, neighbours in enumerate(find_neighbours(store, request, depth, answers.notes)):
        neighbours, is_right = _without_itself(neighbours, answers.among(neighbours, question), answers.by_label)
        for need, (all_needs, levels, confidences, wrong) in zip(needs, found, strict=True):
            ranking = rank(neighbours, need)
            right = is_right[ranking.position]
            all_needs.append(ranking.need)
            levels.append(ranking.need[right].min(initial=np.inf))
            confidences.append(ranking.confidence)
            wrong.append(not (len(right) and right[0]))
    return [
        _Trial(need, all_needs, np.array(levels), np.array(confidences), np.array(wrong, bool))
        for need, (all_needs, levels, confidences, wrong) in zip(needs, found, strict=True)
    ]


def _without_itself(found: NearestItems, is_right: np.ndarray, by_label: bool) -> tuple[NearestItems, np.ndarray]:
    """The neighbours of a question, and which are right, without the question itself if it is an item of the index.

    It would always find itself, and new questions do not. Right answers that are ids may mean the very item.
    """
    itself = np.flatnonzero(is_right & (found.cosine >= 1 - _ITSELF))[:1]
    if not by_label or len(itself) == 0:
        return found, is_right
    others = np.delete(np.arange(len(is_right)), itself)
    left = NearestItems(
        found.candidates.take(others), found.cosine[others], found.log_ratio[others], found.label[others], found.kappa
    )
    return left, is_right[others]


def _choose(trials: list[_Trial], coverage: float) -> tuple[_Trial, np.ndarray]:
    """The need with the smallest sets, and the questions that did not choose it.

    The questions that choose must not make the level, or the promise would not hold. With few questions, or without a
    choice, the first need is taken and all questions make the level.
    """
    count = len(trials[0].level)
    shuffled = np.random.default_rng(_SEED).permutation(count)
    pilot, rest = np.split(shuffled, [round(_PILOT_SHARE * count)])
    if len(trials) == 1 or len(rest) < questions_needed(coverage) or len(pilot) == 0:
        return trials[0], np.arange(count)

    def size(trial: _Trial) -> float:
        level = np.quantile(trial.level[pilot], coverage, method="higher")
        return trial.mean_size(float(level), pilot)

    return min(trials, key=size), rest


def _require_promise(rejection: Rejection, trial: _Trial) -> None:
    count = len(trial.wrong)
    require(
        np.isfinite(rejection.threshold),
        "error",
        rejection.error,
        f"no confidence keeps it with an assurance of {rejection.assurance:g} "
        f"({int(trial.wrong.sum())} of {count} first answers are wrong)",
        "pass more questions, a larger error or a smaller assurance",
    )
