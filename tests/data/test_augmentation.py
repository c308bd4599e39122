"""Augmentation: each batched transform against its slow twin, one image at a time."""

import pytest
import torch
from torch.nn import functional as F

from aleator.data import augmentation as a

SEEDED = torch.Generator().manual_seed


def images(n: int = 40, size: int = 16) -> torch.Tensor:
    return torch.rand(n, 3, size, size, generator=SEEDED(1))


def test_half_are_flipped_and_the_rest_left():
    x = images(400)
    y = a.flip(x, SEEDED(2))
    flipped = (y == x.flip(-1)).flatten(1).all(1)
    assert ((y == x).flatten(1).all(1) ^ flipped).all()
    assert 160 < flipped.sum() < 240  # 200 and four standard errors


def test_every_translation_occurs_and_is_a_window_of_the_reflected_image():
    x = images(600, 8)
    y = a.translate(x, 2, SEEDED(3))
    padded = F.pad(x, (2,) * 4, mode="reflect")
    found = torch.zeros(5, 5)
    for i in range(len(x)):
        windows = padded[i].unfold(1, 8, 1).unfold(2, 8, 1)  # (3, 5, 5, 8, 8)
        hit = (windows == y[i][:, None, None]).all(dim=-1).all(dim=-1).all(dim=0)
        assert hit.sum() == 1
        found += hit
    assert found.min() >= 6  # 24 expected each
    assert found.max() <= 48


def test_cutout_hides_one_square():
    x = images(300)
    y = a.cutout(x, 6, SEEDED(4))
    changed = (y != x).any(1)  # (B, H, W)
    rows, columns = changed.any(2).sum(1), changed.any(1).sum(1)
    assert torch.equal(changed.sum((1, 2)), rows * columns)  # a rectangle, cut off at the border
    assert rows.max() == columns.max() == 6
    assert rows.min() >= 3
    hidden = y[0][:, changed[0]]
    torch.testing.assert_close(hidden, x[0].mean((1, 2))[:, None].expand_as(hidden))


@pytest.mark.parametrize("size", [1, 5, 8, 15, 16])
def test_resized_crops_are_those_of_interpolate(size):
    x = images(9)
    start = torch.arange(9) % (17 - size)
    n = torch.full((9,), size)
    y = a.resized_crop(x.double(), start, start.flip(0), n, n)
    for i in range(9):
        top, left = int(start[i]), int(start.flip(0)[i])
        one = x[i : i + 1, :, top : top + size, left : left + size].double()
        twin = F.interpolate(one, (16, 16), mode="bilinear", align_corners=False)
        torch.testing.assert_close(y[i : i + 1], twin)


def test_centre_crops_are_central_and_the_whole_image_stays():
    x = images(3)
    y = a.centre_crops(x, torch.tensor([1.0, 0.5, 0.25]))
    torch.testing.assert_close(y[0], x[0])
    twin = F.interpolate(x[1:2, :, 4:12, 4:12], (16, 16), mode="bilinear", align_corners=False)
    torch.testing.assert_close(y[1:2], twin)


def test_crops_anywhere_stay_inside_and_reach_the_corners():
    """An image whose pixels tell their own place."""
    place = torch.arange(16.0).expand(16, 16)
    x = torch.stack([place, place.T]).expand(500, 2, 16, 16)
    y = a.random_crops(x, torch.full((500,), 0.5), SEEDED(5))
    spread = y.amax((2, 3)) - y.amin((2, 3))
    torch.testing.assert_close(spread, torch.full_like(spread, 7.0))
    assert y[:, 0].min() == 0
    assert y[:, 0].max() == 15
    z = a.zoom(x, 0.25, SEEDED(6))
    assert z.min() >= 0
    assert z.max() <= 15
    side = (z.amax((2, 3)) - z.amin((2, 3)) + 1) / 16
    assert side[:, 0].min() < 0.3
    assert side[:, 0].max() > 0.95
    torch.testing.assert_close(side[:, 0], side[:, 1])  # squares


def test_all_of_it_is_reproducible_and_normalised():
    both = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
    augment = a.ImageAugmentation(zoom=0.5, cutout=4, **both)
    x = images()
    first, again, other = (augment(x, SEEDED(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == x.shape
    plain = a.ImageAugmentation(flip=False, translate=0, **both)
    expected = (x - torch.tensor(both["mean"])[:, None, None]) / torch.tensor(both["std"])[:, None, None]
    torch.testing.assert_close(plain(x), expected)
    assert a.ImageAugmentation(**augment.to_dict()) == augment


@pytest.mark.parametrize("bad", [{"zoom": 0.0}, {"zoom": 1.5}, {"translate": -1}, {"cutout": -2}, {"mean": (0.5,)}])
def test_bad_settings_are_named(bad):
    with pytest.raises(ValueError):
        a.ImageAugmentation(**bad)


@pytest.mark.gpu
def test_a_captured_fit_on_images_is_the_ordinary_one():
    """Bytes drawn, augmented and learned from in one CUDA graph: the losses are those of ordinary steps."""
    import aleator as al
    from aleator.data.batches import LabelledBatches
    from aleator.encoders.backbones import ResNet18

    pixels = torch.randint(256, (120, 3, 32, 32), dtype=torch.uint8, generator=SEEDED(1))
    augment = a.ImageAugmentation(zoom=0.5, cutout=8, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    histories = []
    for capture in (True, False):
        torch.manual_seed(3)
        encoder = al.Encoder(ResNet18(width=4), 8)
        batches = LabelledBatches(
            pixels,
            torch.arange(120) % 5,
            16,
            4,
            rule="rejected-latent",
            share_negatives=True,
            augment=augment,
            device="cuda",
        )
        assert batches.capturable
        recipe = al.Recipe(steps=10, learning_rate=1e-3, log_every=1, capture=capture)
        result = al.fit(encoder, al.ExactInfoNCE(), batches, recipe, device="cuda")
        histories.append([row["loss"] for row in result.history])
    assert histories[0] == pytest.approx(histories[1], rel=0.02)


@pytest.mark.gpu
def test_the_device_gives_what_the_cpu_gives():
    """The transforms themselves, apart from their random numbers."""
    x = images(20, 32)
    top, side = torch.linspace(0, 10, 20), torch.linspace(6, 20, 20)
    here = a.resized_crop(x, top, top.flip(0), side, side)
    there = a.resized_crop(x.cuda(), top.cuda(), top.flip(0).cuda(), side.cuda(), side.cuda())
    torch.testing.assert_close(there.cpu(), here, rtol=1e-4, atol=1e-5)
