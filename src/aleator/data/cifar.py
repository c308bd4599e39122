"""CIFAR-10 with its people's labels: readers for the official files and for plain arrays, nothing unpickled blindly.

A data folder, named by an argument or by ALEATOR_DATA, holds what of these there is; the first form found is read:

    CIFAR-10     cifar10/{test,train_1..5}.npz (`images` (N, 32, 32, 3), `labels` (N,)), the official
                 cifar-10-batches-bin/*.bin, or the official cifar-10-batches-py/*
    CIFAR-10H    cifar10h/counts.npy or the official cifar10h-counts.npy: votes (10000, 10) of some fifty people on each
                 test image (Peterson et al. 2019)
    folds        cifar10h/folds.npz, or idx_set_0..4.csv of the paper's repository: its five sets of 2,000 test images
    crop sizes   cifar10h/crop_sizes.npy, or randomcrops_2000_0.25_1.0.csv of the paper's repository
    CIFAR-10N    cifar10n/labels.npz, or the official CIFAR-10_human.pt: three people's labels of each train image
                 (Wei et al. 2022)

`aleator.downloads.download` fetches the official files into such a folder.
"""

import hashlib
import io
import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aleator.foundation import reject, require, require_one_of

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of the train images, by channel
FOLDS = 5

_SPLITS = {"test": ("test",), "train": tuple(f"train_{i}" for i in range(1, 6))}
_OFFICIAL = {"test": "test_batch"} | {f"train_{i}": f"data_batch_{i}" for i in range(1, 6)}
_VOTERS = ("random_label1", "random_label2", "random_label3")
# SHA-256 of a part's pixels (N, 32, 32, 3) and labels, as bytes: the same whatever file they come from.
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
    """images (N, 3, 32, 32) uint8 and labels (N,) int64."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def data_folder(folder: str | Path | None = None) -> Path:
    """The folder that the user names, or the one in ALEATOR_DATA; it must exist."""
    named = folder if folder is not None else os.environ.get("ALEATOR_DATA")
    way_out = "pass --data-dir or set ALEATOR_DATA to a folder with CIFAR-10; `download` makes one"
    if named is None:
        reject("data_dir", None, "no data folder is named", way_out)
    path = Path(named).expanduser()
    require(path.is_dir(), "data_dir", str(path), "is not a folder", way_out)
    return path


def load_cifar10(split: str, folder: str | Path | None = None, *, verify: bool = True) -> CifarImages:
    """The "train" (50,000) or "test" (10,000) images, in the original order.

    `verify` compares the content with the published one; without it, other images in the same formats can be read.
    """
    require_one_of("split", split, _SPLITS)
    root = data_folder(folder)
    parts = [_load_part(root, part, verify) for part in _SPLITS[split]]
    images = torch.from_numpy(np.concatenate([images for images, _ in parts]))
    labels = torch.from_numpy(np.concatenate([labels for _, labels in parts]).astype(np.int64))
    return CifarImages(images.permute(0, 3, 1, 2).contiguous(), labels)


def load_cifar10h(folder: str | Path | None = None) -> Tensor:
    """Votes (N, 10), int64: how many people saw which class in each test image."""
    path = _find(data_folder(folder), "CIFAR-10H", ("cifar10h/counts.npy", "cifar10h-counts.npy"))
    votes = _read(path, _npy)
    _require_table(path, votes, (None, len(CLASSES)))
    bad = ~np.isfinite(votes).all(1) | (votes < 0).any(1) | (votes.sum(1) <= 0) | (votes != np.round(votes)).any(1)
    _require_rows(path, votes, bad, "is not a count of votes")
    return torch.from_numpy(votes.astype(np.int64))


def load_folds(folder: str | Path | None = None) -> Tensor:
    """The paper's five sets of test images, (5, 2000) int64."""
    root = data_folder(folder)
    names = ("cifar10h/folds.npz", "idx_set_0.csv")
    path = _find(root, "the paper's folds", names)
    if path.suffix == ".npz":
        arrays = _read(path, _npz)
        _require_names(path, arrays, [f"fold_{i}" for i in range(FOLDS)])
        rows = [arrays[f"fold_{i}"] for i in range(FOLDS)]
    else:
        rows = [_read(path.with_name(f"idx_set_{i}.csv"), _csv) for i in range(FOLDS)]
    require(
        len({len(row) for row in rows}) == 1, str(path), [len(row) for row in rows], "sets of unequal size", "mend it"
    )
    folds = np.stack(rows).astype(np.int64)
    _require_file(path, len(np.unique(folds)) == folds.size, "an image lies in two folds")
    return torch.from_numpy(folds)


def load_crop_sizes(folder: str | Path | None = None) -> Tensor:
    """The paper's crop proportions, one for each place of a fold, float64."""
    path = _find(data_folder(folder), "crop sizes", ("cifar10h/crop_sizes.npy", "randomcrops_2000_0.25_1.0.csv"))
    sizes = _read(path, _npy if path.suffix == ".npy" else _csv).astype(np.float64)
    _require_table(path, sizes, (None,))
    bad = ~((sizes > 0) & (sizes <= 1))
    _require_rows(path, sizes, bad, "is not a proportion in (0, 1]")
    return torch.from_numpy(sizes)


