"""Label probabilities: which label could an input have, given a gallery of labelled posteriors?

A gallery entry i has a posterior and the mass w_ic that it gives to each label c. With all items of a collection, w_i
is the (soft) label of item i. With one posterior for each class, w is a diagonal matrix of the shares of the classes.

    P(c | x) = (1 - floor) * sum_i w_ic r(x, i)^beta / sum_ic' w_ic' r(x, i)^beta + floor * P(c),

where P(c) is the share of label c in the gallery. For beta = 1 and no floor this is Bayes' rule: r is bilinear, so the
positivity of x with a class is the mean over its entries. beta and the floor make the probabilities right on held-out
items (label_calibration.py). beta is a temperature; the floor bounds the cost of a confident mistake.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from aleator.foundation import require
from aleator.matching import VMFKernel, ZonalKernel, pairwise_log_positivity
from aleator.posteriors import PosteriorBatch, VonMisesFisher
from aleator.stored import name_labels

LIKELY = 3  # labels of an item that are shown, at most
_PAIRS = 2**21  # pairs of a query and a gallery entry that are compared at a time
Numbers = TypeVar("Numbers", Tensor, np.ndarray)


@dataclass(frozen=True)
class LabelModel:
    """Probabilities of labels from a gallery of labelled posteriors.

    Args:
        gallery: Posteriors of M entries, of one mode: items of a collection, or a few for each class. An item of
            several modes is several entries; see `gallery_of_one_mode`.
        weights: Mass that each entry gives to each label, shape (M, C), not negative. For items: their labels as rows
            of 0 and 1, or soft labels.
        names: Names of the C labels.
        kernel: Kernel of the positivity r.
        beta: Exponent of r.
        floor: Share of the probability that is given to the labels in proportion to their frequency, in [0, 1).

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.evaluation import LabelModel
        >>> gallery = al.VonMisesFisher(torch.eye(3), 50.0)
        >>> model = LabelModel(gallery, torch.eye(3), ("coat", "shirt", "shoe"), al.VMFKernel(20.0))
        >>> between = al.VonMisesFisher(torch.tensor([[0.8, 0.6, 0.0]]), 10.0)
        >>> model.probabilities(between).round(decimals=2)
        tensor([[0.7700, 0.2300, 0.0000]])
    """

    gallery: VonMisesFisher
    weights: Tensor = field(repr=False)
    names: tuple[str, ...]
    kernel: ZonalKernel
    beta: float = 1.0
    floor: float = 0.0
    _prior: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        entries, names = len(self.gallery), len(self.names)
        shape = tuple(self.weights.shape)
        way_out = "pass one row for each gallery entry and one column for each name"
        require(shape == (entries, names), "weights", shape, f"expected shape {(entries, names)}", way_out)
        valid = (self.weights >= 0) & self.weights.isfinite()
        require(valid, "weights", self.weights, "negative or not finite", "pass labels or their probabilities")
        require(self.weights.sum() > 0, "weights", shape, "all are zero", "pass labelled entries")
        require(0 < self.beta < math.inf, "beta", self.beta, "not a positive number", "pass for example 1")
        require(0 <= self.floor < 1, "floor", self.floor, "is not a share in [0, 1)", "pass for example 0.01")
        mass = self.weights.double().sum(0)
        object.__setattr__(self, "_prior", mass / mass.sum())

    @property
    def prior(self) -> Tensor:
        """Share of each label in the gallery, shape (C,), float64."""
        return self._prior

    def with_prior(self, prior: Tensor) -> "LabelModel":
        """The same model where the labels have other frequencies.

        Args:
            prior: Frequency of each label in the new place, shape (C,). It is scaled to sum to 1. Equal numbers give a
                class-balanced model.

        Returns:
            The model, with the mass of each label in proportion to `prior`.

        Raises:
            ValueError: If a frequency is negative, or positive for a label that the gallery does not have.
        """
        problem, way_out = f"expected {len(self.names)} numbers, some positive", "pass a frequency for each name"
        valid = prior.shape == self._prior.shape and bool((prior >= 0).all()) and bool(prior.sum() > 0)
        require(valid, "prior", tuple(prior.shape), problem, way_out)
        unknown = (prior > 0) & (self._prior == 0)
        require(~unknown, "prior", prior, "is positive for a label that the gallery does not have", "set it to 0")
        factor = prior.double() / prior.double().sum() / self._prior.clamp_min(1e-300)
        return replace(self, weights=(self.weights.double() * factor).to(self.weights.dtype))

    @torch.no_grad()
    def probabilities(self, q: PosteriorBatch) -> Tensor:
        """Probability of each label.

        Args:
            q: Posteriors of inputs, batch shape (Q,).

        Returns:
            Probabilities, shape (Q, C), in the dtype of the posteriors. Rows sum to 1.
        """
        gallery = self.gallery.to(q.device, q.dtype)
        blocks = [
            tempered_labels(pairwise_log_positivity(part, gallery, self.kernel), self.weights, self.beta)
            for part in _blocks(q, q.modes * len(gallery))
        ]
        p = torch.cat(blocks) if blocks else torch.zeros(0, len(self.names), dtype=torch.float64)
        return with_floor(p, self._prior.to(p.device), self.floor).to(q.dtype)

    def entropy(self, q: PosteriorBatch) -> Tensor:
        """Entropy of the label probabilities.

        Args:
            q: Posteriors of inputs, batch shape (Q,).

        Returns:
            Entropies in nats, shape (Q,).
        """
        return self._of_blocks(label_entropy, q)

    def certainty(self, q: PosteriorBatch) -> Tensor:
        """How sure the label is; see `label_certainty`.

        Args:
            q: Posteriors of inputs, batch shape (Q,).

        Returns:
            Certainties in [0, 1], shape (Q,).
        """
        return self._of_blocks(label_certainty, q)

    def certainty_and_label(self, q: PosteriorBatch) -> tuple[Tensor, Tensor, Tensor]:
        """How sure the label is, which one is the likeliest, and how probable that is.

        Args:
            q: Posteriors of inputs, batch shape (Q,).

        Returns:
            Certainties as `certainty` gives them, numbers of labels, int64, and their probabilities; shape (Q,) each.
        """
        found = self._of_blocks(lambda p: torch.stack([label_certainty(p), p.argmax(1).to(p), p.amax(1)], 1), q)
        certainty, label, probability = found.view(-1, 3).unbind(1)
        return certainty, label.long(), probability

    def _of_blocks(self, score: Callable[[Tensor], Tensor], q: PosteriorBatch) -> Tensor:
        """A score of the label probabilities, shape (Q, ...), without keeping all of them."""
        size = max(len(self.gallery), len(self.names))
        return torch.cat(
            [score(self.probabilities(part)) for part in _blocks(q, size)] or [torch.zeros(0, dtype=q.dtype)]
        )


def pack_label_model(model: LabelModel) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A model with a `VMFKernel` as JSON and tensors, for a file.

    Args:
        model: The model.

    Returns:
        Names and numbers, which JSON can store, and the tensors by name.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.evaluation import LabelModel, pack_label_model, unpack_label_model
        >>> model = LabelModel(al.VonMisesFisher(torch.eye(2), 5.0), torch.eye(2), ("a", "b"), al.VMFKernel(20.0))
        >>> facts, tensors = pack_label_model(model)
        >>> facts
        {'names': ['a', 'b'], 'kappa_pos': '20.0', 'beta': 1.0, 'floor': 0.0}
        >>> unpack_label_model(facts, tensors).names
        ('a', 'b')
    """
    require(isinstance(model.kernel, VMFKernel), "kernel", model.kernel, "cannot be stored", "use a VMFKernel")
    kappa_pos = repr(float(model.kernel.kappa_pos))  # type: ignore[arg-type]  # as text: JSON has no infinity
    facts = {"names": list(model.names), "kappa_pos": kappa_pos, "beta": model.beta, "floor": model.floor}
    return facts, {"mu": model.gallery.mu, "kappa": model.gallery.kappa, "weights": model.weights.float()}


