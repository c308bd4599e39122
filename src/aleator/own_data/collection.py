"""A collection as a person has it -> its items and labels, checked before any work is lost.

    folder/cat/*.png, folder/dog/*.png      images, the class is the folder
    folder/*.png                            images without labels
    items.csv                               a column `path` or `text`, and `label`, `group`, or one column for each
                                            class with its probability; or two columns `first`, `second`: pairs
    features.npy                            (N, F), with labels in a second file: .npy, or .csv without `path`
    items.txt                               one text per line

Every complaint names the file and the row.
"""

import csv
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aleator.data import IMAGE_SUFFIXES
from aleator.foundation import reject, require
from aleator.own_data.arrays import FeatureFile, read_array

ITEM_COLUMNS, LABEL_COLUMNS, PAIR_COLUMNS = ("path", "text"), ("label", "group"), ("first", "second")
_TOLERANCE = 1e-3  # of the sum of a row of probabilities


@dataclass(frozen=True)
class Labels:
    """What is known of the items: classes, groups whose members match, probabilities of classes, or matching pairs."""

    kind: str  # "classes", "groups", "soft" or "pairs"
    values: np.ndarray  # (N,) int64; (N, C) float32 for "soft"; (P, 2) int64 for "pairs"
    names: tuple[str, ...] = ()  # of the classes or groups

    def hard(self) -> np.ndarray | None:
        """(N,) int64, the likeliest class of soft labels; None for pairs."""
        return {"soft": lambda: self.values.argmax(1), "pairs": lambda: None}.get(self.kind, lambda: self.values)()

    def counts(self) -> np.ndarray:
        """How many items each class or group has; fractions add up for soft labels."""
        return self.values.sum(0) if self.kind == "soft" else np.bincount(self.values, minlength=len(self.names))


@dataclass(frozen=True)
class Collection:
    """N items of one kind, and what is known of them."""

    kind: str  # of `Inputs`: "images", "features" or "text"
    source: Path
    items: Sequence[Any] | FeatureFile  # paths relative to root, rows of numbers, or texts
    root: Path | None = None
    labels: Labels | None = None
    ignored: int = 0  # files that are no images

    def __len__(self) -> int:
        return len(self.items)

    @property
    def features(self) -> int:
        """F, of a collection of features."""
        assert isinstance(self.items, FeatureFile)
        return self.items.shape[1]

    def raw(self, start: int, stop: int) -> Any:
        """Items start <= i < stop as `Inputs.prepare` takes them."""
        items = self.items[start:stop]
        return [os.path.join(self.root, path) for path in items] if self.root is not None else items

    def facts(self) -> Iterator[dict[str, Any]]:
        """What a posteriors file says of each item, in order."""
        known = self.labels
        hard = None if known is None else known.hard()
        for i in range(len(self)):
            if self.kind == "images":
                facts: dict[str, Any] = {"id": self.items[i], "path": self.items[i]}
            else:
                facts = {"id": i} | ({"text": self.items[i]} if self.kind == "text" else {})
            if known is not None and hard is not None:
                facts["label"] = known.names[hard[i]]
                if known.kind == "soft":
                    row = known.values[i]
                    facts["labels"] = {known.names[c]: round(float(row[c]), 6) for c in np.flatnonzero(row)}
            yield facts

    def digest(self) -> str:
        """A checksum of what the items are called, in order: the same collection, or another."""
        total = hashlib.sha256(f"{self.kind} {len(self)}".encode())
        if isinstance(self.items, FeatureFile):
            stat = os.stat(self.items.path)
            total.update(f"{self.items.path.name} {self.items.shape} {stat.st_size} {stat.st_mtime_ns}".encode())
        else:
            for item in self.items:
                total.update(item.encode() + b"\0")
        return total.hexdigest()


def read_collection(
    source: str | Path, labels: str | Path | None = None, *, labels_optional: bool = False
) -> Collection:
    """The collection that a folder, .csv, .npy or .txt holds; `labels` go with .npy features. See the module.

    With `labels_optional`, a folder whose subfolders cannot be its classes is read without labels.
    """
    source = Path(source).expanduser()
    require(source.exists(), "data", str(source), "there is no such file or folder", "check the path")
    suffix = "a folder" if source.is_dir() else source.suffix.lower()
    if suffix == ".npy":
        return _read_features(source, None if labels is None else Path(labels).expanduser())
    require(labels is None, "labels", str(labels), "go with .npy features", "leave them out: they are in the data")
    if suffix == "a folder":
        return _read_folder(source, labels_optional)
    if suffix == ".csv":
        return _read_csv(source)
    if suffix == ".txt":
        return _read_text(source)
    way_out = "name a folder of images, or a .csv, .npy or .txt file"
    return reject("data", str(source), "has an unknown ending", way_out)


