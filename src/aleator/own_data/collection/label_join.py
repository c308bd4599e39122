"""Labels of embedded items from a second file: joined by id or path, never by row number where items have names."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aleator.foundation import require
from aleator.own_data.collection.labels import ID_COLUMNS, PAIR_COLUMNS, Labels, read_labels
from aleator.own_data.collection.tables import is_text_table, read_table


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
