"""Batches with match weights: the weights are the law of labelled pairs, and how items are drawn."""

import pytest
import torch

from aleator.data import LabelledBatches, SoftBatch, SoftLabelBatches, SoftPairBatches, match_weights
from aleator.data.soft_batches import distinct_numbers
from tests.data.cases import HARD, SEEDED, SOFT, Listed, assert_follows, pair_law, probabilities

CPU = torch.device("cpu")


def numbered(count: int) -> torch.Tensor:
    """Items that are their own numbers."""
    return torch.arange(count, dtype=torch.float32)[:, None]


def jitter(items, generator):
    return items + torch.rand(len(items), 1, generator=generator)


class TestMatchWeights:
    @pytest.mark.parametrize("labels", [SOFT, HARD], ids=["soft", "hard"])
    def test_weights_are_the_density_ratio_of_the_drawn_pairs(self, labels):
        """W = P(x, x+) / (P(x) P(x+)), with the law of pairs written out in full."""
        p = probabilities(labels)
        law = pair_law(p)
        torch.testing.assert_close(match_weights(p, p.mean(0)), law * len(p) ** 2)
        if labels.dim() == 1:
            classes = labels.unique(return_inverse=True)[1]
            torch.testing.assert_close(match_weights(classes, p.mean(0)), law * len(p) ** 2)

    def test_weights_without_mass_are_probabilities_to_be_of_one_class(self):
        weights = match_weights(SOFT)
        for i, a in enumerate(SOFT):
            for j, b in enumerate(SOFT):
                assert weights[i, j] == pytest.approx(sum(float(x * y) for x, y in zip(a, b, strict=True)))
        assert match_weights(HARD)[0].tolist() == [1, 1, 0, 0, 0, 0, 0, 0]

    def test_they_are_exact_under_autocast_and_from_whole_numbers(self):
        soft, labels, mass = SOFT.float(), torch.eye(3)[torch.tensor([0, 1, 1])], torch.tensor([0.3, 0.3, 0.4])
        expected = match_weights(soft, soft.mean(0))
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(match_weights(soft, soft.mean(0)), expected)
        for dtype in (torch.bool, torch.int64):
            assert torch.equal(match_weights(labels.to(dtype)), match_weights(labels))
            assert torch.equal(match_weights(labels.to(dtype), mass=mass), match_weights(labels, mass=mass))

    def test_weights_average_to_one(self):
        """So no item draws more positives than another: P(x+|x) = P(x+) W(x, x+)."""
        torch.testing.assert_close(match_weights(SOFT, SOFT.mean(0)).mean(1), torch.ones(7, dtype=torch.float64))


