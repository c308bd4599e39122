"""Label probabilities and novelty of a run, from training to the commands."""

import math

import numpy as np
import pytest
import torch

from aleator.evaluation import fit_novelty, label_log_likelihood
from aleator.own_data import (
    Answers,
    Labels,
    Settings,
    embed,
    label_metrics,
    label_rows,
    load_run,
    rank_by_certainty,
    read_collection,
    read_embedded,
    train,
)
from aleator.own_data.measuring.answers import gallery_sample, load_answers, save_answers
from aleator.own_data.measuring.views import letter_pairs
from tests.own_data.conftest import blobs


class TestRun:
    def test_label_probabilities_of_new_items(self, run):
        rows, labels = blobs(300, seed=7)
        p = run.label_probabilities(rows)
        assert run.label_names == ("0", "1", "2", "3")
        torch.testing.assert_close(p.sum(1), torch.ones(300))
        clear = np.arange(300) % 4 != 0
        assert (p.argmax(1).numpy() == labels)[clear].mean() > 0.95
        # A quarter of the items are of one of two classes by chance: log 2 on average, and nothing for the others.
        assert label_log_likelihood(p, torch.as_tensor(labels)) > -math.log(2) / 4 - 0.25

    def test_items_between_classes_are_less_certain(self, run):
        rows, _ = blobs(400, seed=8)
        certainty = run.answers.labels.certainty(run.posteriors(rows))
        between = torch.arange(400) % 4 == 0
        assert certainty[between].mean() < certainty[~between].mean() - 0.1

    def test_flags_what_is_unlike(self, run):
        rows, _ = blobs(300, seed=9)
        assert run.unlike(rows).double().mean() < 0.1
        assert run.unlike(rows + 30).all()
        assert run.unlike(np.full((1, 6), 5.0)).all()

    def test_metrics(self, run):
        names = ("label_log_likelihood", "label_accuracy", "label_ece", "label_auroc", "unlike")
        assert all(math.isfinite(run.metrics[name]) for name in names)
        assert run.metrics["label_accuracy"] > 0.7

    def test_is_stored(self, run):
        rows, _ = blobs(20, seed=10)
        again = load_run(run.folder)
        torch.testing.assert_close(again.label_probabilities(rows), run.label_probabilities(rows))
        torch.testing.assert_close(again.posteriors_and_novelty(rows)[1], run.posteriors_and_novelty(rows)[1])

    def test_posteriors_are_the_same_with_and_without_novelty(self, run):
        rows, _ = blobs(20, seed=11)
        q, _ = run.posteriors_and_novelty(rows)
        torch.testing.assert_close(q.mu, run.posteriors(rows).mu)
        torch.testing.assert_close(q.kappa, run.posteriors(rows).kappa)

    def test_an_older_run_says_what_it_lacks(self, run, tmp_path):
        import shutil

        shutil.copytree(run.folder, tmp_path / "old")
        for part in ("labels", "novelty"):
            shutil.rmtree(tmp_path / "old" / part)
        (tmp_path / "old" / "checksums.json").unlink()
        old = load_run(tmp_path / "old")
        rows, _ = blobs(3, seed=12)
        assert old.label_names == ()
        assert old.posteriors_and_novelty(rows)[1] is None
        with pytest.raises(ValueError, match="no label probabilities"):
            old.label_probabilities(rows)
        with pytest.raises(ValueError, match="older release"):
            old.unlike(rows)
        np.save(tmp_path / "x.npy", rows)
        embedded = read_embedded(embed(old, read_collection(tmp_path / "x.npy"), tmp_path / "x.safetensors"))
        assert embedded.label_model is None
        assert embedded.novelty is None


