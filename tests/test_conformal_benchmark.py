"""The benchmark of sets with a promise: its rivals by hand, and the whole on a small collection."""

import numpy as np
import pytest
import torch
from benchmarks.conformal_sets import Questions, clusters, measure, show

from aleator import VonMisesFisher


def test_ranks_of_right_items_and_right_labels():
    angle = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])
    items = VonMisesFisher(torch.stack([angle.cos(), angle.sin()], dim=1), 10.0)
    question = VonMisesFisher(torch.tensor([[1.0, 0.0]]).expand(4, 2), 10.0)
    data = Questions(items, np.array(["a", "a", "b", "a", "c"]), question, np.array(["a", "b", "c", "d"]))
    assert data.rank.tolist() == [1, 3, 5, np.inf]
    assert data.label_rank.tolist() == [1, 2, 3, np.inf]


def test_a_small_run(capsys):
    row = measure(clusters(count=600, labels=5), splits=2, most=100)
    sets = row["sets"]
    assert set(sets) == {"labels", "ranked", "k-NN", "k labels", "k at the same coverage"}
    for numbers in sets.values():
        assert len(numbers["coverage"]["values"]) == 2
        assert 0.8 < numbers["coverage"]["mean"] <= 1
    assert sets["labels"]["size"]["mean"] <= sets["ranked"]["size"]["mean"]
    assert sets["k-NN"]["size"]["mean"] == pytest.approx(round(2 * sets["k-NN"]["size"]["mean"]) / 2)
    show("clusters", row)
    assert "k at the same coverage" in capsys.readouterr().out
