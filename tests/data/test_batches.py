"""Batches follow the law of their labels: chi-square tests against the law written out in full, with fixed seeds."""

import numpy as np
import pytest
import torch
from scipy import stats

from aleator.data.batches import LabelledBatches, PairBatches

SEEDED = torch.Generator().manual_seed

SOFT = torch.tensor(
    [
        [1.0, 0.0, 0.0, 0.0],
        [0.5, 0.5, 0.0, 0.0],
        [0.0, 0.2, 0.8, 0.0],
        [0.0, 1.0, 0.0, 0.0],
        [0.1, 0.2, 0.3, 0.4],
        [0.0, 0.0, 0.0, 1.0],
        [0.9, 0.0, 0.0, 0.1],
    ],
    dtype=torch.float64,
)
HARD = torch.tensor([3, 3, 7, 7, 7, -1, -1, 7])


def probabilities(labels: torch.Tensor) -> torch.Tensor:
    """(N, C), whatever the labels were."""
    if labels.dim() == 2:
        return labels.double()
    kind = labels.unique(return_inverse=True)[1]
    return torch.nn.functional.one_hot(kind).double()


def pair_law(p: torch.Tensor, with_itself: bool = True) -> torch.Tensor:
    """P(x, x+) straight from the definition: for each anchor and class, the members' shares."""
    n, classes = p.shape
    law = torch.zeros(n, n, dtype=torch.float64)
    for x in range(n):
        for c in range(classes):
            weight = p[:, c].clone()
            if not with_itself:
                weight[x] = 0
            if p[x, c] > 0:
                law[x] += p[x, c] / n * weight / weight.sum()
    return law


def contrast_law(p: torch.Tensor) -> torch.Tensor:
    """P(x, x-) of the paper's rule."""
    n, classes = p.shape
    law = torch.zeros(n, n, dtype=torch.float64)
    for x in range(n):
        for c in range(classes):
            law[x] += p[x, c] / n * (1 - p[:, c]) / (1 - p[:, c]).sum()
    return law


def counts(first: torch.Tensor, second: torch.Tensor, n: int) -> torch.Tensor:
    return torch.bincount(first * n + second, minlength=n * n).view(n, n)


def assert_follows(observed: torch.Tensor, law: torch.Tensor) -> None:
    """Nothing where the law has nothing, and a chi-square test elsewhere (one false alarm in 10,000)."""
    possible = law > 1e-15
    assert observed[~possible].sum() == 0
    expected = law[possible] * observed.sum()
    assert expected.min() > 5, "too few draws for the test"
    p_value = stats.chisquare(observed[possible].numpy(), (expected * observed.sum() / expected.sum()).numpy()).pvalue
    assert p_value > 1e-4


# The law


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
    for rule, law in (("marginal", uniform), ("contrast", contrast_law(probabilities(labels)))):
        batches = LabelledBatches(torch.arange(n), labels, 50_000, M, rule=rule)
        anchor, _, negative = batches.draw(SEEDED(2))
        assert negative.shape == (50_000, M)
        assert_follows(counts(anchor.repeat_interleave(M), negative.flatten(), n), law)


@pytest.mark.parametrize("rule", ["marginal", "contrast"])
def test_shared_negatives_have_the_same_law(rule):
    """Each anchor's negatives follow its rule, and anchors of one class have the same ones."""
    n, M = len(SOFT), 3
    batches = LabelledBatches(torch.arange(n), SOFT, 40, M, rule=rule, share_negatives=True)
    law = contrast_law(SOFT) if rule == "contrast" else torch.full((n, n), 1 / n**2, dtype=torch.float64)
    generator = SEEDED(12)
    first = torch.zeros(n, n, dtype=torch.int64)
    for _ in range(3000):  # one anchor of a batch, since the others share its negatives
        anchor, _, negative = batches.draw(generator)
        first += counts(anchor[:1], negative.pool[negative.chosen[0, :1] - 40], n)
    assert_follows(first, law)
    assert negative.chosen.shape == (40, M)
    assert len(negative.pool) == M * (SOFT.shape[1] if rule == "contrast" else 1)


