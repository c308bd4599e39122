"""Tables of numbers as collections: features, labels, and what is no number."""

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

from aleator.own_data import Settings, embed, read_collection, read_embedded, train
from aleator.own_data.collection.number_tables import with_columns


def table(path, *rows: str):
    path.write_text("\n".join(rows) + "\n")
    return path


def test_columns_of_numbers_are_features_and_the_label_is_not(tmp_path):
    path = table(tmp_path / "flowers.csv", "id,length,width,label", "7,1.5,2,rose", "8,-3e2,0.25,lily")
    collection = read_collection(path)
    assert (collection.kind, collection.features, collection.labels.names) == ("features", 2, ("lily", "rose"))
    np.testing.assert_array_equal(collection.raw(0, 2), np.float32([[1.5, 2], [-300, 0.25]]))
    assert collection.labels.values.tolist() == [1, 0]
    assert collection.ids() == ["7", "8"]


@pytest.mark.parametrize(
    ("second", "problem"), [("b2", "has 'b2' more than once"), ("", "leaves some rows without a name")]
)
@pytest.mark.parametrize("kind", ["numbers", "text"])
def test_rows_have_the_names_of_the_column_id_if_it_tells_them_apart(tmp_path, kind, second, problem):
    header, cells = ("id,x,label", ("1", "2", "3")) if kind == "numbers" else ("id,text,label", ("one", "two", "three"))
    good = table(tmp_path / "good.csv", header, *(f"{id},{cell},u" for id, cell in zip("abc", cells, strict=True)))
    assert read_collection(good).ids() == ["a", "b", "c"]
    assert read_collection(good).note == ""
    bad = table(tmp_path / "bad.csv", header, f"b2,{cells[0]},u", f"a,{cells[1]},u", f"{second},{cells[2]},u")
    assert read_collection(bad).ids() == [0, 1, 2]
    note = f"the column id {problem}, so items are named by the numbers of their rows, from 0"
    assert read_collection(bad).note == note


def test_labels_of_a_second_file_are_joined_by_id(tmp_path):
    numbers = table(tmp_path / "x.csv", "id,a,b", "p,1,2", "q,3,4", "r,5,6")
    labels = table(tmp_path / "y.csv", "id,label", "r,dog", "other,owl", "p,cat", "q,dog")
    collection = read_collection(numbers, labels)
    assert collection.features == 2
    assert [collection.labels.names[number] for number in collection.labels.values] == ["cat", "dog", "dog"]
    few = table(tmp_path / "few.csv", "id,label", "r,dog", "p,cat")
    with pytest.raises(
        ValueError, match=r"has no row for 1 of 3 items .*x.csv \(q\); give each item a row with its id"
    ):
        read_collection(numbers, few)


def test_labels_of_a_second_file_are_joined_by_row_number_or_order(tmp_path):
    numbers = table(tmp_path / "x.csv", "a,b", "1,2", "3,none", "5,6")
    by_number = table(tmp_path / "y.csv", "id,label", "2,dog", "1,owl", "0,cat")
    labels = read_collection(numbers, by_number, strict=False).labels
    assert [labels.names[number] for number in labels.values] == ["cat", "dog"]  # row 1 cannot be used
    complete = table(tmp_path / "z.csv", "a,b", "1,2", "3,4", "5,6")
    np.save(tmp_path / "y.npy", np.array([0, 1, 1]))
    assert read_collection(complete, tmp_path / "y.npy").labels.values.tolist() == [0, 1, 1]
    with pytest.raises(ValueError, match="'none' is not a finite number"):
        read_collection(numbers, tmp_path / "y.npy")  # and not that there are too many labels


@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_ids_beside_the_labels_name_rows_without_names(tmp_path, ending):
    rows = np.arange(6.0).reshape(3, 2)
    if ending == "npy":
        np.save(tmp_path / "x.npy", rows)
    else:
        parquet.write_table(pyarrow.table({"features": rows.tolist()}), tmp_path / "x.parquet")
    x = tmp_path / f"x.{ending}"
    named = read_collection(x, table(tmp_path / "y.csv", "id,label", "p,cat", "q,dog", "r,cat"))
    assert list(named.records()) == [
        {"id": id, "label": name} for id, name in zip("pqr", ("cat", "dog", "cat"), strict=True)
    ]
    # Row numbers are no names: they say where a label belongs.
    numbered = read_collection(x, table(tmp_path / "y.csv", "id,label", "2,cat", "0,dog", "1,cat"))
    assert [record["label"] for record in numbered.records()] == ["dog", "cat", "cat"]
    assert numbered.ids() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"id = 'row 3 of .*y\.csv': is empty"):
        read_collection(x, table(tmp_path / "y.csv", "id,label", "p,cat", ",dog", "r,cat"))


