"""Read a user's collection: items and labels, checked before any work is done.

    folder/cat/*.png, folder/dog/*.png      images; the class is the folder
    folder/*.png                            images without labels
    items.csv                               a column `path` or `text`, and `label`, `group`, or one column for each
                                            class with its probability; or two columns `first`, `second`: pairs
    numbers.csv                             columns of numbers, and `label` or `group`; as every table, it
                                            may have a column `id` with the names of its rows
    features.npy                            (N, F), with labels in a second file: .npy or .csv
    items.txt                               one text per line
    items.parquet                           a column `features`, or the columns of a table

A folder and a .parquet file may also be on an object store: s3://bucket/name.

Problems name the file and the row. Single items that cannot be used are left out, unless the reading is strict.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aleator.data import IMAGE_SUFFIXES
from aleator.foundation import reject, require, require_file
from aleator.own_data.collection.arrays import FeatureFile
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.labels import (
    ID_COLUMNS,
    LABEL_COLUMNS,
    PAIR_COLUMNS,
    labels_from_table,
    named_labels,
    pairs_from_table,
    plain_id,
    read_labels,
    require_different,
    require_label,
    rows_by_id,
)
from aleator.own_data.collection.number_tables import TableColumns
from aleator.own_data.collection.object_store import AnyPath, ObjectPath, is_object
from aleator.own_data.collection.parquet import FEATURES, ParquetFeatures, parquet_columns, read_parquet_table
from aleator.own_data.collection.problems import Problem, problem_of, stop_at, usable_rows
from aleator.own_data.collection.tables import Table, is_text_table, read_table, read_text

ITEM_COLUMNS = ("path", "text")
_PARTS = ("train", "training", "val", "valid", "validation", "dev", "test", "testing")
# Pictures in formats that are not read here. They are reported, because a person would expect them to be used.
_OTHER_PICTURES = (
    *(".jxl", ".jp2", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf"),
    *(".orf", ".rw2", ".psd", ".svg", ".dcm", ".exr", ".hdr"),
)


def read_collection(
    source: str | Path,
    labels: str | Path | None = None,
    *,
    labels_optional: bool = False,
    strict: bool = True,
    storage_options: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
) -> Collection:
    """Read a collection and check it.

    Args:
        source: A folder of images, with or without class folders; a .csv file with a column `path` or `text`, with the
            columns `first` and `second`, or with columns of numbers; a .npy file of features (N, F);
            a .parquet file with a column `features` (lists of F numbers) or the columns of a .csv file; or a .txt file
            with one text per line. A folder and a .parquet file may be on an object store: s3://bucket/name.
        labels: Labels of .npy features, of the images of a folder, of the lines of a .txt file, or of the rows of a
            table that has none; see `read_labels`.
        labels_optional: Whether to read a folder without labels if its subfolders cannot be its classes. Otherwise
            such a folder is an error.
        strict: Whether items that cannot be used are an error, which lists them all. If not, they are left out, and
            `Collection.problems` lists them.
        storage_options: Options of the object store, as `CredibleIndex.open` takes them. Default: the usual environment
            variables.
        columns: The columns of a table of numbers that are features: `run.columns` of the run that it is read for.
            Default: all but ids and labels.

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
    place, ending = _find(source, storage_options)
    labels_path = None if labels is None else Path(labels).expanduser()
    if ending == ".npy":
        return _read_features(Path(place), labels_path)
    if ending in (".csv", ".tsv", ".parquet"):
        if ending == ".parquet" and FEATURES in parquet_columns(place):
            return _read_parquet_features(place, labels_path)
        table = read_parquet_table(place, parquet_columns(place)) if ending == ".parquet" else read_table(Path(place))
        collection = _read_items(table, columns)
    elif ending == "a folder":
        collection = _read_folder(place, labels_optional, labels_path)
    elif ending == ".txt":
        collection = _read_lines(Path(place))
    else:
        way_out = "name a folder of images, or a .csv, .tsv, .npy, .parquet or .txt file"
        reject("data", str(place), "has an unknown ending", way_out)
    if strict or not len(collection):
        stop_at(collection.problems, len(collection) + len(collection.problems))
    if labels_path is None or ending == "a folder":
        return collection
    way_out = "leave them out: they are in the data"
    require(collection.labels is None, "labels", str(labels), "the table has its own", way_out)
    return replace(collection, labels=read_labels(labels_path, len(collection), str(place), collection.ids()))


