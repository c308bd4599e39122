"""Metrics of rankings against scipy and brute force."""

import numpy as np
import pytest
import torch
from scipy import stats

from aleator.evaluation import rankings as m


def unit(*shape: int) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(*shape, dtype=torch.float64), dim=-1)


def brute_auroc(score, positive):
    wins = [(s > t) + 0.5 * (s == t) for s in score[positive] for t in score[~positive]]
    return sum(float(w) for w in wins) / len(wins)


def brute_average_precision(score, positive):
    """Thresholds from high to low; each adds (recall gained) * precision."""
    total = recall = 0.0
    for threshold in sorted(set(score.tolist()), reverse=True):
        chosen = score >= threshold
        now = positive[chosen].sum().item() / positive.sum().item()
        total += (now - recall) * positive[chosen].double().mean().item()
        recall = now
    return total


@pytest.mark.parametrize("ties", [False, True])
def test_auroc_and_average_precision(ties):
    score = torch.randn(80).double()
    score = (2 * score).round() if ties else score
    positive = torch.rand(80) < torch.sigmoid(score)
    assert m.auroc(score, positive) == pytest.approx(brute_auroc(score, positive))
    assert m.average_precision(score, positive) == pytest.approx(brute_average_precision(score, positive))
    u = stats.mannwhitneyu(score[positive].numpy(), score[~positive].numpy()).statistic
    assert m.auroc(score, positive) == pytest.approx(u / (positive.sum() * (~positive).sum()).item())
    assert m.auroc(positive.double(), positive) == 1.0
    assert m.average_precision(positive.double(), positive) == 1.0


def test_average_precision_of_a_known_list():
    assert m.average_precision([4, 3, 2, 1], [1, 0, 1, 0]) == pytest.approx((1 + 2 / 3) / 2)


@pytest.mark.parametrize("block", [64, 2**22])
def test_retrieval_metrics_equal_brute_force(block, monkeypatch):
    monkeypatch.setattr(m, "_BLOCK", block)
    embeddings, labels = torch.randn(60, 4).double(), torch.randint(8, (60,))
    labels[0] = 99  # nothing else like it
    embeddings += torch.nn.functional.one_hot(labels % 4, 4)
    unit_rows = torch.nn.functional.normalize(embeddings, dim=-1)
    hits, precisions = [], []
    for i in range(60):
        order = [j for j in (unit_rows @ unit_rows[i]).argsort(descending=True).tolist() if j != i]
        relevant = [bool(labels[j] == labels[i]) for j in order]
        hits.append(relevant[0])
        R = sum(relevant)
        if R:
            precisions.append(sum(sum(relevant[: k + 1]) / (k + 1) for k in range(R) if relevant[k]) / R)
    assert m.neighbour_hits(embeddings, labels).tolist() == hits
    assert m.recall_at_1(embeddings, labels) == pytest.approx(np.mean(hits))
    assert m.map_at_r(embeddings, labels) == pytest.approx(np.mean(precisions))
    certainty = torch.randn(60)
    assert m.r_auroc(certainty, m.neighbour_hits(embeddings, labels)) == pytest.approx(
        brute_auroc(certainty, torch.tensor(hits))
    )


@pytest.mark.parametrize("by", ["cosine", "euclidean"])
@pytest.mark.parametrize("block", [64, 2**22])
def test_nearest_neighbours_equal_brute_force(by, block, monkeypatch):
    monkeypatch.setattr(m, "_BLOCK", block)
    questions, gallery = torch.randn(20, 5).double(), 3 * torch.randn(30, 5).double()
    distance = torch.cdist(questions, gallery)
    if by == "cosine":
        distance = -torch.cosine_similarity(questions[:, None], gallery[None], dim=-1)
    found = m.nearest_neighbours(questions, gallery, 4, by)
    assert torch.equal(found, distance.argsort(1)[:, :4])


