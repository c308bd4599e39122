"""What a user would use instead of us, done well: plain scikit-learn and torch.

Each rival gets the training items with their labels and answers the questions: a class, how certain it is, and
probabilities of the classes if it has any. Networks have a budget of CPU seconds. Their learning rate follows the share
of the budget that is used, so that any budget ends with a small rate.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aleator.data import ImageAugmentation
from aleator.encoders import ResNet18
from aleator.evaluation import nearest_neighbours
from benchmarks.own_data.data_sets import DataSet

_NEIGHBOURS = 10
_LEAST_SIDE, _OUR_SIDE = 24, 32  # smaller images are enlarged; our encoder sees 32 x 32
_MOST_PASSES = 200  # over the training images: a small collection needs no more
_SELECTION = 12_000  # items on which settings are chosen


@dataclass(frozen=True)
class Answers:
    """Answers to Q questions.

    Args:
        answer: The class of each answer, (Q,).
        certainty: How certain it is, (Q,).
        probability: P(class | question), (Q, C), if the method has it.
    """

    answer: np.ndarray
    certainty: np.ndarray
    probability: np.ndarray | None = None

    @classmethod
    def of_probabilities(cls, probability: np.ndarray) -> "Answers":
        """The most probable class of each question; its certainty is the negative entropy."""
        logs = np.log(np.maximum(probability, 1e-30))
        return cls(probability.argmax(1), (probability * logs).sum(1), probability)


def raw_neighbours(data: DataSet, budget: float, seed: int) -> Answers:
    """The class of the nearest item by raw pixels or standardised features, and how many of ten agree with it."""
    train, questions = _vectors(data)
    near = nearest_neighbours(questions, train, _NEIGHBOURS, "euclidean").numpy()
    votes = data.train.labels[near].mean(1)  # (Q, C)
    answer = data.train.hard[near[:, 0]]
    smoothed = (_NEIGHBOURS * votes + data.train.labels.mean(0)) / (_NEIGHBOURS + 1)
    return Answers(answer, votes[np.arange(len(answer)), answer], smoothed)


def logistic_regression(data: DataSet, budget: float, seed: int) -> Answers:
    """scikit-learn's, on standardised inputs; its regularisation is chosen on a tenth of the training items."""
    train, questions = (vectors.numpy() for vectors in _vectors(data, standardised=True))
    labels = data.train.labels
    chosen, check = _parts(len(train), seed)
    chosen = chosen[: _SELECTION // 2]
    scores = {c: _fit_logistic(train[chosen], labels[chosen], c) for c in (1e-4, 1e-3, 1e-2, 1e-1, 1.0)}
    losses = {c: -(labels[check] * np.log(np.maximum(p(train[check]), 1e-12))).sum() for c, p in scores.items()}
    best = min(losses, key=losses.__getitem__)
    return Answers.of_probabilities(_fit_logistic(train, labels, best)(questions))


def _fit_logistic(rows: np.ndarray, labels: np.ndarray, strength: float) -> Callable[[np.ndarray], np.ndarray]:
    """A function from rows to probabilities (n, C). An item with several classes counts once for each, by its share."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    item, label = np.nonzero(labels)
    model = LogisticRegression(C=strength, max_iter=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(rows[item], label, labels[item, label])

    def probabilities(questions: np.ndarray) -> np.ndarray:
        full = np.zeros((len(questions), labels.shape[1]), np.float32)
        full[:, model.classes_] = model.predict_proba(questions)
        return full

    return probabilities


def small_cnn(data: DataSet, budget: float, seed: int) -> Answers:
    """Six 3 x 3 convolutions with batch normalisation, soft cross-entropy, shifted and mirrored images."""
    torch.manual_seed(seed)
    side = max(_LEAST_SIDE, data.train.items.shape[1])
    layers: list[nn.Module] = []
    channels = 3
    for width, pool in ((32, False), (32, True), (64, False), (64, True), (128, False), (128, False)):
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if pool else []
        channels = width
    classes = data.train.labels.shape[1]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, classes))
    return _image_classifier(network, data, side, budget, seed)


def resnet_cross_entropy(data: DataSet, budget: float, seed: int) -> Answers:
    """Our thin ResNet-18 as a classifier: soft cross-entropy, one cycle with a highest rate of 3e-3."""
    torch.manual_seed(seed)
    backbone = ResNet18(width=8)
    network = nn.Sequential(backbone, nn.Linear(backbone.out_features, data.train.labels.shape[1]))
    return _image_classifier(network, data, _OUR_SIDE, budget, seed)


def mlp(data: DataSet, budget: float, seed: int) -> Answers:
    """Two hidden layers of 256, soft cross-entropy. Dropout and passes are chosen on a tenth of the items."""
    train, questions = _vectors(data, standardised=data.kind == "features")
    if data.kind == "images":
        train, questions = _principal_components(train, questions, 100)
    labels = torch.as_tensor(data.train.labels)
    chosen, check = (torch.as_tensor(part) for part in _parts(len(train), seed))
    chosen = chosen[:_SELECTION]
    losses = {}
    for passes in (10, 40):
        for dropout in (0.1, 0.5):
            logits = _fit_mlp(train[chosen], labels[chosen], passes, dropout, budget / 8, seed)(train[check])
            losses[passes, dropout] = F.cross_entropy(logits, labels[check]).item()
    passes, dropout = min(losses, key=losses.__getitem__)
    logits = _fit_mlp(train, labels, passes, dropout, budget / 2, seed)(questions)
    return Answers.of_probabilities(logits.softmax(1).numpy())


def _fit_mlp(
    rows: Tensor, labels: Tensor, passes: int, dropout: float, budget: float, seed: int
) -> Callable[[Tensor], Tensor]:
    """A function from rows to logits."""
    torch.manual_seed(seed)
    width, classes = rows.shape[1], labels.shape[1]
    network = nn.Sequential(
        *(nn.Linear(width, 256), nn.ReLU(), nn.Dropout(dropout)),
        *(nn.Linear(256, 256), nn.ReLU(), nn.Dropout(dropout), nn.Linear(256, classes)),
    )
    _train(network, rows, labels, lambda x, generator: x, budget, passes, 1e-3, 128, seed)
    return torch.inference_mode()(lambda x: network(x))


def _image_classifier(network: nn.Module, data: DataSet, side: int, budget: float, seed: int) -> Answers:
    train, questions = (_images(part.items, side) for part in (data.train, data.questions))
    std, mean = torch.std_mean(train, (0, 2, 3))
    augment = ImageAugmentation(
        data.mirror, side // 8, mean=tuple(mean.tolist()), std=tuple(std.clamp_min(1e-3).tolist())
    )
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    _train(network, train, torch.as_tensor(data.train.labels), augment, budget, _MOST_PASSES, 3e-3, 64, seed)
    with torch.inference_mode():
        logits = torch.cat([network(augment.normalise(block)) for block in questions.split(256)])
    return Answers.of_probabilities(logits.softmax(1).numpy())


def _train(
    network: nn.Module,
    items: Tensor,
    labels: Tensor,
    augment: Callable[[Tensor, torch.Generator], Tensor],
    budget: float,
    passes: int,
    rate: float,
    batch: int,
    seed: int,
) -> None:
    """One cycle of AdamW on soft cross-entropy, for a number of passes or until the CPU seconds are used up."""
    decayed = [p for p in network.parameters() if p.dim() > 1]
    others = [p for p in network.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=rate)
    generator = torch.Generator().manual_seed(seed)
    batch = min(batch, len(items))
    steps = passes * len(items) // batch
    began, step, order = time.process_time(), 0, torch.empty(0, dtype=torch.long)
    network.train()
    while (progress := max(step / steps, (time.process_time() - began) / budget)) < 1:
        for group in optimiser.param_groups:
            group["lr"] = rate * _one_cycle(progress)
        if len(order) < batch:
            order = torch.randperm(len(items), generator=generator)
        chosen, order = order[:batch], order[batch:]
        loss = F.cross_entropy(network(augment(items[chosen], generator)), labels[chosen])
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimiser.step()
        step += 1
    network.eval()


def _one_cycle(progress: float, warm_up: float = 0.2) -> float:
    """Share of the highest rate: linear up from 1/25, then half a cosine down to 0 (Smith and Topin 2017)."""
    if progress < warm_up:
        return 0.04 + 0.96 * progress / warm_up
    return (1 + math.cos(math.pi * (progress - warm_up) / (1 - warm_up))) / 2


def _images(pixels: np.ndarray, side: int) -> Tensor:
    """Images (N, 3, side, side) in [0, 1]."""
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    if images.shape[-1] != side:
        images = F.interpolate(images, (side, side), mode="bilinear", antialias=True)
    return images.contiguous(memory_format=torch.channels_last)


def _vectors(data: DataSet, standardised: bool | None = None) -> tuple[Tensor, Tensor]:
    """Training items and questions as rows: pixels in [0, 1], or features, which are standardised by default."""
    images = data.kind == "images"
    train, questions = (torch.as_tensor(part.items).flatten(1).float() for part in (data.train, data.questions))
    if images:
        train, questions = train / 255, questions / 255
    if standardised is None:
        standardised = not images
    if standardised:
        std, mean = torch.std_mean(train, 0)
        std = std.clamp_min(1e-3 * std.max())
        train, questions = (train - mean) / std, (questions - mean) / std
    return train, questions


def _principal_components(train: Tensor, questions: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Coordinates along the first principal components of the training rows, with mean square 1 in total."""
    from sklearn.decomposition import PCA

    pca = PCA(min(count, *train.shape), svd_solver="randomized", random_state=0).fit(train.numpy())
    parts = [torch.from_numpy(pca.transform(rows.numpy()).astype(np.float32)) for rows in (train, questions)]
    scale = parts[0].square().mean().sqrt()
    return parts[0] / scale, parts[1] / scale


def _parts(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of nine tenths of the items, and of the others, in random order."""
    order = np.random.default_rng(seed).permutation(count)
    cut = round(0.9 * count)
    return order[:cut], order[cut:]


def best_possible(data: DataSet, budget: float, seed: int) -> Answers:
    """The probabilities under the law that made the data: no method can be better, but by chance."""
    assert data.best is not None
    return Answers.of_probabilities(data.best)


_IMAGE_RIVALS = {
    "raw neighbours": raw_neighbours,
    "logistic regression": logistic_regression,
    "MLP on 100 components": mlp,
    "small CNN": small_cnn,
    "our ResNet, cross-entropy": resnet_cross_entropy,
}
_FEATURE_RIVALS = {
    "raw neighbours": raw_neighbours,
    "logistic regression": logistic_regression,
    "MLP": mlp,
}
BEST_POSSIBLE = "best possible"


def rivals_for(data: DataSet) -> dict[str, Callable[[DataSet, float, int], Answers]]:
    """The rivals on a data set by name: functions (data, budget of CPU seconds, seed) -> answers."""
    rivals = _IMAGE_RIVALS if data.kind == "images" else _FEATURE_RIVALS
    return rivals | ({BEST_POSSIBLE: best_possible} if data.best is not None else {})
