"""CIFAR-10, and the labels that people gave its images: CIFAR-10H and CIFAR-10N.

A data folder, passed as an argument or named by the environment variable ALEATOR_DATA, holds some of these files. If
there are several forms, the first one is read:

    CIFAR-10     cifar10/{test,train_1..5}.npz (`images` (N, 32, 32, 3), `labels` (N,)), the official
                 cifar-10-batches-bin/*.bin, or the official cifar-10-batches-py/*
    CIFAR-10H    cifar10h/counts.npy or the official cifar10h-counts.npy: votes (10000, 10) of about fifty people for
                 each test image (Peterson et al. 2019)
    folds        cifar10h/folds.npz, or idx_set_0..4.csv of the paper's repository: its five sets of 2,000 test images
    crop sizes   cifar10h/crop_sizes.npy, or randomcrops_2000_0.25_1.0.csv of the paper's repository
    CIFAR-10N    cifar10n/labels.npz, or the official CIFAR-10_human.pt: labels of three people for each train image
                 (Wei et al. 2022)

`download` fetches the official files into such a folder. Pickles are read without running code (`array_files.py`).
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from aleator.data.array_files import (
    read_array_file,
    read_csv,
    read_npy,
    read_npz,
    read_torch_archive,
    require_file,
    require_good_rows,
    require_names,
    require_table,
    unpickle_arrays,
)
from aleator.foundation import reject, require, require_one_of

Split = Literal["train", "test"]

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of the train images in [0, 1], by channel
FOLDS = 5

_PARTS: dict[Split, tuple[str, ...]] = {"test": ("test",), "train": tuple(f"train_{i}" for i in range(1, 6))}
_OFFICIAL = {"test": "test_batch"} | {f"train_{i}": f"data_batch_{i}" for i in range(1, 6)}
_VOTERS = ("random_label1", "random_label2", "random_label3")
# SHA-256 of a part's pixels (N, 32, 32, 3) and labels, as bytes. It does not depend on the file format.
_CONTENT = {
    "test": "8193b3fbce55bec361cd1b8fd4880cb1649832dc4d6de6da1e7a21847a4843aa",
    "train_1": "8350d89ba6404c270d263d84bf037e74b0158eecac79f27405efcf23445a6997",
    "train_2": "28d2d506ff2e052a3c902ac74931514d4c22d54b3f23622088bee441ab096cf0",
    "train_3": "e56532de152c7a77fc2a722499682f2699ce5177bbfac2ed2e415096184fa1d9",
    "train_4": "bb996a8ffff861dd5cca88c397fdfb884f0c482c5588bd32cea3dc7b648709bb",
    "train_5": "efb6334c7c1f88ac69032959408d9eeccb983002e83119b66de7309d3d2c7915",
}


@dataclass(frozen=True)
class CifarImages:
    """CIFAR images with their labels.

    Args:
        images: (N, 3, 32, 32) uint8.
        labels: (N,) int64, from 0 to 9.
    """

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        """N."""
        return len(self.labels)


def data_folder(folder: str | Path | None = None) -> Path:
    """The folder with the data files.

    Args:
        folder: The folder. Default: the one that the environment variable ALEATOR_DATA names.

    Returns:
        Its path.

    Raises:
        ValueError: If there is no such folder.
    """
    named = folder if folder is not None else os.environ.get("ALEATOR_DATA")
    way_out = "pass --data-dir or set ALEATOR_DATA to a folder with CIFAR-10; `download` makes one"
    if named is None:
        reject("data_dir", None, "no data folder is named", way_out)
    path = Path(named).expanduser()
    require(path.is_dir(), "data_dir", str(path), "is not a folder", way_out)
    return path


def load_cifar10(split: Split, folder: str | Path | None = None, *, verify: bool = True) -> CifarImages:
    """Load the images of CIFAR-10, in the original order.

    Args:
        split: "train" (50,000 images) or "test" (10,000).
        folder: Data folder. Default: the one that ALEATOR_DATA names.
        verify: Compare the content with the published checksums. Pass False to read other images in the same formats.

    Returns:
        Images (N, 3, 32, 32) uint8 and labels (N,).

    Raises:
        ValueError: If files are missing or damaged, or hold other images.

    Examples:
        >>> from aleator.data import load_cifar10
        >>> test = load_cifar10("test", "data")  # doctest: +SKIP
        >>> test.images.shape  # doctest: +SKIP
        torch.Size([10000, 3, 32, 32])
    """
    require_one_of("split", split, get_args(Split))
    root = data_folder(folder)
    parts = [_load_part(root, part, verify) for part in _PARTS[split]]
    images = torch.from_numpy(np.concatenate([images for images, _ in parts]))
    labels = torch.from_numpy(np.concatenate([labels for _, labels in parts]).astype(np.int64))
    return CifarImages(images.permute(0, 3, 1, 2).contiguous(), labels)


def load_cifar10h(folder: str | Path | None = None) -> Tensor:
    """Load CIFAR-10H: how many people saw which class in each test image of CIFAR-10.

    Args:
        folder: Data folder. Default: the one that ALEATOR_DATA names.

    Returns:
        Votes (10000, 10), int64.

    Raises:
        ValueError: If the file is missing or damaged.

    Examples:
        >>> from aleator.data import load_cifar10h, soft_labels
        >>> labels = soft_labels(load_cifar10h("data"))  # doctest: +SKIP
    """
    path = _find(data_folder(folder), "CIFAR-10H", ("cifar10h/counts.npy", "cifar10h-counts.npy"))
    votes = read_array_file(path, read_npy)
    require_table(path, votes, (None, len(CLASSES)))
    bad = ~np.isfinite(votes).all(1) | (votes < 0).any(1) | (votes.sum(1) <= 0) | (votes != np.round(votes)).any(1)
    require_good_rows(path, votes, bad, "is not a count of votes")
    return torch.from_numpy(votes.astype(np.int64))


def load_folds(folder: str | Path | None = None) -> Tensor:
    """Load the paper's five sets of test images.

    Args:
        folder: Data folder. Default: the one that ALEATOR_DATA names.

    Returns:
        Image numbers (5, 2000), int64.

    Raises:
        ValueError: If files are missing or damaged.

    Examples:
        >>> from aleator.data import load_folds
        >>> folds = load_folds("data")  # doctest: +SKIP
    """
    root = data_folder(folder)
    names = ("cifar10h/folds.npz", "idx_set_0.csv")
    path = _find(root, "the paper's folds", names)
    if path.suffix == ".npz":
        arrays = read_array_file(path, read_npz)
        require_names(path, arrays, [f"fold_{i}" for i in range(FOLDS)])
        rows = [arrays[f"fold_{i}"] for i in range(FOLDS)]
    else:
        rows = [read_array_file(path.with_name(f"idx_set_{i}.csv"), read_csv) for i in range(FOLDS)]
    sizes = [len(row) for row in rows]
    require(len(set(sizes)) == 1, str(path), sizes, "sets of unequal size", "fetch the files again")
    folds = np.stack(rows).astype(np.int64)
    require_file(path, len(np.unique(folds)) == folds.size, "an image lies in two folds")
    return torch.from_numpy(folds)


def load_crop_sizes(folder: str | Path | None = None) -> Tensor:
    """Load the paper's crop sizes: for each image of a set, the side of its crop as a share of the image's side.

    Args:
        folder: Data folder. Default: the one that ALEATOR_DATA names.

    Returns:
        Proportions (2000,) in (0, 1], float64.

    Raises:
        ValueError: If the file is missing or damaged.

    Examples:
        >>> from aleator.data import load_crop_sizes
        >>> sizes = load_crop_sizes("data")  # doctest: +SKIP
    """
    path = _find(data_folder(folder), "crop sizes", ("cifar10h/crop_sizes.npy", "randomcrops_2000_0.25_1.0.csv"))
    sizes = read_array_file(path, read_npy if path.suffix == ".npy" else read_csv).astype(np.float64)
    require_table(path, sizes, (None,))
    bad = ~((sizes > 0) & (sizes <= 1))
    require_good_rows(path, sizes, bad, "is not a proportion in (0, 1]")
    return torch.from_numpy(sizes)


def load_cifar10n(folder: str | Path | None = None) -> Tensor:
    """Load CIFAR-10N: how three people labelled each train image of CIFAR-10.

    Args:
        folder: Data folder. Default: the one that ALEATOR_DATA names.

    Returns:
        Votes (50000, 10), int64.

    Raises:
        ValueError: If the file is missing or damaged.

    Examples:
        >>> from aleator.data import load_cifar10n
        >>> votes = load_cifar10n("data")  # doctest: +SKIP
    """
    path = _find(data_folder(folder), "CIFAR-10N", ("cifar10n/labels.npz", "CIFAR-10_human.pt"))
    arrays = read_array_file(path, read_npz if path.suffix == ".npz" else read_torch_archive)
    require_names(path, arrays, _VOTERS)
    labels = np.stack([arrays[name] for name in _VOTERS], 1)
    require_good_rows(path, labels, ((labels < 0) | (labels >= len(CLASSES))).any(axis=1), "is not a class from 0 to 9")
    votes = torch.nn.functional.one_hot(torch.from_numpy(labels.astype(np.int64)), len(CLASSES))
    return votes.sum(1)


def soft_labels(votes: Tensor) -> Tensor:
    """Turn votes into class probabilities.

    Args:
        votes: Number of votes (N, C).

    Returns:
        P(C|x) (N, C), float64.

    Examples:
        >>> import torch
        >>> from aleator.data import soft_labels
        >>> soft_labels(torch.tensor([[3, 1]]))
        tensor([[0.7500, 0.2500]], dtype=torch.float64)
    """
    return votes.double() / votes.sum(1, keepdim=True)


def require_fit(images: Tensor, labels: Tensor, name: str) -> None:
    """Raise unless there is one row of labels for each image. `name` names the labels in the error."""
    fits = len(images) == len(labels)
    problem = f"do not fit {len(images)} images"
    require(fits, name, f"{len(labels)} rows", problem, "use the files of one data set")


# Files


def _load_part(root: Path, part: str, verify: bool) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 32, 32, 3) and labels (N,), both uint8, of one official file."""
    official = _OFFICIAL[part]
    names = [f"cifar10/{part}.npz", f"cifar-10-batches-bin/{official}.bin", f"cifar-10-batches-py/{official}"]
    path = _find(root, "CIFAR-10", names)
    reader = {".npz": read_npz, ".bin": _binary_batch}.get(path.suffix, _python_batch)
    arrays = read_array_file(path, reader)
    require_names(path, arrays, ("images", "labels"))
    images, labels = arrays["images"], arrays["labels"]
    require_table(path, images, (None, 32, 32, 3))
    require_file(path, images.dtype == np.uint8, f"holds pixels of type {images.dtype}, not uint8")
    require_file(path, len(images) == len(labels), f"holds {len(images)} images and {len(labels)} labels")
    require_good_rows(path, labels, (labels < 0) | (labels >= len(CLASSES)), "is not a class from 0 to 9")
    labels = labels.astype(np.uint8)
    if verify:
        content = hashlib.sha256(np.ascontiguousarray(images).tobytes() + labels.tobytes()).hexdigest()
        require_file(path, content == _CONTENT[part], "does not hold CIFAR-10's images: its checksum differs")
    return images, labels


def _find(root: Path, what: str, names: Sequence[str]) -> Path:
    """The first of these files that exists, with or without its folder."""
    for name in names:
        for place in (root / name, root / Path(name).name):
            if place.is_file():
                return place
    return reject("data_dir", str(root), f"{what} is not there", f"put one of {', '.join(names)} into it")


def _binary_batch(data: bytes) -> dict[str, np.ndarray]:
    """The official binary form: one byte of label, then 3,072 of pixels by channel, row and column."""
    records = np.frombuffer(data, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return {"labels": records[:, 0], "images": records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)}


def _python_batch(data: bytes) -> dict[str, np.ndarray]:
    """The official Python form, a pickle of arrays and lists."""
    content = unpickle_arrays(data)
    pixels = np.asarray(content["data"], np.uint8)
    return {"labels": np.asarray(content["labels"]), "images": pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)}
