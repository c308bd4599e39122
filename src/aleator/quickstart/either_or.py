"""Questions that could be one of two things: which are shown, what is said about them.

A posterior of two modes answers with two groups of hits: either these, or those. The questions are chosen by rule,
among those whose groups each show mostly one numeral, and not the same one: first those of which at least half is seen,
then by the weight of the second mode. Each pair of numerals is shown once.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from aleator.quickstart.questions import NumeralShare, numeral_shares
from aleator.retrieval import Hit, group_by_mode

SHOWN = 4  # hits of each group in the figure; a smaller group is not shown
MOST_QUESTIONS = 4
_MOST_COVERED = 0.5  # share of a question; a person should see what it could be
_MOSTLY = 0.8  # least share of one numeral in a group that shows it


@dataclass(frozen=True)
class Group:
    """The hits of one mode.

    Args:
        numeral: The most frequent numeral among them.
        weight: Weight of the mode.
        hits: The hits, those nearest to the mode first.
    """

    numeral: str
    weight: float
    hits: list[Hit]


@dataclass(frozen=True)
class ModesMeasured:
    """Credible sets of all questions, for one number of modes.

    Args:
        holds: Share of the sets that hold the right numeral.
        size: Mean number of items in a set.
        numerals: Mean number of different numerals in a set.
        either_or_holds: Share of the sets that hold the right numeral, among questions with two groups; None if there
            are none.
        either_or_size: Mean number of items in the sets of these questions.
    """

    holds: float
    size: float
    numerals: float
    either_or_holds: float | None
    either_or_size: float | None

    def to_dict(self) -> dict[str, Any]:
        """The numbers as JSON."""
        return asdict(self)


def two_groups(hits: Sequence[Hit], weights: Sequence[float]) -> tuple[Group, Group] | None:
    """The two groups of hits of a question that could be one of two numerals.

    Args:
        hits: Credible set of the question, nearest first.
        weights: Weights of its two modes.

    Returns:
        Two groups, the likelier first. None if a group has fewer than `SHOWN` hits or is not mostly of one numeral, or
        if both show the same numeral.
    """
    groups = []
    for mode, group in group_by_mode(hits):
        likeliest = numeral_shares(group)[0]
        if len(group) >= SHOWN and likeliest.share >= _MOSTLY:
            nearest_first = sorted(group, key=lambda hit: -hit.cosine)  # to its own mode, not to the whole posterior
            groups.append(Group(likeliest.numeral, weights[mode], nearest_first))
    if len(groups) < 2 or groups[0].numeral == groups[1].numeral:
        return None
    first, second = sorted(groups, key=lambda group: -group.weight)
    return first, second


def choose_questions(groups: Sequence[tuple[Group, Group] | None], covered: Sequence[float]) -> list[int]:
    """Which questions are shown.

    Args:
        groups: `two_groups` of each question.
        covered: Share of each question's area that is covered.

    Returns:
        Numbers of at most `MOST_QUESTIONS` questions: the largest weight of the second mode first, and each pair of
        numerals once. Questions that are more than half covered come last. What the right numeral is plays no part.
    """
    order = sorted(
        (i for i, pair in enumerate(groups) if pair is not None),
        key=lambda i: (covered[i] > _MOST_COVERED, -groups[i][1].weight),  # type: ignore[index]
    )
    chosen: dict[frozenset[str], int] = {}
    for i in order:
        chosen.setdefault(frozenset(group.numeral for group in groups[i] or ()), i)
    return list(chosen.values())[:MOST_QUESTIONS]


def measure(answers: Sequence[Sequence[Hit]], numerals: Sequence[str], either_or: Sequence[int]) -> ModesMeasured:
    """Credible sets in numbers.

    Args:
        answers: Credible set of each question.
        numerals: The right numeral of each question.
        either_or: Numbers of the questions with two groups.
    """
    found = [{hit.metadata["label"] for hit in hits} for hits in answers]
    holds = [numeral in labels for numeral, labels in zip(numerals, found, strict=True)]
    return ModesMeasured(
        holds=fmean(holds),
        size=fmean(map(len, answers)),
        numerals=fmean(map(len, found)),
        either_or_holds=fmean(holds[i] for i in either_or) if either_or else None,
        either_or_size=fmean(len(answers[i]) for i in either_or) if either_or else None,
    )


def fewer_items(one: Sequence[Sequence[Hit]], two: Sequence[Sequence[Hit]]) -> tuple[float, float]:
    """By how many items the sets of two modes are smaller, in the mean over questions, and its standard error.

    Args:
        one: Credible set of each question, with one mode.
        two: The same with two modes. At least two questions.
    """
    fewer = [len(first) - len(second) for first, second in zip(one, two, strict=True)]
    return fmean(fewer), stdev(fewer) / len(fewer) ** 0.5


def say(report: dict[str, Any]) -> list[str]:
    """Sentences about what two modes change.

    Args:
        report: What `compare_modes` returns.

    Returns:
        Three sentences. They say so if two modes are not better.
    """
    one, two, count = report["one_mode"], report["two_modes"], report["either_or"]
    if not count:
        clear = f"None of the {report['questions']} covered digits has two groups of answers with two modes."
        return [clear, _sizes(report)]
    either, other = report["shown"][0]["groups"]
    return [
        f"{count} of the {report['questions']} covered digits could be one of two numerals. With two modes they have "
        f"two groups of answers, such as a {either['numeral']} ({either['weight']:.0%}) or a {other['numeral']} "
        f"({other['weight']:.0%}).",
        f"For these, sets of two modes hold {two['either_or_size']:.0f} digits on average, and the right numeral for "
        f"{two['either_or_holds']:.0%}; sets of one mode hold {one['either_or_size']:.0f}, and the right numeral for "
        f"{one['either_or_holds']:.0%}.",
        _sizes(report),
    ]


def _sizes(report: dict[str, Any]) -> str:
    """Sizes of the sets over all questions, and whether they differ by more than chance."""
    one, two, fewer, error = (report[name] for name in ("one_mode", "two_modes", "fewer", "fewer_error"))
    if abs(fewer) <= 2 * error:
        verdict = "two modes are not better here, the difference may be chance"
    elif fewer > 0:
        verdict = f"{fewer / one['size']:.0%} fewer with two modes"
    else:
        verdict = "two modes are not better here, their sets are larger"
    return (
        f"Over all covered digits, both set to hold the right numeral equally often ({two['holds']:.1%} with two "
        f"modes, {one['holds']:.1%} with one), sets hold {two['size']:.0f} and {one['size']:.0f} of "
        f"{report['gallery']} digits: {verdict}."
    )


def shares_in_words(shares: Sequence[NumeralShare]) -> str:
    """Numerals of a set with their shares, most frequent first; those below a tenth are counted together.

    Args:
        shares: Numerals in the set.
    """
    main = [share for share in shares if share.share >= 0.1]
    words = [f"{share.numeral}s {share.share:.0%}" for share in main]
    rest = sum(share.share for share in shares) - sum(share.share for share in main)
    return ", ".join([*words, f"others {rest:.0%}"] if rest >= 0.005 else words)