def test_shared_negatives_cost_nothing_but_time():
    """The loss is that of the same negatives written out."""
    import aleator as al
    from aleator.data.sources import SharedNegatives
    from aleator.encoders.backbones import MLP
    from aleator.training.objective import Objective

    encoder = al.Encoder(MLP(4, (8,)), 3, kappa="head")
    objective = Objective(encoder, al.ExactInfoNCE(), "joint", "given")
    x, positive, pool = torch.randn(5, 4), torch.randn(5, 4), torch.randn(6, 4)
    index = torch.randint(11, (5, 3))  # of positives, then pool
    gradients = []
    for negative in (SharedNegatives(pool, index), torch.cat([positive, pool])[index]):
        encoder.zero_grad()
        loss = objective((x, positive, negative))
        loss.backward()
        gradients.append([loss, *(parameter.grad for parameter in encoder.parameters())])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)
    rolled = Objective(encoder, al.InfoNCE(), "mu", "rolled")  # the mu phase leaves given negatives out
    assert rolled((x, positive, SharedNegatives(pool, index))) == rolled((x, positive))


def test_positive_and_negative_contrast_in_one_class():
    """Both hang on the class that was drawn: an item that is surely of it is never the negative."""
    n = len(SOFT)
    batches = LabelledBatches(torch.arange(n), SOFT, 200_000, 1, rule="contrast")
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
    batches = LabelledBatches(torch.arange(n), labels, 30_000, 2, rule="contrast")
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
    batches = LabelledBatches(torch.arange(50_000), groups, 10_000, 3, rule="contrast", with_itself=False)
    anchor, positive, negative = batches.draw(SEEDED(6))
    assert torch.equal(positive, anchor ^ 1)
    assert not (groups[negative] == groups[anchor][:, None]).any()


def test_listed_pairs_in_both_orders():
    pairs = torch.tensor([[0, 1], [2, 3], [2, 3], [4, 0]])
    anchor, positive, negative = PairBatches(torch.arange(5), pairs, 100_000).draw(SEEDED(7))
    law = torch.zeros(5, 5, dtype=torch.float64)
    for i, j in pairs.tolist():
        law[i, j] += 1 / 8
        law[j, i] += 1 / 8
    assert negative is None
    assert_follows(counts(anchor, positive, 5), law)


@pytest.mark.data
def test_real_soft_labels(data_folder):
    """CIFAR-10H: class frequencies and pair frequencies of the draws are those of 10,000 images' soft labels."""
    votes = torch.from_numpy(np.load(data_folder / "cifar10h" / "counts.npy", allow_pickle=False)).double()
    p = votes / votes.sum(1, keepdim=True)
    n, draws = len(p), 400_000
    batches = LabelledBatches(torch.arange(n), p, draws, 1, rule="contrast")
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


# What a batch holds


def test_shapes_and_content():
    images = torch.randint(256, (8, 3, 4, 4), dtype=torch.uint8)
    batches = LabelledBatches(images, HARD, 5, 2)
    anchor, positive, negative = batches(0, SEEDED(9))
    numbers = batches.draw(SEEDED(9))
    for part, number in zip((anchor, positive, negative), numbers, strict=True):
        assert part.dtype == torch.float32
        torch.testing.assert_close(part, images[number].float() / 255)
    assert len(LabelledBatches(images, HARD, 5)(0, SEEDED(9))) == 2


def test_augmentation_sees_every_input_once_and_draws_from_the_generator():
    seen = []

    def augment(images, generator):
        seen.append(len(images))
        return images + torch.rand(len(images), 1, generator=generator)

    batches = LabelledBatches(torch.zeros(8, 2), HARD, 5, 2, augment=augment)
    first, again, other = batches(0, SEEDED(1)), batches(0, SEEDED(1)), batches(0, SEEDED(2))
    assert seen == [20, 20, 20]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


