"""Baselines: what the features of a run can do without it. Neighbours, and a linear head.

They get the features that the run has: those of its frozen network, rows of numbers, or pixels where it learned from
pixels. They learn from the items that the run learned from. RUN/baselines/ keeps what they learned, so that `evaluate`
asks the same baselines about new items: the linear head, and a sample of the training items, the gallery, with their
features, labels and our posteriors. That is at most 20,000 items and 64 MiB of features.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from aleator.evaluation import LinearHead, label_certainty, linear_head, nearest_neighbours
from aleator.foundation import even_sample, read_bundle, sample_numbers, write_bundle
from aleator.own_data.collection.labels import Labels
from aleator.own_data.collection.parts import labels_at
from aleator.own_data.measuring.answers import label_rows
from aleator.own_data.measuring.questions import Questions
from aleator.posteriors import PosteriorBatch, VMFMixture, VonMisesFisher

_VERSION = 1
_NEIGHBOURS = 10
_COMPONENTS = 256  # principal components that stand for the pixels of an image
_SAMPLE = 4000  # images from which they are estimated
_TRIED = 1000  # items of the gallery that choose how neighbours are found
_STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)  # inverse penalties of the linear head; one is chosen on held-out rows
_CHOICE_ROWS = 3000
_ITERATIONS = 60  # of the linear head, however much work they are: one that stops early would be no fair baseline
_MOST_WORK = 4e9  # items x features x classes; more would take longer than a minute, and there is no linear head
_LEAST_PROBABILITY = 1e-9  # of a class, in likelihoods
_MOST_KEPT, _MOST_BYTES = 20_000, 2**26  # items in RUN/baselines, and bytes of their features


@dataclass(frozen=True)
class ScoredAnswers:
    """Answers to Q queries.

    Args:
        right: 1 for a right answer, 0 for a wrong one, shape (Q,), float64.
        certainty: How certain each answer is, shape (Q,), float64.
        log_likelihood: Of the label of each query, shape (Q,), float64. None if the method gives no probabilities.
    """

    right: Tensor
    certainty: Tensor
    log_likelihood: Tensor | None = None


@dataclass(frozen=True)
class Projection:
    """Pixels as rows that can be compared: their principal components.

    Args:
        centre: Mean pixels, shape (P,).
        basis: Components, shape (P, K).
    """

    centre: Tensor
    basis: Tensor

    @classmethod
    def fit(cls, images: Tensor) -> "Projection":
        """The first components of images (N, C, H, W) of uint8; images of few pixels keep them all."""
        sample = images[even_sample(len(images), _SAMPLE)].flatten(1).float()
        centre = sample.mean(0)
        if len(centre) <= 2 * _COMPONENTS:
            return cls(centre, torch.eye(len(centre)))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            _, _, basis = torch.pca_lowrank(sample - centre, min(_COMPONENTS, *sample.shape), center=False)
        return cls(centre, basis)

    def __call__(self, images: Tensor) -> Tensor:
        """Rows (n, K) of images (n, C, H, W)."""
        return torch.cat([(part.flatten(1).float() - self.centre) @ self.basis for part in images.split(2048)])


@dataclass(frozen=True)
class Baselines:
    """What the baselines of a run learned, and the training items with which new queries are compared.

    Args:
        inputs: What is compared, in words: "features", "frozen features" or "pixels".
        learned_from: Number of items that the run and the linear head learned from.
        network: Name of the pretrained network that gave the features, if the run has changed its own; "" if that was
            the network of another run. None: the run has it.
        projection: How pixels become rows; None for features.
        head: The linear head on rows; None if there are no classes, or too many to learn in minutes.
        gallery: Our posteriors of n training items, batch shape (n,); None for groups and pairs: whole groups are new.
        labels: Their labels, with all the classes that the run knows.
        features: Their rows, shape (n, K).
    """

    inputs: str
    learned_from: int
    network: str | None = None
    projection: Projection | None = None
    head: LinearHead | None = None
    gallery: PosteriorBatch | None = None
    labels: Labels | None = None
    features: Tensor | None = None

    def rows(self, items: Tensor) -> Tensor:
        """Features (n, F) or images (n, C, H, W) as rows (n, K) that can be compared."""
        return items.float() if self.projection is None else self.projection(items)

    def with_gallery(self, items: Tensor, gallery: PosteriorBatch, numbers: np.ndarray, labels: Labels) -> "Baselines":
        """The same with training items to compare with: a sample, if they are many.

        Args:
            items: All items as they came.
            gallery: Our posteriors of n training items, batch shape (n,).
            numbers: Their numbers, shape (n,).
            labels: Labels of all items.
        """
        if labels.kind not in ("classes", "soft"):
            return self
        width = len(self.rows(items[:1])[0]) * (4 if self.inputs == "features" else 2)
        most = min(_MOST_KEPT, max(1, _MOST_BYTES // width))
        kept = sample_numbers(np.arange(len(numbers)), most, 0)
        rows = self.rows(items[torch.as_tensor(numbers[kept])])
        return replace(
            self,
            gallery=gallery[torch.as_tensor(kept)],
            labels=labels_at(labels, numbers[kept]),
            features=rows if self.inputs == "features" else rows.half(),  # columns of a table may be large, or fine
        )


def fit_baselines(
    items: Tensor, train: np.ndarray, labels: Labels, *, inputs: str, network: str | None = None
) -> Baselines:
    """Learn what baselines can learn, from all that the run learned from.

    Args:
        items: All items as they came: features (N, F), or images (N, C, H, W) of uint8.
        train: Numbers of the items that the run learned from.
        labels: Labels of all items.
        inputs: See `Baselines`.
        network: See `Baselines`.

    Returns:
        The baselines, without a gallery.
    """
    learned = torch.as_tensor(train)
    projection = Projection.fit(items[learned[even_sample(len(train), _SAMPLE)]]) if items.dim() == 4 else None
    known = Baselines(inputs, len(train), network, projection)
    if labels.kind not in ("classes", "soft"):
        return known
    rows = known.rows(items[learned])
    if rows.numel() * len(labels.names) > _MOST_WORK:
        return known
    return replace(known, head=fit_head(rows, label_rows(labels_at(labels, train)).float(), each=projection is None))


def raw_cosine(queries: Questions, rows: Tensor, gallery: Tensor) -> ScoredAnswers:
    """The item whose features have the largest cosine with those of the query; its certainty is the cosine.

    Args:
        queries: Queries and gallery.
        rows: Rows of the queries (Q, K).
        gallery: Rows of the gallery (N, K).

    Returns:
        The answers.
    """
    nearest = nearest_neighbours(rows, gallery, own=queries.own)[:, 0]
    asked, items = queries.hard
    cosine = torch.nn.functional.cosine_similarity(rows.double(), gallery[nearest].double())
    return ScoredAnswers(torch.as_tensor(items[nearest.numpy()] == asked).double(), cosine)


def ten_neighbours(queries: Questions, rows: Tensor, gallery: Tensor) -> ScoredAnswers:
    """The nearest item; its certainty is the share of the ten nearest items that have the same label.

    They are nearest by cosine, by distance, or by distance of standardised features: by what finds most in the gallery.

    Args:
        queries: Queries and gallery.
        rows: Rows of the queries (Q, K).
        gallery: Rows of the gallery (N, K).

    Returns:
        The answers.
    """
    asked, items = queries.hard
    count = min(_NEIGHBOURS, len(gallery) - int((queries.own >= 0).any()))
    tried = np.setdiff1d(np.arange(len(gallery)), queries.own)
    tried = sample_numbers(tried if len(tried) else np.arange(len(gallery)), _TRIED, 0)
    best, most = torch.empty(0), -1.0
    for by, a, b in _spaces(rows, gallery):
        found = nearest_neighbours(b[torch.as_tensor(tried)], b, 1, by, own=tried)[:, 0].numpy()
        share = float((items[found] == items[tried]).mean())
        if share > most:
            best, most = nearest_neighbours(a, b, count, by, own=queries.own), share
    labels = items[best.numpy()]
    agreement = (labels == labels[:, :1]).mean(1)
    return ScoredAnswers(torch.as_tensor(labels[:, 0] == asked).double(), torch.as_tensor(agreement))


def _spaces(rows: Tensor, gallery: Tensor) -> Iterator[tuple[Literal["cosine", "euclidean"], Tensor, Tensor]]:
    """Ways to find neighbours: by what, and the rows of queries and gallery."""
    yield "cosine", rows, gallery
    yield "euclidean", rows, gallery
    centre, scale = _centre_and_scale(gallery, each=True)
    yield "euclidean", (rows - centre) / scale, (gallery - centre) / scale


def _centre_and_scale(rows: Tensor, each: bool) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the columns of rows (n, K); one deviation for all, unless `each`."""
    centre = rows.mean(0)
    variance = (rows - centre).square().mean(0)
    scale = (variance if each else variance.mean().expand_as(variance)).sqrt()
    return centre, torch.where(scale > 1e-6 * (1 + centre.abs()), scale, 1.0)


