"""Folds, and that no model predicts what it was trained on."""

import numpy as np
import pytest
import torch

from aleator.evaluation import cross_fit, deal_into_folds

CLASSES = np.repeat([0, 1, 2], [50, 23, 7])


def test_every_fold_has_its_share_of_each_class():
    fold = deal_into_folds(CLASSES, 5, seed=3)
    for c in range(3):
        counts = np.bincount(fold[c == CLASSES], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert np.bincount(fold).tolist() == [16] * 5


def test_a_group_stays_in_one_fold():
    groups = np.arange(80) // 4
    fold = deal_into_folds(CLASSES, 5, groups, seed=1)
    assert all(len(set(fold[groups == g])) == 1 for g in range(20))
    assert np.bincount(fold).tolist() == [16] * 5


def test_another_seed_deals_differently():
    assert (deal_into_folds(CLASSES, 5, seed=0) == deal_into_folds(CLASSES, 5, seed=0)).all()
    assert (deal_into_folds(CLASSES, 5, seed=0) != deal_into_folds(CLASSES, 5, seed=1)).any()


@pytest.mark.parametrize(("folds", "groups"), [(1, None), (81, None), (3, np.arange(80) // 40)])
def test_folds_that_leave_nothing_to_train_on(folds, groups):
    with pytest.raises(ValueError, match=f"folds = {folds}"):
        deal_into_folds(CLASSES, folds, groups)


def test_no_item_is_predicted_by_a_model_that_saw_it():
    """Features are item numbers, so that a recording trainer knows which items it gets."""
    numbers = torch.arange(80.0)[:, None]
    fold = deal_into_folds(CLASSES, 4)
    predicted = []

    def train(features, targets):
        seen = set(features[:, 0].tolist())
        assert torch.equal(targets.argmax(1), torch.as_tensor(CLASSES)[features[:, 0].long()])

        def predict(new):
            asked = set(new[:, 0].tolist())
            assert not asked & seen
            assert asked | seen == set(range(80))
            predicted.extend(asked)
            return new.expand(-1, 3)

        return predict

    calls = []
    answers = cross_fit(numbers, torch.eye(3)[CLASSES], fold, train, done=lambda: calls.append(1))
    assert sorted(predicted) == list(range(80))
    assert len(calls) == 4
    assert torch.equal(answers, numbers.expand(-1, 3))  # each answer is at the place of its item