def example_sentences() -> Path:
    """A table of 160 short sentences on eight topics, to try text with."""
    return Path(__file__).with_name("sentences.csv")


def _read_folder(folder: Path, labels_optional: bool = False) -> Collection:
    paths, ignored = [], 0
    for path in _files(folder):
        if path.lower().endswith(IMAGE_SUFFIXES):
            paths.append(path)
        else:
            ignored += 1
    require(bool(paths), "data", str(folder), "holds no image", f"put images there ({' '.join(IMAGE_SUFFIXES)})")
    classes = [path.split("/")[0] if "/" in path else None for path in paths]
    loose = [path for path, name in zip(paths, classes, strict=True) if name is None]
    if len(loose) == len(paths) or (loose and labels_optional):
        return Collection("images", folder, paths, folder, None, ignored)
    require(
        not loose,
        "data",
        f"{folder}/{loose[0] if loose else ''}",
        "lies beside class folders, so its class is not known",
        "move every image into the folder of its class",
    )
    known = set(classes)
    for entry in sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != "."):
        require(
            labels_optional or entry in known,
            "data",
            f"{folder}/{entry}",
            "holds no image",
            "fill or remove the folder",
        )
    return Collection("images", folder, paths, folder, named_labels(classes, "classes"), ignored)  # type: ignore[arg-type]


def _files(folder: Path) -> Iterator[str]:
    """Every file below a folder as a relative path with slashes, in a fixed order; hidden ones are left out."""
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] != ".")
        for name in sorted(files):
            if name[0] != ".":
                yield Path(here, name).relative_to(folder).as_posix()


def _read_text(path: Path) -> Collection:
    lines = _lines(path).split("\n")
    if lines and not lines[-1]:
        lines.pop()
    require(bool(lines), "data", str(path), "holds no text", "write one text per line")
    for number, line in enumerate(lines, 1):
        require(bool(line.strip()), "data", f"line {number} of {path}", "is empty", "remove it")
    return Collection("text", path, lines)


def _read_features(path: Path, labels: Path | None = None) -> Collection:
    rows = FeatureFile(path)
    known = None if labels is None else read_labels(labels, len(rows), str(path))
    return Collection("features", path, rows, None, known)


def read_labels(path: Path, count: int, of: str) -> Labels:
    """The labels of `count` items, in their order, from .npy or .csv; `of` says whose, in an error."""
    require(path.is_file(), "labels", str(path), "there is no such file", "check the path")
    if path.suffix == ".npy":
        known: Labels | None = _labels_from_array(path)
    else:
        require(path.suffix == ".csv", "labels", str(path), "has an unknown ending", "use .npy or .csv")
        header, table = _table(path)
        if set(PAIR_COLUMNS) <= set(header):
            return _numbered_pairs(path, table, count)
        known = _labels_from_table(path, header, table)
    assert known is not None
    rows = len(known.values)
    way_out = "give every row its label, in the same order"
    require(rows == count, "labels", str(path), f"has {rows} rows, and {of} has {count}", way_out)
    return known


def _labels_from_array(path: Path) -> Labels:
    values = read_array(path, "labels")
    if values.ndim == 1 and (values.dtype.kind in "iub" or values.dtype.kind == "U"):
        return named_labels([str(value) for value in values.tolist()], "classes")
    require(
        values.ndim == 2 and values.dtype.kind == "f",
        "labels",
        str(path),
        f"{values.dtype} of shape {values.shape} is not labels",
        "store whole numbers (N,), or probabilities (N, C)",
    )
    names = tuple(str(c) for c in range(values.shape[1]))
    return _soft(path, values, names, range(len(values)))


def _read_csv(path: Path) -> Collection:
    header, table = _table(path)
    if set(PAIR_COLUMNS) <= set(header):
        return _named_pairs(path, table)
    columns = [name for name in ITEM_COLUMNS if name in header]
    require(
        len(columns) == 1,
        "data",
        str(path),
        f"has the columns {', '.join(header)}",
        "name one of them path or text, or two of them first and second (pairs of paths)",
    )
    items = [row[columns[0]] for row in table]
    labels = _labels_from_table(path, [name for name in header if name not in columns], table)
    if columns == ["text"]:
        for row in table:
            require(bool(row["text"].strip()), "text", _row(path, row), "is empty", "remove the row")
        return Collection("text", path, items, None, labels)
    seen: dict[str, str] = {}
    for row in table:
        _require_file(path, row, row["path"])
        earlier = seen.setdefault(row["path"], row["#"])
        require(
            earlier == row["#"],
            "path",
            _row(path, row),
            f"{row['path']} is in row {earlier} too",
            "give an item one row; several opinions are probabilities, one column for each class",
        )
    return Collection("images", path, items, path.parent, labels)


