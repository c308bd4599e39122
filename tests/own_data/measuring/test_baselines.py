"""Baselines: brute force, known laws, and what a run keeps of them."""

import math

import numpy as np
import pytest
import torch

from aleator import VMFMixture, VonMisesFisher
from aleator.own_data import Labels, Questions
from aleator.own_data.measuring import baselines
from aleator.own_data.measuring.baselines import Baselines, Projection, fit_baselines, load_baselines, save_baselines
from tests.own_data.conftest import blobs


def queries_of(labels, gallery_labels) -> Questions:
    """Queries whose posteriors do not matter."""

    def posteriors(count):
        return VonMisesFisher(torch.eye(2)[torch.zeros(count, dtype=torch.long)], 5.0)

    names = tuple(str(c) for c in range(1 + max(labels.max(), gallery_labels.max())))
    sides = ((posteriors(len(side)), Labels("classes", side, names)) for side in (labels, gallery_labels))
    return Questions(*next(sides), *next(sides), own=np.full(len(labels), -1))


def test_principal_components_keep_the_distances_of_low_rank_images():
    """Images that span few dimensions: their components have the same neighbours as their pixels."""
    mixtures = torch.rand(120, 8) @ torch.rand(8, 3 * 16 * 16) / 8
    images = (255 * mixtures).round().to(torch.uint8).view(120, 3, 16, 16)
    rows = Projection.fit(images[20:])(images)
    assert rows.shape[1] < 3 * 16 * 16
    pixels = torch.cdist(images[:20].flatten(1).float(), images[20:].flatten(1).float())
    components = torch.cdist(rows[:20], rows[20:])
    torch.testing.assert_close(components / components.mean(), pixels / pixels.mean(), atol=0.02, rtol=0)


def test_few_pixels_are_all_kept():
    images = torch.randint(256, (50, 1, 4, 4), dtype=torch.uint8)
    rows = Projection.fit(images)(images)
    differences = images.flatten(1).float() - images[:1].flatten(1).float()
    torch.testing.assert_close(rows - rows[:1], differences)


def test_raw_cosine_equals_brute_force():
    rows, labels = blobs(120, seed=1)
    rows = torch.as_tensor(rows)
    answers = baselines.raw_cosine(queries_of(labels[:30], labels[30:]), rows[:30], rows[30:])
    for i in range(30):
        cosine = torch.nn.functional.cosine_similarity(rows[30:], rows[i][None])
        assert answers.right[i] == (labels[30:][cosine.argmax()] == labels[i])
        assert answers.certainty[i] == pytest.approx(cosine.max().item(), abs=1e-5)


@pytest.mark.parametrize("best", ["cosine", "distance", "standardised"])
def test_ten_neighbours_are_found_in_the_best_way(best):
    """The class is in the direction of a row, in its length, or in a column that another one outweighs."""
    generator = np.random.default_rng(0)
    labels = np.arange(400) % 2
    noise = generator.standard_normal((400, 2))
    angle = np.where(labels, 1.0, 0.0) + 0.1 * noise[:, 0]
    length = np.exp(2 * noise[:, 1])
    if best == "distance":
        angle, length = 3 * noise[:, 0], 1 + 3.0 * labels + 0.1 * noise[:, 1]
    rows = length[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    if best == "standardised":
        rows = np.stack([labels + 0.1 * noise[:, 0], 1000 * noise[:, 1]], 1)
    rows = torch.as_tensor(rows).float()
    queries = queries_of(labels[:100], labels[100:])
    answers = baselines.ten_neighbours(queries, rows[:100], rows[100:])
    a, b = rows[:100], rows[100:]
    if best == "cosine":
        a, b = (part / part.norm(dim=1, keepdim=True) for part in (a, b))
    if best == "standardised":
        a, b = (part / rows[100:].std(0) for part in (a, b))
    assert answers.right.mean() > 0.9
    for i in range(100):
        found = labels[100:][(b - a[i]).norm(dim=1).argsort()[:10]]
        assert answers.right[i] == (found[0] == labels[i])
        assert answers.certainty[i] == np.mean(found == found[0])


def test_the_linear_head_finds_the_law_of_a_linear_model():
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((4000, 5)).astype(np.float32)
    logits = 2 * rows @ generator.standard_normal((5, 3))
    law = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    classes = np.array([generator.choice(3, p=p) for p in law])
    rows, law, hard = torch.as_tensor(rows), torch.as_tensor(law).float(), torch.eye(3)[torch.as_tensor(classes)]
    p = baselines.fit_head(rows[500:], hard[500:])(rows[:500])
    assert (p - law[:500]).abs().mean() < 0.02
    # Soft labels are the law itself: they teach more.
    soft = baselines.fit_head(rows[500:], law[500:])(rows[:500])
    assert (soft - law[:500]).abs().mean() < (p - law[:500]).abs().mean()
    # Nor does it matter where the columns lie, and how wide they are.
    moved = baselines.fit_head(1e3 * rows[500:] + 1e4, hard[500:])(1e3 * rows[:500] + 1e4)
    torch.testing.assert_close(moved, p, atol=1e-3, rtol=0)


def test_the_linear_head_is_that_of_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    rows, labels = blobs(300, seed=2)
    rows = torch.as_tensor(rows)
    for strength in baselines._STRENGTHS:
        expected = LogisticRegression(C=strength, tol=1e-8, max_iter=1000).fit(rows, labels).predict_proba(rows)
        found = baselines._head(rows, torch.eye(labels.max() + 1)[torch.as_tensor(labels)], strength)(rows)
        torch.testing.assert_close(found.double(), torch.as_tensor(expected).double(), atol=5e-3, rtol=0)


def test_labels_are_scored_by_their_likelihood():
    probability = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.2, 0.2, 0.6]])
    labels = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.0, 0.5]])
    answers = baselines.label_answers(probability, labels)
    assert answers.right.tolist() == [1, 0, 0]  # of equal votes the first class counts
    expected = [math.log(0.5), math.log(1e-9), 0.5 * math.log(0.2) + 0.5 * math.log(0.6)]
    torch.testing.assert_close(answers.log_likelihood, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0)


