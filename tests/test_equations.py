"""The table of equations names functions and tests that exist."""

import re
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TABLE = (TESTS.parent / "docs" / "equations.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in TABLE.splitlines() if line.startswith("| ")]


def names_by_file(cell: str) -> dict[str, list[str]]:
    """A cell is a list of files, each followed by names in it: `special/bessel.py` `log_iv`, `bessel_ratio`; ..."""
    names: dict[str, list[str]] = {}
    for word in re.findall(r"`([^`]+)`", cell):
        if word.endswith(".py"):
            names[word] = []
        else:
            names[list(names)[-1]].append(word)
    return names


@pytest.mark.parametrize("row", ROWS[1:], ids=lambda row: row[0])
def test_functions_and_tests_exist(row):
    functions, tests = (names_by_file(cell) for cell in row[2:])
    assert functions
    assert tests
    for file, names in functions.items():
        module = import_module("aleator." + file.removesuffix(".py").replace("/", "."))
        assert names
        for name in names:
            assert reduce(getattr, name.split("."), module) is not None
    for file, names in tests.items():
        text = (TESTS / file).read_text()
        for name in names:
            assert f"class {name}" in text
