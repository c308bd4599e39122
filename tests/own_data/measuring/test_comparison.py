"""Ours beside rivals: the numbers, the verdicts, and which items count."""

import numpy as np
import pytest
import torch

from aleator import VonMisesFisher
from aleator.evaluation import auroc
from aleator.own_data import Items, Labels, compare_with_rivals
from aleator.own_data.measuring.comparison import COMPARISON_WORDS, METRICS, with_interval

NAMES = ("a", "b", "c", "d")


def items(count: int = 300, seed: int = 0, *, ours_know: bool, inputs_know: bool, kind: str = "classes") -> Items:
    """Items whose posteriors, or raw inputs, know the class or are noise."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.arange(count) % 4
    clear = torch.rand(count, generator=generator)
    signal = torch.nn.functional.one_hot(classes, 4) * clear[:, None]

    def vectors(know: bool) -> torch.Tensor:
        return 3 * know * signal + 0.5 * torch.randn(count, 4, generator=generator)

    mu = torch.nn.functional.normalize(vectors(ours_know), dim=1)
    values = classes.numpy()
    if kind == "soft":
        values = (0.25 + clear[:, None] * (torch.nn.functional.one_hot(classes, 4) - 0.25)).numpy()
    return Items(vectors(inputs_know), VonMisesFisher(mu, 1 + 10 * clear), Labels(kind, values, NAMES))


def row(comparison: dict, method: str) -> dict:
    return next(row for row in comparison["rows"] if row["method"] == method)


def test_ours_win_where_the_inputs_know_nothing():
    comparison = compare_with_rivals(
        items(ours_know=True, inputs_know=False), items(800, 1, ours_know=True, inputs_know=False)
    )
    assert [r["method"] for r in comparison["rows"]] == ["ours", "raw neighbours", "linear head"]
    assert (comparison["questions"], comparison["gallery"]) == (300, 800)
    assert comparison["verdicts"][0].startswith("ours find more: ")
    assert row(comparison, "ours")["recall_at_1"]["value"] > 0.7
    assert row(comparison, "linear head")["recall_at_1"]["value"] < 0.4


def test_a_rival_that_wins_is_named():
    comparison = compare_with_rivals(
        items(ours_know=False, inputs_know=True), items(800, 1, ours_know=False, inputs_know=True)
    )
    best = max(("raw neighbours", "linear head"), key=lambda name: row(comparison, name)["recall_at_1"]["value"])
    value, ours = (row(comparison, name)["recall_at_1"]["value"] for name in (best, "ours"))
    verb = "find" if best == "raw neighbours" else "finds"
    assert f"{best} {verb} more: {value:.2f} against {ours:.2f} of ours" in comparison["verdicts"]


def test_equal_methods_are_not_told_apart():
    """The posteriors are the raw inputs, and kappa is no better than the agreement of ten."""
    both = items(400, ours_know=False, inputs_know=False)
    comparison = compare_with_rivals(both, items(400, 1, ours_know=False, inputs_know=False))
    assert not any("find" in line for line in comparison["verdicts"])


def test_numbers_are_those_of_the_metrics():
    questions, gallery = (items(n, s, ours_know=True, inputs_know=True) for n, s in ((200, 0), (300, 1)))
    comparison = compare_with_rivals(questions, gallery)
    nearest = (questions.q.mu @ gallery.q.mu.T).argmax(1)
    right = gallery.labels.values[nearest] == questions.labels.values
    measured = row(comparison, "ours")
    assert measured["recall_at_1"]["value"] == pytest.approx(right.mean())
    assert measured["r_auroc"]["value"] == pytest.approx(auroc(questions.q.kappa, right))
    for name in METRICS:
        if measured[name] is not None:
            assert measured[name]["low"] <= measured[name]["value"] <= measured[name]["high"]
    assert measured["disagreement_rank"] is None  # nobody voted
    assert measured["log_likelihood"] is None  # nearest items have no probabilities


def test_votes_are_compared_with_disagreement_and_label_probabilities_are_ours():
    questions, gallery = (items(n, s, ours_know=True, inputs_know=True, kind="soft") for n, s in ((200, 0), (300, 1)))
    exact = torch.as_tensor(questions.labels.values)
    comparison = compare_with_rivals(questions, gallery, label_probabilities=exact)
    labels = row(comparison, "our labels")
    assert labels["ours"]
    assert labels["recall_at_1"]["value"] == 1.0
    assert labels["disagreement_rank"]["value"] == pytest.approx(1.0)
    assert row(comparison, "ours")["disagreement_rank"]["value"] == pytest.approx(1.0)  # kappa grows with clarity
    assert not any(line.startswith(("raw", "linear")) and "disagreement" in line for line in comparison["verdicts"])


def test_a_rival_with_better_probabilities_is_named():
    questions, gallery = (items(n, s, ours_know=True, inputs_know=True) for n, s in ((300, 0), (800, 1)))
    right = torch.nn.functional.one_hot(torch.as_tensor(questions.labels.values), 4).float()
    comparison = compare_with_rivals(questions, gallery, label_probabilities=0.22 * (1 - right) + 0.34 * right)
    labels, linear = (row(comparison, name)["log_likelihood"]["value"] for name in ("our labels", "linear head"))
    assert labels == pytest.approx(np.log(0.34))
    assert row(comparison, "our labels")["recall_at_1"]["value"] == 1.0
    said = (
        f"linear head predicts held-out labels better (log-likelihood): {linear:.2f} against {labels:.2f} of our labels"
    )
    assert said in comparison["verdicts"]


@pytest.mark.parametrize("kind", ["groups", "pairs"])
def test_groups_and_pairs_are_asked_against_each_other(kind):
    known = items(80, ours_know=True, inputs_know=True)
    group = np.arange(80) // 2
    labels = Labels("groups", group, tuple(str(g) for g in range(40)))
    if kind == "pairs":
        labels = Labels("pairs", np.arange(80).reshape(40, 2))
    mu = torch.nn.functional.normalize(torch.randn(40, 8), dim=1)[group]
    comparison = compare_with_rivals(Items(known.raw, VonMisesFisher(mu, 5.0), labels))
    assert [r["method"] for r in comparison["rows"]] == ["ours", "raw neighbours"]
    assert comparison["gallery"] is None
    assert row(comparison, "ours")["recall_at_1"]["value"] == 1.0


def test_large_collections_are_sampled(monkeypatch):
    from aleator.own_data.measuring import comparison as module

    monkeypatch.setattr(module, "MOST_QUESTIONS", 50)
    monkeypatch.setattr(module, "MOST_GALLERY", 70)
    known = items(200, ours_know=True, inputs_know=True)
    probabilities = torch.nn.functional.one_hot(torch.as_tensor(known.labels.values)).float()
    comparison = compare_with_rivals(known, known, label_probabilities=probabilities)
    assert (comparison["questions"], comparison["gallery"]) == (50, 70)
    assert row(comparison, "our labels")["recall_at_1"]["value"] == 1.0  # the same sample of both


def test_texts_are_compared_by_their_words():
    known = items(80, ours_know=True, inputs_know=False)
    texts = [f"word{c} and more" for c in known.labels.values]
    comparison = compare_with_rivals(Items(texts, known.q, known.labels), inputs="words")
    assert row(comparison, "raw neighbours")["recall_at_1"]["value"] == 1.0


def test_every_metric_has_words_for_tables():
    assert set(COMPARISON_WORDS) == set(METRICS)
    names, meanings = ([words[i].strip() for words in COMPARISON_WORDS.values()] for i in (0, 1))
    assert all(name in " ".join(meanings) for name in names)
    assert with_interval({"value": 0.5, "low": 0.4, "high": 0.7}) == "0.500 ± 0.150"
    assert with_interval(None) == "-"


def test_bad_input_is_refused():
    one = items(4, ours_know=True, inputs_know=True)
    with pytest.raises(ValueError, match="questions = 1"):
        compare_with_rivals(one.select(np.arange(1)))
    with pytest.raises(ValueError, match="gallery = 0"):
        compare_with_rivals(one, one.select(np.arange(0)))
