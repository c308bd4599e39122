"""Problems of single items come in one report."""

import pytest

from aleator.own_data import Problem, describe_problems
from aleator.own_data.collection.problems import problem_of, stop_at, usable_rows
from aleator.own_data.collection.tables import read_table
from tests.own_data.conftest import write


def test_a_report_has_one_line_for_each_kind():
    damaged = [Problem(f"{i}.jpg", f"is damaged (byte {i} of '{i}.jpg')", "copy it again") for i in range(5)]
    large = [Problem("big.png", "has 9000 x 9000 pixels", "make it smaller")]
    large += [Problem("bigger.png", "has 9900 x 8000 pixels", "make it smaller")]
    lines = describe_problems([*large, *damaged], 40).split("\n")
    assert lines == [
        "7 of 40 items cannot be used:",
        "  5 x is damaged (byte 0 of '0.jpg'): 0.jpg, 1.jpg, 2.jpg and 2 more; copy it again",
        "  2 x has 9000 x 9000 pixels: big.png, bigger.png; make it smaller",
    ]


def test_a_long_report_is_cut():
    kinds = [Problem("a", f"has the fault {letter}", "mend it") for letter in "abcdefghijkl"]
    lines = describe_problems(kinds, 12).split("\n")
    assert len(lines) == 1 + 8 + 1
    assert lines[-1] == "  4 x other problems"


def test_stopping():
    stop_at([], 5)
    with pytest.raises(ValueError, match=r"data = 'a\.png': is damaged; copy it$"):
        stop_at([Problem("a.png", "is damaged", "copy it")], 5)
    with pytest.raises(ValueError, match=r"^2 of 5 items"):
        stop_at([Problem("a.png", "is damaged", "copy it")] * 2, 5)


def test_usable_rows_keep_their_lines(tmp_path):
    table = read_table(write(tmp_path / "t.csv", "text\na\nb\n\nc\n"))

    def check(index):
        if table.rows[index]["text"] == "b":
            raise ValueError("no b")

    usable, problems = usable_rows(table, check)
    assert (usable.column("text"), usable.lines) == (["a", "c"], [2, 5])
    assert problems == [problem_of(f"row 3 of {tmp_path}/t.csv", ValueError("no b"))]
