"""Metrics on held-out CIFAR-10H images.

Does certainty agree with people's disagreement, with lost information (crops), and with retrieval errors? Are match
probabilities right?
"""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from aleator.data import (
    LabelledBatches,
    centre_crops,
    match_weights,
    random_crops,
    to_bytes,
    to_unit,
)
from aleator.encoders import Chain, Encoder, Features
from aleator.evaluation import (
    MatchCalibration,
    MatchPairs,
    ReliabilityDiagram,
    calibrate_matches,
    expected_calibration_error,
    label_entropy,
    map_at_r,
    neighbour_hits,
    r_auroc,
    rank_correlation,
    reject_curve,
    reliability_diagram,
)
from aleator.experiments.cifar.pretraining import predictions
from aleator.foundation import require_one_of
from aleator.losses import ExactInfoNCE
from aleator.matching import ZonalKernel, pairwise_log_positivity
from aleator.posteriors import PosteriorBatch, VMFMixture, VonMisesFisher

PAIRS = 20_000  # of held-out images, half of them drawn as positives
KEPT = tuple(i / 20 for i in range(1, 21))  # shares of images in a reject curve
_LOG_ODDS_LIMIT = math.log(1e9 - 1)  # match probabilities count as at least 1e-9 and at most 1 - 1e-9
_SHIFT = 2  # pixels, of a shifted view
_COMPARED = 500  # images that are compared with each other in `held_out_cross_entropy`
_SET_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)  # of credible sets
_ENOUGH_HITS = 0.99  # share of sets that hold the right class, at which sizes of sets are compared


@dataclass(frozen=True)
class HeldOut:
    """One fold of images.

    Args:
        images: Bytes, shape (N, 3, 32, 32).
        labels: Soft labels, shape (N, 10).
        crop_sizes: Side of each crop as a share of the image's side, shape (N,).
        number: Numbers of the images in CIFAR-10's test set, shape (N,).
    """

    images: Tensor
    labels: Tensor
    crop_sizes: Tensor
    number: Tensor

    @property
    def hard(self) -> Tensor:
        """The class that most people chose, shape (N,)."""
        return self.labels.argmax(1)

    @property
    def entropy(self) -> Tensor:
        """Entropy of the soft labels in nats, shape (N,)."""
        return label_entropy(self.labels.double())

    def cropped(self) -> Tensor:
        """The paper's second test set: the middle of each image, in the paper's sizes; bytes (N, 3, 32, 32)."""
        return to_bytes(centre_crops(to_unit(self.images), self.crop_sizes))

    def randomly_cropped(self, seed: int) -> tuple[Tensor, Tensor]:
        """The same with random sizes and positions: bytes (N, 3, 32, 32), and sizes (N,) as for `crop_sizes`."""
        generator = Generator().manual_seed(seed)
        sizes = 0.25 + 0.75 * torch.rand(len(self.images), generator=generator, dtype=torch.float64)
        return to_bytes(random_crops(to_unit(self.images), sizes, generator)), sizes


def posteriors(encoder: Encoder, images: Tensor, views: int = 1) -> PosteriorBatch:
    """Posteriors (N,) of bytes (N, 3, 32, 32), in evaluation mode; on the CPU, in float64.

    `views`: see `CifarSetting`.
    """
    K, D = encoder.modes, encoder.dim
    numbers = predictions(_Stacked(encoder, views), images).cpu().double()
    log_weights, kappa, mu = numbers.split((K, K, K * D), -1)
    parts = VonMisesFisher(torch.nn.functional.normalize(mu.unflatten(-1, (K, D)), dim=-1), kappa, validate_args=False)
    return parts.reshape(len(parts)) if K == 1 else VMFMixture(log_weights, parts, validate_args=False)