def test_a_second_file_of_labels_is_refused_where_the_table_has_its_own(tmp_path):
    second = table(tmp_path / "y.csv", "id,label", "p,cat", "q,dog")
    for name, header in (("label.csv", "id,a,label"), ("group.csv", "id,a,group"), ("text.csv", "id,text,label")):
        path = table(tmp_path / name, header, "p,1,u", "q,2,v")
        with pytest.raises(ValueError, match="the table has its own; leave them out"):
            read_collection(path, second)


def test_a_row_that_is_left_out_takes_its_name_along(tmp_path):
    path = table(tmp_path / "x.csv", "id,a,label", "p,1,u", "q,none,u", "r,3,v")
    assert read_collection(path, strict=False).ids() == ["p", "r"]


def test_row_numbers_without_a_name_are_no_feature(tmp_path):
    """So pandas writes them. In a sorted table they would give the class away."""
    path = table(tmp_path / "pandas.csv", ",a,b,group", "0,1,2,x", "1,3,4,x")
    collection = read_collection(path)
    assert collection.features == 2
    assert collection.labels.kind == "groups"


def test_decimal_commas_between_semicolons(tmp_path):
    path = table(tmp_path / "excel.csv", "a;b", "1,5;2", "0,25;3")
    np.testing.assert_array_equal(read_collection(path).raw(0, 2), np.float32([[1.5, 2], [0.25, 3]]))


def test_a_number_that_single_precision_does_not_hold_is_left_out(tmp_path):
    path = table(tmp_path / "x.csv", "a,label", "1,u", "1e39,u", "-1e39,v", "5,v")
    collection = read_collection(path, strict=False)
    assert collection.ids() == [0, 3]
    assert [problem.reason for problem in collection.problems] == [
        "a: '1e39' is not a finite number",
        "a: '-1e39' is not a finite number",
    ]


def test_rows_that_cannot_be_used_are_listed_and_left_out(tmp_path):
    path = table(tmp_path / "x.csv", "a,b,label", "1,2,u", "1,-inf,u", "1e39,2,v", "3,oops,v", "5,6,v", "7,8,")
    with pytest.raises(ValueError, match="4 of 6 items cannot be used"):
        read_collection(path)
    collection = read_collection(path, strict=False)
    assert collection.ids() == [0, 4]
    reasons = [problem.reason for problem in collection.problems]
    assert reasons == [
        "b: '-inf' is not a finite number",
        "a: '1e39' is not a finite number",
        "b: 'oops' is not a finite number",
        "label: is empty",
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["1,red", "2,blue"], "column b of .*holds 'red', no number; make numbers of it.*scikit-learn.*leave it out"),
        (["1,", "2,"], "column b of .*is empty in 2 of 2 rows; make numbers of it.*SimpleImputer"),
        (["1,7"] * 60 + ["1,", "2,red"] * 4, "column b of .*holds 'red', no number"),
        (['1,"3,600"'] * 9, "column b of .*holds '3,600', no number"),
    ],
)
def test_a_column_of_something_else_than_numbers_is_named_with_the_way_out(tmp_path, rows, message):
    """Also where single rows that cannot be used would be left out."""
    path = table(tmp_path / "x.csv", "a,b", *rows)
    with pytest.raises(ValueError, match=message):
        read_collection(path, strict=False)


def test_a_cell_that_is_empty_leaves_its_row_out(tmp_path):
    collection = read_collection(table(tmp_path / "x.csv", "a,b", "1,2", "3, ", "5,6"), strict=False)
    assert collection.ids() == [0, 2]
    assert [problem.reason for problem in collection.problems] == ["b: is empty"]


def test_a_table_of_ids_and_labels_has_no_features(tmp_path):
    with pytest.raises(ValueError, match="has no column but ids and labels; add columns of numbers"):
        read_collection(table(tmp_path / "x.csv", "id,label", "1,rose", "2,lily"))


