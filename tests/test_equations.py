"""The table of equations names functions and tests that exist."""

import re
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TABLE = (TESTS.parent / "docs" / "equations.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in TABLE.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize("row", ROWS[1:], ids=lambda row: row[0])
def test_functions_and_tests_exist(row):
    _, _, functions, tests = row
    for name in re.findall(r"`([^`]+)`", functions):
        package, module, *attributes = name.split(".")
        assert reduce(getattr, attributes, import_module(f"aleator.{package}.{module}")) is not None
    for name in re.findall(r"`([^`]+)`", tests):
        path, _, test_class = name.partition("::")
        assert f"class {test_class}" in (TESTS / path).read_text() if test_class else (TESTS / path).exists()