class TestLabels:
    @pytest.mark.parametrize("labels", [SOFT, HARD], ids=["soft", "hard"])
    @pytest.mark.parametrize("balanced", [True, False])
    @pytest.mark.parametrize("partners", [True, False])
    def test_a_batch_holds_the_weights_of_its_items(self, labels, balanced, partners):
        p = probabilities(labels)
        n = len(p)
        whole = match_weights(p, p.mean(0) if balanced else None).float()
        batches = SoftLabelBatches(numbered(n), labels, 5, balanced=balanced, partners=partners)
        for seed in range(5):
            batch = batches(0, SEEDED(seed))
            number = batch.items[:, 0].long()
            torch.testing.assert_close(number, batches.draw(SEEDED(seed)))
            torch.testing.assert_close(batch.targets, whole[number][:, number])
            same = number[:, None] == number
            if partners:
                assert torch.equal(batch.compared, ~same)
            else:
                assert batch.compared is None
                assert same.sum() == 5  # nobody twice

    def test_items_are_uniform(self):
        for partners in (False, True):
            batches = SoftLabelBatches(numbered(7), SOFT, 4, partners=partners)
            generator = SEEDED(0)
            drawn = torch.stack([batches.draw(generator) for _ in range(2000)])
            if partners:  # the second half follows the law of pairs, without the item itself
                anchor, partner = drawn[:, :2].flatten(), drawn[:, 2:].flatten()
                observed = torch.bincount(anchor * 7 + partner, minlength=49).view(7, 7)
                assert_follows(observed, pair_law(SOFT, with_itself=False))
            else:
                assert_follows(drawn[:, 0].bincount(minlength=7), torch.full((7,), 1 / 7, dtype=torch.float64))

    def test_partners_come_where_matches_are_few(self):
        items = numbered(400)
        assert not SoftLabelBatches(items, torch.arange(400) % 10, 64).partners
        groups = SoftLabelBatches(items, torch.arange(400) // 2, 64)
        assert groups.partners
        batch = groups(0, SEEDED(0))
        matches = (batch.targets > 0) & batch.compared
        assert matches.any(1).all()
        assert torch.equal(batch.items[:32, 0].long() // 2, batch.items[32:, 0].long() // 2)

    def test_an_item_without_a_partner_has_no_match(self):
        batches = SoftLabelBatches(numbered(5), torch.tensor([0, 0, 1, 2, 3]), 6, partners=True)
        batch = batches(0, SEEDED(0))
        alone = batch.items[:, 0] >= 2
        matches = (batch.targets > 0) & batch.compared
        assert alone.any()
        assert not matches[alone].any()
        assert matches[~alone].any(1).all()

    def test_two_views_are_augmented_apart_and_match(self):
        batches = SoftLabelBatches(10 * numbered(8), HARD, 6, views=2, augment=jitter)
        batch = batches(0, SEEDED(1))
        first, second = batch.items[:3, 0], batch.items[3:, 0]
        assert torch.equal(first // 10, second // 10)
        assert (first != second).all()
        assert batch.compared is None
        assert (batch.targets.diagonal(3) > 0).all()
        assert (first // 10).unique().numel() == 3

    def test_a_dataset_gives_the_batches_of_its_tensor_and_workers_too(self):
        items = torch.randn(8, 3)
        whole, listed = (SoftLabelBatches(source, HARD, 6) for source in (items, Listed(items)))
        for a, b in zip(whole(0, SEEDED(3)), listed(0, SEEDED(3)), strict=True):
            assert torch.equal(a, b) if a is not None else b is None
        batch = next(iter(listed.loader(workers=0)))
        assert isinstance(batch, SoftBatch)
        assert batch.targets.shape == (6, 6)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"views": 3}, "views = 3: not known"),
            ({"views": 2}, "two views of an item would be the same"),
            ({"batch_size": 1}, "one item has no candidates"),
            ({"batch_size": 9}, "batch_size = 9: there are only 8 items"),
            ({"labels": torch.arange(8)}, "no two items match"),
            ({"labels": HARD[:5]}, "labels = 5: there are 8 inputs"),
            ({"labels": torch.full((8, 2), 0.4)}, "sums to 0.8"),
        ],
    )
    def test_bad_arguments(self, changes, message):
        arguments = {"labels": HARD, "batch_size": 4, "partners": False} | changes
        with pytest.raises(ValueError, match=message):
            SoftLabelBatches(numbered(8), **arguments)


class TestPairs:
    PAIRS, WEIGHTS = torch.tensor([[0, 1], [2, 3], [2, 3], [4, 0]]), torch.tensor([1.0, 0.25, 0.5, 0.4])

    def test_pairs_are_drawn_by_weight_and_all_listed_pairs_match(self):
        batches = SoftPairBatches(numbered(6), self.PAIRS, 6, weights=self.WEIGHTS)
        table = torch.zeros(6, 6)
        for (i, j), w in zip(self.PAIRS.tolist(), self.WEIGHTS.tolist(), strict=True):
            table[i, j] += w
            table[j, i] += w
        observed = torch.zeros(6, 6, dtype=torch.int64)
        generator = SEEDED(0)
        for _ in range(1500):
            number = batches.draw(generator)
            observed += torch.bincount(number[:3] * 6 + number[3:], minlength=36).view(6, 6)
        law = torch.zeros(6, 6, dtype=torch.float64)
        law[0, 1], law[2, 3], law[4, 0] = 1.0, 0.75, 0.4
        assert_follows(observed, law / law.sum())
        batch = batches(0, SEEDED(5))
        number = batch.items[:, 0].long()
        torch.testing.assert_close(batch.targets, table[number][:, number])
        assert torch.equal(batch.compared, number[:, None] != number)

    def test_without_weights_all_pairs_are_alike(self):
        batch = SoftPairBatches(numbered(5), self.PAIRS[[0, 1, 3]], 8)(0, SEEDED(1))
        assert set(batch.targets.unique().tolist()) == {0.0, 1.0}

    @pytest.mark.parametrize(
        ("pairs", "changes", "message"),
        [
            ([[0, 0], [1, 2]], {}, r"pairs\[0\].*with itself"),
            ([[0, 9], [1, 2]], {}, "outside 0 .. 4"),
            ([[0, 1], [1, 2]], {"weights": [1.0]}, r"weights = \(1,\): there are 2 pairs"),
            ([[0, 1], [1, 2]], {"weights": [1.0, 0.0]}, "weights = 0.0: not a probability"),
            ([[0, 1], [1, 2]], {"weights": [1.0, float("nan")]}, "weights = nan: not a probability"),
            ([[0, 1], [1, 2]], {"batch_size": 5}, "batch_size = 5: not two pairs"),
        ],
    )
    def test_bad_arguments(self, pairs, changes, message):
        with pytest.raises(ValueError, match=message):
            SoftPairBatches(numbered(5), pairs, **({"batch_size": 4} | changes))


