"""Items follow the law of their labels: chi-square tests against the law written out in full, with fixed seeds."""

import numpy as np
import pytest
import torch
from scipy import stats

from aleator.data.batches import LabelledBatches
from tests.data.cases import HARD, SEEDED, SOFT, assert_follows, contrast_law, counts, pair_law, probabilities


@pytest.mark.parametrize("with_itself", [True, False])
@pytest.mark.parametrize("labels", [SOFT, HARD, SOFT.float()], ids=["soft", "hard", "float32"])
def test_pairs_follow_the_labels(labels, with_itself):
    n = len(labels)
    batches = LabelledBatches(torch.arange(n), labels, 200_000, with_itself=with_itself)
    anchor, positive, negative = batches.draw(SEEDED(1))
    assert negative is None
    assert anchor.dtype == positive.dtype == torch.int64
    assert_follows(counts(anchor, positive, n), pair_law(probabilities(labels), with_itself))


@pytest.mark.parametrize("labels", [SOFT, HARD], ids=["soft", "hard"])
def test_pairs_are_symmetric(labels):
    law = pair_law(probabilities(labels))
    torch.testing.assert_close(law, law.T)


@pytest.mark.parametrize("labels", [SOFT, HARD], ids=["soft", "hard"])
def test_negatives_follow_their_rule(labels):
    n, M = len(labels), 4
    uniform = torch.full((n, n), 1 / n**2, dtype=torch.float64)
    for rule, law in (("marginal", uniform), ("rejected-latent", contrast_law(probabilities(labels)))):
        batches = LabelledBatches(torch.arange(n), labels, 50_000, M, rule=rule)
        anchor, _, negative = batches.draw(SEEDED(2))
        assert negative.shape == (50_000, M)
        assert_follows(counts(anchor.repeat_interleave(M), negative.flatten(), n), law)


def test_positive_and_negative_contrast_in_one_class():
    """Both hang on the class that was drawn: an item that is surely of it is never the negative."""
    n = len(SOFT)
    batches = LabelledBatches(torch.arange(n), SOFT, 200_000, 1, rule="rejected-latent")
    _, positive, negative = batches.draw(SEEDED(3))
    law = torch.zeros(n, n, dtype=torch.float64)
    for c in range(SOFT.shape[1]):
        mass = SOFT[:, c].sum()
        law += mass / n * torch.outer(SOFT[:, c] / mass, (1 - SOFT[:, c]) / (n - mass))
    assert_follows(counts(positive, negative[:, 0], n), law)


@pytest.mark.parametrize("n", [300, 70_000])
def test_no_index_is_truncated(n):
    """Item numbers beyond 8 and 16 bits come up as often as the others."""
    labels = torch.arange(n) % 3
    batches = LabelledBatches(torch.arange(n), labels, 30_000, 2, rule="rejected-latent")
    anchor, positive, negative = batches.draw(SEEDED(4))
    for drawn in (anchor, positive, negative.flatten()):
        assert drawn.max() > 0.99 * n
        assert stats.kstest((drawn.numpy() + 0.5) / n, "uniform").pvalue > 1e-4
    assert torch.equal(labels[anchor], labels[positive])
    assert not (labels[anchor][:, None] == labels[negative]).any()


def test_every_item_of_a_large_collection_can_be_drawn():
    """24 random bits would leave items out."""
    n = 2**17
    batches = LabelledBatches(torch.arange(n), torch.zeros(n, dtype=torch.uint8), 2**21)
    _, positive, _ = batches.draw(SEEDED(5))
    missed = n - len(positive.unique())
    assert missed <= 4  # e^-16 of them expected, 0.015


def test_many_small_groups():
    groups = torch.arange(50_000) // 2
    batches = LabelledBatches(torch.arange(50_000), groups, 10_000, 3, rule="rejected-latent", with_itself=False)
    anchor, positive, negative = batches.draw(SEEDED(6))
    assert torch.equal(positive, anchor ^ 1)
    assert not (groups[negative] == groups[anchor][:, None]).any()


