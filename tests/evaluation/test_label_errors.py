"""Scores of labels, and planted errors that are found."""

import numpy as np
import pytest
import torch

from aleator.evaluation import (
    LabelErrors,
    Neighbours,
    confused_classes,
    deal_into_folds,
    judge_labels,
    judge_weights,
    neighbour_graph,
    neighbour_votes,
    score_labels,
    standardise,
)


def planted(count=600, classes=6, width=12, errors=60, noise=0.8, seed=0):
    """Features around class centres, labels, and which labels are wrong."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    centres = generator.standard_normal((classes, width))
    features = centres[labels] + noise * generator.standard_normal((count, width))
    wrong = np.zeros(count, bool)
    wrong[generator.choice(count, errors, replace=False)] = True
    labels = np.where(wrong, (labels + generator.integers(1, classes, count)) % classes, labels)
    return torch.from_numpy(features).float(), labels, wrong


def judge(features, labels, **kwargs):
    neighbours = neighbour_graph(standardise(features, True), 20)
    targets = torch.nn.functional.one_hot(torch.as_tensor(labels)).float()
    return judge_labels(features, targets, neighbours, deal_into_folds(labels, 5), **kwargs)


@pytest.mark.parametrize("seed", [0, 1])
def test_planted_errors_are_found_as_often_as_by_logistic_regression(seed):
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    features, labels, wrong = planted(seed=seed)
    ours = wrong[judge(features, labels).order()[:60]].sum()
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    rival = cross_val_predict(model, features.numpy(), labels, cv=folds, method="predict_proba")
    theirs = wrong[np.argsort(rival[np.arange(600), labels])[:60]].sum()
    assert ours >= theirs
    assert ours > 30  # chance finds 6


def test_the_likelier_label_is_the_true_one():
    features, labels, wrong = planted(noise=0.4)
    errors = judge(features, labels)
    true = np.arange(600) % 6
    assert (errors.likelier[wrong] == true[wrong]).mean() > 0.9
    assert set(errors.judges) == {"linear head", "hidden layer", "neighbours"}
    assert np.allclose(errors.probabilities.sum(1), 1, atol=1e-5)
    assert sum(errors.weights.values()) == pytest.approx(1)


def test_a_label_that_no_other_item_has_is_not_judged():
    features, labels, _ = planted()
    labels[10] = 6
    errors = judge(features, labels)
    assert errors.score[10] == -np.inf
    assert errors.order()[-1] == 10
    assert np.isfinite(np.delete(errors.score, 10)).all()


def test_half_of_the_weights_maximise_the_likelihood():
    """Against a search over the simplex; the other half is shared equally."""
    generator = np.random.default_rng(0)
    p_label = generator.beta([2, 3, 1], [1, 2, 2], (400, 3))
    best = 2 * judge_weights(p_label) - 1 / 3
    step = np.linspace(0, 1, 101)
    grid = np.array([(a, b, 1 - a - b) for a in step for b in step if a + b <= 1 + 1e-9])
    likelihood = np.log(p_label @ grid.T).mean(0)
    assert np.log(p_label @ best).mean() >= likelihood.max() - 1e-6
    assert best == pytest.approx(grid[likelihood.argmax()], abs=0.02)
    assert judge_weights(np.zeros((5, 2))) == pytest.approx([0.5, 0.5])


def test_scores_of_hard_labels():
    probabilities = np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [0.0, 0.0, 1.0]])
    errors = score_labels(probabilities, np.eye(3)[[0, 0, 1]])
    assert errors.likelier.tolist() == [1, 1, 2]
    assert np.allclose(errors.p_given[:2], [0.1, 0.5])
    assert np.allclose(errors.score[:2], np.log([7, 0.6]))
    assert np.isfinite(errors.score).all()
    assert errors.order().tolist() == [2, 0, 1]


def test_a_soft_label_gives_every_popular_class():
    probabilities = np.array([[0.6, 0.3, 0.1]] * 3)
    targets = np.array([[0.5, 0.5, 0.0], [0.25, 0.75, 0.0], [0.0, 0.5, 0.5]])
    errors = score_labels(probabilities, targets)
    assert np.allclose(errors.p_given, [0.9, 0.6 / 3 + 0.3, 0.4])
    assert errors.likelier.tolist() == [2, 0, 0]
    assert np.allclose(errors.p_likelier, [0.1, 0.6 * 2 / 3, 0.6])
    assert errors.score[0] < errors.score[1] < errors.score[2]


def test_votes_of_neighbours():
    neighbours = Neighbours(np.array([[1, 2], [0, 2], [0, 1], [2, -1]]), np.zeros((4, 2)))
    targets = torch.eye(2)[torch.tensor([0, 0, 1, 1])]
    votes = neighbour_votes(neighbours, targets)
    assert torch.allclose(votes, torch.tensor([[1.5, 1.5], [1.5, 1.5], [2.5, 0.5], [0.75, 2.25]]) / 3)
    # Items of one group do not vote for each other.
    votes = neighbour_votes(neighbours, targets, np.array([0, 0, 1, 2]))
    assert torch.allclose(votes[0], torch.tensor([0.25, 0.75]))


def test_an_item_does_not_vote_for_itself_nor_train_its_judge():
    """A label that is changed changes the answers about other items, never the one about its own item."""
    features, labels, _ = planted(120, errors=0)
    fold = deal_into_folds(labels, 5)
    neighbours = neighbour_graph(features, 10)
    answers = []
    for label in (0, 3):
        changed = labels.copy()
        changed[7] = label
        targets = torch.nn.functional.one_hot(torch.as_tensor(changed), 6).float()
        from aleator.evaluation import HeadSettings

        settings = HeadSettings(True, 1e-2)
        answers.append(judge_labels(features, targets, neighbours, fold, settings=settings).probabilities)
    same = np.abs(answers[0] - answers[1]).max(1)
    # The class shares, one vote of 11, and the weights of the judges depend on all labels a little.
    assert same[7] < 0.005
    assert same.max() > 0.01


def test_confused_classes():
    probabilities = np.array([[0.6, 0.4, 0.0], [0.2, 0.8, 0.0], [0.1, 0.8, 0.1], [0.0, 0.1, 0.9]])
    classes = np.array([0, 0, 1, 2])
    errors = score_labels(probabilities, np.eye(3)[classes])
    assert isinstance(errors, LabelErrors)
    pairs = confused_classes(errors, classes)
    assert (pairs[0].given, pairs[0].other, pairs[0].items, pairs[0].examples) == (0, 1, 1, (1,))
    assert pairs[0].probability == pytest.approx(0.6)
    assert [(p.given, p.other) for p in pairs[1:4]] == [(1, 0), (1, 2), (2, 1)]
    assert len(confused_classes(errors, classes, limit=2)) == 2


def test_features_and_targets_must_fit():
    with pytest.raises(ValueError, match="targets = 3: there are 4 items"):
        judge_labels(torch.zeros(4, 2), torch.eye(3), Neighbours(np.zeros((4, 1), int), np.zeros((4, 1))), np.arange(4))
