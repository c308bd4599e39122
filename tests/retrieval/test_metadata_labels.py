"""The labels in metadata: label probabilities with the items as the gallery, and the share of matches."""

import math

import numpy as np
import pytest
import torch

import aleator as al
from aleator.evaluation import LabelModel
from aleator.retrieval import share_of_matches

NAMES = ("ant", "bee", "cat")


def labelled(count: int = 90) -> tuple[al.VonMisesFisher, list[dict]]:
    """Items around three directions, with their class as the label."""
    torch.manual_seed(0)
    label = torch.arange(count) % 3
    mu = torch.nn.functional.normalize(torch.eye(3)[label] + 0.2 * torch.randn(count, 3), dim=1)
    return al.VonMisesFisher(mu, 20 + 30 * torch.rand(count)), [{"label": NAMES[c]} for c in label.tolist()]


QUESTIONS = al.VonMisesFisher(torch.nn.functional.normalize(torch.tensor([[1.0, 0, 0], [1, 1, 0]]), dim=1), 10.0)


def test_the_items_are_the_gallery(location):
    q, metadata = labelled()
    fitted = LabelModel(q[:3], torch.eye(3), NAMES, al.VMFKernel(math.inf), beta=0.5, floor=0.02)
    with al.CredibleIndex.build(q, metadata=metadata, location=location, label_model=fitted):
        pass
    with al.CredibleIndex.open(location) as index:
        first, second = index.label_probabilities(QUESTIONS)
        model = index.label_model()
    assert (model.names, model.beta, model.floor) == (NAMES, 0.5, 0.02)
    assert next(iter(first)) == "ant"
    assert first["ant"] > 0.8
    assert second["ant"] == pytest.approx(second["bee"], abs=0.15)
    assert sum(second.values()) == pytest.approx(1, abs=1e-5)
    rows = torch.eye(3)[torch.arange(90) % 3]
    all_items = LabelModel(q, rows, NAMES, al.VMFKernel(math.inf), beta=0.5, floor=0.02)
    torch.testing.assert_close(model.probabilities(QUESTIONS), all_items.probabilities(QUESTIONS), atol=0.05, rtol=0)


def test_follows_what_is_added_and_removed():
    q, metadata = labelled()
    index = al.CredibleIndex.build(q, metadata=metadata)
    before = index.label_probabilities(QUESTIONS)[0]["ant"]
    index.remove([i for i in range(90) if metadata[i]["label"] == "bee"])
    assert set(index.label_probabilities(QUESTIONS)[0]) == {"ant", "cat"}
    index.add(al.VonMisesFisher(torch.eye(3)[[0] * 200], 50.0), metadata=[{"label": "dog"}] * 200)
    assert index.label_probabilities(QUESTIONS)[0]["ant"] < before


def test_soft_labels_and_items_without_a_label():
    q, _ = labelled(4)
    soft = {"label": "ant", "labels": {"ant": 0.5, "bee": 0.5}}
    index = al.CredibleIndex.build(q, metadata=[soft, soft, {"year": 7}, None])
    for row in index.label_probabilities(QUESTIONS):
        assert row == pytest.approx({"ant": 0.5, "bee": 0.5})


def test_without_a_fit_it_is_bayes_rule_with_a_floor():
    q, metadata = labelled()
    model = al.CredibleIndex.build(q, metadata=metadata, kernel=al.VMFKernel(7.0)).label_model()
    assert (float(model.kernel.kappa_pos), model.beta, model.floor) == (7.0, 1.0, 0.01)


@pytest.mark.parametrize("metadata", [None, [{"label": "ant"}] * 3])
def test_needs_two_labels(metadata):
    q, _ = labelled(3)
    with pytest.raises(ValueError, match="fewer than two labels"):
        al.CredibleIndex.build(q, metadata=metadata).label_probabilities(QUESTIONS)


def test_an_index_of_an_older_release_has_no_numbers():
    q, metadata = labelled()
    index = al.CredibleIndex.build(q, metadata=metadata)
    index.store.config = {name: value for name, value in index.store.config.items() if name != "labels"}
    assert index.label_model().beta == 1.0


def test_items_of_several_modes_count_with_every_mode():
    """An item that is a cat or a dog counts for its label at both places, in proportion to the weights."""
    g = torch.Generator().manual_seed(0)
    parts = al.VonMisesFisher(torch.nn.functional.normalize(torch.randn(8, 2, 4, generator=g), dim=-1), 30.0)
    items = al.VMFMixture(torch.randn(8, 2, generator=g), parts)
    index = al.CredibleIndex.build(
        items, metadata=[{"label": "ab"[i % 2]} for i in range(8)], kernel=al.VMFKernel(20.0)
    )
    queries = al.VMFMixture(torch.randn(5, 2, generator=g), parts[:5].scale_kappa(0.5))
    r = al.pairwise_log_positivity(queries, items, al.VMFKernel(20.0)).exp()
    share = r[:, ::2].sum(1) / r.sum(1)
    expected = 0.99 * share + 0.01 * 0.5
    found = index.label_model().probabilities(queries)[:, 0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)  # 8 entries of each class


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