class Listed:
    """A map-style dataset over a tensor."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def test_a_dataset_gives_the_batches_of_its_tensor():
    items = torch.randn(8, 3)
    whole, listed = (LabelledBatches(source, HARD, 6, 2) for source in (items, Listed(items)))
    for a, b in zip(whole(0, SEEDED(3)), listed(0, SEEDED(3)), strict=True):
        assert torch.equal(a, b)
    assert not whole.capturable
    assert not listed.capturable


def test_workers_give_the_same_batches_and_go_on_where_they_stopped():
    batches = LabelledBatches(Listed(torch.randn(8, 3)), HARD, 6)
    loader = batches.loader(workers=1, seed=5)
    straight = [batch for _, batch in zip(range(4), loader, strict=False)]
    assert loader.state_dict()["taken"] == 4
    resumed = batches.loader(workers=0, seed=5)
    resumed.load_state_dict({"taken": 2, "seed": 5})
    for old, new in zip(straight[2:], resumed, strict=False):
        assert all(torch.equal(a, b) for a, b in zip(old, new, strict=True))
    with pytest.raises(ValueError, match="began with 4"):
        resumed.load_state_dict({"taken": 2, "seed": 4})


@pytest.mark.gpu
def test_a_captured_fit_draws_the_same_batches():
    """Drawing is part of a CUDA graph: no host, and the loss of every step is that of ordinary steps."""
    import aleator as al
    from aleator.encoders.backbones import MLP

    soft = torch.rand(500, 10, dtype=torch.float64)
    soft /= soft.sum(1, keepdim=True)
    histories = []
    for capture in (True, False):
        torch.manual_seed(3)
        encoder = al.Encoder(MLP(4, (16,)), 3, kappa="head")
        batches = LabelledBatches(torch.randn(500, 4), soft, 32, 4, rule="contrast", device="cuda")
        assert batches.capturable
        recipe = al.Recipe(steps=12, learning_rate=1e-3, log_every=1, capture=capture)
        result = al.fit(encoder, al.ExactInfoNCE(), batches, recipe, device="cuda")
        histories.append([row["loss"] for row in result.history])
    assert histories[0] == pytest.approx(histories[1], rel=1e-4)


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
    "one class": (torch.zeros(7, dtype=torch.long), {"negatives": 1, "rule": "contrast"}, r"class 0.*no negatives"),
    "no partner": (torch.tensor([0, 0, 1, 1, 1, 2, 0]), {"with_itself": False}, r"class 2.*row 5 is its only item"),
    "all alone": (torch.arange(7), {}, r"every class has one item"),
    "rule": (SOFT, {"rule": "paper"}, r"rule = 'paper'"),
    "contrast in batch": (SOFT, {"rule": "contrast"}, r"follow the marginal"),
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


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([[0, 1], [2, 5]], r"pairs\[1\] = \[2, 5\]: names an item outside 0 .. 4"),
        ([[0, 1], [-1, 2]], r"pairs\[1\] = \[-1, 2\]"),
        ([[3, 3]], r"pairs\[0\] = \[3, 3\]: pairs an item with itself"),
        ([0, 1], r"not a list of pairs"),
        ([[0.0, 1.0]], r"not whole numbers"),
    ],
)
def test_bad_pairs_are_named(pairs, message):
    with pytest.raises(ValueError, match=message):
        PairBatches(torch.zeros(5, 2), pairs, 4)


def test_bad_inputs_are_named():
    with pytest.raises(ValueError, match="inputs = 'int'"):
        LabelledBatches(3, SOFT, 4)
    with pytest.raises(ValueError, match="batch_size = 0"):
        LabelledBatches(torch.zeros(7, 2), SOFT, 0)
    with pytest.raises(ValueError, match="no item"):
        LabelledBatches(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), 4)