def _find(source: str | Path, storage_options: Mapping[str, str] | None) -> tuple[Any, str]:
    """Where a collection is, and its ending or "a folder"."""
    if is_object(source):
        there = ObjectPath.parse(str(source), storage_options)
        if there.is_folder():
            return there, "a folder"
        require(there.is_file(), "data", str(there), "there is no such file or folder", "check the name")
        ending = there.suffix.lower()
        way_out = "name a folder of images or a .parquet file, or copy it here"
        require(ending == ".parquet", "data", str(there), "is not read from an object store", way_out)
        return there, ending
    require(storage_options is None, "storage_options", "given", "are for object stores", "leave them out")
    source = Path(source).expanduser()
    require(source.exists(), "data", str(source), "there is no such file or folder", "check the path")
    return source, "a folder" if source.is_dir() else source.suffix.lower()


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


def _read_folder(folder: AnyPath, labels_optional: bool, labels_path: Path | None) -> Collection:
    """Images of a folder. If they are in subfolders, these are their classes, unless a file has the labels."""
    files = list(_files(folder))
    pictures = [path for path in files if path.lower().endswith((*IMAGE_SUFFIXES, *_OTHER_PICTURES))]
    problems = [
        Problem(f"{folder}/{_shown(path)}", "has a name that is not UTF-8", "rename it")
        for path in pictures
        if not _is_unicode(path)
    ]
    readable = [path for path in pictures if _is_unicode(path)]
    paths = [path for path in readable if path.lower().endswith(IMAGE_SUFFIXES)]
    others = [path for path in readable if not path.lower().endswith(IMAGE_SUFFIXES)]
    ignored = len(files) - len(pictures)
    way_out = "convert it to JPEG, PNG or TIFF"
    problems += [
        Problem(f"{folder}/{path}", "is a picture in a format that is not read here", way_out) for path in others
    ]
    if not paths:
        stop_at(problems, len(problems))
        reject("data", str(folder), "holds no image", f"put images there ({' '.join(IMAGE_SUFFIXES)})")
    loose = [path for path in paths if "/" not in path]
    if labels_path is not None:
        return _label_images(folder, paths, labels_path, ignored, problems)
    if len(loose) == len(paths) or (loose and labels_optional):
        note = "" if len(loose) == len(paths) else _about_loose(loose)
        return Collection("images", folder, paths, folder, None, ignored, tuple(problems), note=note)
    problem, way_out = "lies beside class folders, so its class is not known", "move it into the folder of its class"
    problems += [Problem(f"{folder}/{path}", problem, way_out) for path in loose]
    paths = [path for path in paths if "/" in path]
    classes = [path.split("/")[0] for path in paths]
    if not labels_optional:
        _refuse_parts(folder, paths)
        for name in _empty_folders(folder, set(classes)):
            problems.append(Problem(f"{folder}/{_shown(name)}", "holds no image", "fill or remove the folder"))
    return Collection("images", folder, paths, folder, named_labels(classes, "classes"), ignored, tuple(problems))


