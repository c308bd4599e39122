"""Tables and text files that cannot be used are refused; the error names file and row."""

import csv
from pathlib import Path

import pytest

from aleator.own_data import read_collection
from aleator.own_data.collection.tables import Table, read_table
from tests.own_data.conftest import write


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("path,label\n", "has no row"),
        ("file,label\ncat/1.png,cat\n", "no number; make numbers of it.* path or text if it is the item"),
        ("path,label\ncat/1.png,cat\ncat/9.png,cat\n", r"row 3 of .*items\.csv.*cat/9\.png is not there"),
        ("path,label\ncat/1.png,cat\n,cat\n", r"row 3 of .*items\.csv.*is empty"),
        ("path,label\ncat/1.png,cat\ncat/1.png,dog\n", "row 3.*is in row 2 too"),
        ("path,label\ncat/1.png\n", "row 2.*has 1 fields, and the header has 2"),
        ("path,label\ncat/1.png,\n", r"row 2 of .*label: is empty"),
        ("path,label,group\ncat/1.png,a,b\n", "a label and a group"),
        ("path,path\ncat/1.png,a\n", "names a column twice"),
        ("path,colour\ncat/1.png,red\n", "column colour is not known"),
        ("path,cat,dog\ncat/1.png,0.5,0.5\ncat/2.png,0.5,0.4\n", r"row 3 of .*items\.csv.*sum to 0\.9, not to 1"),
        ("path,cat,dog\ncat/1.png,1.5,-0.5\n", r"row 2 of .*negative"),
        ("path,cat,dog\ncat/1.png,nan,1\n", r"row 2 of .*not finite"),
        ("path,cat,dog\ncat/1.png,most,some\n", r"row 2 of .*cat: 'most' is not a probability"),
        ("first,second\ncat/1.png,cat/1.png\n", "row 2.*with itself"),
        ("first,second\ncat/1.png,cat/7.png\n", r"row 2.*cat/7\.png is not there"),
        ('path,label\n"cat/1.png,cat\n', "is not valid CSV"),
        ('path,label\ncat/1.png,"one\ntwo\nthree"\ncat/9.png,cat\n', r"row 3 of .*cat/9\.png is not there"),
        ('path,label\n\ncat/1.png,"one\ntwo"\ncat/1.png,"a\nb"\n', "row 4.*is in row 3 too"),
        ('path,"la\nbel"\ncat/1.png,a,b\n', "row 2.*has 3 fields"),
    ],
)
def test_bad_tables_name_file_and_row(pets, text, problem):
    with pytest.raises(ValueError, match=problem):
        read_collection(write(pets / "items.csv", text))


def test_text_that_is_not_text(tmp_path):
    (tmp_path / "t.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_collection(tmp_path / "t.txt")
    with pytest.raises(ValueError, match=r"line 2 of .*is empty"):
        read_collection(write(tmp_path / "gap.txt", "one\n\nthree\n"))


@pytest.mark.parametrize(
    "text",
    [
        'path;label\ncat/1.png;"a;b"\ndog/1.png;c, d\n',
        'path\tlabel\ncat/1.png\ta;b\ndog/1.png\t"c, d"\n',
        'sep=;\npath;label\ncat/1.png;"a;b"\ndog/1.png;c, d\n',
        'path,label\ncat/1.png,a;b\ndog/1.png,"c, d"\n',
    ],
    ids=["semicolons", "tabs", "spreadsheet", "commas"],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_the_header_says_what_separates_cells(pets, text, encoding):
    (pets / "items.csv").write_bytes(text.encode(encoding))
    collection = read_collection(pets / "items.csv")
    assert collection.items == ["cat/1.png", "dog/1.png"]
    assert collection.labels.names == ("a;b", "c, d")


def test_a_cell_may_be_longer_than_pythons_limit(tmp_path):
    before = csv.field_size_limit()
    (tmp_path / "t.csv").write_text("text,label\n" + "word " * 30_000 + ",long\nshort,short\n")
    assert len(read_collection(tmp_path / "t.csv").items[0]) == 150_000
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("cell", "separator", "number"),
    [
        ("2,435.50", ",", 2435.5),
        ("-1,234,567", ",", -1234567.0),
        (" 12,345.", ",", 12345.0),
        ("2.435,50", ";", 2435.5),
        ("1.234.567", ";", 1234567.0),
        ("1,234.5", ";", 1234.5),
        ("1,234", ";", 1.234),  # a decimal comma, as everywhere between semicolons
        ("1.234", ";", 1.234),
        ("1e-3", ",", 0.001),
    ],
)
def test_numbers_with_separators_of_thousands(cell, separator, number):
    assert Table(Path("items.csv"), ["size"], [{"size": cell}], [2], separator).number(cell) == number


@pytest.mark.parametrize("cell", ["1,234", "12,34.5", "1234,567.0", "1,234,56", "1,234.567,8", ",123.0", "x"])
def test_what_could_be_another_number_is_none(cell):
    with pytest.raises(ValueError, match="could not convert"):
        Table(Path("items.csv"), ["size"], [{"size": cell}], [2]).number(cell)


def test_numbers_with_decimal_commas_need_another_separator(pets):
    collection = read_collection(write(pets / "items.csv", "path;cat;dog\ncat/1.png;0,75;0,25\n"))
    assert collection.labels.values.tolist() == [[0.75, 0.25]]
    with pytest.raises(ValueError, match=r"row 2 .*contain semicolons"):
        read_collection(write(pets / "items.csv", "path;label\ncat/1.png;a;b\n"))


def test_line_separators_inside_cells_do_not_end_a_row(tmp_path):
    collection = read_collection(write(tmp_path / "t.csv", "text,label\none \u2028 still one,a\ntwo,b\n"))
    assert collection.items == ["one \u2028 still one", "two"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("a;b\n1.201;801,5", 1201.0),  # a decimal comma in the table: points group
        ("a;b\n1.201;1.115,50", 1201.0),
        ("a\tb\n-12.345.678\t0,5", -12345678.0),
        ("a;b\n1.201;7", 1.201),  # nothing decides
        ("a;b;c\n1.201;0,5;1.5", 1.201),  # another cell has a decimal point
        ("a;b;c\n1.201;0,5;0.125", 1.201),
        ("a;b\n0.201;0,5", 0.201),  # no number begins with a group of zeros
        ('a,b\n1.201,"0,5"', 1.201),
    ],
)
def test_points_group_where_commas_are_decimal_signs(tmp_path, lines, expected):
    (tmp_path / "x.csv").write_text(lines + "\n")
    table = read_table(tmp_path / "x.csv")
    assert table.number(table.rows[0]["a"]) == expected
    assert table.select([0]).number(table.rows[0]["a"]) == expected
