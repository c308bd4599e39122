"""CSV files that people open in spreadsheets, which run a cell that begins like a formula.

Such a cell gets an apostrophe before it, as spreadsheets themselves mark text, and loses it when the table is read.
"""

import csv
import itertools
from collections.abc import Iterable
from typing import IO, Any

_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")  # the last four are wide: = + - @ of East Asian keyboards


def write_csv(file: IO[str], columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a table with a header. Text that a spreadsheet would take for a formula gets an apostrophe before it.

    Args:
        file: A text file that is open for writing, with `newline=""`.
        columns: Names of the columns.
        rows: The cells of each row. Numbers stay numbers, also those in text, such as "-0.5".

    Examples:
        >>> import sys
        >>> from aleator.foundation import write_csv
        >>> write_csv(sys.stdout, ["id", "score"], [["=1+1.png", -0.5], ["cat.png", "-inf"]])
        id,score
        '=1+1.png,-0.5
        cat.png,-inf
    """
    plain, quoted = (csv.writer(file, quoting=how, lineterminator="\n") for how in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    for row in itertools.chain([columns], rows):
        cells = [_as_text(cell) for cell in row]
        returns = any(isinstance(cell, str) and "\r" in cell for cell in cells)  # Python would leave it without quotes
        (quoted if returns else plain).writerow(cells)


def without_apostrophe(cell: str) -> str:
    """A cell as it was before `write_csv` marked it as text.

    Args:
        cell: A cell of a table, written by us, by another program or by a person.

    Returns:
        The cell, without its first apostrophe if `write_csv` would have put it there.

    Examples:
        >>> from aleator.foundation import without_apostrophe
        >>> [without_apostrophe(cell) for cell in ("'=1+1.png", "'s-Gravenhage", "-0.5")]
        ['=1+1.png', "'s-Gravenhage", '-0.5']
    """
    return cell[1:] if cell[:1] == "'" and _as_text(cell[1:]) == cell else cell


def _as_text(cell: Any) -> Any:
    if not isinstance(cell, str) or not cell.lstrip("'").startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return "'" + cell
    return cell
