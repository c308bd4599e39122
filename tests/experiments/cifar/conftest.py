"""Made-up data in place of CIFAR-10H."""

import pytest
import torch

from aleator.data.cifar import soft_labels
from aleator.experiments.cifar import evaluation, run
from aleator.experiments.cifar import folds as cifar_folds
from tests.experiments.cifar.small import SEEDED, coloured


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """100 noisy coloured images in five folds. Most votes name the class that the colour shows."""
    images = coloured(100, 1)
    votes = torch.nn.functional.one_hot(images.labels, 10) * 45 + torch.randint(0, 2, (100, 10), generator=SEEDED(2))
    folds, sizes = torch.randperm(100, generator=SEEDED(3)).view(5, 20), torch.linspace(0.25, 1, 20).double()
    monkeypatch.setenv("ALEATOR_DATA", str(tmp_path))
    monkeypatch.setenv("ALEATOR_CACHE", str(tmp_path / "cache"))
    for module in (run, cifar_folds):
        monkeypatch.setattr(module, "test_set", lambda root: (images, soft_labels(votes), folds, sizes))
        monkeypatch.setattr(module, "train_set", lambda root: coloured(80, 9))
    three = torch.nn.functional.one_hot(coloured(80, 9).labels, 10) * 3
    monkeypatch.setattr(cifar_folds, "load_cifar10n", lambda root: three)
    monkeypatch.setattr(evaluation, "PAIRS", 500)
    return images, folds