def test_a_table_without_labels_is_not_trained_on(tmp_path):
    path = table(tmp_path / "x.csv", "a,b,species", "1,2,0", "3,4,1")
    with pytest.raises(ValueError, match="has no labels; call its column of classes label"):
        train(read_collection(path), tmp_path / "run", device="cpu")


def test_train_and_embed_take_a_table_of_numbers(tmp_path):
    generator = np.random.default_rng(0)
    classes = np.arange(90) % 3
    rows = 3 * np.eye(3, 4)[classes] + generator.standard_normal((90, 4))
    lines = [",".join(f"{x:.6g}" for x in row) for row in rows]
    known = table(
        tmp_path / "known.csv", "a,b,c,d,label", *(f"{line},{'uvw'[c]}" for line, c in zip(lines, classes, strict=True))
    )
    run = train(read_collection(known), tmp_path / "run", Settings(steps=20, width=16), device="cpu", baselines=False)
    new = table(tmp_path / "new.csv", "a,b,c,d", *lines[:5])
    embedded = read_embedded(embed(run, read_collection(new), tmp_path / "new.safetensors", device="cpu"))
    np.testing.assert_allclose(embedded.q.mu, run.posteriors(np.float32(rows[:5])).mu, atol=1e-3)
    narrow = read_collection(table(tmp_path / "narrow.csv", "a,b", "1,2"))
    with pytest.raises(ValueError, match="lacks c, d, unlike"):
        embed(run, narrow, tmp_path / "narrow.safetensors", device="cpu")


def test_a_run_knows_the_names_of_its_columns(tmp_path):
    generator = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{'xy'[i % 2]}" for i, (a, b) in enumerate(generator.normal(size=(60, 2)))]
    path = table(tmp_path / "train.csv", "length,width,label", *rows)
    run = train(read_collection(path), tmp_path / "run", Settings(steps=1, width=8), device="cpu", baselines=False)
    for header, problem in {
        "length,height": "lacks width and has height, unlike the training data",
        "length": "lacks width, unlike the training data; give it the columns of the training data: length, width",
    }.items():
        other = table(tmp_path / "other.csv", header, ",".join("12"[: header.count(",") + 1]))
        with pytest.raises(ValueError, match=problem):
            embed(run, read_collection(other), tmp_path / "other.safetensors", device="cpu")
        rows = [",".join("1234"[i] for _ in header.split(",")) + f",{'xyxy'[i]}" for i in range(4)]
        labelled = read_collection(table(tmp_path / "labelled.csv", f"{header},label", *rows))
        with pytest.raises(ValueError, match=problem):
            train(labelled, tmp_path / "next", Settings(start=str(tmp_path / "run")), device="cpu")
    one, other = (
        embed(run, read_collection(table(tmp_path / f"{name}.csv", *rows)), tmp_path / f"{name}.safetensors")
        for name, rows in (("same", ("length,width", "1,2")), ("turned", ("width,length", "2,1")))
    )
    assert torch.equal(read_embedded(one).q.mu, read_embedded(other).q.mu)


def test_a_later_table_may_have_its_columns_in_another_order_and_others(tmp_path):
    known = ["width", "length"]
    path = table(tmp_path / "new.csv", "colour,length,width", "red,1,2", "blue,3,4")
    collection = read_collection(path, columns=known)
    assert collection.raw(0, 2).tolist() == [[2, 1], [4, 3]]
    assert collection.notes == ["columns that the run does not use: colour"]
    three = read_collection(table(tmp_path / "three.csv", "height,length,width", "5,1,2"))
    assert with_columns(three, known).raw(0, 1).tolist() == [[2, 1]]
    assert with_columns(three, known).notes == ["columns that the run does not use: height"]
    for missing in (["width", "depth"], ["depth"]):
        with pytest.raises(ValueError, match=r"lacks depth and has .*, unlike the training data"):
            read_collection(path, columns=missing)
        with pytest.raises(ValueError, match=r"lacks depth and has .*, unlike the training data"):
            with_columns(three, missing)


def test_a_column_that_float32_cannot_resolve_is_named(tmp_path):
    rows = [f"{1_700_000_000 + i},{i / 7},{'xy'[i % 2]}" for i in range(60)]
    collection = read_collection(table(tmp_path / "times.csv", "second,value,label", *rows))
    with pytest.raises(ValueError, match="second: float32 cannot tell the values apart"):
        train(collection, tmp_path / "run", Settings(steps=1), device="cpu")
