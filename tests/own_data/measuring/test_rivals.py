"""Raw neighbours and the linear head: brute force, known laws, and what they must not see."""

import math

import numpy as np
import torch

from aleator.own_data.measuring import rivals
from tests.own_data.conftest import blobs


def test_features_are_standardised_by_the_gallery():
    gallery = torch.randn(200, 3) * torch.tensor([1.0, 100.0, 0.0]) + torch.tensor([5.0, 0.0, 7.0])
    questions = torch.randn(10, 3)
    asked, items = rivals.input_rows(questions, gallery)
    torch.testing.assert_close(items.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(items.square().mean(0), torch.tensor([1.0, 1.0, 0.0]), atol=1e-4, rtol=0)
    torch.testing.assert_close(asked[:, :2], (questions - gallery.mean(0))[:, :2] / gallery.std(0, correction=0)[:2])


def test_principal_components_keep_the_distances_of_low_rank_images():
    """Images that span few dimensions: their components have the same neighbours as their pixels."""
    mixtures = torch.rand(120, 8) @ torch.rand(8, 3 * 16 * 16) / 8
    images = (255 * mixtures).round().to(torch.uint8).view(120, 3, 16, 16)
    asked, items = rivals.input_rows(images[:20], images[20:])
    assert items.shape[1] < 3 * 16 * 16
    pixels = torch.cdist(images[:20].flatten(1).float(), images[20:].flatten(1).float())
    components = torch.cdist(asked, items)
    torch.testing.assert_close(components / components.mean(), pixels / pixels.mean(), atol=0.02, rtol=0)


def test_pixels_share_one_scale():
    images = torch.randint(256, (50, 1, 4, 4), dtype=torch.uint8)
    asked, items = rivals.input_rows(images[:5], images[5:])
    ratio = torch.cdist(asked, items) / torch.cdist(images[:5].flatten(1).float(), images[5:].flatten(1).float())
    torch.testing.assert_close(ratio, ratio[0, 0].expand_as(ratio))


def test_texts_that_share_words_are_near():
    gallery = ["the cat purrs", "the dog barks", "a train leaves"]
    asked, items = rivals.text_rows(["my cat purrs loudly", "zzz"], gallery)
    assert (asked @ items.T)[0].argmax() == 0
    assert asked[1].norm() == 0  # no known word
    many = [f"word{i} word{i + 1} word{i + 2}" for i in range(400)]
    asked, items = rivals.text_rows(many[:5], many)
    assert items.shape == (400, 256)
    empty = rivals.text_rows(["!"], ["?", "."])
    assert [part.shape for part in empty] == [(1, 1), (2, 1)]


def test_raw_neighbours_equal_brute_force():
    rows, labels = blobs(120, seed=1)
    rows = torch.as_tensor(rows)
    answers = rivals.raw_neighbours(rows[:30], rows[30:], np.full(30, -1), labels[:30], labels[30:])
    for i in range(30):
        near = (rows[30:] - rows[i]).norm(dim=1).argsort()[:10]
        found = labels[30:][near]
        assert answers.right[i] == (found[0] == labels[i])
        assert answers.certainty[i] == np.mean(found == found[0])


def test_the_linear_head_finds_the_law_of_a_linear_model():
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((4000, 5)).astype(np.float32)
    logits = 2 * rows @ generator.standard_normal((5, 3))
    law = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    classes = np.array([generator.choice(3, p=p) for p in law])
    rows, law, hard = torch.as_tensor(rows), torch.as_tensor(law).float(), torch.eye(3)[torch.as_tensor(classes)]
    p = rivals.fit_head(rows[500:], hard[500:])(rows[:500])
    assert (p - law[:500]).abs().mean() < 0.02
    # Soft labels are the law itself: they teach more.
    soft = rivals.fit_head(rows[500:], law[500:])(rows[:500])
    assert (soft - law[:500]).abs().mean() < (p - law[:500]).abs().mean()


def test_the_linear_head_is_that_of_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    rows, labels = blobs(300, seed=2)
    rows = torch.as_tensor(rows)
    for strength in rivals._STRENGTHS:
        expected = LogisticRegression(C=strength, tol=1e-8, max_iter=1000).fit(rows, labels).predict_proba(rows)
        found = rivals._head(rows, torch.eye(labels.max() + 1)[torch.as_tensor(labels)], strength)(rows)
        torch.testing.assert_close(found.double(), torch.as_tensor(expected).double(), atol=5e-3, rtol=0)


def test_the_cross_fitted_head_does_not_see_its_questions(monkeypatch):
    asked = []

    def fit_head(rows, labels):
        assert len(rows) == len(labels)

        def predict(questions):
            assert not set(questions[:, 0].tolist()) & set(rows[:, 0].tolist())
            assert len(questions) + len(rows) == 57
            asked.extend(questions[:, 0].tolist())
            return torch.eye(57)[questions[:, 0].long()]  # it says who asked

        return predict

    monkeypatch.setattr(rivals, "fit_head", fit_head)
    answers = rivals.cross_fitted_answers(torch.arange(57.0)[:, None], torch.eye(57))
    assert sorted(asked) == list(range(57))
    assert answers.right.all()  # answers are in the order of the questions


def test_labels_are_scored_by_their_likelihood():
    probability = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.2, 0.2, 0.6]])
    labels = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.0, 0.5]])
    answers = rivals.label_answers(probability, labels)
    assert answers.right.tolist() == [1, 0, 0]  # of equal votes the first class counts
    expected = [math.log(0.5), math.log(1e-9), 0.5 * math.log(0.2) + 0.5 * math.log(0.6)]
    torch.testing.assert_close(answers.log_likelihood, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0)


def test_a_class_that_is_not_learned_has_no_probability():
    labels = torch.eye(3)[torch.arange(40) % 2]  # the third class never occurs
    rows = torch.randn(40, 2)
    assert rivals.fit_head(rows, labels)(rows)[:, 2].max() == 0
    alone = torch.eye(3)[torch.ones(40, dtype=torch.long)]
    assert rivals.fit_head(rows, alone)(rows)[:, 1].min() == 1
