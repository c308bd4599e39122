"""Sample questions for the report. They show how certain and ambiguous questions differ.

Three questions are chosen by rule, without randomness: a clear digit; the same digit, degraded until two numerals are
about equally likely; and a degraded digit whose nearest neighbour is wrong.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from aleator.retrieval import Hit

_EVEN = 0.4  # least share of a numeral that counts as about equally likely as another
_SUPPORTED = 0.25  # least share of the right numeral in a credible set that still supports it
_UNCERTAIN = 0.25  # a question is uncertain if at most this share of questions has a smaller kappa


@dataclass(frozen=True)
class NumeralShare:
    """One numeral of a credible set.

    Args:
        numeral: The numeral.
        count: Number of answers that show it.
        share: The same as a share of all answers.
        nearest: Path of the nearest of these answers, in the gallery.
    """

    numeral: str
    count: int
    share: float
    nearest: str


@dataclass(frozen=True)
class SampleQuestion:
    """A question and its answer, in numbers and in words.

    Args:
        title: Headline.
        image: Path of the picture, in the folder of the quickstart.
        numeral: The right numeral.
        kappa: Certainty of the question.
        percentile: Share of all questions with a smaller kappa.
        certainty: The same in words as on the page and in `aleator query`.
        could_be: The likeliest numerals, with their probabilities.
        cap_degrees: Radius of the credible cap, as an angle.
        numerals: Numerals in the credible set, most frequent first.
        nearest: Numeral of the nearest answer. None if the set is empty.
        explanation: What to see in this example.
    """

    title: str
    image: str
    numeral: str
    kappa: float
    percentile: float
    certainty: str
    could_be: dict[str, float]
    cap_degrees: float
    numerals: list[NumeralShare]
    nearest: str | None
    explanation: str

    @property
    def hits(self) -> int:
        """Number of answers."""
        return sum(share.count for share in self.numerals)

    def to_dict(self) -> dict[str, Any]:
        """The question as JSON."""
        return asdict(self)


def choose_samples(
    numerals: Sequence[str],
    strengths: Sequence[float],
    percentiles: Sequence[float],
    answers: Sequence[list[Hit]],
    clear_answers: Sequence[list[Hit]],
) -> tuple[int, int]:
    """Choose an ambiguous question, and one whose nearest neighbour is wrong.

    Of all questions that qualify, the one with the weakest degradation is chosen: a person can still see something in
    it. If no question qualifies, as after very few training steps, conditions are dropped, the last one first.

    Args:
        numerals: The right numeral of each question.
        strengths: Strength of each question's degradation.
        percentiles: For each question the share of questions with a smaller kappa.
        answers: Credible set of each question, nearest first.
        clear_answers: Credible set of each question's digit before it was degraded.

    Returns:
        Numbers of the two questions.
    """
    order = sorted(range(len(numerals)), key=lambda i: (strengths[i], i))
    shares = [numeral_shares(hits) for hits in answers]

    def share_of_right(i: int) -> float:
        return sum(share.share for share in shares[i] if share.numeral == numerals[i])

    def nearest_is_right(i: int) -> bool:
        return bool(answers[i]) and _numeral(answers[i][0]) == numerals[i]

    ambiguous = _first(
        order,
        lambda i: share_of_right(i) > 0 and len(shares[i]) > 1,
        lambda i: {_numeral(hit) for hit in clear_answers[i]} == {numerals[i]},
        lambda i: sum(share.share >= _EVEN for share in shares[i]) > 1,
        nearest_is_right,
    )
    wrong = _first(
        order,
        lambda i: i != ambiguous and bool(answers[i]),
        lambda i: not nearest_is_right(i),
        lambda i: percentiles[i] <= _UNCERTAIN,
        lambda i: share_of_right(i) >= _SUPPORTED,
        lambda i: numerals[i] != numerals[ambiguous],
    )
    return ambiguous, wrong


def numeral_shares(hits: Sequence[Hit]) -> list[NumeralShare]:
    """Group the answers to a question by numeral, most frequent first."""
    counts = Counter(_numeral(hit) for hit in hits)
    nearest: dict[str, str] = {}
    for hit in hits:
        nearest.setdefault(_numeral(hit), hit.metadata["path"])
    return [
        NumeralShare(numeral, count, count / len(hits), nearest[numeral]) for numeral, count in counts.most_common()
    ]


def explain(numeral: str, percentile: float, shares: Sequence[NumeralShare], nearest: str | None) -> str:
    """Say in words what an answer shows.

    Args:
        numeral: The right numeral.
        percentile: Share of questions with a smaller kappa.
        shares: Numerals in the credible set.
        nearest: Numeral of the nearest answer. None if the set is empty.
    """
    possible = [share.numeral for share in shares]
    if nearest is None:
        return (
            "The set is empty: no digit of the gallery is close enough. The image resembles none of them, "
            "so the index gives no answer rather than a wrong one."
        )
    if numeral not in possible:
        return f"The right numeral, {numeral}, is not in the set. The encoder is wrong about some of the questions."
    if nearest != numeral:
        warning = "The low kappa warns of this, and the" if percentile <= _UNCERTAIN else "The"
        return (
            f"An ordinary embedding would return the nearest digit, a {nearest}, and be wrong: this is a {numeral}. "
            f"{warning} credible set still contains the right numeral."
        )
    if len(possible) == 1:
        return f"Every answer is a {numeral}: the image leaves no doubt."
    main = [share.numeral for share in shares if share.share >= 0.1]
    if len(main) == 1:
        return f"Nearly every answer is a {main[0]}."
    return (
        f"It could be {_listed(main)}, and the set contains {'both' if len(main) == 2 else 'them all'}. "
        f"The right numeral is {numeral}. The answer tells you that the image does not settle it."
    )


def _first(order: Sequence[int], *conditions: Callable[[int], bool]) -> int:
    """The first question that meets all conditions; if there is none, the last conditions are dropped."""
    for count in range(len(conditions), 0, -1):
        for i in order:
            if all(condition(i) for condition in conditions[:count]):
                return i
    return order[-1]


def _listed(words: Sequence[str]) -> str:
    return f"a {', a '.join(words[:-1])} or a {words[-1]}"


def _numeral(hit: Hit) -> str:
    return hit.metadata["label"]
