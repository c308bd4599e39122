"""Tables for spreadsheets: no cell is a formula, numbers stay numbers, and what was written is read."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aleator.foundation import without_apostrophe, write_csv
from aleator.own_data.collection.tables import read_table


def written(cell):
    file = io.StringIO()
    write_csv(file, ["cell"], [[cell]])
    return file.getvalue().split("\n")[1]


@pytest.mark.parametrize("text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "'=1", "\uff1d1", "--5"])
def test_a_formula_becomes_text(text):
    assert written(text) == "'" + text


@pytest.mark.parametrize("cell", [-0.5, 3, "-0.5", "+3", "-1e-05", "-inf", "it's", "'s-Gravenhage", "a=b", ""])
def test_numbers_and_other_text_stay(cell):
    assert written(cell).strip('"') == str(cell)


@given(st.text("'=+-@\t0.e ax", max_size=6))
def test_every_cell_is_read_as_it_was_written(cell):
    assert without_apostrophe(written(cell)) == cell or cell == ""


def test_a_table_is_read_as_it_was_written(tmp_path):
    rows = [["=1", "plain"], ["'=1", "a\nb"], ["-", "@x, y"], ["\t", '+"quoted"'], ["\rx", "-0.5"]]
    with open(tmp_path / "table.csv", "w", newline="", encoding="utf-8") as file:
        write_csv(file, ["id", "=label"], rows)
    table = read_table(tmp_path / "table.csv")
    assert [list(row.values()) for row in table.rows] == rows
