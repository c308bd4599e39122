"""The report's sample questions are chosen by rule, and their explanations say what the answers show."""

import pytest

from aleator.quickstart.questions import choose_samples, explain, numeral_shares
from aleator.retrieval import Hit


def answer(numerals: str) -> list[Hit]:
    """Hits with these numerals, nearest first."""
    return [Hit(i, 1 - 0.01 * i, 50.0, 0.9, {"label": n, "path": f"{n}/{i}.png"}) for i, n in enumerate(numerals)]


def test_hits_are_grouped_by_numeral():
    shares = numeral_shares(answer("3553"))
    assert [(share.numeral, share.count, share.share) for share in shares] == [("3", 2, 0.5), ("5", 2, 0.5)]
    assert [share.nearest for share in shares] == ["3/0.png", "5/1.png"]
    assert numeral_shares([]) == []


def test_the_weakest_degradation_that_shows_the_point_is_chosen():
    numerals = ["3", "3", "8", "9", "9"]
    strengths = [0.9, 0.6, 0.3, 0.5, 0.2]
    percentiles = [0.0, 0.1, 0.9, 0.2, 0.8]
    answers = [answer("3535"), answer("3553"), answer("888"), answer("7979"), answer("7999")]
    clear_answers = [answer(numeral * 4) for numeral in numerals]
    # Question 4 has a wrong neighbour, too, but it is not uncertain.
    assert choose_samples(numerals, strengths, percentiles, answers, clear_answers) == (1, 3)


def test_a_digit_that_is_unclear_to_begin_with_is_not_chosen():
    answers = [answer("3535"), answer("3553"), answer("79")]
    clear_answers = [answer("333"), answer("353"), answer("999")]
    assert choose_samples(["3", "3", "9"], [0.9, 0.6, 0.5], [0.0, 0.1, 0.2], answers, clear_answers) == (0, 2)


def test_there_are_samples_even_if_nothing_qualifies():
    answers = [[], answer("1"), answer("2")]
    ambiguous, wrong = choose_samples(["0", "1", "2"], [0.1, 0.2, 0.3], [0.3, 0.6, 0.9], answers, answers)
    assert ambiguous != wrong
    assert answers[wrong]


@pytest.mark.parametrize(
    ("numeral", "percentile", "hits", "said"),
    [
        ("3", 0.9, "3333", "Every answer is a 3"),
        ("3", 0.1, "3" * 19 + "5", "Nearly every answer is a 3."),
        ("3", 0.1, "3535", "It could be a 3 or a 5, and the set contains both. The right numeral is 3."),
        ("3", 0.1, "353599", "It could be a 3, a 5 or a 9, and the set contains them all."),
        ("9", 0.1, "7999", "a 7, and be wrong: this is a 9. The low kappa warns of this"),
        ("9", 0.9, "7999", "this is a 9. The credible set still contains the right numeral."),
        ("9", 0.1, "777", "The right numeral, 9, is not in the set."),
        ("9", 0.1, "", "The set is empty"),
    ],
)
def test_the_explanation_says_what_the_answer_shows(numeral, percentile, hits, said):
    shares = numeral_shares(answer(hits))
    assert said in explain(numeral, percentile, shares, hits[0] if hits else None)
