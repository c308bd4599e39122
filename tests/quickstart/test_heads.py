"""Small heads learn on fixed features, and one factor gives their credible sets the coverage that is asked for."""

import pytest
import torch

from aleator.matching import VMFKernel
from aleator.posteriors import VonMisesFisher
from aleator.quickstart.heads import covering_scale, learn_head


def three_labels(count: int, seed: int) -> tuple[VonMisesFisher, torch.Tensor]:
    """Items around three directions, and their labels."""
    labels = torch.arange(count) % 3
    mu = VonMisesFisher(torch.eye(4)[labels], 60.0).sample((), torch.Generator().manual_seed(seed))
    return VonMisesFisher(mu, torch.full((count,), 60.0)), labels


@pytest.mark.parametrize("modes", [1, 2])
def test_a_head_learns_to_find_items_of_its_label(modes):
    gallery, labels = three_labels(60, 0)
    features = torch.eye(4)[labels].repeat(5, 1) + 0.05 * torch.randn(
        300, 4, generator=torch.Generator().manual_seed(1)
    )
    head = learn_head(modes, features, labels.repeat(5), gallery, labels, VMFKernel(10.0), 60, seed=0)
    with torch.no_grad():
        q = head(features)
    assert q.modes == modes
    nearest = (q.mode @ gallery.mu.T).argmax(1)
    assert (labels[nearest] == labels.repeat(5)).double().mean() > 0.95


def test_a_head_with_two_modes_finds_both_labels_of_an_ambiguous_question():
    gallery, labels = three_labels(60, 0)
    features = torch.cat([torch.eye(4)[labels], torch.full((60, 4), 0.5)])  # the second half says nothing but "0 or 1"
    asked = torch.cat([labels, torch.arange(60) % 2])
    head = learn_head(2, features, asked, gallery, labels, VMFKernel(10.0), 200, seed=0)
    with torch.no_grad():
        q = head(features[-1:])
    cosines = q.components.mu[0] @ torch.eye(4)[:2].T  # modes x labels
    assert cosines.argmax(1).sort().values.tolist() == [0, 1]
    assert cosines.max(1).values.min() > 0.7
    assert cosines.min(1).values.max() < 0.3  # not between the two: there both cosines are 0.71
    assert q.weights.min() > 0.2  # both count


def test_the_same_seed_gives_the_same_head():
    gallery, labels = three_labels(30, 0)
    heads = [learn_head(2, gallery.mu, labels, gallery, labels, VMFKernel(10.0), 3, seed=5) for _ in range(2)]
    assert torch.equal(heads[0](gallery.mu).components.mu, heads[1](gallery.mu).components.mu)


def test_the_scale_of_kappa_gives_the_coverage():
    gallery, labels = three_labels(300, 0)
    questions, right = three_labels(400, 1)
    # Too sure of directions that are too far away: sets without a right item, until kappa is scaled.
    generator = torch.Generator().manual_seed(2)
    q = VonMisesFisher(VonMisesFisher(questions.mu, 8.0).sample((), generator), 100.0 * torch.ones(400))

    def coverage(scale: float) -> float:
        inside = q.mu @ gallery.mu.T >= q.scale_kappa(scale).cap(0.9)[:, None]
        return (inside & (right[:, None] == labels)).any(1).double().mean().item()

    scale = covering_scale(q, right, gallery, labels, 0.9)
    assert coverage(1.0) < 0.85
    assert 0.9 <= coverage(scale) < 0.93
    # The largest factor that does, to within one step of the search.
    assert coverage(min(1.0, 1.1 * scale)) < 0.9 or scale == 1.0


def test_sets_that_cover_enough_keep_their_kappa():
    gallery, labels = three_labels(60, 0)
    assert covering_scale(gallery, labels, gallery, labels, 0.9) == 1.0
