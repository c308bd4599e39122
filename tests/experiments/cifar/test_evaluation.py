"""Metrics on held-out images: pairs, crops, views and certainties."""

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

from aleator import VMFKernel, VonMisesFisher
from aleator.evaluation import neighbour_hits
from aleator.experiments.cifar import evaluation as cifar_evaluation
from aleator.experiments.cifar import folds as cifar_folds
from aleator.experiments.cifar import run as cifar
from aleator.experiments.cifar.evaluation import HeldOut, held_out_pairs, match_hits
from tests.experiments.cifar.small import HIDDEN, TINY
from tests.posteriors.mixture_cases import mixture


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


def test_posteriors_of_several_modes_keep_their_numbers(stand_in):
    encoder = cifar.make_encoder(replace(HIDDEN, modes=2, main_weight=0.8), 0, [None], "cpu")
    images = cifar_folds.held_out(TINY, 0).images
    q = cifar_evaluation.posteriors(encoder, images)
    expected = encoder.eval()(cifar.network_input(images)).double()
    for found, wanted in zip(q._tensors(), expected._tensors(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(q.weights[:, 0], torch.full((20,), 0.8, dtype=torch.float64), atol=1e-5, rtol=0)


def some_fold(kind: torch.Tensor) -> HeldOut:
    n = len(kind)
    labels = torch.nn.functional.one_hot(kind, 10).double()
    return HeldOut(torch.zeros(n, 3, 32, 32, dtype=torch.uint8), labels, torch.ones(n), torch.arange(n))


def test_a_sure_neighbour_of_the_right_class_matches_better_than_a_nearer_unsure_one():
    angle = torch.tensor([0.0, 0.05, 0.15, 3.0, 3.1], dtype=torch.float64)
    q = VonMisesFisher(torch.stack([angle.cos(), angle.sin()], 1), torch.tensor([90.0, 2.0, 90.0, 90.0, 90.0]).double())
    fold = some_fold(torch.tensor([0, 1, 0, 2, 2]))
    assert not bool(neighbour_hits(q.mu, fold.hard)[0])
    assert match_hits(q, fold, VMFKernel(16.0)).tolist() == [1.0, 0.0, 1.0, 1.0, 1.0]


def test_credible_sets_against_a_loop():
    q = mixture(30, modes=2, dim=4, low=10.0, high=60.0).detach()
    kind = torch.arange(30) % 3
    sizes, hits, places = [], [], q.mode
    for i in range(30):
        region = q[i].region(0.95)
        inside = [j for j in range(30) if j != i and region.contains(places[j])]
        sizes.append(len(inside))
        hits.append(any(kind[j] == kind[i] for j in inside))
    found = cifar_evaluation.set_metrics(cifar_evaluation.set_curve(q, some_fold(kind)))
    assert found["set_size"] == pytest.approx(sum(sizes) / 30, abs=0.2)  # samples at the edge of a region differ
    assert found["set_hit"] == pytest.approx(sum(hits) / 30, abs=0.1)
    assert 0 < sum(sizes) < 30 * 29


def test_the_size_of_sets_that_hold_the_right_class_often_enough():
    """Of half the classes the neighbour of the same class is near, of the others far: sets must reach it."""
    angle = torch.tensor([0.0, 0.1, 2.0, 2.9], dtype=torch.float64)
    q = VonMisesFisher(torch.stack([angle.cos(), angle.sin()], 1), 4.0)
    curve = cifar_evaluation.set_curve(q, some_fold(torch.tensor([0, 0, 1, 1])))
    level, hit, size = curve.T
    mass = cap_mass(q, 0.9)  # of the cap that reaches from 2.0 to 2.9
    assert torch.equal(hit, torch.where(level > mass, 1.0, torch.where(level > cap_mass(q, 0.1), 0.5, 0.0)).double())
    assert bool((size.diff() >= 0).all())
    above = int((level > mass).nonzero()[0])
    found = cifar_evaluation.set_metrics(curve)["set_size_of_99"]
    assert found == pytest.approx(0.02 * size[above - 1].item() + 0.98 * size[above].item())
    early = torch.tensor([[0.1, 0.995, 3.0], [0.95, 1.0, 9.0]], dtype=torch.float64)
    assert cifar_evaluation.set_metrics(early)["set_size_of_99"] == 3.0
    never = torch.tensor([[0.95, 0.98, 9.0]], dtype=torch.float64)
    assert "set_size_of_99" not in cifar_evaluation.set_metrics(never)


def cap_mass(q: VonMisesFisher, angle: float) -> float:
    """Probability within an angle of mu in the plane, by quadrature."""
    t = torch.linspace(-angle, angle, 20_001, dtype=torch.float64)
    around = torch.stack([t.cos(), t.sin()], 1)
    first = VonMisesFisher(torch.tensor([1.0, 0.0], dtype=torch.float64), q.kappa[0])
    return torch.trapezoid(first.log_prob(around).exp(), t).item()


def test_cross_entropy_of_posteriors_that_know_the_class():
    """Images of one class share their weight evenly: log of the number of others of the class."""
    kind = torch.arange(40) % 4
    q = VonMisesFisher(torch.eye(4, dtype=torch.float64)[kind], 1e4)
    value = cifar_evaluation.held_out_cross_entropy(q, some_fold(kind), VMFKernel(50.0))
    assert value == pytest.approx(math.log(9), abs=1e-3)
