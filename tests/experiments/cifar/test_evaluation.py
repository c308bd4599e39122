"""Metrics on held-out images: pairs, crops, views and certainties."""

import pytest
import torch
from scipy import stats

from aleator.experiments.cifar import evaluation as cifar_evaluation
from aleator.experiments.cifar import folds as cifar_folds
from aleator.experiments.cifar import run as cifar
from aleator.experiments.cifar.evaluation import HeldOut, held_out_pairs
from tests.experiments.cifar.small import HIDDEN, TINY


def test_r_auroc_needs_hits_and_misses(stand_in):
    images = cifar_folds.held_out(TINY, 0).images
    labels = torch.eye(10, dtype=torch.float64)[torch.arange(20) % 2]
    fold = HeldOut(images, labels, torch.rand(20).double(), torch.arange(20))
    certainty = torch.rand(20).double()
    shown = certainty, certainty, (certainty, certainty), fold
    assert "r_auroc" not in cifar_evaluation.certainty_metrics(labels, *shown)
    lost = torch.where(torch.arange(20)[:, None] == 3, labels[0], labels)
    found = cifar_evaluation.certainty_metrics(lost, *shown)["r_auroc"]
    assert found == pytest.approx((certainty > certainty[3]).double().sum().item() / 19)


@pytest.mark.parametrize("setting", [TINY, HIDDEN], ids=["linear", "hidden"])
@pytest.mark.parametrize("views", [2, 10])
def test_with_their_mirror_images_posteriors_do_not_tell_left_from_right(stand_in, views, setting):
    encoder = cifar.make_encoder(setting, 0, [None], "cpu")
    images = cifar_folds.held_out(TINY, 0).images
    assert images.ne(images.flip(-1)).any()
    plain, averaged = (cifar_evaluation.posteriors(encoder, images, count) for count in (1, views))
    expected = encoder.eval()(cifar.network_input(images))
    torch.testing.assert_close(plain.kappa, expected.kappa.double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(plain.mu, expected.mu.double(), rtol=1e-5, atol=1e-5)
    again = cifar_evaluation.posteriors(encoder, images.flip(-1), views)
    torch.testing.assert_close(again.kappa, averaged.kappa, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(plain.kappa, averaged.kappa)


def test_views_are_the_image_shifted_and_mirrored():
    image = torch.arange(64.0).reshape(1, 1, 8, 8)
    plain, right, left, down, up, *mirrored = cifar_evaluation.make_views(image, 10)
    assert torch.equal(plain, image)
    assert torch.equal(right[..., 2:], image[..., :-2])
    assert torch.equal(left[..., :-2], image[..., 2:])
    assert torch.equal(down[..., 2:, :], image[..., :-2, :])
    assert torch.equal(up[..., :-2, :], image[..., 2:, :])
    for view, other in zip((plain, right, left, down, up), mirrored, strict=True):
        assert torch.equal(view, other.flip(-1))
    with pytest.raises(ValueError, match="views = 3"):
        cifar_evaluation.make_views(image, 3)


def test_held_out_pairs_are_half_positives():
    labels = torch.nn.functional.one_hot(torch.arange(60) % 10, 10).double()
    fold = HeldOut(torch.zeros(60, 3, 32, 32, dtype=torch.uint8), labels, torch.ones(60), torch.arange(60))
    pairs = held_out_pairs(fold, 0, 8000)
    same = fold.hard[pairs.first] == fold.hard[pairs.second]
    assert pairs.match.double().mean() == 0.5
    assert same[pairs.match].all()
    assert stats.binomtest(int(same[~pairs.match].sum()), 4000, 0.1).pvalue > 1e-4


def test_crops_lose_the_border_and_keep_the_rest():
    images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    images[:, :, 12:20, 12:20] = 200
    fold = HeldOut(images, torch.eye(2).double(), torch.tensor([0.25, 1.0]), torch.arange(2))
    small, whole = fold.cropped()
    assert (small == 200).all()
    assert torch.equal(whole, images[1])
    first, sizes = fold.randomly_cropped(3)
    again, _ = fold.randomly_cropped(3)
    assert torch.equal(first, again)
    assert ((sizes >= 0.25) & (sizes <= 1)).all()
