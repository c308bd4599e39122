"""The benchmark on tables: what it reads, and how it counts."""

import math

import numpy as np
import pytest
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
