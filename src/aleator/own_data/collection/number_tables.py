"""Tables: each row is an item, its columns are features, and a column `label` or `group` says what matches."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from aleator.foundation import reject, require
from aleator.own_data.collection.arrays import FeatureFile, coarse_columns
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.labels import LABEL_COLUMNS
from aleator.own_data.collection.object_store import AnyPath
from aleator.own_data.collection.problems import listed
from aleator.own_data.collection.table_columns import (
    Cells,
    Column,
    Numbers,
    choose_columns,
    read_numbers,
    read_words,
)
from aleator.own_data.collection.tables import Table

_NO_FEATURES = ("id", "", *LABEL_COLUMNS)  # spreadsheets and pandas leave the column of row numbers without a name


class TableFeatures(FeatureFile):
    """Features (N, F) in the columns of a table. They are in memory.

    Args:
        path: The file.
        cells: The cells of each column, by its name.
        chosen: The features of the columns. Default: chosen from the cells.

    Attributes:
        chosen: The features of each column.
        notes: What a user should know about how they were chosen.
    """

    def __init__(self, path: AnyPath, cells: dict[str, Cells], chosen: Sequence[Column] | None = None):
        self.path, self.cells = path, cells
        if chosen is None:
            self.chosen, self.notes = choose_columns(cells)
            way_out = "call the item of each row path or text, or two of them first and second (pairs of paths)"
            shown = f"has the columns {', '.join(cells)}" if cells else "has no column but ids and labels"
            problem = f"{shown}, and none holds numbers or words that come back in other rows"
            require(any(column.feature_names for column in self.chosen), "data", str(path), problem, way_out)
        else:
            self.chosen, self.notes = list(chosen), self._compare(chosen)
        names = [cells[column.name] for column in self.chosen if not column.feature_names and column.name in cells]
        self.names_of_rows = ["\0".join(map(str, row)) for row in zip(*names, strict=True)] if names else None
        used = [column for column in self.chosen if column.feature_names]
        self.columns = tuple(name for column in used for name in column.feature_names)
        rows = np.concatenate([column.features(cells[column.name]) for column in used], 1)
        self.coarse = coarse_columns(rows, self.columns)
        self._rows = rows.astype(np.float32)
        self.shape: tuple[int, int] = rows.shape

    def _compare(self, chosen: Sequence[Column]) -> list[str]:
        """Raise if a column is missing. Returns a note about those that are no features, if there are any."""
        known, named = [column.name for column in chosen if column.feature_names], list(self.cells)
        missing = [name for name in known if name not in named]
        more = [name for name in named if name not in (column.name for column in chosen)]
        shown = " and ".join(
            f"{word} {listed(names, 5)}" for word, names in (("lacks", missing), ("has", more)) if names
        )
        way_out = f"give it the columns of the training data: {listed(known, 20)}"
        require(not missing, "data", str(self.path), f"{shown}, unlike the training data", way_out)
        return [f"columns that the run does not use: {listed(more, 5)}"] if more else []

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"cells": {}}  # other processes need the features alone

    def _read(self, start: int, stop: int) -> np.ndarray:
        return self._rows[start:stop]


def with_columns(collection: Collection, chosen: Sequence[Column] | None) -> Collection:
    """A collection with the features that were chosen for another table. Columns are found by their names.

    Args:
        collection: Any collection. One that is no table stays as it is.
        chosen: The features of each column; None, too, leaves it as it is.

    Returns:
        The collection.

    Raises:
        ValueError: If a column is missing, or holds words in place of numbers.
    """
    if chosen is None or not isinstance(collection.items, TableFeatures):
        return collection
    return replace(collection, items=TableFeatures(collection.items.path, collection.items.cells, chosen))


def number_columns(table: Table, chosen: Sequence[Column] | None = None) -> dict[str, Numbers]:
    """The columns of a table that hold numbers.

    Args:
        table: A table without paths and texts.
        chosen: The features of each column, if they are known already.

    Returns:
        Their cells by their names, without ids and labels.
    """
    if chosen is not None:
        known = [column.name for column in chosen if column.words is None and column.name in table.header]
        return {name: read_numbers(table.column(name), table.number) for name in known}
    read = ((name, read_numbers(table.column(name), table.number)) for name in _columns(table))
    return {name: cells for name, cells in read if cells.are_most}


def table_features(
    table: Table, usable: Table, numbers: dict[str, Numbers], chosen: Sequence[Column] | None = None
) -> TableFeatures:
    """The features of a table without paths and texts.

    Args:
        table: The table.
        usable: Its rows that can be used; see `require_numbers`.
        numbers: The columns of numbers of the whole table.
        chosen: The features of each column. Default: chosen from the rows that can be used.

    Returns:
        The features of the rows that can be used.

    Raises:
        ValueError: If no column has any, or one is missing. The error says how to name them.
    """
    rows = np.searchsorted(table.lines, usable.lines)
    cells: dict[str, Cells] = {
        name: numbers[name].values[rows] if name in numbers else read_words(usable.column(name))
        for name in _columns(table)
    }
    return TableFeatures(table.path, cells, chosen)


def require_numbers(table: Table, index: int, columns: dict[str, Numbers]) -> None:
    """Raise unless the cells of a row are finite numbers, or empty.

    Args:
        table: The table.
        index: The row.
        columns: The columns of numbers.
    """
    for name, cells in columns.items():
        if index in cells.others:
            problem = f"{table.rows[index][name]!r} is not a finite number"
            reject(name, table.where(index), problem, "write a number, leave the cell empty, or remove the row")


def _columns(table: Table) -> list[str]:
    return [name for name in table.header if name not in _NO_FEATURES]