@pytest.mark.parametrize("by", ["cosine", "euclidean"])
@pytest.mark.parametrize("block", [64, 2**22])
def test_neighbours_leave_out_the_question_itself(by, block, monkeypatch):
    monkeypatch.setattr(m, "_BLOCK", block)
    rows = torch.randn(40, 3).double()
    rows[7] = rows[3]  # a duplicate is a neighbour; the item itself is not
    questions = torch.cat([rows, torch.randn(2, 3).double()])
    own = torch.cat([torch.arange(40), torch.tensor([-1, -1])])
    near = m.nearest_neighbours(questions, rows, 5, by, own=own)
    distance = torch.cdist(questions, rows, compute_mode="donot_use_mm_for_euclid_dist")
    if by == "cosine":
        distance = -torch.cosine_similarity(questions[:, None], rows[None], dim=-1)
    distance[:40].fill_diagonal_(torch.inf)
    torch.testing.assert_close(distance.gather(1, near), distance.sort(1).values[:, :5])
    assert near[3, 0] == 7
    assert near[7, 0] == 3
    with pytest.raises(ValueError, match="the gallery has 39 items"):
        m.nearest_neighbours(questions, rows, 40, by, own=own)


def test_r_auroc_needs_hits_and_misses():
    certainty = torch.rand(20)
    assert m.r_auroc(certainty, torch.ones(20)) is None
    assert m.r_auroc(certainty, torch.zeros(20, dtype=torch.bool)) is None


def test_perfect_retrieval():
    embeddings = torch.eye(3).repeat_interleave(4, 0)
    labels = torch.arange(3).repeat_interleave(4)
    assert m.recall_at_1(embeddings, labels) == m.map_at_r(embeddings, labels) == 1.0


def test_the_reject_curve_keeps_the_most_certain():
    certainty, value = torch.tensor([0.1, 0.9, 0.5, 0.7]), torch.tensor([0.0, 1.0, 0.0, 1.0])
    assert m.reject_curve(certainty, value, (0.25, 0.5, 0.75, 1.0)) == pytest.approx([1, 1, 2 / 3, 1 / 2])
    assert m.reject_curve(certainty, value, [0.01]) == [1.0]  # at least one item is kept


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: m.auroc([1.0, 2.0], [1, 1]), "both kinds"),
        (lambda: m.average_precision([1.0, 2.0], [1, 2]), "positive = 2"),
        (lambda: m.recall_at_1(unit(3, 2), [1, 2]), "labels"),
        (lambda: m.recall_at_1(unit(2, 2), ["a", "b"]), "labels = 'a': a name, not a number"),
        (lambda: m.recall_at_1(unit(1, 2), [1]), "no neighbour"),
        (lambda: m.map_at_r(unit(3, 2), [1, 2, 3]), "no label occurs twice"),
        (lambda: m.nearest_neighbours(unit(3, 2), unit(4, 2), 5), "the gallery has 4 items"),
        (lambda: m.nearest_neighbours(unit(3, 2), unit(4, 3)), "another length"),
        (lambda: m.nearest_neighbours(unit(3, 2), unit(4, 2), by="taste"), "by = 'taste'"),
        (lambda: m.reject_curve([1.0], [1.0], [0.0]), "kept = 0.0"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_neighbours_far_from_the_origin():
    """Squares of large numbers must not cancel."""
    x = torch.randn(300, 8, generator=torch.Generator().manual_seed(0)) * 0.01 + 100
    distance = torch.cdist(x.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist")
    expected = distance.fill_diagonal_(torch.inf).argmin(1)
    found = m.nearest_neighbours(x, x, by="euclidean", own=torch.arange(300))[:, 0]
    assert torch.equal(found, expected)


@pytest.mark.parametrize("own", [[0, 1], [0, 1, 3]])
def test_places_in_the_gallery_must_fit(own):
    with pytest.raises(ValueError, match=r"own = .*3 questions and 3 items"):
        m.nearest_neighbours(torch.eye(3), torch.eye(3), own=own)


def test_what_is_not_a_number_is_refused():
    nan = float("nan")
    for call in (
        lambda: m.auroc([nan, 0.1, 0.2], [1, 0, 0]),
        lambda: m.average_precision([nan, 0.1, 0.2], [1, 0, 0]),
        lambda: m.map_at_r([[nan, 1.0], [1.0, 0.0], [0.0, 1.0]], [0, 0, 1]),
    ):
        with pytest.raises(ValueError, match="is not a number; leave such items out"):
            call()
