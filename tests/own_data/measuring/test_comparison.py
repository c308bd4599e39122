"""Ours compared with baselines: the numbers, the verdicts, and when there is none."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from aleator import VonMisesFisher
from aleator.evaluation import auroc
from aleator.own_data import Labels, Questions, compare_with_baselines
from aleator.own_data.measuring.answers import label_rows
from aleator.own_data.measuring.baselines import fit_head
from aleator.own_data.measuring.comparison import COMPARISON_WORDS, METRICS, with_interval

NAMES = ("a", "b", "c", "d")


def items(count: int, seed: int, ours_know: bool, inputs_know: bool, kind: str):
    """Features, posteriors and labels of items, whose posteriors, or features, know the class or are noise."""
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
    return vectors(inputs_know), VonMisesFisher(mu, 1 + 10 * clear), Labels(kind, values, NAMES)


def asked(ours_know: bool, inputs_know: bool, kind: str = "classes", count: int = 300, gallery: int = 800):
    """Arguments of a comparison: queries, their features, those of the gallery, and a linear head."""
    own, q, labels = items(count, 0, ours_know, inputs_know, kind)
    others, theirs, their_labels = items(gallery, 1, ours_know, inputs_know, kind)
    head = fit_head(others, label_rows(their_labels).float())
    return (Questions(q, labels, theirs, their_labels, np.full(count, -1)), own, others), {"head": head}


def row(comparison: dict, method: str) -> dict:
    return next(row for row in comparison["rows"] if row["method"] == method)


def test_ours_win_where_the_features_know_nothing():
    arguments, head = asked(ours_know=True, inputs_know=False)
    comparison = compare_with_baselines(*arguments, **head, learned_from=800)
    assert [r["method"] for r in comparison["rows"]] == ["ours", "raw cosine", "ten neighbours", "linear head"]
    assert (comparison["queries"], comparison["gallery"]) == (300, 800)
    assert comparison["precondition"] == (
        "ours and the baselines learned from the same 800 items, and answer the same 300 unseen queries, compared with "
        "800 items"
    )
    assert comparison["verdicts"][0].startswith("ours find more: ")
    assert row(comparison, "ours")["recall_at_1"]["value"] > 0.7
    assert row(comparison, "linear head")["recall_at_1"]["value"] < 0.4


def test_a_baseline_that_wins_is_named():
    arguments, head = asked(ours_know=False, inputs_know=True)
    comparison = compare_with_baselines(*arguments, **head)
    names = ("raw cosine", "ten neighbours", "linear head")
    best = max(names, key=lambda name: row(comparison, name)["recall_at_1"]["value"])
    value, ours = (row(comparison, name)["recall_at_1"]["value"] for name in (best, "ours"))
    said = f" more: {value:.3f} compared with {ours:.3f} of ours"
    assert any(best in line and line.endswith(said) for line in comparison["verdicts"])


def test_raw_cosine_is_the_cosine_of_the_features_as_they_came():
    arguments, _ = asked(ours_know=True, inputs_know=True)
    queries, own, others = arguments
    own, others = own + 5, others + 5  # a search by cosine does not subtract the mean
    comparison = compare_with_baselines(queries, own, others)
    nearest = (own / own.norm(dim=1, keepdim=True) @ (others / others.norm(dim=1, keepdim=True)).T).argmax(1)
    right = queries.gallery_labels.values[nearest] == queries.labels.values
    assert row(comparison, "raw cosine")["recall_at_1"]["value"] == pytest.approx(right.mean())


def test_equal_methods_are_not_told_apart():
    """The posteriors are the features, and kappa is no better than the agreement of ten."""
    arguments, _ = asked(ours_know=False, inputs_know=False, count=400, gallery=400)
    assert not any("find" in line for line in compare_with_baselines(*arguments)["verdicts"])


def test_no_verdict_from_few_queries_a_small_gallery_or_one_class():
    (queries, own, others), _ = asked(ours_know=True, inputs_know=False)
    assert compare_with_baselines(queries, own, others)["verdicts"][0].startswith("ours find more")

    def verdicts(chosen, gallery):
        some = queries.select(chosen)
        items = torch.as_tensor(gallery)
        labels = Labels("classes", queries.gallery_labels.values[gallery], NAMES)
        some = replace(some, gallery=queries.gallery[items], gallery_labels=labels)
        return compare_with_baselines(some, own[torch.as_tensor(chosen)], others[items])["verdicts"]

    everything = np.ones(len(own), bool)
    few = everything & (np.arange(len(own)) < 99)
    assert verdicts(few, np.arange(800)) == ["no verdict: 99 queries, of 100 that are needed"]
    assert verdicts(everything, np.arange(99)) == ["no verdict: 99 items to compare with, of 100 that are needed"]
    one = queries.labels.values == 0
    said = "no verdict: 75 queries, of 100 that are needed; 1 classes of queries, of 2 that are needed"
    assert verdicts(one, np.arange(800)) == [said]


def test_no_verdict_from_numbers_that_print_alike():
    """The features are wrong about 8 of 1,000 queries, of which they are least certain: beyond chance, but 0.000."""
    classes = np.arange(1000) % 2
    labels = Labels("classes", classes, ("a", "b"))
    mu = torch.eye(2, 3)[classes]
    features = mu.clone()
    features[:8] = mu[1:9] + torch.tensor([0.0, 0.0, 1.0])
    gallery = VonMisesFisher(torch.eye(2, 3).repeat(50, 1), 20.0)
    their_labels = Labels("classes", np.arange(100) % 2, ("a", "b"))
    queries = Questions(
        VonMisesFisher(mu, torch.linspace(10, 50, 1000)), labels, gallery, their_labels, np.full(1000, -1)
    )
    comparison = compare_with_baselines(queries, features, gallery.mu)
    areas = {name: row(comparison, name)["augrc"] for name in ("ours", "raw cosine")}
    assert areas["ours"]["value"] == 0 < areas["raw cosine"]["low"] < areas["raw cosine"]["high"] < 0.0005
    assert comparison["verdicts"][0] == "ours find more: 1.000 compared with 0.992 of raw cosine"
    assert not any("0.000 compared with 0.000" in line for line in comparison["verdicts"])


def test_numbers_are_those_of_the_metrics():
    arguments, _ = asked(ours_know=True, inputs_know=True)
    queries = arguments[0]
    comparison = compare_with_baselines(*arguments)
    nearest = (queries.q.mu @ queries.gallery.mu.T).argmax(1)
    right = queries.gallery_labels.values[nearest] == queries.labels.values
    measured = row(comparison, "ours")
    assert measured["recall_at_1"]["value"] == pytest.approx(right.mean())
    assert measured["r_auroc"]["value"] == pytest.approx(auroc(queries.q.kappa, right))
    for name in METRICS:
        if measured[name] is not None:
            assert measured[name]["low"] <= measured[name]["value"] <= measured[name]["high"]
    assert measured["disagreement_rank"] is None  # nobody voted
    assert measured["log_likelihood"] is None  # nearest items have no probabilities


def test_votes_are_compared_with_disagreement_and_label_probabilities_are_ours():
    arguments, head = asked(ours_know=True, inputs_know=True, kind="soft")
    exact = torch.as_tensor(arguments[0].labels.values)
    comparison = compare_with_baselines(*arguments, **head, label_probabilities=exact)
    labels = row(comparison, "our labels")
    assert labels["ours"]
    assert labels["recall_at_1"]["value"] == 1.0
    assert labels["disagreement_rank"]["value"] == pytest.approx(1.0)
    assert row(comparison, "ours")["disagreement_rank"]["value"] == pytest.approx(1.0)  # kappa grows with clarity
    assert not any(
        line.startswith(("raw", "ten", "the linear")) and "disagree" in line for line in comparison["verdicts"]
    )


def test_a_baseline_with_better_probabilities_is_named():
    arguments, head = asked(ours_know=True, inputs_know=True)
    right = torch.nn.functional.one_hot(torch.as_tensor(arguments[0].labels.values), 4).float()
    comparison = compare_with_baselines(*arguments, **head, label_probabilities=0.22 * (1 - right) + 0.34 * right)
    labels, linear = (row(comparison, name)["log_likelihood"]["value"] for name in ("our labels", "linear head"))
    assert labels == pytest.approx(np.log(0.34))
    assert row(comparison, "our labels")["recall_at_1"]["value"] == 1.0
    said = f"predicts held-out labels better (log-likelihood): {linear:.3f} compared with {labels:.3f} of our labels"
    assert f"the linear head {said}" in comparison["verdicts"]


def test_groups_are_asked_against_each_other():
    group = np.arange(80) // 2
    group[-1] = 40  # alone: there is no right answer, and so is the one before
    labels = Labels("groups", group, tuple(str(g) for g in range(41)))
    mu = torch.nn.functional.normalize(torch.randn(41, 8), dim=1)[group]
    q = VonMisesFisher(mu, 5.0)
    comparison = compare_with_baselines(Questions(q, labels, q, labels, np.arange(80)), mu, mu)
    assert [r["method"] for r in comparison["rows"]] == ["ours", "raw cosine", "ten neighbours"]
    assert (comparison["queries"], comparison["gallery"]) == (78, None)
    assert comparison["precondition"].endswith("compared with each other")
    assert row(comparison, "ours")["recall_at_1"]["value"] == 1.0
    assert row(comparison, "raw cosine")["recall_at_1"]["value"] == 1.0
    many = Questions(q, labels, q, labels, np.arange(80)).select(group < 29)
    few = compare_with_baselines(many, mu[group < 29], mu)["verdicts"][0]
    assert "29 groups of queries, of 30 that are needed" in few


def test_every_metric_has_words_for_tables():
    assert set(COMPARISON_WORDS) == set(METRICS)
    names, meanings = ([words[i].strip() for words in COMPARISON_WORDS.values()] for i in (0, 1))
    assert all(name in " ".join(meanings) for name in names)
    assert with_interval({"value": 0.5, "low": 0.4, "high": 0.7}) == "0.500 ± 0.150"
    assert with_interval(None) == "-"


def test_bad_input_is_refused():
    (queries, own, others), _ = asked(ours_know=True, inputs_know=True, count=8, gallery=8)
    with pytest.raises(ValueError, match="queries = 1"):
        compare_with_baselines(queries.select(np.arange(8) == 0), own[:1], others)
    with pytest.raises(ValueError, match=r"gallery_features = \(7, 4\): there are 8 items"):
        compare_with_baselines(queries, own, others[:7])