class _Stacked(torch.nn.Module):
    """Images (B, 3, H, W) -> all numbers of the posteriors in one tensor, from mean features over views.

    For K modes these are K log weights, K kappas and K directions, (B, K + K + K D).
    """

    def __init__(self, encoder: Encoder, views: int):
        super().__init__()
        self.network, self.head, self.views = image_network(encoder), output_layers(encoder), views
        self.train(encoder.training)

    def forward(self, images: Tensor) -> Tensor:
        views = make_views(images, self.views)
        features = sum(self.network(view) for view in views) / len(views)
        q = self.head(features)
        return torch.cat([q.log_weights, q.components.kappa, q.components.mu.flatten(1)], 1)


def make_views(images: Tensor, views: int) -> list[Tensor]:
    """Views of images (B, C, H, W).

    1: the images. 2: also their mirror images. 10: also both shifted in four directions.
    """
    require_one_of("views", views, (1, 2, 10))
    shown = [images]
    if views == 10:
        height, width = images.shape[-2:]
        padded = torch.nn.functional.pad(images, (_SHIFT,) * 4, mode="reflect")
        corners = ((_SHIFT, 0), (_SHIFT, 2 * _SHIFT), (0, _SHIFT), (2 * _SHIFT, _SHIFT))
        shown += [padded[..., top : top + height, left : left + width] for top, left in corners]
    return shown if views == 1 else shown + [view.flip(-1) for view in shown]


def image_network(encoder: Encoder) -> torch.nn.Module:
    """The part of the encoder's backbone that takes images. In a chain, layers on its features follow."""
    return encoder.backbone.parts[0] if isinstance(encoder.backbone, Chain) else encoder.backbone


def output_layers(encoder: Encoder) -> Encoder:
    """The rest of the encoder: features -> posteriors. It shares its layers with the encoder."""
    backbone = encoder.backbone
    layers = backbone.parts[1] if isinstance(backbone, Chain) else Features(encoder.mu_head.in_features)
    return encoder.with_backbone(layers)


def certainty_metrics(
    embeddings: Tensor, certainty: Tensor, cropped: Tensor, randomly_cropped: tuple[Tensor, Tensor], fold: HeldOut
) -> dict[str, float]:
    """Metrics that need only embeddings and certainties.

    Args:
        embeddings: Of the fold's images, shape (N, D).
        certainty: Of the fold's images, shape (N,).
        cropped: Certainty of the cropped images, shape (N,).
        randomly_cropped: Certainty of randomly cropped images, and the sizes of their crops; (N,) each.
        fold: The images and labels.

    Returns:
        Metrics by name. r_auroc is missing if all images are hits or all are misses.
    """
    hits = neighbour_hits(embeddings, fold.hard).double()
    return {
        **score_metrics(certainty, cropped, randomly_cropped, hits, fold),
        "recall_at_1": hits.mean().item(),
        "map_at_r": map_at_r(embeddings, fold.hard),
    }


def score_metrics(
    certainty: Tensor, cropped: Tensor, randomly_cropped: tuple[Tensor, Tensor], hits: Tensor, fold: HeldOut
) -> dict[str, float]:
    """Metrics of one score of certainty; the arguments are those of `certainty_metrics`.

    `hits`: whether the nearest neighbour of each image has its class, shape (N,), float64.
    """
    metrics = {
        "entropy_rank": rank_correlation(-certainty, fold.entropy),
        "crop_rank": rank_correlation(cropped, fold.crop_sizes),
        "crop_random_rank": rank_correlation(*randomly_cropped),
        "recall_at_1_surer_half": reject_curve(certainty, hits, (0.5,))[0],
    }
    area = r_auroc(certainty, hits)
    if area is not None:
        metrics["r_auroc"] = area
    return metrics


# Match probabilities


def held_out_pairs(fold: HeldOut, seed: int, count: int | None = None) -> MatchPairs:
    """Pairs of images: every second one is drawn as a positive pair, the others are an anchor and a negative."""
    count = PAIRS if count is None else count
    batches = LabelledBatches(torch.arange(len(fold.labels)), fold.labels, count, 1)
    anchor, positive, negative = batches.draw(Generator().manual_seed(seed))
    assert isinstance(negative, Tensor)
    match = torch.arange(count) % 2 == 0
    return MatchPairs(anchor, torch.where(match, positive, negative[:, 0]), match)