def load_cifar10n(folder: str | Path | None = None) -> Tensor:
    """Votes (N, 10), int64: how three people labelled each train image."""
    path = _find(data_folder(folder), "CIFAR-10N", ("cifar10n/labels.npz", "CIFAR-10_human.pt"))
    arrays = _read(path, _npz if path.suffix == ".npz" else _torch_archive)
    _require_names(path, arrays, _VOTERS)
    labels = np.stack([arrays[name] for name in _VOTERS], 1)
    _require_rows(path, labels, ((labels < 0) | (labels >= len(CLASSES))).any(axis=1), "is not a class from 0 to 9")
    votes = torch.nn.functional.one_hot(torch.from_numpy(labels.astype(np.int64)), len(CLASSES))
    return votes.sum(1)


def soft_labels(votes: Tensor) -> Tensor:
    """Votes (N, C) -> P(C|x), float64."""
    return votes.double() / votes.sum(1, keepdim=True)


def label_entropy(probabilities: Tensor) -> Tensor:
    """The entropy of each row (N, C) in nats, (N,): how much the annotators disagree."""
    return torch.special.entr(probabilities.double()).sum(1)


def require_fit(images: Tensor, labels: Tensor, what: str) -> None:
    """One row of labels for each image."""
    require(
        len(images) == len(labels),
        what,
        f"{len(labels)} rows",
        f"do not fit {len(images)} images",
        "use the files of one data set",
    )


# Files


def _load_part(root: Path, part: str, verify: bool) -> tuple[np.ndarray, np.ndarray]:
    official = _OFFICIAL[part]
    names = [f"cifar10/{part}.npz", f"cifar-10-batches-bin/{official}.bin", f"cifar-10-batches-py/{official}"]
    path = _find(root, "CIFAR-10", names)
    reader = {".npz": _npz, ".bin": _binary_batch}.get(path.suffix, _python_batch)
    arrays = _read(path, reader)
    _require_names(path, arrays, ("images", "labels"))
    images, labels = arrays["images"], arrays["labels"]
    _require_table(path, images, (None, 32, 32, 3))
    _require_file(path, images.dtype == np.uint8, f"holds pixels of type {images.dtype}, not uint8")
    _require_file(path, len(images) == len(labels), f"holds {len(images)} images and {len(labels)} labels")
    _require_rows(path, labels, (labels < 0) | (labels >= len(CLASSES)), "is not a class from 0 to 9")
    labels = labels.astype(np.uint8)
    if verify:
        content = hashlib.sha256(np.ascontiguousarray(images).tobytes() + labels.tobytes()).hexdigest()
        _require_file(path, content == _CONTENT[part], "does not hold CIFAR-10's images: its checksum is another")
    return images, labels


def _find(root: Path, what: str, names: Any) -> Path:
    for name in names:
        for place in (root / name, root / Path(name).name):
            if place.is_file():
                return place
    return reject("data_dir", str(root), f"{what} is not there", f"put one of {', '.join(names)} into it")


def _read(path: Path, reader: Callable[[bytes], Any]) -> Any:
    """The file's content; whatever is wrong with it is one error that names it."""
    _require_file(path, path.is_file(), "is missing")
    try:
        return reader(path.read_bytes())
    except Exception as problem:
        raise ValueError(f"{path} is damaged or in another format ({problem}); fetch it again") from None


def _npz(data: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _npy(data: bytes) -> np.ndarray:
    return np.load(io.BytesIO(data), allow_pickle=False)


def _csv(data: bytes) -> np.ndarray:
    return np.loadtxt(io.BytesIO(data), delimiter=",")


def _binary_batch(data: bytes) -> dict[str, np.ndarray]:
    """The official binary form: a byte of label, then 3,072 of pixels by channel, row, column."""
    records = np.frombuffer(data, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return {"labels": records[:, 0], "images": records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)}


def _python_batch(data: bytes) -> dict[str, np.ndarray]:
    """The official Python form, a pickle of arrays and lists."""
    content = _ArraysOnly(io.BytesIO(data), encoding="latin1").load()
    pixels = np.asarray(content["data"], np.uint8)
    return {"labels": np.asarray(content["labels"]), "images": pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)}


def _torch_archive(data: bytes) -> dict[str, np.ndarray]:
    """The archive of `torch.save`: a zip file with a pickle in it."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        content = _ArraysOnly(io.BytesIO(archive.read(name)), encoding="latin1").load()
    return {key: np.asarray(value) for key, value in content.items()}


class _ArraysOnly(pickle.Unpickler):
    """Unpickles numpy arrays and plain containers; a file that asks for anything else is refused, not run."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np.empty(0).__reduce__()[0]  # wherever this numpy keeps it
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):
            return _latin1
        raise pickle.UnpicklingError(f"asks for {module}.{name}, which is not an array")


def _latin1(text: str, encoding: str) -> bytes:
    return text.encode("latin1")


def _require_file(path: Path, ok: bool, problem: str) -> None:
    if not ok:
        raise ValueError(f"{path} {problem}; fetch it again, or name another data folder")


def _require_names(path: Path, arrays: Mapping[str, np.ndarray], names: Any) -> None:
    missing = [name for name in names if name not in arrays]
    _require_file(path, not missing, f"holds no {', '.join(missing)} but {', '.join(arrays) or 'nothing'}")


def _require_table(path: Path, array: np.ndarray, shape: tuple[int | None, ...]) -> None:
    fits = array.ndim == len(shape) and all(b in (None, a) for a, b in zip(array.shape, shape, strict=True))
    wanted = " x ".join("N" if size is None else str(size) for size in shape)
    _require_file(path, fits, f"holds an array of shape {array.shape}, not {wanted}")


def _require_rows(path: Path, array: np.ndarray, bad: Any, problem: str) -> None:
    if bad.any():
        row = int(bad.argmax())
        _require_file(path, False, f"row {row}: {array[row].tolist()} {problem}")