def _is_unicode(path: str) -> bool:
    """Whether a file name can be written as text. Names of old archives may be bytes of another encoding."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(path: str) -> str:
    """A path as it can be printed."""
    return path if _is_unicode(path) else ascii(path)[1:-1]


def _about_loose(loose: list[str]) -> str:
    """Why images in subfolders have no labels."""
    lie, them = (f" and {len(loose) - 1} more lie", "them") if len(loose) > 1 else (" lies", "it")
    told = f"the folders are not taken for labels, because {loose[0]}{lie} beside them: no item has a label"
    return f"{told}; move {them} to another place to keep the labels"


def _refuse_parts(folder: AnyPath, paths: list[str]) -> None:
    """Raise if the subfolders are the parts of a data set, such as train and test, with the classes inside."""
    names = sorted({path.split("/")[0] for path in paths})
    parts = all(name.lower() in _PARTS for name in names) and any(path.count("/") > 1 for path in paths)
    way_out = f"name one of them, such as {folder}/{names[0]}"
    require(not parts, "data", str(folder), f"{', '.join(names)} look like parts of a data set, not classes", way_out)


def _label_images(
    folder: AnyPath, paths: list[str], labels_path: Path, ignored: int, problems: list[Problem]
) -> Collection:
    """Images of a folder, with the labels of a table that names their paths."""
    way_out = "pass a .csv or .tsv file with a column id or path"
    require(is_text_table(labels_path), "labels", str(labels_path), "does not name the images", way_out)
    require_file("labels", labels_path, "check the path")
    table = read_table(labels_path)
    if set(PAIR_COLUMNS) <= set(table.header):
        pairs = pairs_from_table(table, paths)
        return Collection("images", folder, paths, folder, pairs, ignored, tuple(problems))
    rows, key = rows_by_id(table, paths)
    require(key is not None, "labels", str(labels_path), "does not name the images", way_out)
    columns = [name for name in table.header if name not in ID_COLUMNS]
    labelled, used = [], []
    for path, row in zip(paths, rows, strict=True):
        if row is None:
            missing = f"has no row in {labels_path.name}, where paths start in {folder}"
            problems.append(Problem(f"{folder}/{path}", missing, "add one"))
            continue
        try:
            require_label(table, row, columns)
        except ValueError as error:
            problems.append(problem_of(f"{folder}/{path}", error))
            continue
        labelled.append(path)
        used.append(row)
    labels = labels_from_table(table.select(used), columns) if used else None
    return Collection("images", folder, labelled, folder, labels, ignored, tuple(problems))


def _empty_folders(folder: AnyPath, classes: set[str]) -> list[str]:
    """Subfolders that are no class because they hold no image. An object store has no empty folders."""
    if isinstance(folder, ObjectPath):
        return sorted({path.split("/")[0] for path in folder.files() if "/" in path} - classes)
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != ".")
    return [name for name in names if name not in classes]


def _files(folder: AnyPath) -> Iterator[str]:
    """Every file below a folder, as a relative path with slashes, in a fixed order; hidden files are left out."""
    if isinstance(folder, ObjectPath):
        yield from folder.files()
        return
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] != ".")
        for name in sorted(files):
            if name[0] != ".":
                yield Path(here, name).relative_to(folder).as_posix()


def _read_lines(path: Path) -> Collection:
    """Texts, one per line. The number of a line, from 0, is the id of its text."""
    lines = read_text(path).split("\n")
    if lines and not lines[-1]:
        lines.pop()
    require(bool(lines), "data", str(path), "holds no text", "write one text per line")
    empty = {number for number, line in enumerate(lines) if not line.strip()}
    problems = tuple(Problem(f"line {number + 1} of {path}", "is empty", "remove it") for number in sorted(empty))
    numbers = [number for number in range(len(lines)) if number not in empty]
    return Collection("text", path, [lines[i] for i in numbers], problems=problems, names=numbers if empty else None)


def _read_features(path: Path, labels_path: Path | None) -> Collection:
    rows = FeatureFile(path)
    labels = None if labels_path is None else read_labels(labels_path, len(rows), str(path))
    return Collection("features", path, rows, None, labels, names=_names_beside_labels(labels_path, len(rows)))


def _names_beside_labels(path: Path | None, count: int) -> list[str] | None:
    """Ids that a table of labels gives to rows without names; None if it has none, or if they are row numbers."""
    if path is None or not is_text_table(path):
        return None
    table = read_table(path)
    rows, key = rows_by_id(table, range(count))
    if key is None or any(row is not None for row in rows):
        return None
    table.require_filled(key)
    return table.column(key)


def _read_parquet_features(path: AnyPath, labels_path: Path | None) -> Collection:
    rows, columns = ParquetFeatures(path), [name for name in parquet_columns(path) if name != FEATURES]
    labels, names, note = None, None, ""
    if labels_path is not None:
        columns = [name for name in columns if name == "id"]
    if columns:
        table = read_parquet_table(path, columns)
        labels = labels_from_table(table, [name for name in columns if name != "id"])
        names, note = _names(table, table)
    if labels_path is not None:
        labels = read_labels(labels_path, len(rows), str(path), names)
        names = _names_beside_labels(labels_path, len(rows)) if names is None else names
    return Collection("features", path, rows, None, labels, names=names, note=note)


def _read_items(table: Table, columns_of_run: Sequence[str] | None) -> Collection:
    path = table.path
    if set(PAIR_COLUMNS) <= set(table.header):
        return _read_pairs(table)
    item_columns = [name for name in ITEM_COLUMNS if name in table.header]
    if not item_columns:
        return _read_numbers(table, columns_of_run)
    require(
        len(item_columns) == 1, "data", str(path), "has the columns path and text", "rename the one that is no item"
    )
    (item_column,) = item_columns
    columns = [name for name in table.header if name not in (item_column, "id")]
    first_line: dict[str, int] = {}

    def check(index: int) -> None:
        item = table.rows[index][item_column]
        if item_column == "text":
            require(bool(item.strip()), "text", table.where(index), "is empty", "remove the row")
        else:
            _require_image_file(table, index, item)
            _require_new(table, index, item, first_line)
        require_label(table, index, columns)

    usable, problems = usable_rows(table, check)
    if not len(usable):
        stop_at(problems, len(table))
    labels, items = labels_from_table(usable, columns), usable.column(item_column)
    if item_column == "path":
        return Collection("images", path, items, path.parent, labels, problems=tuple(problems))
    names, note = _names(table, usable)
    return Collection("text", path, items, None, labels, problems=tuple(problems), names=names, note=note)


def _read_numbers(table: Table, names_of_columns: Sequence[str] | None) -> Collection:
    """Rows of features from a table of numbers."""
    columns = TableColumns(table, names_of_columns)
    named = [name for name in LABEL_COLUMNS if name in table.header]

    def check(index: int) -> None:
        columns.require_row(index)
        require_label(table, index, named)

    usable, problems = usable_rows(table, check)
    if not len(usable):
        stop_at(problems, len(table))
    rows, labels = columns.features(usable), labels_from_table(usable, named)
    names, note = _names(table, usable)
    return Collection("features", table.path, rows, None, labels, problems=tuple(problems), names=names, note=note)


def _names(table: Table, usable: Table) -> tuple[Sequence[str | int] | None, str]:
    """Ids of the usable rows of a table, None for the numbers from 0; and what a user should know about them."""
    note = ""
    if "id" in table.header:
        ids = usable.column("id")
        twice = next((id for id, count in Counter(ids).items() if count > 1), None)
        if twice is None and all(id.strip() for id in ids):
            return ids, ""
        problem = "leaves some rows without a name" if twice is None else f"has {twice!r} more than once"
        note = f"the column id {problem}, so items are named by the numbers of their rows, from 0"
    if len(usable) == len(table):
        return None, note
    row_of_line = {line: number for number, line in enumerate(table.lines)}
    return [row_of_line[line] for line in usable.lines], note


def _require_new(table: Table, index: int, path: str, first_line: dict[str, int]) -> None:
    """Raise if an earlier row has the same path."""
    earlier = first_line.setdefault(plain_id(path), table.lines[index])
    require(
        earlier == table.lines[index],
        "path",
        table.where(index),
        f"{path} is in row {earlier} too",
        "give each item one row; if opinions differ, give every class a column with its probability",
    )


def _read_pairs(table: Table) -> Collection:
    """Images from pairs of paths; an image is numbered when it is first named."""

    def check(index: int) -> None:
        paths = [table.rows[index][column] for column in PAIR_COLUMNS]
        for path in paths:
            _require_image_file(table, index, path)
        require_different(table, index, *map(plain_id, paths))

    usable, problems = usable_rows(table, check)
    if not len(usable):
        stop_at(problems, len(table))
    first_written: dict[str, str] = {}  # a path may be written in two ways
    for row in usable.rows:
        for column in PAIR_COLUMNS:
            first_written.setdefault(plain_id(row[column]), row[column])
    items = list(first_written.values())
    pairs = pairs_from_table(usable, items)
    return Collection("images", table.path, items, table.path.parent, pairs, problems=tuple(problems))


def _require_image_file(table: Table, index: int, path: str) -> None:
    require(bool(path.strip()), "path", table.where(index), "is empty", "fill it in")
    if isinstance(table.path, ObjectPath):
        return  # a question for each image would take long; those that are not there are found when they are read
    is_file = (table.path.parent / path).is_file()
    require(is_file, "path", table.where(index), f"{path} is not there", "write paths relative to the CSV file")
