"""CSV tables and text files of a user, checked; errors name the file and the row."""

import codecs
import csv
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aleator.foundation import reject, require, without_apostrophe
from aleator.own_data.collection.object_store import AnyPath

_LONGEST_CELL = 2**31 - 1  # letters; Python's own limit is 131,072, which a long document exceeds
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+")
_GROUPED_BY_POINTS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+")
_DECIMAL_POINT = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")
_THOUSANDS = {sign: re.compile(rf"[+-]?\d{{1,3}}(\{sign}\d{{3}})+") for sign in (",", ".")}


@dataclass(frozen=True)
class Table:
    """A CSV file: its column names, its rows, the number of each, and what separates cells.

    Rows are numbered as in a spreadsheet: the header is row 1, and empty rows count. If
    `points_group`, 1.201 is 1201.
    """

    path: AnyPath
    header: list[str]
    rows: list[dict[str, str]]
    lines: list[int]
    separator: str = ","
    points_group: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> list[str]:
        """The cells of one column, in order."""
        return [row[name] for row in self.rows]

    def where(self, index: int) -> str:
        """Where a row is, for an error: "row 3 of items.csv"."""
        return f"row {self.lines[index]} of {self.path}"

    def number(self, cell: str) -> float:
        """The number in a cell, also with separators of thousands where they cannot be decimal signs.

        Where semicolons or tabs separate cells, it may have a decimal comma.
        """
        if self.points_group and _GROUPED_BY_POINTS.fullmatch(cell.strip()):
            return float(cell.strip().replace(".", ""))
        try:
            return float(cell)
        except ValueError:
            return float(_plain_number(cell.strip(), self.separator != ","))

    def without(self, indices: Collection[int]) -> "Table":
        """The table without some of its rows."""
        return self.select([i for i in range(len(self)) if i not in indices])

    def select(self, indices: Sequence[int]) -> "Table":
        """Some rows of the table, in the order of their indices."""
        rows, lines = [self.rows[i] for i in indices], [self.lines[i] for i in indices]
        return replace(self, rows=rows, lines=lines)

    def require_filled(self, name: str, way_out: str = "fill it in") -> None:
        """Raise if a cell of a column is empty."""
        for i, cell in enumerate(self.column(name)):
            require(bool(cell.strip()), name, self.where(i), "is empty", way_out)


def _plain_number(text: str, decimal_comma: bool) -> str:
    """A number as Python writes it: "2,435.50", "2.435,50" and "1,234,567" have separators of thousands."""
    for thousands, decimal in ((",", "."), (".", ",")):
        whole, point, rest = text.partition(decimal)
        if _THOUSANDS[thousands].fullmatch(whole) and (point or whole.count(thousands) > 1):
            return f"{whole.replace(thousands, '')}.{rest}"
    return text.replace(",", ".") if decimal_comma else text


def is_text_table(path: AnyPath) -> bool:
    """Whether the name of a file ends as that of a table does, in small or capital letters: .csv or .tsv."""
    return path.suffix.lower() in (".csv", ".tsv")


def read_table(path: Path) -> Table:
    """Read a CSV file with a header and at least one row. Empty lines are skipped.

    Cells are separated by commas, semicolons or tabs, whichever separates the header. The apostrophe before what would
    be a formula, as `write_csv` puts it there, is left out.
    """
    lines_of_file = [line + "\n" for line in read_text(path).split("\n")]  # not at other signs, as splitlines does
    if lines_of_file[0].startswith("sep="):  # spreadsheets write it for other spreadsheets
        lines_of_file[0] = "\n"
    header_line = next((line for line in lines_of_file if line.strip()), "")
    separator = separator_of(header_line)
    reader = csv.reader(lines_of_file, delimiter=separator, strict=True)
    rows, lines = [], []
    most_letters = csv.field_size_limit(_LONGEST_CELL)
    try:
        numbered = enumerate(reader, 1)  # a row may be several lines of the file
        header = [without_apostrophe(name.strip()) for name in next((cells for _, cells in numbered if cells), [])]
        require(bool(header), "data", str(path), "is empty", "write a header and one row per item")
        require(len(set(header)) == len(header), "data", str(path), "names a column twice", "rename one")
        for number, cells in numbered:
            if not cells:
                continue
            require(
                len(cells) == len(header),
                "data",
                f"row {number} of {path}",
                f"has {len(cells)} fields, and the header has {len(header)}",
                f"put quotes around fields that contain {_SEPARATORS[separator]}",
            )
            rows.append(dict(zip(header, map(without_apostrophe, cells), strict=True)))
            lines.append(number)
    except csv.Error as damage:
        reject("data", f"line {reader.line_num} of {path}", f"is not valid CSV ({damage})", "export it again")
    finally:
        csv.field_size_limit(most_letters)
    require(bool(rows), "data", str(path), "has no row", "write one row per item below the header")
    return Table(path, header, rows, lines, separator, separator != "," and _points_group(rows))


def _points_group(rows: list[dict[str, str]]) -> bool:
    """Whether 1.201 is 1201 in a table: other cells have a decimal comma, and none has what must be a decimal point."""
    commas = False
    for cell in (cell.strip() for row in rows for cell in row.values()):
        commas = commas or _DECIMAL_COMMA.fullmatch(cell) is not None
        if _DECIMAL_POINT.fullmatch(cell) and not _GROUPED_BY_POINTS.fullmatch(cell):
            return False
    return commas


def separator_of(header: str) -> str:
    """What separates the cells of a header: a comma, a semicolon or a tab.

    Args:
        header: The first line of a table.

    Returns:
        The one that makes the most cells; a comma if none makes more than one.
    """

    def cells(separator: str) -> int:
        try:
            return len(next(csv.reader([header], delimiter=separator), []))
        except csv.Error:  # whoever reads the table says what is wrong with it
            return 0

    return max(_SEPARATORS, key=cells)


def read_text(path: Path) -> str:
    r"""Read a UTF-8 file, with or without a byte order mark, or UTF-16 with one; lines end in "\n"."""
    data = path.read_bytes()
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        return data.decode(encoding).replace("\r\n", "\n")
    except UnicodeDecodeError as damage:
        reject(
            "data", str(path), f"is not UTF-8 text (byte {damage.start})", "save it as UTF-8 (spreadsheets: CSV UTF-8)"
        )