def _labels_from_table(path: Path, header: Sequence[str], table: list[dict[str, str]]) -> Labels | None:
    present = [name for name in LABEL_COLUMNS if name in header]
    require(len(present) < 2, "data", str(path), "has a label and a group", "keep the one that says what matches")
    if present:
        for row in table:
            require(bool(row[present[0]].strip()), present[0], _row(path, row), "is empty", "fill it in")
        kind = "classes" if present == ["label"] else "groups"
        return named_labels([row[present[0]] for row in table], kind)
    if not header:
        return None
    require(
        len(header) >= 2,
        "data",
        str(path),
        f"the column {header[0]} is not known",
        "call it label or group, or give every class a column with its probability",
    )
    values = np.empty((len(table), len(header)), np.float64)
    for i, row in enumerate(table):
        for c, name in enumerate(header):
            try:
                values[i, c] = float(row[name])
            except ValueError:
                reject(
                    name, f"{row[name]!r} in {_row(path, row)}", "is not a probability", "write a number, or a label"
                )
    return _soft(path, values, tuple(header), [int(row["#"]) for row in table])


def _soft(path: Path, values: np.ndarray, names: tuple[str, ...], rows: Sequence[int]) -> Labels:
    values = values.astype(np.float64)
    good = np.isfinite(values).all(1) & (values >= 0).all(1)
    for i in np.flatnonzero(~good)[:1]:
        reject("probabilities", f"row {rows[i]} of {path}", "are negative or not finite", "write numbers from 0 to 1")
    total = values.sum(1)
    for i in np.flatnonzero(abs(total - 1) > _TOLERANCE)[:1]:
        problem = f"sum to {total[i]:.6g}, not to 1"
        reject("probabilities", f"row {rows[i]} of {path}", problem, "divide votes by their number")
    return Labels("soft", (values / total[:, None]).astype(np.float32), names)


def named_labels(names: Sequence[str], kind: str) -> Labels:
    """Classes or groups by name, numbered in alphabetical order."""
    known, values = np.unique(np.array(names, dtype=object).astype(str), return_inverse=True)
    return Labels(kind, values.astype(np.int64).reshape(-1), tuple(str(name) for name in known))


def _named_pairs(path: Path, table: list[dict[str, str]]) -> Collection:
    numbers: dict[str, int] = {}
    pairs = np.empty((len(table), 2), np.int64)
    for i, row in enumerate(table):
        for side, column in enumerate(PAIR_COLUMNS):
            if row[column] not in numbers:
                _require_file(path, row, row[column])
            pairs[i, side] = numbers.setdefault(row[column], len(numbers))
        require(pairs[i, 0] != pairs[i, 1], "pairs", _row(path, row), "pairs an item with itself", "remove the row")
    return Collection("images", path, list(numbers), path.parent, Labels("pairs", pairs))


def _numbered_pairs(path: Path, table: list[dict[str, str]], count: int) -> Labels:
    pairs = np.empty((len(table), 2), np.int64)
    for i, row in enumerate(table):
        for side, column in enumerate(PAIR_COLUMNS):
            inside = row[column].strip().isdecimal() and int(row[column]) < count
            way_out = f"write row numbers of the features, 0 to {count - 1}"
            require(inside, column, f"{row[column]!r} in {_row(path, row)}", "is no row of the features", way_out)
            pairs[i, side] = int(row[column])
        require(pairs[i, 0] != pairs[i, 1], "pairs", _row(path, row), "pairs an item with itself", "remove the row")
    return Labels("pairs", pairs)


def _require_file(path: Path, row: dict[str, str], name: str) -> None:
    require(bool(name.strip()), "path", _row(path, row), "is empty", "fill it in")
    require((path.parent / name).is_file(), "path", _row(path, row), f"{name} is not there", "paths start at the CSV")


def _table(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The header, and every row as a dict with its line number under "#"."""
    reader = csv.reader(_lines(path).splitlines(keepends=True), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        require(bool(header), "data", str(path), "is empty", "write a header and one row per item")
        require(len(set(header)) == len(header), "data", str(path), "names a column twice", "rename one")
        rows = []
        for fields in reader:
            if not fields:
                continue
            require(
                len(fields) == len(header),
                "data",
                f"row {reader.line_num} of {path}",
                f"has {len(fields)} fields, and the header has {len(header)}",
                "quote fields that hold commas",
            )
            rows.append(dict(zip(header, fields, strict=True)) | {"#": str(reader.line_num)})
    except csv.Error as damage:
        reject("data", f"row {reader.line_num} of {path}", f"is no CSV ({damage})", "export it again")
    require(bool(rows), "data", str(path), "has no row", "write one row per item below the header")
    return header, rows


def _lines(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as damage:
        reject("data", str(path), f"is not UTF-8 text (byte {damage.start})", "save it as UTF-8")


def _row(path: Path, row: dict[str, str]) -> str:
    return f"row {row['#']} of {path}"
