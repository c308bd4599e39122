"""CSV tables and text files of a user, checked; errors name the file and the row."""

import csv
from dataclasses import dataclass
from pathlib import Path

from aleator.foundation import reject, require


@dataclass(frozen=True)
class Table:
    """A CSV file: its column names, its rows, and the line of the file that each row ends on."""

    path: Path
    header: list[str]
    rows: list[dict[str, str]]
    lines: list[int]

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> list[str]:
        """The cells of one column, in order."""
        return [row[name] for row in self.rows]

    def where(self, index: int) -> str:
        """Where a row is, for an error: "row 3 of items.csv"."""
        return f"row {self.lines[index]} of {self.path}"

    def require_filled(self, name: str, way_out: str = "fill it in") -> None:
        """Raise if a cell of a column is empty."""
        for i, cell in enumerate(self.column(name)):
            require(bool(cell.strip()), name, self.where(i), "is empty", way_out)


def read_table(path: Path) -> Table:
    """Read a CSV file with a header and at least one row. Empty lines are skipped."""
    reader = csv.reader(read_text(path).splitlines(keepends=True), strict=True)
    rows, lines = [], []
    try:
        header = [name.strip() for name in next(reader, [])]
        require(bool(header), "data", str(path), "is empty", "write a header and one row per item")
        require(len(set(header)) == len(header), "data", str(path), "names a column twice", "rename one")
        for cells in reader:
            if not cells:
                continue
            require(
                len(cells) == len(header),
                "data",
                f"row {reader.line_num} of {path}",
                f"has {len(cells)} fields, and the header has {len(header)}",
                "put quotes around fields that contain commas",
            )
            rows.append(dict(zip(header, cells, strict=True)))
            lines.append(reader.line_num)
    except csv.Error as damage:
        reject("data", f"row {reader.line_num} of {path}", f"is not valid CSV ({damage})", "export it again")
    require(bool(rows), "data", str(path), "has no row", "write one row per item below the header")
    return Table(path, header, rows, lines)


def read_text(path: Path) -> str:
    r"""Read a UTF-8 file, with or without a byte order mark; lines end in "\n"."""
    try:
        return path.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as damage:
        reject("data", str(path), f"is not UTF-8 text (byte {damage.start})", "save it as UTF-8")