def test_a_class_that_is_not_learned_has_no_probability():
    labels = torch.eye(3)[torch.arange(40) % 2]  # the third class never occurs
    rows = torch.randn(40, 2)
    assert baselines.fit_head(rows, labels)(rows)[:, 2].max() == 0
    alone = torch.eye(3)[torch.ones(40, dtype=torch.long)]
    assert baselines.fit_head(rows, alone)(rows)[:, 1].min() == 1


def test_the_linear_head_learns_from_every_training_item_or_there_is_none(monkeypatch):
    rows, labels = blobs(400)
    labels, train = Labels("classes", labels, ("a", "b", "c", "d")), np.arange(0, 400, 2)
    seen = []
    monkeypatch.setattr(baselines, "fit_head", lambda rows, labels, each: seen.append(rows))
    fit_baselines(torch.as_tensor(rows), train, labels, inputs="features")
    assert torch.equal(seen[0], torch.as_tensor(rows[train]))
    monkeypatch.setattr(baselines, "_MOST_WORK", 200 * 6 * 4 - 1)
    fit_baselines(torch.as_tensor(rows), train, labels, inputs="features")
    assert len(seen) == 1


@pytest.mark.parametrize("kind", ["features", "pixels", "soft", "modes", "groups"])
def test_a_run_keeps_its_baselines(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(baselines, "_MOST_KEPT", 50)
    generator = torch.Generator().manual_seed(0)
    items = torch.randn(100, 5, generator=generator)
    if kind == "pixels":
        items = torch.randint(256, (100, 3, 4, 4), dtype=torch.uint8, generator=generator)
    classes = np.arange(100) % 4
    labels = Labels("groups" if kind == "groups" else "classes", classes, ("a", "b", "c", "d"))
    if kind == "soft":
        labels = Labels("soft", (np.eye(4)[classes] * 0.6 + 0.1).astype(np.float32), labels.names)
    numbers = np.arange(0, 100, 2)[:60]
    q = VonMisesFisher(torch.eye(4)[classes[numbers]], torch.linspace(1, 9, len(numbers)))
    if kind == "modes":
        both = VonMisesFisher(torch.stack([q.mu, q.mu.roll(1, 1)], 1), torch.stack([q.kappa, q.kappa], 1))
        q = VMFMixture(torch.tensor([0.7, 0.3]).log().expand(len(numbers), 2), both)
    known = fit_baselines(items, numbers, labels, inputs="pixels" if kind == "pixels" else "features")
    known = known.with_gallery(items, q, numbers, labels)
    save_baselines(tmp_path, known)
    again = load_baselines(tmp_path)
    assert (again.inputs, again.learned_from, again.network) == (known.inputs, 50, None)
    torch.testing.assert_close(again.rows(items), known.rows(items))
    if kind == "groups":
        assert again.gallery is None
        assert again.head is None
        return
    assert again.labels.names == labels.names
    np.testing.assert_array_equal(again.labels.values, labels.values[numbers])
    torch.testing.assert_close(again.gallery.components.mu, q.components.mu)
    torch.testing.assert_close(again.gallery.log_weights, q.log_weights)
    torch.testing.assert_close(again.features.float(), known.rows(items[numbers]), rtol=1e-3, atol=0.1)
    torch.testing.assert_close(again.head(again.rows(items)), known.head(known.rows(items)))


def test_what_is_kept_is_bounded(monkeypatch):
    items, numbers = torch.randn(100, 5), np.arange(100)
    labels = Labels("classes", np.arange(100) % 2, ("a", "b"))
    q = VonMisesFisher(torch.eye(2)[torch.arange(100) % 2], torch.arange(100.0))
    known = Baselines("features", 100)
    monkeypatch.setattr(baselines, "_MOST_BYTES", 5 * 4 * 30)
    kept = known.with_gallery(items, q, numbers, labels)
    assert len(kept.features) == len(kept.gallery) == len(kept.labels.values) == 30
    own = kept.gallery.kappa.long()  # which items they are
    assert torch.equal(kept.features, items[own])
    np.testing.assert_array_equal(kept.labels.values, labels.values[own])
    monkeypatch.setattr(baselines, "_MOST_KEPT", 10)
    assert len(known.with_gallery(items, q, numbers, labels).features) == 10


def test_a_run_without_baselines_has_none(tmp_path):
    assert load_baselines(tmp_path) is None