@pytest.mark.data
def test_real_soft_labels(data_folder):
    """CIFAR-10H: class frequencies and pair frequencies of the draws are those of 10,000 images' soft labels."""
    votes = torch.from_numpy(np.load(data_folder / "cifar10h" / "counts.npy", allow_pickle=False)).double()
    p = votes / votes.sum(1, keepdim=True)
    n, draws = len(p), 400_000
    batches = LabelledBatches(torch.arange(n), p, draws, 1, rule="rejected-latent")
    anchor, positive, negative = batches.draw(SEEDED(8))
    mass = p.sum(0)
    for drawn in (anchor, positive):  # by symmetry both follow P(x)
        share = p[drawn]
        z = (share.mean(0) - mass / n) / (share.std(0) / draws**0.5)
        assert z.abs().max() < 4.5
    # Over the likeliest classes: P(x in a, x+ in b) = sum_c A[a, c] A[b, c] / (n mass_c), A the mass of c within a.
    top = p.argmax(1)
    A = torch.zeros(10, 10, dtype=torch.float64).index_add_(0, top, p)
    size = torch.bincount(top, minlength=10).double()
    law = torch.einsum("ac,bc,c->ab", A, A, 1 / (n * mass))
    seen = counts(top[anchor], top[positive], 10)
    assert_follows_pooled(seen, law)
    law = torch.einsum("ac,bc,c->ab", A, size[:, None] - A, 1 / (n * (n - mass)))
    assert_follows_pooled(counts(top[anchor], top[negative[:, 0]], 10), law)


def assert_follows_pooled(observed, law):
    """As `assert_follows`, with the rare cells (fewer than 10 expected) counted as one."""
    expected = law * observed.sum()
    rare = expected < 10
    observed = torch.cat([observed[~rare], observed[rare].sum()[None]]).double().numpy()
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]]).numpy()
    keep = expected > 0
    assert stats.chisquare(observed[keep], expected[keep] * observed.sum() / expected.sum()).pvalue > 1e-4


# Errors


def broken(row: int, values: list[float]) -> torch.Tensor:
    labels = SOFT.clone()
    labels[row] = torch.tensor(values)
    return labels


NO_THIRD = SOFT[[0, 1, 3]]
CASES = {
    "length": (SOFT[:5], {}, r"labels = 5: there are 7 inputs"),
    "sum": (broken(2, [0.5, 0.4, 0.0, 0.0]), {}, r"labels\[2\] = \[0.5, 0.4.*sums to 0.9, not 1"),
    "negative": (broken(4, [1.5, -0.5, 0.0, 0.0]), {}, r"labels\[4\].*negative probability"),
    "nan": (broken(6, [float("nan"), 1.0, 0.0, 0.0]), {}, r"labels\[6\].*not finite"),
    "empty class": (NO_THIRD, {}, r"class 2.*no item has any probability"),
    "votes": ((SOFT * 10).long(), {}, r"divide votes"),
    "floats": (torch.rand(7), {}, r"not whole numbers"),
    "one class": (
        torch.zeros(7, dtype=torch.long),
        {"negatives": 1, "rule": "rejected-latent"},
        r"class 0.*no negatives",
    ),
    "no partner": (torch.tensor([0, 0, 1, 1, 1, 2, 0]), {"with_itself": False}, r"class 2.*row 5 is its only item"),
    "all alone": (torch.arange(7), {}, r"every class has one item"),
    "rule": (SOFT, {"rule": "paper"}, r"rule = 'paper'"),
    "rejected in batch": (SOFT, {"rule": "rejected-latent"}, r"follow the marginal"),
    "shared with none": (SOFT, {"share_negatives": True}, r"share_negatives = True: there are none"),
    "negatives": (SOFT, {"negatives": -1}, r"negatives = -1"),
}


@pytest.mark.parametrize(("labels", "options", "message"), CASES.values(), ids=CASES.keys())
def test_bad_labels_are_named(labels, options, message):
    n = 7 if "there are 7" in message else len(labels)
    with pytest.raises(ValueError, match=message):
        LabelledBatches(torch.zeros(n, 2), labels, 4, **options)


def test_single_items_are_fine_with_augmentation():
    LabelledBatches(torch.zeros(7, 2), torch.arange(7), 4, augment=lambda x, generator: x)