class TestDistinctNumbers:
    @pytest.mark.parametrize(("total", "count"), [(5, 2), (33, 2)], ids=["permuted", "first of a row"])
    def test_every_list_has_the_same_probability(self, total, count):
        generator = SEEDED(0)
        observed = torch.zeros(total, total, dtype=torch.int64)
        for _ in range(7 * total * total):
            first, second = distinct_numbers(total, count, generator, CPU)
            observed[first, second] += 1
        law = (1 - torch.eye(total, dtype=torch.float64)) / (total * (total - 1))
        assert_follows(observed, law)

    @pytest.mark.parametrize(("total", "count"), [(6, 6), (33, 2), (10_000, 500), (8001, 500)])
    def test_no_number_twice(self, total, count):
        for seed in range(20):
            numbers = distinct_numbers(total, count, SEEDED(seed), CPU)
            assert numbers.unique().numel() == count
            assert numbers.min() >= 0
            assert numbers.max() < total


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["soft", "hard", "groups", "views", "pairs"])
@pytest.mark.parametrize("samples", [None, 4], ids=["exact", "mcinfonce"])
def test_a_captured_fit_draws_the_same_batches(kind, samples):
    """Drawing and weights are part of a CUDA graph: the loss of every step is that of ordinary steps."""
    import aleator as al
    from aleator.encoders.backbones import MLP

    def augment(items, generator):
        return items + 0.1 * torch.randn(items.shape, generator=generator, device=items.device)

    augment.capturable = True
    x, votes = torch.randn(600, 4).cuda(), torch.rand(600, 5).softmax(1)
    made = {
        "soft": lambda: SoftLabelBatches(x, votes, 32),
        "hard": lambda: SoftLabelBatches(x[:400], torch.arange(400) % 4, 32),  # few enough to permute
        "groups": lambda: SoftLabelBatches(x, torch.arange(600) // 3, 32),
        "views": lambda: SoftLabelBatches(x, torch.arange(600) % 4, 32, views=2, augment=augment),
        "pairs": lambda: SoftPairBatches(x, torch.arange(600).view(-1, 2), 32, weights=torch.linspace(0.1, 1, 300)),
    }
    histories = []
    for capture in (True, False):
        torch.manual_seed(3)
        batches = made[kind]()
        assert batches.capturable
        encoder = al.Encoder(MLP(4, (16,)), 3, kappa="head")
        loss = al.ExactInfoNCE() if samples is None else al.MCInfoNCE(samples=samples)
        recipe = al.Recipe(steps=12, learning_rate=1e-3, log_every=1, capture=capture)
        result = al.fit(encoder, loss, batches, recipe, device="cuda", loggers=())
        histories.append([row["loss"] for row in result.history])
    if samples is None:  # a graph draws other samples of the posteriors than ordinary steps
        assert histories[0] == pytest.approx(histories[1], rel=1e-4)
    else:
        assert all(0 < value < 20 for value in histories[0])


def test_both_ways_to_make_batches_agree_on_the_classes():
    """The same labels give the same numbering, so a soft batch of hard labels matches where a drawn pair may."""
    soft, drawn = SoftLabelBatches(numbered(8), HARD, 8, partners=False), LabelledBatches(numbered(8), HARD, 64)
    batch = soft(0, SEEDED(0))
    number = batch.items[:, 0].long()
    may_match = torch.zeros(8, 8, dtype=torch.bool)
    may_match[number[:, None], number] = batch.targets > 0
    anchor, positive, _ = drawn.draw(SEEDED(1))
    assert may_match[anchor, positive].all()


def test_a_class_without_mass_counts_for_nothing():
    p = torch.cat([SOFT, torch.zeros(len(SOFT), 1)], 1)
    torch.testing.assert_close(match_weights(p, p.mean(0)), match_weights(SOFT, SOFT.mean(0)))
