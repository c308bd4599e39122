"""Fitting label probabilities on held-out items."""

import math

import pytest
import torch

import aleator as al
from aleator.evaluation import (
    LabelModel,
    auroc,
    condense_gallery,
    fit_label_model,
    label_certainty,
    label_log_likelihood,
)
from aleator.evaluation.label_calibration import entries_per_class

NAMES = ("a", "b", "c")


def overlapping(count: int, seed: int, kappa: float = 20.0) -> tuple[al.VonMisesFisher, torch.Tensor, torch.Tensor]:
    """Posteriors of latents of three overlapping classes; their labels, and the true P(class | seen)."""
    torch.manual_seed(seed)
    centres, spread = torch.eye(3, dtype=torch.float64), torch.tensor([5.0, 8.0, 3.0], dtype=torch.float64)
    label = torch.randint(3, (count,))
    seen = al.VonMisesFisher(al.VonMisesFisher(centres[label], spread[label]).sample(), kappa).sample()
    q = al.VonMisesFisher(seen, kappa)
    classes = LabelModel(al.VonMisesFisher(centres, spread), torch.eye(3), NAMES, al.VMFKernel(math.inf))
    return q, label, classes.probabilities(q)


class TestCondensing:
    def test_keeps_mean_vectors_and_mass(self):
        q, label, _ = overlapping(60, 0)
        soft = torch.nn.functional.normalize(torch.eye(3)[label] + 0.2 * torch.rand(60, 3), p=1, dim=1).double()
        entries, weights = condense_gallery(q, soft, per_class=4)
        assert 3 < len(entries) <= 12
        torch.testing.assert_close(weights.sum(0), soft.sum(0))
        total = (weights.sum(1, keepdim=True) * entries.mean).sum(0)
        torch.testing.assert_close(total, q.mean.sum(0))

    def test_one_entry_is_the_fit_to_the_points(self):
        """The entry of a cluster of points is the maximum likelihood estimate from them."""
        points = al.VonMisesFisher(torch.eye(4, dtype=torch.float64)[0], 7.0).sample((50,))
        entries, _ = condense_gallery(al.VonMisesFisher(points, math.inf), torch.ones(50, 1), per_class=1)
        expected = al.VonMisesFisher.fit(points)
        torch.testing.assert_close(entries.mu[0], expected.mu)
        torch.testing.assert_close(entries.kappa[0], expected.kappa)

    def test_separates_the_parts_of_a_class(self):
        """A class in two opposite places gets an entry at each of them."""
        mu = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])[torch.arange(20) % 2]
        entries, weights = condense_gallery(al.VonMisesFisher(mu, 30.0), torch.ones(20, 1), per_class=8)
        assert sorted(entries.mu[:, 0].tolist()) == [-1.0, 1.0]
        assert weights[:, 0].tolist() == [10.0, 10.0]

    def test_equal_points_and_opposite_points_are_finite(self):
        mu = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
        same, _ = condense_gallery(al.VonMisesFisher(mu[:2], math.inf), torch.ones(2, 1), 1)
        opposite, _ = condense_gallery(al.VonMisesFisher(mu[1:], math.inf), torch.ones(2, 1), 1)
        assert 1e5 < same.kappa.item() < math.inf
        assert opposite.kappa.item() == pytest.approx(0, abs=1e-6)

    def test_many_classes_have_few_entries(self):
        assert [entries_per_class(c) for c in (2, 125, 500, 5000)] == [8, 8, 2, 1]


