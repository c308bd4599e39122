"""What an audit found, and its folder: claim it, write its tables and figures, read its findings.

AUDIT/label_errors.csv       every item, the most suspicious label first
AUDIT/near_duplicates.csv    groups of near duplicates
AUDIT/confused_classes.csv   pairs of classes, the most confused first
AUDIT/odd_ones.csv           the items that are least like the others
AUDIT/summary.json           counts, settings, provenance; written last
AUDIT/figures/               for images: the first suspicious labels, duplicates and odd ones
AUDIT/cache/                 features of an audit that is not finished
"""

import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aleator.evaluation import Confusion, LabelErrors, Neighbours, plots
from aleator.foundation import (
    digest,
    read_json,
    reject,
    require,
    require_new_folder,
    save_figure,
    write_csv,
    write_json,
    writing_atomically,
)
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.contents import content_text
from aleator.own_data.collection.tables import Table, read_table
from aleator.own_data.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LABEL_ERRORS, NEAR_DUPLICATES = "label_errors.csv", "near_duplicates.csv"
CONFUSED_CLASSES, ODD_ONES, SUMMARY = "confused_classes.csv", "odd_ones.csv", "summary.json"
_COLUMNS = {
    LABEL_ERRORS: ("rank", "id", "given", "likelier", "p_given", "p_likelier", "score", "content"),
    NEAR_DUPLICATES: ("group", "id", "label", "same_content", "labels_differ", "distance", "content"),
    CONFUSED_CLASSES: ("given", "other", "probability", "items", "examples"),
    ODD_ONES: ("rank", "id", "label", "distance", "nearest", "content"),
}
_NUMBERS = {
    "p_given": float,
    "p_likelier": float,
    "score": float,
    "distance": float,
    "probability": float,
    "group": int,
}
_MOST_ODD_ONES = 1000
MANY_TIMES = 10  # a label is called a likely error if another one is this many times as probable
FAR = 2.0  # an item is odd if its neighbours are this many times as far away as usual
_IN_A_ROW, _ROWS = 8, 5  # images of a figure


@dataclass(frozen=True)
class Audit:
    """What `audit` found.

    Args:
        collection: The items.
        digests: What each item is, shape (N,): equal items have equal numbers.
        label_errors: Judgement of each label; None without classes or soft labels.
        confusions: Pairs of classes that are confused, the most confused first.
        duplicates: Groups of near duplicates, each a tuple of item numbers; largest first.
        copies: Those items that have the same content as another item of their group.
        oddness: Mean distance of each item to its neighbours, in units of the median, shape (N,).
        neighbours: The nearest items of each item.
        summary: Counts and settings, as in summary.json.

    Examples:
        >>> import numpy as np
        >>> from aleator.own_data import audit, read_collection
        >>> rows = np.random.default_rng(0).standard_normal((50, 8))
        >>> rows[3] = rows[30]
        >>> np.save("rows.npy", rows)
        >>> audit(read_collection("rows.npy"), "findings", device="cpu", progress=False).duplicates
        [(3, 30)]
    """

    collection: Collection
    digests: np.ndarray
    label_errors: LabelErrors | None
    confusions: list[Confusion]
    duplicates: list[tuple[int, ...]]
    copies: frozenset[int]
    oddness: np.ndarray
    neighbours: Neighbours
    summary: dict[str, Any]


def claim_audit_folder(output: Path, collection: Collection, run: Run | None, features: str | Path | None) -> Path:
    """Create the folder of an audit, or check that it is an unfinished one of the same items and features.

    The contents of the items are not looked at: each row of the features is sealed with the item it was made from.

    Returns:
        Its cache folder.
    """
    identity = {
        "names": digest(collection.kind, collection.ids()),
        "model": None if run is None else run.digest(),
        "features": None if features is None else str(features),
    }
    cache, record = output / "cache", output / "cache" / "audit.json"
    way_out = "name a new folder"
    require(not (output / SUMMARY).exists(), "output", str(output), "holds a finished audit", way_out)
    if record.is_file():
        same = read_json(record, f"remove {cache}, and start again") == identity
        problem = "is the unfinished audit of other items or features"
        require(same, "output", str(output), problem, "finish that first, or name a new folder")
    else:
        require_new_folder("output", output)
        write_json(record, identity)
    return cache


def write_audit(output: Path, audit: Audit) -> None:
    """Write an audit to its folder. The cache is removed."""
    ids = [record["id"] for record in audit.collection.records()]
    names = _label_names(audit.collection)
    tables = {
        LABEL_ERRORS: _label_errors(audit, ids, names),
        NEAR_DUPLICATES: _near_duplicates(audit, ids, names),
        CONFUSED_CLASSES: _confused_classes(audit, ids),
        ODD_ONES: _odd_ones(audit, ids, names),
    }
    for name, rows in tables.items():
        with writing_atomically(output / name) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            write_csv(file, _COLUMNS[name], rows)
    drawn = _figures(audit, names)
    if drawn:
        (output / "figures").mkdir(exist_ok=True)
    for name, figure in drawn.items():
        save_figure(figure, output / "figures" / f"{name}.png")
    write_json(output / SUMMARY, audit.summary)
    shutil.rmtree(output / "cache", ignore_errors=True)