def unpack_label_model(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> LabelModel:
    """The inverse of `pack_label_model`.

    Args:
        facts: Names and numbers.
        tensors: The tensors.

    Returns:
        The model.

    Examples:
        >>> import torch
        >>> from aleator.evaluation import unpack_label_model
        >>> facts = {"names": ["a", "b"], "kappa_pos": "inf", "beta": 0.5, "floor": 0.01}
        >>> tensors = {"mu": torch.eye(2), "kappa": torch.tensor([5.0, 9.0]), "weights": torch.eye(2)}
        >>> unpack_label_model(facts, tensors).beta
        0.5
    """
    gallery = VonMisesFisher(tensors["mu"], tensors["kappa"])
    kernel = VMFKernel(float(facts["kappa_pos"]))
    return LabelModel(gallery, tensors["weights"], tuple(facts["names"]), kernel, facts["beta"], facts["floor"])


def label_entropy(probabilities: Tensor) -> Tensor:
    """Entropy of label probabilities.

    Args:
        probabilities: Probabilities, shape (..., C).

    Returns:
        Entropies in nats, shape (...).

    Examples:
        >>> import torch
        >>> from aleator.evaluation import label_entropy
        >>> label_entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
        tensor([0.6931, 0.0000])
    """
    return torch.special.entr(probabilities).sum(-1)


def label_certainty(probabilities: Tensor) -> Tensor:
    """How sure a label is: 1 - entropy / log C.

    It is 1 if one label is certain, and 0 if all C labels are equally probable. It tells right from wrong better than
    kappa does, because it also sees where mu lies: between two classes, or in the middle of one.

    Args:
        probabilities: Probabilities, shape (..., C), with C >= 2.

    Returns:
        Certainties in [0, 1], shape (...).

    Examples:
        >>> import torch
        >>> from aleator.evaluation import label_certainty
        >>> label_certainty(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
        tensor([0., 1.])
    """
    count = probabilities.shape[-1]
    require(count >= 2, "probabilities", tuple(probabilities.shape), "has fewer than two labels", "pass two or more")
    return (1 - label_entropy(probabilities) / math.log(count)).clamp(0, 1)


def label_log_likelihood(probabilities: Tensor, labels: Tensor) -> float:
    """Mean log-likelihood of labels; for soft labels minus their cross-entropy.

    Args:
        probabilities: Predicted probabilities, shape (N, C).
        labels: Label numbers, shape (N,), or soft labels, shape (N, C).

    Returns:
        The mean over items of log P(label), at most 0.

    Examples:
        >>> import torch
        >>> from aleator.evaluation import label_log_likelihood
        >>> p = torch.tensor([[0.5, 0.5], [0.75, 0.25]])
        >>> round(label_log_likelihood(p, torch.tensor([1, 0])), 4)
        -0.4904
    """
    logs = probabilities.double().clamp_min(torch.finfo(torch.float64).tiny).log()
    if labels.dim() == 1:
        return logs.gather(1, labels.long()[:, None]).mean().item()
    return (labels.double() * logs).sum(1).mean().item()


def likely_labels(
    probabilities: Tensor, names: Sequence[str], most: int = LIKELY, least: float = 0.01
) -> list[list[tuple[str, float]]]:
    """The most probable labels of each item, for showing them.

    Args:
        probabilities: Probabilities, shape (N, C).
        names: Names of the C labels.
        most: Largest number of labels for an item.
        least: Labels that are less probable are left out, except for the first one.

    Returns:
        For each item its labels with their probabilities, the most probable first.

    Examples:
        >>> import torch
        >>> from aleator.evaluation import likely_labels
        >>> likely_labels(torch.tensor([[0.75, 0.0, 0.25]]), ["coat", "shoe", "shirt"])
        [[('coat', 0.75), ('shirt', 0.25)]]
    """
    places, values = top_labels(probabilities, most)
    return name_labels(places.tolist(), values.tolist(), names, least)


def top_labels(probabilities: Tensor, most: int = LIKELY) -> tuple[Tensor, Tensor]:
    """The most probable labels of each item, by number.

    Args:
        probabilities: Probabilities, shape (N, C).
        most: Largest number T of labels for an item; it is C if C is smaller.

    Returns:
        Numbers of the labels, the most probable first, shape (N, T), and their probabilities, shape (N, T).

    Examples:
        >>> import torch
        >>> from aleator.evaluation import top_labels
        >>> top_labels(torch.tensor([[0.25, 0.0, 0.75]]), most=2)
        (tensor([[2, 0]]), tensor([[0.7500, 0.2500]]))
    """
    values, places = probabilities.topk(min(most, probabilities.shape[1]), dim=1)
    return places, values


def tempered_labels(log_r: Tensor, weights: Tensor, beta: float) -> Tensor:
    """sum_i w_ic r_i^beta, divided by its sum over c; log r (Q, M) and w (M, C) -> (Q, C) in float64."""
    weights = weights.to(log_r.device, torch.float64)
    scaled = torch.where(weights.sum(1) > 0, beta * log_r.double(), -math.inf)
    top = scaled.amax(1, keepdim=True)
    # Two equal points have r = inf for kappa_pos = inf. Such entries take all of the mass.
    share = torch.where(top.isinf(), (scaled == top).double(), (scaled - top).exp())
    mass = share @ weights
    return mass / mass.sum(1, keepdim=True)


def with_floor(p: Numbers, prior: Numbers, floor: float) -> Numbers:
    """(1 - floor) p + floor prior."""
    return (1 - floor) * p + floor * prior


def _blocks(q: PosteriorBatch, entries: int) -> Iterator[PosteriorBatch]:
    """Posteriors in blocks, so that memory does not grow with their number."""
    step = max(1, _PAIRS // max(1, entries))
    for start in range(0, len(q), step):
        yield q[start : start + step]