def fit_head(rows: Tensor, labels: Tensor, each: bool = True) -> LinearHead:
    """A linear head whose penalty is chosen on held-out rows. A class that no row has gets no probability.

    Args:
        rows: Rows to learn from, shape (N, K).
        labels: Their label probabilities, shape (N, C).
        each: Whether each column has a scale of its own; principal components of pixels share one.

    Returns:
        The head: from rows (Q, K) to P(class | row), shape (Q, C).
    """
    centre, scale = _centre_and_scale(rows, each)
    rows = (rows - centre) / scale
    part = torch.as_tensor(np.random.default_rng(0).permutation(len(rows))[:_CHOICE_ROWS])
    learned, held_out = part[len(part) // 5 :], part[: len(part) // 5]
    likelihood = {}
    for strength in _STRENGTHS:
        p = _head(rows[learned], labels[learned], strength)(rows[held_out])
        likelihood[strength] = float(_log_likelihoods(p, labels[held_out]).sum())
    best = _head(rows, labels, max(likelihood, key=likelihood.__getitem__))
    weights = best.weights.double() / scale.double()[:, None]
    return LinearHead(weights, best.bias.double() - centre.double() @ weights)


def _head(rows: Tensor, labels: Tensor, strength: float) -> LinearHead:
    """A linear head on the classes that the rows have. The penalty on the sum over rows is 1 / `strength`."""
    known = torch.nonzero(labels.sum(0) > 0)[:, 0]
    head = linear_head(rows, labels[:, known], penalty=1 / (strength * len(rows)), iterations=_ITERATIONS)
    weights = torch.zeros(rows.shape[1], labels.shape[1]).index_copy(1, known, head.weights)
    return LinearHead(weights, torch.full((labels.shape[1],), -torch.inf).index_copy(0, known, head.bias))


def label_answers(probability: Tensor, labels: Tensor) -> ScoredAnswers:
    """The likeliest class of each query as its answer.

    Args:
        probability: P(class | query), shape (Q, C).
        labels: Label probabilities of the queries, shape (Q, C).

    Returns:
        The answers, with the likelihood of the labels.
    """
    probability, labels = probability.double(), labels.double()
    right = probability.argmax(1) == labels.argmax(1)
    return ScoredAnswers(right.double(), label_certainty(probability), _log_likelihoods(probability, labels))


def _log_likelihoods(probability: Tensor, labels: Tensor) -> Tensor:
    """Of the label of each row, (Q,); both have shape (Q, C)."""
    return (labels * probability.clamp_min(_LEAST_PROBABILITY).log()).sum(1)


def save_baselines(folder: Path, baselines: Baselines) -> None:
    """Write the baselines of a run into its folder."""
    projection, head, gallery = baselines.projection, baselines.head, baselines.gallery
    tensors: dict[str, Tensor] = {}
    if projection is not None:
        tensors |= {"centre": projection.centre, "basis": projection.basis}
    if head is not None:
        tensors |= {"weights": head.weights, "bias": head.bias}
    facts = {name: getattr(baselines, name) for name in ("inputs", "learned_from", "network")}
    if gallery is not None:
        assert baselines.labels is not None
        assert baselines.features is not None
        tensors |= {"mu": gallery.components.mu, "kappa": gallery.components.kappa, "features": baselines.features}
        tensors["log_weights"] = gallery.log_weights
        tensors["labels"] = torch.as_tensor(baselines.labels.values)
        facts |= {"kind": baselines.labels.kind, "names": list(baselines.labels.names)}
    write_bundle(folder / "baselines", "baselines", _VERSION, facts, tensors, overwrite=True)


def load_baselines(folder: Path) -> Baselines | None:
    """Read the baselines of a run folder; None if it has none: it was trained without a comparison, or moved."""
    if not (folder / "baselines").is_dir():
        return None
    stored = read_bundle(folder / "baselines", "baselines", _VERSION)
    facts, tensors = dict(stored.metadata), stored.tensors
    kind, names = facts.pop("kind", None), facts.pop("names", None)
    read = Baselines(
        **facts,
        projection=Projection(tensors["centre"], tensors["basis"]) if "basis" in tensors else None,
        head=LinearHead(tensors["weights"], tensors["bias"]) if "weights" in tensors else None,
    )
    if kind is None:
        return read
    modes = VonMisesFisher(tensors["mu"].squeeze(1), tensors["kappa"].squeeze(1), validate_args=False)
    gallery: PosteriorBatch = modes
    if tensors["mu"].shape[1] > 1:
        gallery = VMFMixture(tensors["log_weights"], modes, validate_args=False)
    labels = Labels(kind, tensors["labels"].numpy(), tuple(names))
    return replace(read, gallery=gallery, labels=labels, features=tensors["features"])
