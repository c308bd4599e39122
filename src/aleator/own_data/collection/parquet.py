"""Collections in Parquet files: rows of features, or a table of paths or texts, with labels beside them.

Features are read when they are asked for, one row group at a time, so the file may be larger than memory.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from aleator.foundation import reject, require
from aleator.own_data.collection.arrays import FeatureFile
from aleator.own_data.collection.object_store import AnyPath, ObjectPath
from aleator.own_data.collection.tables import Table

FEATURES = "features"  # the column with a list of numbers in each row


class ParquetFeatures(FeatureFile):
    """Features (N, F) in the column `features` of a Parquet file.

    Args:
        path: The file.
    """

    first_row = 1

    def __init__(self, path: AnyPath):
        self.path = path
        with open_parquet(path) as file:
            groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            require(sum(groups) > 0, "data", str(path), "has no row", "write one row per item")
            self.ends = np.cumsum(groups)
            self._last: tuple[int, np.ndarray] | None = None
            first = next(i for i, rows in enumerate(groups) if rows)
            self.shape: tuple[int, int] = (int(self.ends[-1]), 0)
            self.shape = (self.shape[0], self._group(first, file).shape[1])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_last": None}  # other processes read the file themselves

    def _read(self, start: int, stop: int) -> np.ndarray:
        first, last = np.searchsorted(self.ends, (start, max(start, stop - 1)), side="right").tolist()
        begin = int(self.ends[first - 1]) if first else 0
        rows = [self._group(i) for i in range(first, min(last, len(self.ends) - 1) + 1)]
        return np.concatenate(rows)[start - begin : stop - begin]

    def _group(self, number: int, file: Any = None) -> np.ndarray:
        """Features of one row group. The last one is kept, because the next batch is often in it too."""
        kept = self._last
        if kept is not None and kept[0] == number:
            return kept[1]
        if file is None:
            with open_parquet(self.path) as opened:
                return self._group(number, opened)
        rows = _matrix(file.read_row_group(number, [FEATURES]).column(0), self.path, self.shape[1])
        self._last = number, rows
        return rows


def parquet_columns(path: AnyPath) -> list[str]:
    """Names of the columns of a Parquet file.

    Args:
        path: The file.

    Returns:
        The names, in order.
    """
    with open_parquet(path) as file:
        return list(file.schema_arrow.names)


def read_parquet_table(path: AnyPath, columns: list[str]) -> Table:
    """Some columns of a Parquet file, as a table of texts like that of a CSV file. Rows are counted from 1.

    Args:
        path: The file.
        columns: Their names.

    Returns:
        The table.
    """
    with open_parquet(path) as file:
        cells = {name: file.read([name]).column(0).to_pylist() for name in columns}
    count = len(next(iter(cells.values())))
    require(count > 0, "data", str(path), "has no row", "write one row per item")
    rows = [{name: "" if cells[name][i] is None else str(cells[name][i]) for name in columns} for i in range(count)]
    return Table(path, columns, rows, list(range(1, count + 1)))


def _matrix(column: Any, path: AnyPath, width: int) -> np.ndarray:
    """Rows (n, F) float32 of a column of lists; F is `width`, unless that is 0."""
    import pyarrow.compute as compute

    way_out = "store a list of F numbers in each row"
    values, count = column.combine_chunks(), len(column)
    try:
        with np.errstate(over="ignore"):  # whoever reads the rows tells of numbers that are too large
            flat = values.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
    except (AttributeError, TypeError, ValueError) as damage:
        reject("data", str(path), f"its column {FEATURES} holds no lists of numbers ({damage})", way_out)
    width = width or (len(flat) // count if count else 0)
    lengths = set(compute.list_value_length(values).unique().to_pylist())
    fits = width > 0 and lengths <= {width}
    require(fits, "data", str(path), f"has rows of different lengths, or empty ones, in {FEATURES}", way_out)
    return flat.reshape(count, width)


@contextlib.contextmanager
def open_parquet(path: AnyPath, argument: str = "data") -> Iterator[Any]:
    """A Parquet file; errors of the library as errors about the file."""
    try:
        import pyarrow.parquet as parquet
        from pyarrow import ArrowInvalid
    except ImportError:
        reject(argument, str(path), "Parquet needs the package pyarrow", "pip install 'aleator[ray]'")
    with path.reading() if isinstance(path, ObjectPath) else contextlib.nullcontext(path) as source:
        try:
            file = parquet.ParquetFile(source)
        except (ArrowInvalid, OSError) as damage:
            said = " ".join(str(damage).split())[:200]
            reject(argument, str(path), f"cannot be read as Parquet ({said})", "write it again")
        with file:
            yield file
