"""Nested sets for a question: against loops over labels and neighbours."""

import math

import numpy as np
import pytest
import torch

from aleator import CredibleIndex, VMFKernel, VonMisesFisher, log_positivity
from aleator.retrieval import Candidates
from aleator.retrieval.answer_sets import ItemNotes, NearestItems, find_neighbours, rank
from tests.retrieval.overlapping_labels import questions_and_index


def neighbours(log_ratio, label, kappa=7.0) -> NearestItems:
    m = len(label)
    candidates = Candidates(np.zeros(m, int), np.arange(m), np.eye(m, 3, dtype=np.float32), np.ones(m, np.float32))
    return NearestItems(candidates, np.linspace(1, 0.5, m), np.array(log_ratio, float), np.array(label), kappa)


def shares_by_hand(found: NearestItems) -> dict[int, float]:
    total: dict[int, float] = {}
    for j, (log_ratio, label) in enumerate(zip(found.log_ratio, found.label, strict=True), 1):
        if label >= 0:
            total[label] = total.get(label, 0.0) + math.exp(log_ratio) / j
    return {label: weight / sum(total.values()) for label, weight in total.items()}


@pytest.fixture(params=range(8))
def found(request):
    rng = np.random.default_rng(request.param)
    return neighbours(rng.normal(0, 2, 12), rng.integers(-1, 4, 12))


def test_one_item_stands_for_each_label_and_needs_minus_log_of_its_share(found):
    ranking, shares = rank(found, "share"), shares_by_hand(found)
    order = sorted(shares, key=lambda label: -shares[label])
    assert found.label[ranking.position].tolist() == order
    assert ranking.need == pytest.approx([0.0, *(-math.log(shares[label]) for label in order[1:])])
    assert ranking.confidence == pytest.approx(shares[order[0]])
    for label, position in zip(order, ranking.position, strict=True):
        assert found.log_ratio[position] == found.log_ratio[found.label == label].max()


def test_mass_is_the_share_of_labels_that_no_nearer_neighbour_has(found):
    ranking, shares = rank(found, "mass"), shares_by_hand(found)
    assert ranking.position.tolist() == list(range(12))
    seen: set[int] = set()
    for j, label in enumerate(found.label.tolist()):
        unseen = sum(share for one, share in shares.items() if one not in seen)
        expected = 0.0 if not seen else math.inf if unseen == 0 else -math.log(unseen)
        assert ranking.need[j] == pytest.approx(expected, abs=1e-9)
        if label >= 0:
            seen.add(label)
    assert ranking.confidence == pytest.approx(shares.get(found.label[0], 0.0))


def test_rank_needs(found):
    assert rank(found, "rank").need.tolist() == list(range(12))
    assert rank(found, "rank-kappa").need == pytest.approx(7.0 * np.arange(12))
    assert rank(found, "rank").confidence == pytest.approx(1 / (1 + math.exp(-found.log_ratio[0])))


def test_a_question_without_any_doubt_has_its_nearest_item_alone():
    assert rank(neighbours([0.0, -1.0, -2.0], [0, 1, 2], math.inf), "rank-kappa").need.tolist() == [
        0,
        math.inf,
        math.inf,
    ]
    questions, _, index, _, _ = questions_and_index(60, 60)
    questions.kappa[:5] = math.inf
    nearest = [[hit.id for hit in hits] for hits in index.search(questions, by="nearest", limit=1)]
    promise = index.calibrate(questions, nearest, 0.9)
    assert promise.need == "rank-kappa"
    assert math.isfinite(promise.mean_size)
    for answer, ids in zip(index.answer_sets(questions), nearest, strict=True):
        assert [hit.id for hit in answer.hits][:1] == ids


@pytest.mark.parametrize("need", ["share", "mass", "rank", "rank-kappa"])
def test_needs_ascend_so_that_sets_are_nested(found, need):
    needs = rank(found, need).need
    assert (needs[1:] >= needs[:-1]).all()


def test_labels_of_hardly_any_weight_keep_their_order():
    """r of e^-1000 would be zero, and then such labels could not be told apart."""
    found = neighbours([0.0, -1000.0, -1100.0, -900.0], [0, 1, 2, 3])
    ranking = rank(found, "share")
    assert found.label[ranking.position].tolist() == [0, 3, 1, 2]
    assert np.isfinite(ranking.need).all()
    assert np.isfinite(rank(found, "mass").need).all()


@pytest.mark.parametrize("need", ["share", "mass", "rank"])
def test_without_items_or_labels(need):
    assert len(rank(neighbours([], []), need).position) == 0
    unlabelled = rank(neighbours([0.0, 1.0], [-1, -1]), need)
    assert len(unlabelled.position) == (0 if need == "share" else 2)


@pytest.mark.parametrize("count", [60, 400])  # with 60 items a table of all pairs is computed, with 400 single pairs
def test_neighbours_are_the_nearest_with_exact_ratios_and_labels(count):
    questions, _, index, items, labels = questions_and_index(40, count)
    request = index._nearest_request(questions, "questions", VMFKernel(20.0))
    notes = ItemNotes(index.store)
    log_ratio = log_positivity(questions[:, None].double(), items[None].double(), VMFKernel(20.0)).numpy()
    for i, found in enumerate(find_neighbours(index.store, request, 7, notes)):
        rows = found.candidates.row
        assert rows.tolist() == np.argsort(-(items.mu @ questions.mu[i]).numpy())[:7].tolist()
        assert found.log_ratio == pytest.approx(log_ratio[i, rows], abs=1e-5)
        assert found.label.tolist() == [notes.label_number(labels[row]) for row in rows]
        assert notes.keys(rows) == [str(row) for row in rows]


def test_labels_are_the_same_as_in_filters():
    mu = torch.eye(6)[:, :6]
    metadata = [{"label": 1}, {"label": 1.0}, {"label": "1"}, {"label": True}, {"label": [0.5, 0.5]}, None]
    index = CredibleIndex.build(VonMisesFisher(mu, 5.0), metadata=metadata)
    one, same, text, *none = ItemNotes(index.store).labels(np.arange(6)).tolist()
    assert one == same != text
    assert none == [-1, -1, -1]
