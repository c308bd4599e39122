"""Labels of a collection: which items match."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from aleator.foundation import reject, require, require_file
from aleator.own_data.collection.arrays import read_array
from aleator.own_data.collection.tables import Table, is_text_table, read_table

# What labels say about the items:
#   classes   each item has one class; items of a class match
#   groups    each item is in one group, such as photos of one object; items of a group match
#   soft      each item has a probability for each class
#   pairs     pairs of items that match
LabelKind = Literal["classes", "groups", "soft", "pairs"]

LABEL_COLUMNS, PAIR_COLUMNS, ID_COLUMNS = ("label", "group"), ("first", "second"), ("id", "path")
_ROUNDING = 0.005  # of each probability: people write two decimals, and sums of 0.99 or 1.01
_MOST_ROUNDING = 0.05  # of a sum


@dataclass(frozen=True)
class Labels:
    """What is known about which items match.

    Args:
        kind: "classes" (items of a class match), "groups" (items of a group match), "soft" (a probability for each
            class) or "pairs" (pairs of items that match).
        values: For classes and groups: the number of each item's class or group, shape (N,), int64. For soft labels:
            probabilities, shape (N, C), float32. For pairs: item numbers, shape (P, 2), int64.
        names: Names of the C classes or groups. Empty for pairs.

    Examples:
        >>> import numpy as np
        >>> from aleator.own_data import Labels
        >>> labels = Labels("soft", np.array([[0.75, 0.25], [0.0, 1.0]], np.float32), ("cat", "dog"))
        >>> labels.hard()
        array([0, 1])
        >>> labels.counts()
        array([0.75, 1.25], dtype=float32)
    """

    kind: LabelKind
    values: np.ndarray
    names: tuple[str, ...] = ()

    def hard(self) -> np.ndarray | None:
        """The class or group of each item; for soft labels the most probable class.

        Returns:
            Class numbers, shape (N,), int64. None for pairs.
        """
        if self.kind == "pairs":
            return None
        return self.values.argmax(1) if self.kind == "soft" else self.values

    def counts(self) -> np.ndarray:
        """Number of items of each class or group; for soft labels the sum of the probabilities.

        Returns:
            Counts, shape (C,).
        """
        return self.values.sum(0) if self.kind == "soft" else np.bincount(self.values, minlength=len(self.names))


def read_labels(path: Path, count: int, owner: str, ids: Sequence[str | int] | None = None) -> Labels:
    """Read the labels of items that are stored elsewhere.

    A .csv file with a column `id` or `path` is joined by it: its rows may be in any order, and rows of other items are
    left out. Without such a column, and in a .npy file, row i belongs to item i.

    Args:
        path: A .npy file: whole numbers or strings (N,), probabilities or votes (N, C). Or a .csv file with a column
            `label` or `group`, with one column of probabilities for each class, or with the columns `first` and
            `second`, which hold ids.
        count: N, the number of items.
        owner: Name of the items' file, for errors.
        ids: Ids of the items. Default: their numbers, from 0.

    Returns:
        The labels, in the order of the items.

    Raises:
        ValueError: If the file is missing or damaged, or if items have no label.

    Examples:
        >>> import numpy as np
        >>> from pathlib import Path
        >>> from aleator.own_data import read_labels
        >>> np.save("labels.npy", np.array(["dog", "cat", "dog"]))
        >>> labels = read_labels(Path("labels.npy"), 3, "features.npy")
        >>> labels.names, labels.values
        (('cat', 'dog'), array([1, 0, 1]))
    """
    require_file("labels", path, "name a .npy, .csv or .tsv file")
    is_array = path.suffix.lower() == ".npy"
    require(is_array or is_text_table(path), "labels", str(path), "has an unknown ending", "use .npy, .csv or .tsv")
    if is_array:
        return _of_every_item(_labels_from_array(path), path, count, owner)
    table = read_table(path)
    if set(PAIR_COLUMNS) <= set(table.header):
        return pairs_from_table(table, range(count) if ids is None else ids)
    rows, key = rows_by_id(table, range(count) if ids is None else ids)
    columns = [name for name in table.header if name not in ID_COLUMNS] if key else table.header
    if key is None or (ids is None and all(row is None for row in rows)):  # names that say nothing about row numbers
        labels = labels_from_table(table, columns)
        return _of_every_item(labels, path, count, owner)
    missing = [i for i, row in enumerate(rows) if row is None]
    if missing:
        names = ", ".join(str(missing[k] if ids is None else ids[missing[k]]) for k in range(min(3, len(missing))))
        problem = f"has no row for {len(missing)} of {count} items of {owner} ({names})"
        reject("labels", str(path), problem, f"give each item a row with its {key}")
    labels = labels_from_table(table.select([row for row in rows if row is not None]), columns)
    require(labels is not None, "labels", str(path), "has no column of labels", "add a column label")
    assert labels is not None
    return labels


def read_labels_of(path: Path, records: Sequence[Mapping[str, Any]], owner: str) -> Labels:
    """Read the labels of items that have names.

    Args:
        path: A .csv file with a column `id` or `path`, or with pairs; see `read_labels`. A file that does not name the
            items, such as a .npy file, is taken row by row if their ids are row numbers. Otherwise it is refused.
        records: "id" of each item.
        owner: Name of the items' file, for errors.

    Returns:
        The labels, in the order of the records.

    Raises:
        ValueError: If the file is missing or damaged, if an item has no label or two of them, or if the file does not
            name items that need a name.

    Examples:
        >>> from pathlib import Path
        >>> from aleator.own_data import read_labels_of
        >>> _ = Path("labels.csv").write_text("id,label\\nb.png,dog\\na.png,cat\\n")
        >>> labels = read_labels_of(Path("labels.csv"), [{"id": "a.png"}, {"id": "b.png"}], "photos.safetensors")
        >>> [labels.names[number] for number in labels.values]
        ['cat', 'dog']
    """
    path = Path(path).expanduser()
    ids = [record["id"] for record in records]
    row_numbers = all(isinstance(id, int) and id == i for i, id in enumerate(ids))
    if not row_numbers and path.is_file():
        header = set(read_table(path).header) if is_text_table(path) else set()
        names = bool(header & set(ID_COLUMNS)) or set(PAIR_COLUMNS) <= header
        problem = f"does not say which item a row belongs to, and the items of {owner} have names"
        require(
            names, "labels", str(path), problem, "write a .csv or .tsv file with the columns id (or path) and label"
        )
    return read_labels(path, len(ids), owner, ids)


def rows_by_id(table: Table, ids: Sequence[str | int]) -> tuple[list[int | None], str | None]:
    """Find the row of each item by its id.

    Args:
        table: A table with a column `id` or `path`.
        ids: Ids of the items.

    Returns:
        For each item the index of its row, None if there is none; and the name of the column, None if there is none.

    Raises:
        ValueError: If an id has two rows.
    """
    key = next((name for name in ID_COLUMNS if name in table.header), None)
    if key is None:
        return [None] * len(ids), None
    row_of: dict[str, int] = {}
    for i, cell in enumerate(table.column(key)):
        earlier = row_of.setdefault(plain_id(cell), i)
        problem = f"{cell} is in row {table.lines[earlier]} too"
        require(earlier == i, key, table.where(i), problem, "give each item one row")
    return [row_of.get(plain_id(id)) for id in ids], key


def pairs_from_table(table: Table, ids: Sequence[str | int]) -> Labels:
    """Pairs of items from the columns `first` and `second`, which hold ids.

    Args:
        table: The table.
        ids: Ids of the items.

    Returns:
        The pairs, as item numbers.

    Raises:
        ValueError: If an id is not known, or a row pairs an item with itself.
    """
    number_of = {plain_id(id): i for i, id in enumerate(ids)}
    example = f"write ids such as {ids[0]!r} and {ids[-1]!r}" if ids else "there are no items"
    pairs = np.empty((len(table), 2), np.int64)
    for i, row in enumerate(table.rows):
        for side, column in enumerate(PAIR_COLUMNS):
            number = number_of.get(plain_id(row[column]))
            if number is None:
                reject(column, f"{row[column]!r} in {table.where(i)}", "is no item", example)
            pairs[i, side] = number
        require_different(table, i, *pairs[i])
    return Labels("pairs", pairs)


def plain_id(id: str | int) -> str:
    """An id as text; "./cat/1.png" and "cat\\1.png" are the path "cat/1.png"."""
    return str(id).strip().replace("\\", "/").removeprefix("./")


def _of_every_item(labels: Labels | None, path: Path, count: int, owner: str) -> Labels:
    """The labels, if there are as many as items."""
    require(labels is not None, "labels", str(path), "has no column of labels", "add a column label")
    assert labels is not None
    rows = len(labels.values)
    way_out = "give every row its label in the same order, or give the labels a column id"
    require(rows == count, "labels", str(path), f"has {rows} rows, and {owner} has {count}", way_out)
    return labels


def named_labels(names: Sequence[str], kind: LabelKind) -> Labels:
    """Classes or groups from the name of each item's class or group; numbered in alphabetical order.

    Spaces at the ends of a name do not count.
    """
    distinct, numbers = np.unique(np.array([str(name).strip() for name in names]), return_inverse=True)
    return Labels(kind, numbers.astype(np.int64).reshape(-1), tuple(str(name) for name in distinct))


def labels_from_table(table: Table, columns: Sequence[str]) -> Labels | None:
    """Labels from the given columns of a table: one of LABEL_COLUMNS, or probabilities. None if there is no column."""
    named = [name for name in LABEL_COLUMNS if name in columns]
    way_out = "keep the column that says what matches"
    require(len(named) < 2, "data", str(table.path), "has a label and a group", way_out)
    if named:
        table.require_filled(named[0])
        return named_labels(table.column(named[0]), "classes" if named == ["label"] else "groups")
    if not columns:
        return None
    require(
        len(columns) >= 2,
        "data",
        str(table.path),
        f"the column {columns[0]} is not known",
        "call it label or group, or give every class a column with its probability",
    )
    probabilities = np.array([_row_of_probabilities(table, i, columns) for i in range(len(table))])
    return soft_labels(str(table.path), probabilities, tuple(columns), table.lines)


def require_label(table: Table, index: int, columns: Sequence[str]) -> None:
    """Raise unless the label of a row can be used: a filled cell, or probabilities that sum to 1.

    Args:
        table: The table.
        index: The row.
        columns: The columns of labels, as for `labels_from_table`.
    """
    named = [name for name in LABEL_COLUMNS if name in columns]
    for name in named:
        require(bool(table.rows[index][name].strip()), name, table.where(index), "is empty", "fill it in")
    if not named and len(columns) > 1:
        row = np.array([_row_of_probabilities(table, index, columns)])
        soft_labels(str(table.path), row, tuple(columns), [table.lines[index]])


def _row_of_probabilities(table: Table, index: int, columns: Sequence[str]) -> list[float]:
    """The probabilities in a row."""
    numbers = []
    for name in columns:
        cell = table.rows[index][name]
        try:
            numbers.append(table.number(cell))
        except ValueError:
            way_out = "write a number, or name the column label"
            reject(name, table.where(index), f"{cell!r} is not a probability", way_out)
    return numbers


def require_different(table: Table, index: int, first: str | int, second: str | int) -> None:
    """Raise if a row pairs an item with itself."""
    require(first != second, "pairs", table.where(index), "pairs an item with itself", "remove the row")


def _labels_from_array(path: Path) -> Labels:
    array = read_array(path, "labels")
    if array.ndim == 1 and array.dtype.kind == "f" and np.isfinite(array).all() and (array == np.round(array)).all():
        array = array.astype(np.int64)  # pandas makes floats of whole numbers where one was missing
    if array.ndim == 1 and array.dtype.kind in "iubU":
        return named_labels([str(name) for name in array.tolist()], "classes")
    require(
        array.ndim == 2 and array.dtype.kind in "fiu" and array.size > 0 and array.shape[1] > 1,
        "labels",
        str(path),
        f"{array.dtype} of shape {array.shape} is not labels",
        "store whole numbers or names (N,), or probabilities or votes (N, C) of at least two classes",
    )
    names = tuple(str(c) for c in range(array.shape[1]))
    return soft_labels(path, array, names, range(len(array)))


def soft_labels(
    source: Path | str, probabilities: np.ndarray, names: tuple[str, ...], rows: Sequence[int] | None = None
) -> Labels:
    """Soft labels (N, C), checked; `rows` are the row numbers that errors name.

    Whole numbers of votes are divided by their sum, and so are probabilities that were rounded to two decimals.
    """
    rows = range(len(probabilities)) if rows is None else rows
    probabilities = probabilities.astype(np.float64)
    valid = np.isfinite(probabilities).all(1) & (probabilities >= 0).all(1)
    for i in np.flatnonzero(~valid)[:1]:
        reject("labels", f"row {rows[i]} of {source}", "are negative or not finite", "write numbers from 0 to 1")
    total = probabilities.sum(1)
    votes = bool((probabilities == np.round(probabilities)).all())
    rounding = min(_ROUNDING * probabilities.shape[1], _MOST_ROUNDING)
    for i in np.flatnonzero(total < 1 if votes else abs(total - 1) > rounding + 1e-6)[:1]:
        problem = "has no votes" if votes else f"sum to {total[i]:.6g}, not to 1"
        way_out = "divide each row by its sum, or write whole numbers of votes with at least one in each row"
        reject("labels", f"row {rows[i]} of {source}", problem, way_out)
    return Labels("soft", (probabilities / total[:, None]).astype(np.float32), names)
