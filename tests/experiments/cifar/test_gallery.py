"""Images for the figures: the most and least certain, and credible sets."""

import pytest
import torch

import aleator as al
from aleator.evaluation import MatchCalibration
from aleator.experiments.cifar.evaluation import HeldOut
from aleator.experiments.cifar.gallery import gallery
from tests.experiments.cifar.small import SEEDED


def some_posteriors(n: int = 400, seed: int = 5) -> tuple[al.VonMisesFisher, torch.Tensor]:
    kind = torch.randint(10, (n,), generator=SEEDED(seed))
    centres = torch.randn(10, 8, generator=SEEDED(seed + 1), dtype=torch.float64)
    mu = torch.nn.functional.normalize(centres[kind] + 0.3 * torch.randn(n, 8, generator=SEEDED(7)), dim=-1)
    return al.VonMisesFisher(mu, 5 + 30 * torch.rand(n, generator=SEEDED(8), dtype=torch.float64)), kind


def test_gallery_holds_the_ends_and_the_credible_sets():
    q, kind = some_posteriors()
    images = torch.arange(400)[:, None, None, None].expand(400, 3, 32, 32) % 256
    fold = HeldOut(images.to(torch.uint8), torch.nn.functional.one_hot(kind, 10).double(), torch.ones(400), kind)
    found = gallery(q, fold, MatchCalibration(al.VMFKernel(16.0)))
    assert (found["surest_kappa"][:, 0] >= found["least_sure_kappa"][:, 0]).all()
    for k in range(10):
        assert found["surest_kappa"][k, 0] == pytest.approx(q.kappa[kind == k].max().item(), rel=1e-6)
    reach = q.cap(0.95)
    for row, kappa in enumerate(found["query_kappa"]):
        query = int((q.kappa - kappa).abs().argmin())
        inside = (q.mu @ q.mu[query] >= reach[query]).sum() - 1
        assert found["answer_count"][row] == inside
        assert (found["answer_label"][row] >= 0).sum() == min(int(inside), 12)
