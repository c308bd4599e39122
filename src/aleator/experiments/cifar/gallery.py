"""Pictures for the eye: the surest and least sure images of each class, and queries with their credible sets."""

import torch
from torch import Tensor

from aleator.data import CLASSES
from aleator.evaluation import MatchCalibration
from aleator.experiments.cifar.evaluation import HeldOut
from aleator.posteriors import VonMisesFisher

SHOWN = 5  # images of each class at either end
QUERIES = (0.98, 0.75, 0.5, 0.25, 0.02)  # quantiles of kappa
LEVEL = 0.95
_IN_A_ROW = 12


def gallery(q: VonMisesFisher, fold: HeldOut, calibration: MatchCalibration) -> dict[str, Tensor]:
    """Arrays of bytes and numbers, small enough to keep with a run.

    Surest and least sure: images (10, SHOWN, 3, 32, 32) and their kappas. Queries (Q, 3, 32, 32) with answers
    (Q, 12, 3, 32, 32), the nearest of their 95 % credible sets, black where there are fewer, and the sets' sizes (Q,).
    """
    kappa, hard = q.kappa * calibration.kappa_scale, fold.hard
    found: dict[str, Tensor] = {}
    ends = {"surest": kappa.argsort(descending=True), "least_sure": kappa.argsort()}
    for name, order in ends.items():
        rows = [order[hard[order] == kind][:SHOWN] for kind in range(len(CLASSES))]
        padded = torch.stack([torch.cat([row, row.new_full((SHOWN - len(row),), -1)]) for row in rows])
        found[f"{name}_images"] = _images(fold.images, padded)
        found[f"{name}_kappa"] = torch.where(padded >= 0, kappa[padded.clamp_min(0)], torch.nan).float()
    order = kappa.argsort()
    query = torch.stack([order[round(level * (len(order) - 1))] for level in QUERIES])
    reach = q[query].scale_kappa(calibration.kappa_scale).cap(LEVEL)  # the cosine of the cap
    cosine = q.mu[query] @ q.mu.T
    cosine.scatter_(1, query[:, None], -torch.inf)  # not itself
    nearest = cosine.topk(min(_IN_A_ROW, cosine.shape[1] - 1), 1)
    inside = nearest.values >= reach[:, None]
    found["query_images"] = fold.images[query]
    found["query_kappa"] = kappa[query].float()
    found["query_label"] = hard[query]
    found["answer_images"] = _images(fold.images, torch.where(inside, nearest.indices, -1))
    found["answer_label"] = torch.where(inside, hard[nearest.indices], -1)
    found["answer_count"] = (cosine >= reach[:, None]).sum(1)
    return found


def _images(images: Tensor, number: Tensor) -> Tensor:
    """images[number], black where the number is -1."""
    chosen = images[number.clamp_min(0)]
    return torch.where((number >= 0)[..., None, None, None], chosen, torch.zeros((), dtype=images.dtype))
