"""Tables of numbers: each row is an item, each column a feature, and a column `label` or `group` says what matches."""

import numpy as np

from aleator.foundation import reject, require
from aleator.own_data.collection.arrays import FeatureFile, coarse_columns
from aleator.own_data.collection.labels import LABEL_COLUMNS
from aleator.own_data.collection.tables import Table

_NO_FEATURES = ("id", "", *LABEL_COLUMNS)  # spreadsheets and pandas leave the column of row numbers without a name

_LARGEST = float(np.finfo(np.float32).max)


class TableFeatures(FeatureFile):
    """Features (N, F) in the columns of a table. They are in memory, like the table itself.

    Args:
        table: The table. Every cell of the columns is a finite number.
        columns: The columns that are features, in order.
    """

    def __init__(self, table: Table, columns: list[str]):
        self.path = table.path
        rows = np.array([[table.number(row[name]) for name in columns] for row in table.rows])
        self.columns, self.coarse = tuple(columns), coarse_columns(rows, columns)
        self._rows = rows.astype(np.float32)
        self.shape: tuple[int, int] = (len(table), len(columns))

    def _read(self, start: int, stop: int) -> np.ndarray:
        return self._rows[start:stop]


def feature_columns(table: Table) -> list[str]:
    """The columns of a table that are features: all but ids and labels.

    Args:
        table: A table without paths and texts.

    Returns:
        Their names, in order.

    Raises:
        ValueError: If one of them does not hold numbers. The error says how to name it.
    """
    columns = [name for name in table.header if name not in _NO_FEATURES]
    shown = f"has the columns {', '.join(table.header)}"
    words = [name for name in columns if not any(_is_number(table, i, name) for i in range(len(table)))]
    if len(words) > 1 or len(words) == len(columns):
        way_out = "name one of them path or text, or two of them first and second (pairs of paths)"
        reject("data", str(table.path), shown, f"{way_out}; a table of numbers may have one other column, label")
    way_out = "call it label if it is the class of each row, path or text if it is the item; or leave it out"
    require(not words, "data", str(table.path), f"its column {words[0] if words else ''} holds no numbers", way_out)
    return columns


def require_numbers(table: Table, index: int, columns: list[str]) -> None:
    """Raise unless the cells of a row are finite numbers.

    Args:
        table: The table.
        index: The row.
        columns: The columns that are features.
    """
    for name in columns:
        cell = table.rows[index][name]
        problem = f"{cell!r} is not a finite number" if cell.strip() else "is empty"
        require(_is_number(table, index, name), name, table.where(index), problem, "fill it in, or remove the row")


def _is_number(table: Table, index: int, name: str) -> bool:
    """Whether a cell holds a finite number, also in single precision."""
    try:
        return abs(table.number(table.rows[index][name])) <= _LARGEST
    except ValueError:
        return False
