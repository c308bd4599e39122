"""The two heads, and what is chosen for them."""

import numpy as np
import pytest
import torch

from aleator.evaluation import choose_head_settings, hidden_layer_head, linear_head, standardise


def blobs(count=600, classes=3, width=5, noise=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.arange(count) % classes
    features = 2 * torch.eye(classes, width)[numbers] + noise * torch.randn(count, width, generator=generator)
    return features, torch.eye(classes)[numbers]


def test_the_linear_head_is_logistic_regression():
    """The gradient of the penalised cross-entropy is zero; scikit-learn finds the same probabilities."""
    from sklearn.linear_model import LogisticRegression

    features, targets = blobs()
    penalty = 1e-2
    predict = linear_head(features, targets, penalty)
    twin = LogisticRegression(C=1 / (penalty * len(features)), tol=1e-8, max_iter=1000)
    twin.fit(features.numpy(), targets.argmax(1).numpy())
    assert np.allclose(predict(features).numpy(), twin.predict_proba(features.numpy()), atol=2e-3)


def test_the_linear_head_learns_from_label_distributions():
    """Without information in the features, it predicts the mean of the targets."""
    targets = torch.tensor([[0.8, 0.2], [0.6, 0.4]]).repeat(50, 1)
    predict = linear_head(torch.zeros(100, 3), targets)
    assert torch.allclose(predict(torch.zeros(1, 3)), torch.tensor([[0.7, 0.3]]), atol=1e-3)


def test_the_hidden_layer_learns_what_a_linear_head_cannot():
    """Exclusive or of two signs."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(800, 2, generator=generator)
    targets = torch.eye(2)[(features.prod(1) > 0).long()]
    right = lambda predict: float((predict(features[400:]).argmax(1) == targets[400:].argmax(1)).float().mean())  # noqa: E731
    assert right(hidden_layer_head(features[:400], targets[:400])) > 0.9
    assert right(linear_head(features[:400], targets[:400])) < 0.65


def test_the_hidden_layer_is_repeatable_and_leaves_the_global_generator_alone():
    features, targets = blobs(100)
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first, second = (hidden_layer_head(features, targets, seed=1)(features) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.allclose(first.sum(1), torch.ones(100))
    assert not torch.equal(first, hidden_layer_head(features, targets, seed=2)(features))


def test_standardise():
    features = torch.tensor([[1.0, 10.0], [3.0, 50.0], [5.0, 90.0]])
    for each in (True, False):
        scaled = standardise(features, each)
        assert torch.allclose(scaled.mean(0), torch.zeros(2), atol=1e-6)
    each, together = standardise(features, True), standardise(features, False)
    assert torch.allclose(each.square().mean(0), torch.ones(2))
    assert together.square().mean().item() == pytest.approx(1)
    assert (together[0, 1] / together[0, 0]).item() == pytest.approx(20)  # relative sizes stay
    assert standardise(torch.ones(3, 2), True).abs().max() == 0  # a feature that does not vary


def test_scaling_is_chosen_by_held_out_likelihood():
    """Useful features of tiny scale need their own scale; useless features of tiny scale must not be blown up."""
    features, targets = blobs(400, noise=0.5)
    noise = torch.randn(400, 200, generator=torch.Generator().manual_seed(1))
    assert choose_head_settings(torch.cat([1e-4 * features, noise[:, :5]], 1), targets).each
    assert not choose_head_settings(torch.cat([features, 0.05 * noise], 1), targets).each