def test_groups_have_novelty_but_no_labels(tmp_path):
    rows, _ = blobs(120, classes=4)
    np.save(tmp_path / "x.npy", rows)
    lines = ["group", *(str(i // 4) for i in range(120))]
    (tmp_path / "y.csv").write_text("\n".join(lines) + "\n")
    collection = read_collection(tmp_path / "x.npy", tmp_path / "y.csv")
    run = train(collection, tmp_path / "run", Settings(steps=2, dim=4, width=8), device="cpu", baselines=False)
    assert run.answers.labels is None
    assert run.unlike(rows + 100).all()
    assert "label_log_likelihood" not in run.metrics


def test_views_of_texts_are_stored(tmp_path):
    counts = letter_pairs(["the cat sat", "a dog ran", "the bird sang", "it rained"])
    features = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    views = {"features": features, "letters": counts}
    novelty = fit_novelty(views, views)
    save_answers(tmp_path, Answers(None, novelty))
    again = load_answers(tmp_path)
    assert again.labels is None
    torch.testing.assert_close(again.novelty.excess(views), novelty.excess(views))


class TestEmbedded:
    def test_the_file_has_what_the_run_knows(self, run, whole):
        embedded = read_embedded(whole)
        rows, _ = blobs()
        torch.testing.assert_close(embedded.label_probabilities(), run.label_probabilities(rows), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(embedded.novelty > 0, run.unlike(rows))

    def test_ranks_by_labels_or_kappa(self, whole):
        embedded = read_embedded(whole)
        rows = list(rank_by_certainty(embedded))
        certainty = [row["certainty"] for row in rows]
        assert certainty == sorted(certainty)
        assert rows[0]["percentile"] == 0.0
        assert sum(rows[0]["could_be"].values()) == pytest.approx(1, abs=0.1)
        kappa = [row["kappa"] for row in rank_by_certainty(embedded, by="kappa", surest=True, limit=9)]
        assert kappa == sorted(embedded.q.kappa.tolist(), reverse=True)[:9]
        assert {row["unlike"] for row in rows} <= {True, False}

    def test_without_labels_kappa_ranks(self, tmp_path):
        np.savez(tmp_path / "two.npz", mu=np.eye(2, 3), kappa=np.array([50.0, 5.0]))
        embedded = read_embedded(tmp_path / "two.npz")
        assert [row["kappa"] for row in rank_by_certainty(embedded)] == [5.0, 50.0]
        with pytest.raises(ValueError, match="no label probabilities"):
            list(rank_by_certainty(embedded, by="labels"))
        with pytest.raises(ValueError, match="no label probabilities"):
            embedded.label_probabilities()
        with pytest.raises(ValueError, match="by"):
            list(rank_by_certainty(embedded, by="luck"))


class TestRows:
    def test_of_classes_and_soft_labels(self):
        classes = Labels("classes", np.array([1, 0]), ("a", "b"))
        assert label_rows(classes).tolist() == [[0, 1], [1, 0]]
        soft = Labels("soft", np.array([[0.25, 0.75]], np.float32), ("a", "b"))
        assert label_rows(soft).tolist() == [[0.25, 0.75]]

    def test_in_the_order_of_other_names(self):
        labels = Labels("classes", np.array([1, 0]), ("a", "b", "unused"))
        assert label_rows(labels, ("b", "c", "a")).tolist() == [[1, 0, 0], [0, 0, 1]]
        with pytest.raises(ValueError, match="does not know"):
            label_rows(labels, ("a", "c"))

    def test_metrics_by_hand(self):
        p = torch.tensor([[0.9, 0.1], [0.6, 0.4]], dtype=torch.float64)
        metrics = label_metrics(p, torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        assert metrics["label_log_likelihood"] == pytest.approx((math.log(0.9) + math.log(0.4)) / 2)
        assert metrics["label_accuracy"] == 0.5
        assert metrics["label_ece"] == pytest.approx((0.1 + 0.6) / 2)
        assert metrics["label_auroc"] == 1.0
        assert label_metrics(p[:1], torch.tensor([[1.0, 0.0]]))["label_auroc"] is None


def test_the_sample_keeps_rare_classes(monkeypatch):
    monkeypatch.setattr("aleator.own_data.measuring.answers._MOST_ITEMS", 50)
    classes = np.array([0] * 1000 + [1] * 20 + [2] * 3)
    sample = gallery_sample(Labels("classes", classes, ("a", "b", "c")), np.arange(len(classes)), seed=0)
    counts = np.bincount(classes[sample])
    assert counts[1] >= 8
    assert counts[2] == 3
    assert len(sample) <= 50 + 24
    assert len(np.unique(sample)) == len(sample)