def read_findings(folder: str | Path) -> dict[str, list[dict[str, str]]]:
    """Read what a finished audit found. Its tables list more: all labels by their score, and the least odd items too.

    Args:
        folder: The folder that `audit` wrote.

    Returns:
        Rows by the name of the table: "label_errors" that are likely, "near_duplicates", "confused_classes", and
        "odd_ones" that are more than twice as far from their neighbours as usual. Each row has its cells by column.

    Raises:
        ValueError: If the folder is not a finished audit, or a table is damaged.

    Examples:
        >>> import numpy as np
        >>> from aleator.own_data import audit, read_collection, read_findings
        >>> rows = np.random.default_rng(0).standard_normal((30, 4))
        >>> rows[7] += 100
        >>> np.save("rows.npy", rows)
        >>> _ = audit(read_collection("rows.npy"), "found", device="cpu", progress=False)
        >>> [row["id"] for row in read_findings("found")["odd_ones"]]
        ['7']
    """
    folder = Path(folder).expanduser()
    finished = (folder / SUMMARY).is_file()
    require(finished, "audit", str(folder), f"has no {SUMMARY}", "name a folder that `aleator audit` finished")
    tables = {}
    for name, columns in _COLUMNS.items():
        path = folder / name
        rows: list[dict[str, str]] = []
        if path.is_file() and path.stat().st_size > len(",".join(columns)) + 1:  # more than the header
            table = read_table(path)
            way_out = "make the audit again"
            require(tuple(table.header) == columns, "audit", str(path), "has other columns", way_out)
            for column in set(columns) & set(_NUMBERS):
                _require_numbers(table, column)
            rows = table.rows
        tables[path.stem] = rows
    tables["label_errors"] = [row for row in tables["label_errors"] if float(row["score"]) > math.log(MANY_TIMES)]
    tables["odd_ones"] = [row for row in tables["odd_ones"] if float(row["distance"]) > FAR]
    return tables


def _require_numbers(table: Table, column: str) -> None:
    """Raise unless every cell of a column is a number."""
    for i, cell in enumerate(table.column(column)):
        try:
            _NUMBERS[column](cell)
        except ValueError:
            reject(column, table.where(i), f"{cell[:50]!r} is not a number", "make the audit again")


def _label_errors(audit: Audit, ids: list[Any], names: list[str]) -> Iterator[tuple[Any, ...]]:
    errors = audit.label_errors
    if errors is None or audit.collection.labels is None:
        return
    classes = audit.collection.labels.names
    for rank, i in enumerate(errors.order().tolist(), 1):
        numbers = (_short(value[i]) for value in (errors.p_given, errors.p_likelier, errors.score))
        yield (rank, ids[i], names[i], classes[errors.likelier[i]], *numbers, content_text(audit.digests[i]))


def _near_duplicates(audit: Audit, ids: list[Any], names: list[str]) -> Iterator[tuple[Any, ...]]:
    nearest = audit.neighbours.distances[:, 0]
    for number, members in enumerate(audit.duplicates, 1):
        differ = _yes(len({names[i] for i in members}) > 1)
        for i in members:
            copy, content = _yes(i in audit.copies), content_text(audit.digests[i])
            yield number, ids[i], names[i], copy, differ, _short(nearest[i]), content


def _confused_classes(audit: Audit, ids: list[Any]) -> Iterator[tuple[Any, ...]]:
    labels = audit.collection.labels
    for pair in audit.confusions:
        assert labels is not None
        examples = " ".join(str(ids[i]) for i in pair.examples)
        yield labels.names[pair.given], labels.names[pair.other], _short(pair.probability), pair.items, examples


def _odd_ones(audit: Audit, ids: list[Any], names: list[str]) -> Iterator[tuple[Any, ...]]:
    order = np.argsort(-audit.oddness, kind="stable")[:_MOST_ODD_ONES]
    for rank, i in enumerate(order.tolist(), 1):
        nearest, content = ids[audit.neighbours.items[i, 0]], content_text(audit.digests[i])
        yield rank, ids[i], names[i], _short(audit.oddness[i]), nearest, content


def _label_names(collection: Collection) -> list[str]:
    """The label of each item; empty without labels."""
    labels = collection.labels
    hard = None if labels is None else labels.hard()
    if labels is None or hard is None:
        return [""] * len(collection)
    return [labels.names[number] for number in hard]


def _figures(audit: Audit, names: list[str]) -> dict[str, "Figure"]:
    """Sheets of images, by name. Empty unless the items are images."""
    if audit.collection.kind != "images":
        return {}
    count = _IN_A_ROW * _ROWS
    sheets: dict[str, list[tuple[int, str]]] = {}
    if audit.label_errors is not None and audit.collection.labels is not None:
        classes, likelier = audit.collection.labels.names, audit.label_errors.likelier
        first = audit.label_errors.order()[:count].tolist()
        sheets["label_errors"] = [(i, f"{names[i]}\n→ {classes[likelier[i]]}") for i in first]
    pairs = [(i, names[i]) for members in audit.duplicates for i in members[:2]]
    if pairs:
        sheets["near_duplicates"] = pairs[:count]
    sheets["odd_ones"] = [(i, names[i]) for i in np.argsort(-audit.oddness, kind="stable")[:count].tolist()]
    return {name: _sheet(audit.collection, entries) for name, entries in sheets.items()}


def _sheet(collection: Collection, entries: list[tuple[int, str]]) -> "Figure":
    pictures = [(_picture(collection, i), caption) for i, caption in entries]
    rows = {f"{start + 1}": pictures[start : start + _IN_A_ROW] for start in range(0, len(pictures), _IN_A_ROW)}
    return plots.image_rows(rows, side=1.0)


def _picture(collection: Collection, number: int) -> np.ndarray:
    from aleator.data import thumbnail

    (path,) = collection.raw(number, number + 1)
    return thumbnail(path, 128)


def _short(value: Any) -> str:
    return f"{float(value):.4g}"


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"
