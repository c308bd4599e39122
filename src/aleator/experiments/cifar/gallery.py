"""Images for the figures: the most and the least certain of each class, and queries with their credible sets."""

import torch
from torch import Tensor

from aleator.data import CLASSES
from aleator.evaluation import MatchCalibration
from aleator.experiments.cifar.evaluation import HeldOut
from aleator.own_data import certainty_score
from aleator.posteriors import PosteriorBatch

SHOWN = 5  # most certain images of each class, and as many of the least certain
QUERIES = (0.98, 0.75, 0.5, 0.25, 0.02)  # quantiles of kappa at which a query is chosen
LEVEL = 0.95  # of the credible sets
_IN_A_ROW = 12  # images of a credible set that are shown


def gallery(q: PosteriorBatch, fold: HeldOut, calibration: MatchCalibration) -> dict[str, Tensor]:
    """Choose images for the figures, few enough to save with every run.

    Returns:
        Arrays by name:

        - surest_images and least_sure_images, bytes (10, SHOWN, 3, 32, 32), with surest_kappa and least_sure_kappa
          (10, SHOWN), NaN where a class has fewer images;
        - query_images (Q, 3, 32, 32), query_kappa and query_label (Q,);
        - answer_images (Q, 12, 3, 32, 32), the nearest images in each query's 95 % credible set, black where there are
          fewer, with answer_label (Q, 12), -1 there, and answer_count (Q,), the size of the whole set.
    """
    scaled, modes, hard = q.scale_kappa(calibration.kappa_scale), q.mode, fold.hard
    kappa = certainty_score(scaled)
    arrays: dict[str, Tensor] = {}
    ends = {"surest": kappa.argsort(descending=True), "least_sure": kappa.argsort()}
    for name, order in ends.items():
        rows = [order[hard[order] == label][:SHOWN] for label in range(len(CLASSES))]
        padded = torch.stack([torch.cat([row, row.new_full((SHOWN - len(row),), -1)]) for row in rows])
        arrays[f"{name}_images"] = _images(fold.images, padded)
        arrays[f"{name}_kappa"] = torch.where(padded >= 0, kappa[padded.clamp_min(0)], torch.nan).float()
    order = kappa.argsort()
    query = torch.stack([order[round(level * (len(order) - 1))] for level in QUERIES])
    asked = scaled[query]
    density = asked[:, None].log_prob(modes)  # of each image's direction under each query
    density.scatter_(1, query[:, None], -torch.inf)  # a query is not its own answer
    edge = asked.region(LEVEL).log_threshold
    nearest = density.topk(min(_IN_A_ROW, density.shape[1] - 1), 1)
    inside = nearest.values >= edge[:, None]
    arrays["query_images"] = fold.images[query]
    arrays["query_kappa"] = kappa[query].float()
    arrays["query_label"] = hard[query]
    arrays["answer_images"] = _images(fold.images, torch.where(inside, nearest.indices, -1))
    arrays["answer_label"] = torch.where(inside, hard[nearest.indices], -1)
    arrays["answer_count"] = (density >= edge[:, None]).sum(1)
    return arrays


def _images(images: Tensor, number: Tensor) -> Tensor:
    """images[number], black where the number is -1."""
    chosen = images[number.clamp_min(0)]
    return torch.where((number >= 0)[..., None, None, None], chosen, torch.zeros((), dtype=images.dtype))