class TestFit:
    def test_is_close_to_the_true_probabilities(self):
        q, label, _ = overlapping(3000, 1)
        fresh, fresh_label, truth = overlapping(3000, 2)
        model = fit_label_model(q[:1500], label[:1500], q[1500:], label[1500:], al.VMFKernel(10.0), NAMES)
        p = model.probabilities(fresh)
        assert (p - truth).abs().mean() < 0.02
        gap = label_log_likelihood(truth, fresh_label) - label_log_likelihood(p, fresh_label)
        assert gap < 0.01

    def test_mends_posteriors_that_are_too_sure(self):
        """The kappa of all posteriors is 30 times too large. Bayes' rule alone would be far too sure."""
        q, label, _ = overlapping(2000, 3)
        sure = q.scale_kappa(30.0)
        fresh, fresh_label, truth = overlapping(2000, 4)
        fresh = fresh.scale_kappa(30.0)
        kernel = al.VMFKernel(10.0)
        model = fit_label_model(sure[:1000], label[:1000], sure[1000:], label[1000:], kernel, NAMES)
        fitted = label_log_likelihood(model.probabilities(fresh), fresh_label)
        rows = torch.eye(3)[label[:1000]]
        plain = LabelModel(sure[:1000], rows, NAMES, al.VMFKernel(math.inf)).probabilities(fresh)
        assert label_log_likelihood(truth, fresh_label) - fitted < 0.03
        assert label_log_likelihood(plain, fresh_label) < fitted - 0.1

    def test_few_questions_that_are_all_right_do_not_make_every_answer_equally_sure(self):
        q, label, true = overlapping(2000, 3)
        clear = ((true.max(1).values > 0.9) & (true.argmax(1) == label))[:300].nonzero()[:20, 0]
        model = fit_label_model(q[300:900], label[300:900], q[clear], label[clear], al.VMFKernel(20.0), NAMES)
        p = model.probabilities(q[900:])
        assert auroc(label_certainty(p), p.argmax(1) == label[900:]) > 0.75
        assert label_log_likelihood(p, label[900:]) > label_log_likelihood(true[900:], label[900:]) - 0.15

    def test_learns_from_soft_labels(self):
        q, _, truth = overlapping(600, 5)
        fresh, _, fresh_truth = overlapping(1000, 6)
        model = fit_label_model(q[:300], truth[:300], q[300:], truth[300:], al.VMFKernel(10.0), NAMES)
        p = model.probabilities(fresh)
        gap = label_log_likelihood(fresh_truth, fresh_truth) - label_log_likelihood(p, fresh_truth)
        assert 0 <= gap < 0.03

    def test_noise_in_the_labels_raises_the_floor(self):
        q, label, _ = overlapping(1000, 7, kappa=500.0)
        centres = torch.eye(3, dtype=torch.float64)
        q = al.VonMisesFisher(torch.nn.functional.normalize(0.03 * q.mu + centres[label], dim=1), 500.0)
        noisy = torch.where(torch.rand(1000) < 0.3, torch.randint(3, (1000,)), label)
        fit = [
            fit_label_model(q[:500], label[:500], q[500:], asked[500:], al.VMFKernel(10.0), NAMES)
            for asked in (label, noisy)
        ]
        assert fit[0].floor < 0.01
        # 30 % of the labels are drawn anew, and a third of these are right by chance.
        wrong = [1 - model.probabilities(q[500:]).max(1).values.mean().item() for model in fit]
        assert wrong[0] < 0.01
        assert wrong[1] == pytest.approx(0.2, abs=0.05)

    def test_gallery_of_all_items(self):
        """The mixture of the items is wider than the class, so the fit is a little less good."""
        q, label, truth = overlapping(400, 8)
        kernel = al.VMFKernel(10.0)
        model = fit_label_model(q[:200], label[:200], q[200:], label[200:], kernel, NAMES, per_class=[None])
        assert len(model.gallery) == 200
        assert (model.probabilities(q[200:]) - truth[200:]).abs().mean() < 0.1

    def test_of_many_questions_some_are_used(self, monkeypatch):
        monkeypatch.setattr("aleator.evaluation.label_calibration._MOST_QUESTIONS", 50)
        q, label, truth = overlapping(600, 9)
        model = fit_label_model(q[:300], label[:300], q[300:], label[300:], al.VMFKernel(10.0), NAMES)
        assert (model.probabilities(q[300:]) - truth[300:]).abs().mean() < 0.1

    def test_learned_class_posteriors_are_used_if_they_are_better(self):
        """A gallery with wrong labels is useless; class posteriors that are right are not, and the other way round."""
        torch.manual_seed(0)
        label = torch.arange(300) % 3
        q = al.VonMisesFisher(al.VonMisesFisher(torch.eye(3)[label], 12.0).sample(), 50.0)
        names, kernel, other = ("a", "b", "c"), al.VMFKernel(20.0), al.VMFKernel(7.0)
        right, wrong = torch.eye(3), torch.eye(3)[[1, 2, 0]]
        for of_gallery, of_classes, expected in ((wrong, right, 7.0), (right, wrong, None)):
            learned = LabelModel(al.VonMisesFisher(torch.eye(3), 30.0), of_classes, names, other)
            model = fit_label_model(
                q[:150], of_gallery[label[:150]], q[150:], label[150:], kernel, names, learned=learned
            )
            assert (float(model.kernel.kappa_pos) == expected) == (expected is not None)
            assert label_log_likelihood(model.probabilities(q[150:]), label[150:]) > -0.4

    @pytest.mark.parametrize(
        ("labels", "asked", "argument"),
        [
            (torch.tensor([0, 3]), torch.tensor([0, 1]), "labels"),
            (torch.tensor([0, 1]), torch.eye(2), "question_labels"),
        ],
    )
    def test_refuses_labels_without_a_name(self, labels, asked, argument):
        q, _, _ = overlapping(2, 0)
        with pytest.raises(ValueError, match=argument):
            fit_label_model(q, labels, q, asked, al.VMFKernel(10.0), NAMES)

    def test_refuses_no_questions(self):
        q, label, _ = overlapping(4, 0)
        with pytest.raises(ValueError, match="questions"):
            fit_label_model(q, label, q[:0], label[:0], al.VMFKernel(10.0), NAMES)