def match_metrics(
    q: PosteriorBatch, fold: HeldOut, q_validation: PosteriorBatch, validation: HeldOut, kernel: ZonalKernel, seed: int
) -> tuple[dict[str, float], ReliabilityDiagram, MatchCalibration]:
    """Are match probabilities right on test pairs, before and after calibration on validation pairs?

    Returns:
        Metrics, the reliability diagram after calibration, and the calibration.
    """
    pairs = held_out_pairs(fold, seed)
    calibration = calibrate_matches(
        q_validation, held_out_pairs(validation, seed), kernel, log_odds_limit=_LOG_ODDS_LIMIT
    )
    raw = MatchCalibration(kernel).probability(q, pairs)
    probability = calibration.probability(q, pairs)
    metrics = {
        "match_ece": expected_calibration_error(probability, pairs.match),
        "match_ece_uncalibrated": expected_calibration_error(raw, pairs.match),
        "kappa_scale": calibration.kappa_scale,
        "match_factor": calibration.factor,
    }
    return metrics, reliability_diagram(probability, pairs.match), calibration


@torch.no_grad()
def match_hits(q: PosteriorBatch, fold: HeldOut, kernel: ZonalKernel) -> Tensor:
    """Whether the likeliest match of each image among the others has its class, shape (N,), float64.

    Neighbours by direction ignore how certain they are. A search by match asks both posteriors.
    """
    log_r = pairwise_log_positivity(q, q, kernel)
    log_r.fill_diagonal_(-math.inf)
    return (fold.hard[log_r.argmax(1)] == fold.hard).double()


@torch.no_grad()
def held_out_cross_entropy(q: PosteriorBatch, fold: HeldOut, kernel: ZonalKernel) -> float:
    """The exact loss with soft targets on test images, in blocks of 500: what training minimises."""
    loss, blocks = ExactInfoNCE(kernel), []
    for part, labels in zip(q.split(_COMPARED), fold.labels.double().split(_COMPARED), strict=True):
        blocks.append(loss.soft(part, match_weights(labels)).item())
    return sum(blocks) / len(blocks)


@torch.no_grad()
def set_curve(q: PosteriorBatch, fold: HeldOut) -> Tensor:
    """Credible sets of several levels: how often they hold another image of the right class, and how many images.

    An image is in the set of a query if its likeliest direction is in the credible region of the query.

    Returns:
        A row (level, share of sets with the right class, mean number of images) for each level, shape (L, 3).
    """
    log_density = torch.cat([q.log_prob(row) for row in q.mode.unsqueeze(1).split(64)])  # (items, queries)
    log_density.fill_diagonal_(-math.inf)
    best = log_density.masked_fill(fold.hard[:, None] != fold.hard[None, :], -math.inf).amax(0)
    rows = []
    for level in _SET_LEVELS:
        edge = q.region(level).log_threshold
        rows.append([level, (best >= edge).double().mean(), (log_density >= edge).sum(0).double().mean()])
    return torch.tensor(rows, dtype=torch.float64)


def set_metrics(curve: Tensor) -> dict[str, float]:
    """Metrics of a `set_curve`: of the sets of 95 %, and the size of sets of which 99 % hold the right class.

    The second has one level for all queries, between those of the curve. It is missing if no level is high enough.
    """
    level, hit, size = curve.T.tolist()
    at = level.index(0.95)
    metrics = {"set_hit": hit[at], "set_size": size[at]}
    above = next((i for i, share in enumerate(hit) if share >= _ENOUGH_HITS), None)
    if above == 0:
        metrics["set_size_of_99"] = size[0]
    elif above is not None:
        part = (_ENOUGH_HITS - hit[above - 1]) / (hit[above] - hit[above - 1])
        metrics["set_size_of_99"] = size[above - 1] + part * (size[above] - size[above - 1])
    return metrics
