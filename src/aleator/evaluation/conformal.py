"""Promises that hold for any encoder: a quantile that covers, and a threshold of confidence that keeps an error.

Both are found on calibration questions whose answers are known. They hold for any scores and any distribution of the
questions, if later questions come from the same distribution as those of the calibration. The size of the sets and the
number of answered questions depend on how good the scores are; the promise does not.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from aleator.foundation import require, require_at_least, require_probability

_ROUNDING = 1e-9  # of (n + 1) * coverage, which is a whole number for usual levels
_PILOT_SHARE = 0.2  # of the questions that choose where `rejection_threshold` starts
_CANDIDATES = 201  # most thresholds that it tests


def questions_needed(coverage: float, assurance: float | None = None) -> int:
    """Fewest calibration questions for a coverage.

    On average over calibrations this is coverage / (1 - coverage), rounded up. With an assurance it is the least n with
    coverage^n <= 1 - assurance: then the largest of n scores is enough.

    Args:
        coverage: Share of questions, inside (0, 1).
        assurance: See `conformal_quantile`.

    Returns:
        The number of questions.

    Raises:
        ValueError: If `coverage` or `assurance` is not inside (0, 1).

    Examples:
        >>> from aleator.evaluation import questions_needed
        >>> questions_needed(0.95), questions_needed(0.99), questions_needed(0.95, assurance=0.9)
        (19, 99, 45)
    """
    require_probability("coverage", coverage, "pass for example 0.95")
    if assurance is None:
        return math.ceil(coverage / (1 - coverage) - _ROUNDING)
    require_probability("assurance", assurance, "pass for example 0.9")
    return math.ceil(math.log(1 - assurance) / math.log(coverage) - _ROUNDING)


def conformal_quantile(scores: Any, coverage: float, assurance: float | None = None) -> float:
    """The level that the score of a new question does not exceed, with probability `coverage` or more.

    It is the k-th smallest of n scores, k = ceil((n + 1) coverage): split conformal prediction (Vovk et al. 2005), and
    conformal risk control (Angelopoulos et al. 2022) for the loss "the score exceeds the level". The probability is
    over the calibration questions and the new one together, which must be exchangeable. It is at most
    coverage + 1 / (n + 1) if no two scores are equal.

    One calibration may cover less. With `assurance`, k is the least number for which the coverage of a calibration, a
    Beta(k, n + 1 - k) variable, reaches `coverage` with this probability (Vovk 2012).

    Args:
        scores: Scores of the calibration questions, shape (n,); infinity for a question that no level covers.
        coverage: Share of questions, inside (0, 1).
        assurance: Probability, over the calibration questions, that new questions are covered as often as `coverage`
            says. None: they are on average over calibrations.

    Returns:
        The level; infinity if too many scores are.

    Raises:
        ValueError: If there are fewer questions than the coverage needs, or if a score is NaN.

    Examples:
        >>> from aleator.evaluation import conformal_quantile
        >>> conformal_quantile(range(1, 20), 0.95)  # the largest of 19
        19.0
        >>> conformal_quantile(range(1, 100), 0.95), conformal_quantile(range(1, 100), 0.95, assurance=0.9)
        (95.0, 98.0)
    """
    scores = _vector("scores", scores)
    needed = questions_needed(coverage, assurance)
    require(
        len(scores) >= needed,
        "questions",
        len(scores),
        f"too few to promise a coverage of {coverage:g}",
        f"pass at least {needed}, or a smaller coverage",
    )
    return float(np.sort(scores)[_order(len(scores), coverage, assurance) - 1])


def coverage_range(
    questions: int, coverage: float, share: float = 0.9, assurance: float | None = None
) -> tuple[float, float]:
    """Between which values the coverage lies in fact, for most calibrations.

    The coverage after one calibration varies with its questions. For scores without ties it has a Beta(k, n + 1 - k)
    distribution, where `conformal_quantile` takes the k-th smallest score (Vovk 2012).

    Args:
        questions: n, the number of calibration questions.
        coverage: The coverage that was asked for.
        share: Share of calibrations.
        assurance: See `conformal_quantile`.

    Returns:
        The lowest and the highest coverage of this share of calibrations; equally many lie below and above.

    Raises:
        ValueError: If there are fewer questions than the coverage needs.

    Examples:
        >>> from aleator.evaluation import coverage_range
        >>> low, high = coverage_range(1000, 0.95)
        >>> round(low, 3), round(high, 3)
        (0.938, 0.961)
    """
    from scipy.special import betaincinv

    require_at_least("questions", questions, questions_needed(coverage, assurance))
    require_probability("share", share, "pass for example 0.9")
    k = _order(questions, coverage, assurance)
    low, high = betaincinv(k, questions + 1 - k, [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Rejection:
    """A threshold of confidence, and what it promises.

    Args:
        threshold: Questions with at least this confidence are answered; infinity if no threshold can be promised.
        error: Largest share of wrong answers among the questions that are answered.
        assurance: Probability, over the calibration questions, that the error is kept.
        answered: Share of the calibration questions that reach the threshold.
        wrong: Share of wrong answers among them; 0 if none is answered.

    Examples:
        >>> from aleator.evaluation import Rejection
        >>> Rejection(0.8, error=0.05, assurance=0.9, answered=0.7, wrong=0.03).threshold
        0.8
    """

    threshold: float
    error: float
    assurance: float
    answered: float
    wrong: float


def rejection_threshold(
    confidence: Any, wrong: Any, error: float, assurance: float = 0.9, *, seed: int = 0
) -> Rejection:
    """The lowest confidence at which answers may be given, so that few of the given answers are wrong.

    With probability `assurance` over the calibration questions, at most a share `error` of the questions that reach the
    threshold are answered wrongly. This is Learn then Test (Angelopoulos et al. 2021). A fifth of the questions, drawn
    at random, is a pilot: its confidences are the candidate thresholds, and it chooses the first of them. The other
    questions test one candidate after the other, each more lenient than the one before, until one fails. A candidate
    passes if so few wrong answers among n would have a probability of at most 1 - assurance, were the error larger than
    allowed: the binomial tail P(Bin(n, error) <= wrong answers).

    Args:
        confidence: Confidence in the answer to each question, shape (n,).
        wrong: Whether each answer is wrong, shape (n,).
        error: Largest share of wrong answers among the answered questions, inside (0, 1).
        assurance: Probability that the promise is kept, inside (0, 1).
        seed: Seed of the draw of the pilot.

    Returns:
        The threshold. It is infinite, so that nothing is answered, if no candidate passes.

    Raises:
        ValueError: If an argument is not valid.

    Examples:
        >>> import numpy as np
        >>> from aleator.evaluation import rejection_threshold
        >>> rng = np.random.default_rng(0)
        >>> confidence = rng.uniform(size=2000)
        >>> wrong = rng.uniform(size=2000) > confidence  # right with this probability
        >>> rejection = rejection_threshold(confidence, wrong, error=0.1)
        >>> 0.8 < rejection.threshold < 0.9, rejection.wrong < 0.1
        (True, True)
    """
    from scipy.special import bdtr

    confidence, wrong = _vector("confidence", confidence), np.asarray(wrong, bool)
    require(
        len(wrong) == len(confidence), "wrong", len(wrong), f"there are {len(confidence)} confidences", "pass one each"
    )
    require_probability("error", error, "pass for example 0.05")
    require_probability("assurance", assurance, "pass for example 0.9")
    shuffled = np.random.default_rng(seed).permutation(len(confidence))
    pilot, test = np.split(shuffled, [round(_PILOT_SHARE * len(confidence))])
    threshold = math.inf
    if len(pilot):
        levels = np.linspace(0, 1, _CANDIDATES)
        candidates = np.unique(np.quantile(confidence[pilot], levels, method="nearest"))[::-1]  # from strict to lenient
        answered, mistakes = _answered_and_wrong(confidence[pilot], wrong[pilot], candidates)
        # What the test will probably find, with one more wrong answer in the pilot so that its luck is not trusted.
        scale = len(test) / len(pilot)
        tested = np.round(scale * answered)
        expected = bdtr(np.minimum(np.floor(scale * (mistakes + 1)), tested), tested.astype(int), error)
        candidates = candidates[int(np.argmin(expected)) :]
        answered, mistakes = _answered_and_wrong(confidence[test], wrong[test], candidates)
        p_value = bdtr(mistakes.astype(float), answered, error)
        passed = np.logical_and.accumulate(p_value <= 1 - assurance)
        if passed[0]:
            threshold = float(candidates[passed.sum() - 1])
    reached = confidence >= threshold
    return Rejection(
        threshold,
        error,
        assurance,
        float(reached.mean()) if len(reached) else 0.0,
        float(wrong[reached].mean()) if reached.any() else 0.0,
    )


def _answered_and_wrong(
    confidence: np.ndarray, wrong: np.ndarray, thresholds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """How many questions reach each threshold, and how many of them have wrong answers."""
    reached = confidence >= thresholds[:, None]
    return reached.sum(axis=1), (reached & wrong).sum(axis=1)


def _order(questions: int, coverage: float, assurance: float | None) -> int:
    """Which of the sorted scores covers: ceil((n + 1) coverage), or the least with the assurance."""
    if assurance is None:
        return max(1, math.ceil((questions + 1) * coverage - _ROUNDING))
    from scipy.special import betainc

    k = np.arange(1, questions + 1)
    below = betainc(k, questions + 1 - k, coverage)  # probability of a coverage below `coverage`; it falls with k
    return int(np.argmax(below <= (1 - assurance) * (1 + _ROUNDING))) + 1


def _vector(argument: str, values: Any) -> np.ndarray:
    array = np.asarray(values, np.float64)
    require(array.ndim == 1, argument, f"of shape {array.shape}", "expected one number for each question", "flatten it")
    require(not np.isnan(array).any(), argument, "NaN", "is not a score", "leave the question out")
    return array
