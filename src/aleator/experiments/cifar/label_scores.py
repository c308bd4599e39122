"""Certainty from label probabilities, which see where mu lies and not kappa alone.

kappa says how much an image shows. An image can show much and still lie between two classes. P(label | x) sees both, so
the entropy of P(label | x) is measured beside kappa, with the same metrics. Its probabilities come from the posteriors
and soft labels of the images that were trained on, or from learned class posteriors. What is fitted, is fitted on the
validation fold.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from aleator.data import CLASSES
from aleator.evaluation import LabelModel, fit_label_model, label_entropy, label_log_likelihood
from aleator.experiments.cifar.evaluation import HeldOut, score_metrics
from aleator.losses import PrototypeLoss
from aleator.matching import ZonalKernel
from aleator.posteriors import PosteriorBatch

_LOG_BETA = (-4.0, 4.0)  # range of the log of an inverse temperature


@dataclass(frozen=True)
class LabelProbabilities:
    """Label probabilities of a fold's images, each of shape (N, 10).

    Args:
        whole: Of the images.
        cropped: Of `HeldOut.cropped`.
        randomly_cropped: Of `HeldOut.randomly_cropped`.
    """

    whole: Tensor
    cropped: Tensor
    randomly_cropped: Tensor


def label_metrics(p: LabelProbabilities, random_sizes: Tensor, hits: Tensor, fold: HeldOut) -> dict[str, float]:
    """Metrics of label probabilities and of their entropy as a score.

    Args:
        p: Label probabilities.
        random_sizes: Sizes of the random crops, shape (N,).
        hits: Whether the nearest neighbour of each image has its class, shape (N,).
        fold: The images and labels.

    Returns:
        label_entropy_rank, label_crop_rank, label_crop_random_rank, label_recall_at_1_surer_half and label_r_auroc, as
        `score_metrics` names them for kappa; label_log_likelihood of the soft labels; label_accuracy.
    """
    whole, cropped, randomly = (-label_entropy(each) for each in (p.whole, p.cropped, p.randomly_cropped))
    scores = score_metrics(whole, cropped, (randomly, random_sizes), hits, fold)
    return {
        **{f"label_{name}": value for name, value in scores.items()},
        "label_log_likelihood": label_log_likelihood(p.whole, fold.labels),
        "label_accuracy": (p.whole.argmax(1) == fold.hard).double().mean().item(),
    }


def fit_labels(
    gallery: PosteriorBatch,
    labels: Tensor,
    q_validation: PosteriorBatch,
    validation: HeldOut,
    kernel: ZonalKernel,
    learned: LabelModel | None = None,
) -> LabelModel:
    """Label probabilities from the images that were trained on, with classes (N,) or soft labels (N, 10).

    If class posteriors were `learned`, they are tried too, and the likeliest model on validation is taken.
    """
    return fit_label_model(gallery, labels, q_validation, validation.labels, kernel, CLASSES, learned=learned)


@torch.no_grad()
def learned_labels(loss: torch.nn.Module) -> LabelModel | None:
    """Label probabilities as the class posteriors of a `PrototypeLoss` give them; None for another loss."""
    if not isinstance(loss, PrototypeLoss):
        return None
    shares = loss.log_shares_of_classes.exp().double().cpu()
    kernel = copy.deepcopy(loss.kernel).cpu()
    return LabelModel(loss.prototypes.to("cpu", torch.float64), shares.diag(), CLASSES, kernel)


def fit_temperature(logits: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
    """Temperature scaling of a classifier (Guo et al. 2017): the likeliest temperature on validation images.

    Args:
        logits: Of validation images, shape (N, 10).
        labels: Their soft labels, shape (N, 10).

    Returns:
        Function from logits (M, 10) to probabilities (M, 10).
    """
    from scipy.optimize import minimize_scalar

    def cost(log_beta: float) -> float:
        return -label_log_likelihood((math.exp(log_beta) * logits).softmax(1), labels)

    beta = math.exp(minimize_scalar(cost, bounds=_LOG_BETA, method="bounded").x)
    return lambda new: torch.softmax(beta * new, 1)
