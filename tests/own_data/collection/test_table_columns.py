"""What the columns of a table become: numbers, words, and cells that are empty."""

import json

import numpy as np
import pytest

from aleator.own_data.collection.table_columns import Column, choose_columns, is_empty, read_numbers, read_words


def words_of(cells):
    """The words of a column that are features, and the note."""
    (column,), (note,) = choose_columns({"c": cells})
    assert column.features(cells).shape == (len(cells), len(column.words))
    return column.words, note


@pytest.mark.parametrize("cell", ["", "  ", "NA", "n/a", "nan", "NaN", "NULL", "?"])
def test_these_cells_are_empty(cell):
    assert is_empty(cell)
    assert np.isnan(read_numbers(["1", cell], float).values[1])
    assert read_words(["a", cell]) == ["a", ""]


@pytest.mark.parametrize("cell", ["0", "none", "-", "x", "inf"])
def test_these_are_not(cell):
    assert not is_empty(cell)


@pytest.mark.parametrize(
    ("numbers", "others", "expected"),
    [(1, 0, True), (0, 0, False), (0, 1, False), (4, 3, True), (3, 4, False), (90, 10, True), (89, 11, False)],
)
def test_a_few_cells_of_a_column_of_numbers_may_be_wrong(numbers, others, expected):
    """So a typing error is named, and a column of codes of which some look like numbers is a column of words."""
    column = read_numbers(["1.5"] * numbers + ["x7"] * others + [""] * 5, float)
    assert column.are_most == expected
    assert column.others == set(range(numbers, numbers + others))
    np.testing.assert_equal(column.values, [1.5] * numbers + [np.nan] * (others + 5))


@pytest.mark.parametrize("cell", ["inf", "-Infinity", "1e39", "x", "1.2.3"])
def test_what_is_no_finite_number_in_single_precision_is_something_else(cell):
    column = read_numbers(["7", cell], float)
    assert column.others == {1}
    np.testing.assert_equal(column.values, [7, np.nan])


def test_an_empty_cell_counts_as_the_median_and_is_marked_if_it_is_not_rare():
    some = np.array([1.0, 2.0, 9.0, np.nan])
    (column,), (note,) = choose_columns({"c": some})
    assert column == Column("c", fill=2.0, marks_empty=True)
    assert note == "column c: 1 empty cell counts as its median 2, and a feature says which they are"
    assert column.features(some).tolist() == [[1, 0], [2, 0], [9, 0], [2, 1]]
    rare = np.append(np.arange(199.0), np.nan)
    (column,), (note,) = choose_columns({"c": rare})
    assert column == Column("c", fill=99.0)
    assert note == "column c: 1 empty cell counts as its median 99"
    (column,), notes = choose_columns({"c": np.arange(5.0)})
    assert column == Column("c", fill=2.0)  # a later table may have an empty cell
    assert notes == []


def test_frequent_words_are_features_and_names_are_not():
    assert words_of(["b", "a", "b", ""]) == (("", "a", "b"), "column c: 3 words are features")
    frequent = ["x"] * 500 + ["y"] * 485 + ["rare"] * 5 + [f"n{i}" for i in range(10)]
    assert words_of(frequent) == (("x", "y"), "column c: 2 words are features, 11 rarer left out")
    names = [f"n{i}" for i in range(600)] + ["x"] * 400
    assert words_of(names) == ((), "column c: left out, its words are names (601 different ones in 1000 rows)")
    many = [f"w{i % 60:02}" for i in range(6000)]  # the words are even: 32 of 60 are kept
    assert len(words_of(many)[0]) == 32


def test_items_are_no_features():
    assert words_of(["a.PNG", "b.png"])[0] == ()
    assert "call it text if" in words_of(["It is a long sentence, and has many words in it."] * 30)[1]
    assert words_of(["", ""]) == ((), "column c: left out, it is empty")


def test_what_a_column_becomes_is_kept_as_json():
    columns = [
        Column("a"),
        Column("b", 0.1, True),
        Column("c", 2.5),
        Column("d", words=("", "u")),
        Column("e", words=()),
    ]
    stored = json.loads(json.dumps([column.to_dict() for column in columns]))
    assert stored[0] == {"name": "a"}
    assert [Column.from_dict(fields) for fields in stored] == columns
    assert Column("d", fill=0.0) == Column.from_dict(json.loads(json.dumps(Column("d", fill=0.0).to_dict())))
    assert [name for column in columns for name in column.feature_names] == [
        "a", "b", "b is empty", "c", "d is empty", "d = u",
    ]  # fmt: skip


def test_a_column_of_words_that_holds_numbers_now():
    column = Column("c", words=("", "7", "7.5", "x"))
    features = column.features(np.array([7.0, 7.5, np.nan, 3.0]))
    assert features.tolist() == [[0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]


def test_a_column_of_numbers_that_is_empty_now():
    assert Column("c", 4.0, True).features(["", ""]).tolist() == [[4, 1], [4, 1]]
    assert np.isnan(Column("c").features(["", ""])).all()


@pytest.mark.parametrize("cells", [["3,600", "1,000", "2,5"], ["0,523", "", "1,5"]])
def test_numbers_with_a_comma_are_not_taken_for_words(cells):
    with pytest.raises(ValueError, match=r"column price.*it holds '.*', whose comma may separate.*by semicolons"):
        choose_columns({"price": cells})


def test_a_word_that_stands_everywhere_says_nothing():
    assert words_of(["u"] * 30) == ((), "column c: left out, it holds 'u' in every row")
