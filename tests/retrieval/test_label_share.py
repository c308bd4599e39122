"""The share of matches in a labelled collection."""

import numpy as np
import pytest

from aleator.retrieval import share_of_matches


def test_it_is_the_share_of_pairs_with_the_same_label():
    labels = np.random.default_rng(0).integers(4, size=50)
    share = share_of_matches([{"label": str(c), "n": 1} for c in labels])
    assert share == pytest.approx((labels[:, None] == labels).mean())


def test_soft_labels_count_with_their_probability():
    soft = np.array([[0.5, 0.5], [1.0, 0.0], [0.25, 0.75]])
    metadata = [{"label": "a", "labels": {"a": a, "b": b}} for a, b in soft]
    assert share_of_matches(metadata) == pytest.approx((soft @ soft.T).mean())


@pytest.mark.parametrize("metadata", [None, [], [{"label": "a"}, {}], [{"label": "a"}, None], [{"label": "a"}] * 3])
def test_without_two_labels_it_is_unknown(metadata):
    assert share_of_matches(metadata) is None


@pytest.mark.parametrize("labels", [["a", "b"], {"a": "x"}, {"a": -1.0}, {}, {"a": 0.0}])
def test_metadata_that_is_no_distribution_is_no_label(labels):
    """Metadata may hold anything under the key "labels"."""
    assert share_of_matches([{"labels": labels}, {"label": "b"}]) is None
    if labels != {"a": 0.0}:
        assert share_of_matches([{"labels": labels, "label": "a"}, {"label": "b"}]) == 0.5
