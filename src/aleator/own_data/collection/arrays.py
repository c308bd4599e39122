"""Arrays from a user's .npy files: checked, never unpickled. Large files are read a slice at a time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from aleator.foundation import even_sample, reject, require, require_file
from aleator.own_data.collection.object_store import AnyPath

_SAMPLE = 1000  # rows that are looked at
_COARSE = 0.01  # of a column's standard deviation


def coarse_columns(rows: np.ndarray, names: Sequence[str] | None = None) -> tuple[str, ...]:
    """Columns whose values are so large, and differ so little, that float32 can hardly tell them apart.

    Args:
        rows: Features (N, F) in float64.
        names: Names of the columns. Default: "column 0", "column 1" and so on.

    Returns:
        The names of those in which neighbouring numbers of float32 differ by more than a hundredth of the standard
        deviation.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        spread, largest = rows.std(0), np.abs(rows).max(0).astype(np.float32)
        found = np.flatnonzero((spread > 0) & (np.spacing(largest) > _COARSE * spread))
    return tuple(f"column {i}" if names is None else names[i] for i in found.tolist())


def read_array(path: Path, argument: str) -> np.ndarray:
    """Read a whole .npy file. A file that is damaged or contains Python objects is an error."""
    require_file(argument, path, "check the path")
    return _load(path, argument)


def _load(path: Path, argument: str, mmap_mode: Literal["r"] | None = None) -> Any:
    try:
        array = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except Exception as damage:  # numpy parses the header as Python, and hands on any error of that
        said = " ".join(str(damage).split())[:200]
        way_out = "write it with numpy.save, " + (
            "names as labels.astype(str)" if argument == "labels" else "numbers only"
        )
        reject(argument, str(path), f"cannot be read ({said})", way_out)
    single = isinstance(array, np.ndarray)
    require(single, argument, str(path), "holds several arrays", "write it with numpy.save, one array")
    return array


class FeatureFile:
    """Features (N, F) in a .npy file. Rows are read when they are asked for, and are not kept in memory.

    Attributes:
        first_row: Number of the first row in errors: 0 in an array, 1 in a table.
        columns: Names of the features; None if the file does not name them.
        coarse: Columns whose values float32 can hardly tell apart.
        notes: What a user should know about the features.
    """

    first_row = 0
    columns: tuple[str, ...] | None = None
    coarse: tuple[str, ...] = ()
    notes: Sequence[str] = ()

    def __init__(self, path: Path):
        self.path: AnyPath = path
        array = _load(path, "data", "r")
        require(
            array.ndim == 2 and array.dtype.kind in "fiu" and array.size > 0,
            "data",
            str(path),
            f"{array.dtype} of shape {array.shape} is not a matrix of features",
            "store numbers of shape (N, F)",
        )
        way_out = "store numpy.ascontiguousarray(features)"
        require(array.flags["C_CONTIGUOUS"], "data", str(path), "is stored column by column", way_out)
        self.shape: tuple[int, int] = array.shape
        self.dtype, self.offset = array.dtype, array.offset
        self.row_bytes = self.dtype.itemsize * self.shape[1]
        if self.dtype.itemsize > 4:
            self.coarse = coarse_columns(np.asarray(array[even_sample(len(array), _SAMPLE)], np.float64))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """A slice of rows, (n, F) float32. The step must be 1."""
        start, stop, step = rows.indices(len(self))
        assert step == 1
        features = self._read(start, stop)
        finite = np.isfinite(features)
        if not finite.all():
            row, column = map(int, np.argwhere(~finite)[0])
            where = f"row {self.first_row + start + row} of {self.path}"
            problem = f"its number {column} (counted from 0) is not finite, or too large for float32 (3.4e38)"
            reject("data", where, problem, "leave the row out, or write a smaller number")
        return features

    def _read(self, start: int, stop: int) -> np.ndarray:
        # Read, not mapped: the pages of a mapping would count as memory of this process.
        assert isinstance(self.path, Path)
        with open(self.path, "rb") as file:
            file.seek(self.offset + start * self.row_bytes)
            numbers = np.fromfile(file, self.dtype, max(stop - start, 0) * self.shape[1])
        with np.errstate(over="ignore"):  # whoever reads the rows tells of numbers that are too large
            return numbers.reshape(-1, self.shape[1]).astype(np.float32, copy=False)
