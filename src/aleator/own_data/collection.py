"""A user's collection: items and labels, checked before any work is done.

    folder/cat/*.png, folder/dog/*.png      images; the class is the folder
    folder/*.png                            images without labels
    items.csv                               a column `path` or `text`, and `label`, `group`, or one column for each
                                            class with its probability; or two columns `first`, `second`: pairs
    features.npy                            (N, F), with labels in a second file: .npy, or .csv without `path`
    items.txt                               one text per line

Errors name the file and the row.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aleator.data import IMAGE_SUFFIXES
from aleator.foundation import reject, require
from aleator.own_data.arrays import FeatureFile
from aleator.own_data.labels import (
    PAIR_COLUMNS,
    Labels,
    labels_from_table,
    named_labels,
    read_labels,
    require_different,
)
from aleator.own_data.tables import Table, read_table, read_text

ITEM_COLUMNS = ("path", "text")


@dataclass(frozen=True)
class Collection:
    """N items of one kind, and their labels.

    Args:
        kind: "images", "features" or "text", as in `Inputs`.
        source: The file or folder that was read.
        items: Image paths relative to `root`, rows of features, or texts.
        root: Folder that image paths start from.
        labels: Labels of the items, if there are any.
        ignored: Number of files in the folder that are not images.

    Examples:
        >>> from pathlib import Path
        >>> from aleator.own_data import Collection
        >>> collection = Collection("text", Path("lines.txt"), ["It purrs.", "It barks."])
        >>> len(collection)
        2
        >>> list(collection.records())
        [{'id': 0, 'text': 'It purrs.'}, {'id': 1, 'text': 'It barks.'}]
    """

    kind: str
    source: Path
    items: Sequence[Any] | FeatureFile
    root: Path | None = None
    labels: Labels | None = None
    ignored: int = 0

    def __len__(self) -> int:
        return len(self.items)

    @property
    def features(self) -> int:
        """F, the number of features of each item; for collections of features only."""
        assert isinstance(self.items, FeatureFile)
        return self.items.shape[1]

    def raw(self, start: int, stop: int) -> Any:
        """Some items in the form that `Inputs.prepare` takes.

        Args:
            start: First item.
            stop: One past the last item.

        Returns:
            Paths of images, rows (n, F) of features, or texts.
        """
        items = self.items[start:stop]
        return [os.path.join(self.root, path) for path in items] if self.root is not None else items

    def records(self) -> Iterator[dict[str, Any]]:
        """Describe each item, as in the .jsonl beside a posteriors file.

        Yields:
            For each item its "id"; "path" of an image or "text"; "label", the (most probable) class or group; and for
            soft labels "labels", the probability of each possible class.
        """
        labels = self.labels
        hard = None if labels is None else labels.hard()
        for i in range(len(self)):
            if self.kind == "images":
                record: dict[str, Any] = {"id": self.items[i], "path": self.items[i]}
            else:
                record = {"id": i} | ({"text": self.items[i]} if self.kind == "text" else {})
            if labels is not None and hard is not None:
                record["label"] = labels.names[hard[i]]
                if labels.kind == "soft":
                    row = labels.values[i]
                    record["labels"] = {labels.names[c]: round(float(row[c]), 6) for c in np.flatnonzero(row)}
            yield record

    def digest(self) -> str:
        """Checksum of the names or texts of the items, in order; for features of the file's name, size and time.

        Returns:
            SHA-256, in hexadecimal digits.
        """
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
    """Read a collection and check it.

    Args:
        source: A folder of images, with or without class folders; a .csv file with a column `path` or `text`, or with
            the columns `first` and `second`; a .npy file of features (N, F); or a .txt file with one text per line.
        labels: Labels of .npy features: a .npy or .csv file, see `read_labels`. Other sources contain their labels.
        labels_optional: Whether to read a folder without labels if its subfolders cannot be its classes. Otherwise
            such a folder is an error.

    Returns:
        The collection. Images are not decoded yet, and features are not in memory.

    Raises:
        ValueError: If something is missing or not valid. The error names the file and the row.

    Examples:
        >>> import numpy as np
        >>> from aleator.own_data import read_collection
        >>> np.save("features.npy", np.zeros((4, 3)))
        >>> np.save("labels.npy", np.array([0, 0, 1, 1]))
        >>> collection = read_collection("features.npy", "labels.npy")
        >>> len(collection), collection.kind, collection.labels.names
        (4, 'features', ('0', '1'))
    """
    source = Path(source).expanduser()
    require(source.exists(), "data", str(source), "there is no such file or folder", "check the path")
    ending = "a folder" if source.is_dir() else source.suffix.lower()
    if ending == ".npy":
        return _read_features(source, None if labels is None else Path(labels).expanduser())
    require(labels is None, "labels", str(labels), "go with .npy features", "leave them out: they are in the data")
    if ending == "a folder":
        return _read_folder(source, labels_optional)
    if ending == ".csv":
        return _read_csv(source)
    if ending == ".txt":
        return _read_lines(source)
    way_out = "name a folder of images, or a .csv, .npy or .txt file"
    return reject("data", str(source), "has an unknown ending", way_out)


def example_sentences() -> Path:
    """A table of 160 short sentences on eight topics, as an example of text.

    Returns:
        Path of a .csv file with the columns `text` and `label`.

    Examples:
        >>> from aleator.own_data import example_sentences, read_collection
        >>> len(read_collection(example_sentences()))
        160
    """
    return Path(__file__).with_name("sentences.csv")


def _read_folder(folder: Path, labels_optional: bool) -> Collection:
    """Images of a folder. If they are in subfolders, these are their classes."""
    files = list(_files(folder))
    paths = [path for path in files if path.lower().endswith(IMAGE_SUFFIXES)]
    ignored = len(files) - len(paths)
    require(bool(paths), "data", str(folder), "holds no image", f"put images there ({' '.join(IMAGE_SUFFIXES)})")
    loose = [path for path in paths if "/" not in path]
    if len(loose) == len(paths) or (loose and labels_optional):
        return Collection("images", folder, paths, folder, None, ignored)
    if loose:
        problem = "lies beside class folders, so its class is not known"
        reject("data", f"{folder}/{loose[0]}", problem, "move every image into the folder of its class")
    classes = [path.split("/")[0] for path in paths]
    if not labels_optional:
        _require_no_empty_class(folder, set(classes))
    return Collection("images", folder, paths, folder, named_labels(classes, "classes"), ignored)


def _require_no_empty_class(folder: Path, classes: set[str]) -> None:
    for entry in sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != "."):
        require(entry in classes, "data", f"{folder}/{entry}", "holds no image", "fill or remove the folder")


def _files(folder: Path) -> Iterator[str]:
    """Every file below a folder, as a relative path with slashes, in a fixed order; hidden files are left out."""
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] != ".")
        for name in sorted(files):
            if name[0] != ".":
                yield Path(here, name).relative_to(folder).as_posix()


def _read_lines(path: Path) -> Collection:
    """Texts, one per line."""
    lines = read_text(path).split("\n")
    if lines and not lines[-1]:
        lines.pop()
    require(bool(lines), "data", str(path), "holds no text", "write one text per line")
    for number, line in enumerate(lines, 1):
        require(bool(line.strip()), "data", f"line {number} of {path}", "is empty", "remove it")
    return Collection("text", path, lines)


def _read_features(path: Path, labels_path: Path | None) -> Collection:
    rows = FeatureFile(path)
    labels = None if labels_path is None else read_labels(labels_path, len(rows), str(path))
    return Collection("features", path, rows, None, labels)


def _read_csv(path: Path) -> Collection:
    table = read_table(path)
    if set(PAIR_COLUMNS) <= set(table.header):
        return _read_pairs(table)
    item_columns = [name for name in ITEM_COLUMNS if name in table.header]
    require(
        len(item_columns) == 1,
        "data",
        str(path),
        f"has the columns {', '.join(table.header)}",
        "name one of them path or text, or two of them first and second (pairs of paths)",
    )
    (item_column,) = item_columns
    items = table.column(item_column)
    labels = labels_from_table(table, [name for name in table.header if name != item_column])
    if item_column == "text":
        table.require_filled("text", "remove the row")
        return Collection("text", path, items, None, labels)
    _require_distinct_images(table, items)
    return Collection("images", path, items, path.parent, labels)


def _require_distinct_images(table: Table, paths: list[str]) -> None:
    first_line: dict[str, int] = {}
    for i, path in enumerate(paths):
        _require_image_file(table, i, path)
        earlier = first_line.setdefault(path, table.lines[i])
        require(
            earlier == table.lines[i],
            "path",
            table.where(i),
            f"{path} is in row {earlier} too",
            "give each item one row; if opinions differ, give every class a column with its probability",
        )


def _read_pairs(table: Table) -> Collection:
    """Images from pairs of paths; an image is numbered when it is first named."""
    numbers: dict[str, int] = {}
    pairs = np.empty((len(table), 2), np.int64)
    for i, row in enumerate(table.rows):
        for side, column in enumerate(PAIR_COLUMNS):
            if row[column] not in numbers:
                _require_image_file(table, i, row[column])
            pairs[i, side] = numbers.setdefault(row[column], len(numbers))
        require_different(table, i, *pairs[i])
    return Collection("images", table.path, list(numbers), table.path.parent, Labels("pairs", pairs))


def _require_image_file(table: Table, index: int, path: str) -> None:
    require(bool(path.strip()), "path", table.where(index), "is empty", "fill it in")
    is_file = (table.path.parent / path).is_file()
    require(is_file, "path", table.where(index), f"{path} is not there", "write paths relative to the CSV file")
