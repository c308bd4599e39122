"""Label probabilities as a score: what the metrics mean, and that nothing is fitted on the test fold."""

import math

import pytest
import torch
from scipy import stats

import aleator as al
from aleator.experiments.cifar import folds as cifar_folds
from aleator.experiments.cifar import run as cifar
from aleator.experiments.cifar.evaluation import HeldOut
from aleator.experiments.cifar.label_scores import (
    LabelProbabilities,
    fit_labels,
    fit_temperature,
    label_metrics,
    learned_labels,
)
from tests.experiments.cifar.small import SEEDED, TINY


def _fold(labels: torch.Tensor) -> HeldOut:
    count = len(labels)
    sizes = torch.linspace(0.25, 1, count).double()
    return HeldOut(torch.zeros(count, 3, 32, 32, dtype=torch.uint8), labels, sizes, torch.arange(count))


def _random_labels(count: int, seed: int) -> torch.Tensor:
    return (2 * torch.randn(count, 10, generator=SEEDED(seed), dtype=torch.float64)).softmax(1)


def test_true_probabilities_have_perfect_ranks():
    """Given people's own votes, the score orders by their entropy, and the likelihood is minus their mean entropy."""
    labels = _random_labels(40, 0)
    fold = _fold(labels)
    # The smaller a crop, the nearer its label is to 1/10 for each class.
    cropped = torch.lerp(torch.full((40, 10), 0.1).double(), torch.eye(10)[[3] * 40].double(), fold.crop_sizes[:, None])
    hits = (torch.arange(40) % 4 > 0).double()
    found = label_metrics(LabelProbabilities(labels, cropped, cropped.flip(0)), fold.crop_sizes, hits, fold)
    assert found["label_entropy_rank"] == pytest.approx(1)
    assert found["label_crop_rank"] == pytest.approx(1)
    assert found["label_crop_random_rank"] == pytest.approx(-1)
    assert found["label_log_likelihood"] == pytest.approx(-fold.entropy.mean().item())
    assert found["label_accuracy"] == 1
    entropy = fold.entropy
    wins = stats.mannwhitneyu(-entropy[hits == 1], -entropy[hits == 0]).statistic
    assert found["label_r_auroc"] == pytest.approx(wins / (hits.sum() * (1 - hits).sum()).item())


def test_an_image_between_two_classes_is_uncertain_though_its_kappa_is_large():
    labels = torch.eye(10).double()
    centres = al.VonMisesFisher(torch.eye(10).double(), 50.0)
    validation = _fold(labels)
    model = fit_labels(centres, torch.arange(10), centres, validation, al.AcceptanceKernel(16.0))
    between = al.VonMisesFisher(torch.nn.functional.normalize(labels[:1] + labels[1:2], dim=1), 50.0)
    p = model.probabilities(between)[0]
    assert p[0].item() == pytest.approx(p[1].item(), rel=1e-6)
    assert model.entropy(between) > model.entropy(centres).max() + 0.5


def test_learned_class_posteriors_are_tried_and_give_the_probabilities_they_were_trained_for():
    loss = al.PrototypeLoss(10, torch.arange(1, 11), al.AcceptanceKernel(16.0))
    with torch.no_grad():
        loss.direction.copy_(torch.eye(10))
    model = learned_labels(loss)
    assert model is not None
    q = al.VonMisesFisher(torch.nn.functional.normalize(torch.randn(30, 10, generator=SEEDED(2)), dim=1), 40.0)
    expected = loss.log_probabilities(q).exp().detach().double()
    q = q.to("cpu", torch.float64)
    torch.testing.assert_close(model.probabilities(q), expected, rtol=1e-4, atol=1e-6)
    # A gallery that says nothing is not taken where the learned posteriors give the labels.
    useless = al.VonMisesFisher(torch.eye(10).double()[[0] * 10], 5.0)
    fitted = fit_labels(useless, torch.arange(10), q, _fold(expected), loss.kernel, model)
    torch.testing.assert_close(fitted.probabilities(q), expected, rtol=0, atol=0.05)
    assert learned_labels(al.ExactInfoNCE(loss.kernel)) is None


def test_the_temperature_is_the_one_that_made_the_labels():
    labels = _random_labels(3000, 1)
    scaled = fit_temperature(3.0 * labels.log() + 5.0, labels)
    torch.testing.assert_close(scaled(3.0 * labels.log()), labels, rtol=1e-3, atol=1e-4)


def test_label_probabilities_do_not_depend_on_the_labels_of_the_test_fold(stand_in):
    """Only what is compared with the test labels changes with them."""
    validation, test = cifar_folds.held_out(TINY, 3), cifar_folds.held_out(TINY, 4)
    encoder = cifar.make_encoder(TINY, 0, [None], "cpu")
    training = cifar_folds.training_data(TINY, 0)
    other = HeldOut(test.images, test.labels.roll(3, 1), test.crop_sizes, test.number)
    first, second = (cifar.measure(TINY, encoder, training, validation, fold, 0) for fold in (test, other))
    assert torch.equal(first.arrays["label_probability"], second.arrays["label_probability"])
    assert torch.equal(first.arrays["crop_label_probability"], second.arrays["crop_label_probability"])
    assert first.metrics["label_log_likelihood"] != second.metrics["label_log_likelihood"]
    assert math.isfinite(first.metrics["label_crop_rank"])
