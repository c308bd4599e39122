"""What an index promises about its answer sets, as it is stored with the index."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from aleator.evaluation import Rejection, coverage_range

SetsOf = Literal["labels", "ranked"]
Need = Literal["share", "mass", "rank", "rank-kappa"]


@dataclass(frozen=True)
class Promise:
    """What `CredibleIndex.calibrate` found, and what `CredibleIndex.answer_sets` keeps.

    The answer sets hold a right answer for a share `coverage` of new questions or more. This is kept with a probability
    of `assurance` over the calibration questions; without an assurance, on average over calibrations. Old and new
    questions must come from the same source, and no item that the encoder was trained on may be among them. It holds
    on average over questions, not for each kind of question. It is void once the items of the index have changed.

    Args:
        coverage: Share of questions whose set holds a right answer.
        sets: "labels": one item of each label that the question could have. "ranked": the nearest items.
        need: How much an item needs to belong to a set; see `aleator.retrieval.answer_sets`.
        level: Items that need at most this belong to the set.
        depth: How many of the nearest items are looked at.
        questions: Number of calibration questions that made the level.
        state: What the index held when it was calibrated (`CredibleIndex.state`).
        kernel: Kernel of the match probabilities when it was calibrated, as a dict.
        mean_size: Mean size of the sets of the calibration questions.
        covered: Share of the calibration questions whose set holds a right answer.
        rejection: Confidence below which a question is not answered; None if no error was asked for.
        assurance: Probability, over the calibration questions, that the coverage is kept; None: it is on average.

    Examples:
        >>> from aleator.retrieval import Promise
        >>> promise = Promise(0.95, "labels", "share", 0.8, 128, 500, "", {}, 1.4, 0.952, None)
        >>> print(promise)
        sets hold a right answer for 95 % of questions like the 500 of the calibration
    """

    coverage: float
    sets: SetsOf
    need: Need
    level: float
    depth: int
    questions: int
    state: str
    kernel: dict[str, Any]
    mean_size: float
    covered: float
    rejection: Rejection | None
    assurance: float | None = None

    def __str__(self) -> str:
        asked = f"questions like the {self.questions} of the calibration"
        text = f"sets hold a right answer for {100 * self.coverage:g} % of {asked}"
        if self.assurance is not None:
            text += f" ({100 * self.assurance:g} % assured)"
        if self.rejection is None:
            return text
        kept = f"at most {100 * self.rejection.error:g} % are wrong ({100 * self.rejection.assurance:g} % assured)"
        return f"{text}; of the first answers that are given, {kept}"

    @property
    def coverage_range(self) -> tuple[float, float]:
        """Between which values the coverage lies in fact, for 90 % of all calibrations with this many questions."""
        return coverage_range(self.questions, self.coverage, assurance=self.assurance)

    def to_dict(self) -> dict[str, Any]:
        """The promise as JSON can store it.

        Returns:
            A dict of numbers, strings and dicts.
        """
        return asdict(self)

    @staticmethod
    def from_dict(stored: dict[str, Any]) -> "Promise":
        """The promise that `to_dict` described.

        Args:
            stored: The dict.

        Returns:
            The promise.
        """
        rejection = stored["rejection"]
        return Promise(**{**stored, "rejection": None if rejection is None else Rejection(**rejection)})
