"""How the columns of a table become features: numbers as they are, words one by one, and cells that are empty.

A column of numbers is one feature. If cells are empty, they count as its median, and one more feature says which they
are. A column of words is one feature for each frequent word, 1 where it stands and 0 elsewhere. The columns are chosen
from the table that a run is trained on, and later tables get the same features.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from aleator.data import IMAGE_SUFFIXES
from aleator.foundation import reject, require

_LARGEST = float(np.finfo(np.float32).max)
_EMPTY = {"", "na", "n/a", "nan", "null", "?"}  # as spreadsheets, R, pandas, databases and archives write it
_ERRORS, _FEW_ERRORS = 0.1, 3  # cells of a column of numbers that may be something else: a share, or so many
_COMMA_NUMBER = re.compile(r"[+-]?\d[\d.]*,\d[\d.,]*")
_LONG = 40  # letters: longer cells are sentences
_MOST_WORDS = 32  # of a column, the most frequent
_LEAST_SHARE = 0.01  # of the rows: what is rarer is no feature, because a network learns such a row by heart
_FEW_ROWS = 20  # a table with fewer does not tell frequent words from others
_LEAST_COVERED = 0.5  # of the rows, by frequent words: otherwise the words are names


@dataclass(frozen=True)
class Column:
    """One column of a table, and the features that it becomes.

    Args:
        name: Its name in the header.
        fill: What an empty cell of a column of numbers counts as. None: no cell may be empty.
        marks_empty: Whether one more feature says which cells are empty.
        words: The words that are features, for a column of words; none of a column that is left out. None: a column of
            numbers.

    Examples:
        >>> import numpy as np
        >>> from aleator.own_data.collection.table_columns import Column
        >>> Column("age", fill=30.0, marks_empty=True).features(np.array([12.0, np.nan]))
        array([[12.,  0.],
               [30.,  1.]])
        >>> Column("colour", words=("blue", "red")).features(["red", "blue", "green"])
        array([[0., 1.],
               [1., 0.],
               [0., 0.]])
    """

    name: str
    fill: float | None = None
    marks_empty: bool = False
    words: tuple[str, ...] | None = None

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Column":
        """The column that `to_dict` described."""
        words = fields.get("words")
        return cls(**fields | {"words": None if words is None else tuple(words)})

    def to_dict(self) -> dict[str, Any]:
        """The fields that are not at their defaults, as JSON values."""
        fields = {"name": self.name, "fill": self.fill, "marks_empty": self.marks_empty, "words": self.words}
        return {name: value for name, value in fields.items() if value is not None and value is not False}

    @property
    def feature_names(self) -> list[str]:
        """Names of the features, in order."""
        if self.words is not None:
            return [f"{self.name} = {word}" if word else f"{self.name} is empty" for word in self.words]
        return [self.name] + [f"{self.name} is empty"] * self.marks_empty

    def features(self, cells: "Cells") -> np.ndarray:
        """The features of some rows.

        Args:
            cells: Cells of the column, n of them; see `read_numbers` and `read_words`.

        Returns:
            Features (n, k) in float64; NaN where a cell is empty and must not be.

        Raises:
            ValueError: If this is a column of numbers, and the cells are words.
        """
        if self.words is not None:
            if isinstance(cells, np.ndarray):
                cells = ["" if math.isnan(number) else f"{number:g}" for number in cells.tolist()]
            return (np.array(cells, object)[:, None] == np.array(self.words, object)).astype(np.float64)
        if not isinstance(cells, np.ndarray):
            word = next((cell for cell in cells if cell), None)
            problem = f"its column {self.name} holds words, such as {word!r}, and the run was trained on numbers"
            require(word is None, "data", self.name, problem, "give it numbers, or leave its cells empty")
            cells = np.full(len(cells), np.nan)
        empty = np.isnan(cells)
        numbers = cells if self.fill is None else np.where(empty, self.fill, cells)
        return np.stack([numbers, empty] if self.marks_empty else [numbers], 1).astype(np.float64)


Cells = np.ndarray | list[str]  # of one column: numbers (N,) in float64, NaN where empty; or words, "" where empty


def is_empty(cell: str) -> bool:
    """Whether a cell says that nothing is known: nothing, NA, NaN, null or ?."""
    return cell.strip().lower() in _EMPTY


def is_number(cell: str, number: Callable[[str], float]) -> bool:
    """Whether a cell holds a finite number, also in single precision.

    Args:
        cell: The cell.
        number: The number in a cell; it raises a ValueError if there is none.
    """
    try:
        return abs(number(cell)) <= _LARGEST
    except ValueError:
        return False


class Numbers(NamedTuple):
    """The cells of a column, read as numbers.

    Args:
        values: The numbers (N,) in float64, NaN where a cell is empty or something else.
        others: The rows whose cell is neither empty nor a finite number.
    """

    values: np.ndarray
    others: frozenset[int]

    @property
    def are_most(self) -> bool:
        """Whether the column is one of numbers; a few cells may be something else, which is an error of their rows."""
        filled = len(self.others) + int(np.isfinite(self.values).sum())
        return len(self.others) < filled and len(self.others) <= max(_FEW_ERRORS, _ERRORS * filled)


def read_numbers(cells: Sequence[str], number: Callable[[str], float]) -> Numbers:
    """Read the cells of a column as numbers.

    Args:
        cells: The cells as texts.
        number: The number in a cell; it raises a ValueError if there is none.

    Returns:
        The numbers, and the rows that hold something else.
    """
    read = {}  # each text once: columns of words have few
    for cell in set(cells):
        if is_empty(cell):
            read[cell] = math.nan
        else:
            read[cell] = number(cell) if is_number(cell, number) else math.inf
    values = np.array([read[cell] for cell in cells], np.float64)
    others = np.isinf(values)
    values[others] = math.nan
    return Numbers(values, frozenset(np.flatnonzero(others).tolist()))


def read_words(cells: Sequence[str]) -> list[str]:
    """Read the cells of a column as words, "" where one is empty."""
    return ["" if is_empty(cell) else cell.strip() for cell in cells]


def choose_columns(table: dict[str, Cells]) -> tuple[list[Column], list[str]]:
    """Choose the features of each column.

    Args:
        table: The cells of each column that is no id and no label, by its name.

    Returns:
        The columns, in order; and a note for each in which cells are empty, that is of words, or that is left out.
    """
    columns, notes = [], []
    for name, cells in table.items():
        if isinstance(cells, np.ndarray):
            column, note = _of_numbers(name, cells)
        else:
            words, note = _words_of(name, cells)
            column = Column(name, words=words)
        columns.append(column)
        notes += [f"column {name}: {note}"] if note else []
    return columns, notes


def _of_numbers(name: str, cells: np.ndarray) -> tuple[Column, str]:
    empty = int(np.isnan(cells).sum())
    column = Column(name, float(np.nanmedian(cells)), 0 < empty >= _LEAST_SHARE * len(cells))
    if not empty:
        return column, ""
    also = ", and a feature says which they are" if column.marks_empty else ""
    count = _counted(empty, "empty cell counts", "empty cells count")
    return column, f"{count} as its median {column.fill:g}{also}"


def _words_of(name: str, cells: list[str]) -> tuple[tuple[str, ...], str]:
    """The words of a column that are features, and the note."""
    counts = Counter(cells)
    if set(counts) == {""}:
        return (), "left out, it is empty"
    if any(cell.lower().endswith(IMAGE_SUFFIXES) for cell in counts):
        return (), "left out, it holds names of images; call it path if it is the item of each row"
    if np.median([len(cell) for cell in cells]) > _LONG:
        return (), "left out, it holds sentences; call it text if it is the item of each row"
    commas = [cell for cell in cells if _COMMA_NUMBER.fullmatch(cell)]
    if len(commas) > len(cells) / 2:
        problem = f"it holds {commas[0]!r}, whose comma may separate thousands or decimals"
        way_out = (
            "write 3600 or 3.6 for 3,600; or separate the cells of the table by semicolons, if it is a decimal comma"
        )
        reject("data", f"column {name}", problem, way_out)
    least = 1 if len(cells) < _FEW_ROWS else max(2, _LEAST_SHARE * len(cells))
    words = [word for word, count in counts.most_common(_MOST_WORDS) if count >= least]
    if sum(counts[word] for word in words) < _LEAST_COVERED * len(cells):
        return (), f"left out, its words are names ({len(counts)} different ones in {len(cells)} rows)"
    if len(counts) == 1 and len(cells) >= _FEW_ROWS:
        return (), f"left out, it holds {cells[0]!r} in every row"
    rarer = len(counts) - len(words)
    note = _counted(len(words), "word is a feature", "words are features")
    return tuple(sorted(words)), note + (f", {rarer} rarer left out" if rarer else "")


def _counted(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"
