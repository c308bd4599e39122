"""Which questions are shown as "either this, or that", and what is said about them."""

import pytest

from aleator.quickstart.either_or import SHOWN, choose_questions, fewer_items, measure, say, shares_in_words, two_groups
from aleator.quickstart.questions import numeral_shares
from aleator.retrieval import Hit

COSINES = (0.7, 0.6, 0.9, 0.5, 0.8, 0.1, 0.2, 0.3, 0.4, 0.5)


def hits(*groups: str) -> list[Hit]:
    """Hits with these numerals; each group is a mode."""
    return [Hit(0, 0.9, 50.0, 0.9, {"label": n, "path": ""}, mode) for mode, group in enumerate(groups) for n in group]


def test_two_groups_have_the_likelier_first_and_their_most_frequent_numeral():
    first, second = two_groups(hits("444449", "99999"), [0.38, 0.62])
    assert (first.numeral, first.weight, len(first.hits)) == ("9", 0.62, 5)
    assert (second.numeral, second.weight, len(second.hits)) == ("4", 0.38, 6)


@pytest.mark.parametrize(
    "answer",
    [
        hits(),
        hits("44444"),
        hits("44444", "44444"),  # the same numeral
        hits("44444", "9" * (SHOWN - 1)),  # too few to show
        hits("44444", "999777"),  # not mostly one numeral
    ],
)
def test_other_answers_are_not_either_or(answer):
    assert two_groups(answer, [0.5, 0.5]) is None


def test_the_largest_second_weight_comes_first_and_each_pair_of_numerals_once():
    groups = [
        two_groups(hits("44444", "99999"), [0.7, 0.3]),
        None,
        two_groups(hits("99999", "44444"), [0.6, 0.4]),  # the same pair, more even
        two_groups(hits("33333", "88888"), [0.45, 0.55]),
        two_groups(hits("11111", "77777"), [0.9, 0.1]),
    ]
    seen = [0.2] * len(groups)
    assert choose_questions(groups, seen) == [3, 2, 4]
    assert choose_questions(groups, [*seen[:3], 0.6, 0.2]) == [2, 4, 3]  # more than half covered: last
    assert choose_questions([None], [0.2]) == []
    many = [two_groups(hits("00000", str(n) * 5), [0.6, 0.4]) for n in range(1, 9)]
    assert choose_questions(many, [0.5] * 8) == [0, 1, 2, 3]


def test_a_group_begins_with_what_is_nearest_to_its_mode():
    found = [
        hit._replace(id=i, cosine=c) for i, (hit, c) in enumerate(zip(hits("44444", "99999"), COSINES, strict=True))
    ]
    first, second = two_groups(found, [0.6, 0.4])
    assert [hit.id for hit in first.hits] == [2, 4, 0, 1, 3]
    assert [hit.id for hit in second.hits] == [9, 8, 7, 6, 5]


def test_sets_are_measured():
    answers = [hits("44", "9"), hits("1"), []]
    found = measure(answers, ["9", "7", "3"], [0])
    assert found.holds == pytest.approx(1 / 3)
    assert found.size == pytest.approx(4 / 3)
    assert found.numerals == 1
    assert (found.either_or_holds, found.either_or_size) == (1, 3)
    assert measure(answers, ["9", "7", "3"], []).either_or_size is None
    assert fewer_items([hits("44"), hits("444")], [hits("4"), hits("4")]) == (1.5, pytest.approx(0.5))


def report(one: float, two: float, fewer_error: float = 1.0, count: int = 5) -> dict:
    measured = {"holds": 0.95, "either_or_holds": 1.0, "either_or_size": 150.0}
    groups = [{"numeral": "4", "weight": 0.62, "size": 80}, {"numeral": "9", "weight": 0.38, "size": 70}]
    return {
        "questions": 597,
        "gallery": 900,
        "either_or": count,
        "one_mode": measured | {"size": one},
        "two_modes": measured | {"size": two},
        "fewer": one - two,
        "fewer_error": fewer_error,
        "shown": [{"groups": groups}] if count else [],
    }


@pytest.mark.parametrize(
    ("one", "two", "error", "said"),
    [
        (120, 90, 1.0, "25% fewer with two modes"),
        (120, 119, 1.0, "not better here, the difference may be chance"),
        (120, 140, 1.0, "not better here, their sets are larger"),
        (120, 140, 15.0, "not better here, the difference may be chance"),
    ],
)
def test_the_text_says_which_sets_are_smaller(one, two, error, said):
    sentences = say(report(one, two, error))
    assert "a 4 (62%) or a 9 (38%)" in sentences[0]
    assert f"sets hold {two} and {one} of 900 digits" in sentences[-1]
    assert said in sentences[-1]
    assert len(sentences) == 3


def test_the_text_says_if_there_is_nothing_to_show():
    assert say(report(120, 90, count=0))[0].startswith("None of the 597")


def test_rare_numerals_are_counted_together():
    assert shares_in_words(numeral_shares(hits("4" * 12 + "9" * 6 + "11"))) == "4s 60%, 9s 30%, 1s 10%"
    assert shares_in_words(numeral_shares(hits("4" * 19 + "9"))) == "4s 95%, others 5%"
    assert shares_in_words([]) == ""
