"""Tables of numbers: a row is an item, its columns are features, and a column `label` or `group` says what matches."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from aleator.foundation import reject, require
from aleator.own_data.collection.arrays import FeatureFile, coarse_columns
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.labels import LABEL_COLUMNS
from aleator.own_data.collection.object_store import AnyPath
from aleator.own_data.collection.problems import listed
from aleator.own_data.collection.tables import Table

_NO_FEATURES = ("id", "", *LABEL_COLUMNS)  # spreadsheets and pandas leave the column of row numbers without a name
_LARGEST = float(np.finfo(np.float32).max)
_FEW, _FEW_SHARE = 3, 0.1  # cells of a column that may be no numbers, or a share of them: rows that are left out


class TableFeatures(FeatureFile):
    """Features (N, F) in the columns of a table. They are in memory.

    Args:
        path: The file.
        columns: The numbers of each column, float64 (N,), by its name.
        unused: Columns of the table that are no features, which a user should know about.
    """

    columns: tuple[str, ...]

    def __init__(self, path: AnyPath, columns: dict[str, np.ndarray], unused: Sequence[str] = ()):
        self.path, self.columns = path, tuple(columns)
        rows = np.stack(list(columns.values()), 1)
        self.coarse = coarse_columns(rows, self.columns)
        self._rows = rows.astype(np.float32)
        self.shape: tuple[int, int] = rows.shape
        self.notes = [f"columns that the run does not use: {listed(unused, 5)}"] if unused else []

    def _read(self, start: int, stop: int) -> np.ndarray:
        return self._rows[start:stop]


def with_columns(collection: Collection, names: Sequence[str] | None) -> Collection:
    """A collection with the columns of another table, in their order.

    Args:
        collection: Any collection. One that is no table stays as it is.
        names: The names of the columns; None, too, leaves it as it is.

    Returns:
        The collection.

    Raises:
        ValueError: If a column is missing.
    """
    table = collection.items
    if names is None or not isinstance(table, TableFeatures) or table.columns == tuple(names):
        return collection
    unused = _compare(table.path, table.columns, names)
    numbers = dict(zip(table.columns, table[:].astype(np.float64).T, strict=True))
    return replace(collection, items=TableFeatures(table.path, {name: numbers[name] for name in names}, unused))


class TableColumns:
    """The columns of a table of features: those that hold numbers, and which of its rows can be used.

    Args:
        table: A table without paths and texts.
        names: The columns to read. Default: all but ids and labels.

    Raises:
        ValueError: If a column is missing, or holds something else than numbers. The error names it and a way out.
    """

    def __init__(self, table: Table, names: Sequence[str] | None = None):
        there = [name for name in table.header if name not in _NO_FEATURES]
        way_out = "add columns of numbers; call the item of each row path or text, if it is one"
        require(bool(there), "data", str(table.path), "has no column but ids and labels", way_out)
        self.table, self.unused = table, [] if names is None else _compare(table.path, there, names)
        self.numbers = {name: _numbers(table, name) for name in names or there}

    def require_row(self, index: int) -> None:
        """Raise unless the cells of a row are finite numbers."""
        for name, numbers in self.numbers.items():
            if math.isnan(numbers[index]):
                cell = self.table.rows[index][name]
                problem = f"{cell!r} is not a finite number" if cell.strip() else "is empty"
                reject(name, self.table.where(index), problem, "write a number, or remove the row")

    def features(self, usable: Table) -> TableFeatures:
        """The features of those rows of the table that can be used."""
        rows = np.searchsorted(self.table.lines, usable.lines)
        return TableFeatures(self.table.path, {name: n[rows] for name, n in self.numbers.items()}, self.unused)


def is_number(cell: str, number: Callable[[str], float] = float) -> bool:
    """Whether a cell holds a finite number, also in single precision.

    Args:
        cell: The cell.
        number: The number in a cell; it raises a ValueError if there is none.
    """
    try:
        return abs(number(cell)) <= _LARGEST
    except ValueError:
        return False


def _numbers(table: Table, name: str) -> np.ndarray:
    """The numbers of a column, float64 (N,), NaN in the few cells that hold none. Raise if they are not few."""
    cells = table.column(name)
    numbers = np.array([table.number(cell) if is_number(cell, table.number) else math.nan for cell in cells])
    others = np.flatnonzero(np.isnan(numbers))
    if len(others) == len(cells) or len(others) > max(_FEW, _FEW_SHARE * len(cells)):
        first = next((cells[i] for i in others.tolist() if cells[i].strip()), None)
        holds = f"is empty in {len(others)} of {len(cells)} rows" if first is None else f"holds {first!r}, no number"
        way_out = (
            "make numbers of it, for example with scikit-learn's OneHotEncoder or SimpleImputer, or leave it out; "
            "call it label if it is the class of each row, path or text if it is the item, and id if it names it"
        )
        reject("data", f"column {name} of {table.path}", holds, way_out)
    return numbers


def _compare(path: AnyPath, there: Sequence[str], names: Sequence[str]) -> list[str]:
    """The columns of a table that are not among those of the training data. Raise if one of these is missing."""
    missing, more = [name for name in names if name not in there], [name for name in there if name not in names]
    shown = " and ".join(f"{word} {listed(found, 5)}" for word, found in (("lacks", missing), ("has", more)) if found)
    way_out = f"give it the columns of the training data: {listed(list(names), 20)}"
    require(not missing, "data", str(path), f"{shown}, unlike the training data", way_out)
    return more
