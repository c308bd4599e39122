"""What a batch holds, and the law of listed pairs. The law of labelled batches is tested in test_labels.py."""

import pytest
import torch

from aleator.data.batches import LabelledBatches, PairBatches
from aleator.data.soft_batches import SoftLabelBatches
from tests.data.cases import HARD, SEEDED, SOFT, Listed, assert_follows, counts


def test_listed_pairs_in_both_orders():
    pairs = torch.tensor([[0, 1], [2, 3], [2, 3], [4, 0]])
    anchor, positive, negative = PairBatches(torch.arange(5), pairs, 100_000).draw(SEEDED(7))
    law = torch.zeros(5, 5, dtype=torch.float64)
    for i, j in pairs.tolist():
        law[i, j] += 1 / 8
        law[j, i] += 1 / 8
    assert negative is None
    assert_follows(counts(anchor, positive, 5), law)


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


def test_a_dataset_gives_the_batches_of_its_tensor():
    items = torch.randn(8, 3)
    whole, listed = (LabelledBatches(source, HARD, 6, 2) for source in (items, Listed(items)))
    for a, b in zip(whole(0, SEEDED(3)), listed(0, SEEDED(3)), strict=True):
        assert torch.equal(a, b)
    assert not whole.capturable
    assert not listed.capturable


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
        batches = LabelledBatches(torch.randn(500, 4), soft, 32, 4, rule="rejected-latent", device="cuda")
        assert batches.capturable
        recipe = al.Recipe(steps=12, learning_rate=1e-3, log_every=1, capture=capture)
        result = al.fit(encoder, al.ExactInfoNCE(), batches, recipe, device="cuda")
        histories.append([row["loss"] for row in result.history])
    assert histories[0] == pytest.approx(histories[1], rel=1e-4)


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
    with pytest.raises(ValueError, match=r"labels = 'a': .* number the classes"):
        LabelledBatches(torch.zeros(2, 2), ["a", "b"], 4)
    with pytest.raises(ValueError, match=r"labels = 'a': .* number the classes"):
        SoftLabelBatches(torch.zeros(2, 2), ["a", "b"], 4)
