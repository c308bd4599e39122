"""`aleator audit`: what it writes and prints, and one-line errors."""

import csv
import json

import numpy as np
import pytest

from tests.cli.test_own_data import run_command


@pytest.fixture(scope="module")
def clear(tmp_path_factory):
    """x.npy, y.npy: three clear classes; the label of item 12 is wrong."""
    folder = tmp_path_factory.mktemp("clear")
    labels = np.arange(90) % 3
    rows = np.eye(3, 5)[labels] + 0.1 * np.random.default_rng(0).standard_normal((90, 5))
    labels[12] = 2
    np.save(folder / "x.npy", rows)
    np.save(folder / "y.npy", labels)
    return folder


def test_features_with_labels(clear, tmp_path):
    output = tmp_path / "audit"
    result = run_command("audit", clear / "x.npy", "--labels", clear / "y.npy", "--output", output)
    first_line = next(line for line in result.stdout.splitlines() if "12" in line)
    assert first_line.split()[1::2][:3] == ["12", "2", "0"]  # item, given, likelier
    assert "1 of 90 labels" in result.stderr
    with open(output / "label_errors.csv") as file:
        assert next(csv.DictReader(file))["id"] == "12"
    again = run_command("audit", clear / "x.npy", "--labels", clear / "y.npy", "--output", output, code=2)
    assert "holds a finished audit" in again.stderr
    assert len(again.stderr.splitlines()) == 1


def test_json(clear, tmp_path):
    command = ("audit", clear / "x.npy", clear / "x.npy", "--labels", clear / "y.npy", "--folds", 3, "--json")
    result = run_command(*command, "--output", tmp_path / "audit")
    summary = json.loads(result.stdout)
    assert summary["label_errors"]["folds"] == 3
    assert summary == json.loads((tmp_path / "audit" / "summary.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("missing",), "SOURCE 'missing': is neither a run nor features"),
        ((".",), "a run has no items of its own; name the items too"),
        ((".", "x.npy"), "has no inputs.json"),
        (("x.npy", "missing.csv"), "there is no such file"),
    ],
)
def test_errors_are_one_line(arguments, problem, clear, tmp_path, monkeypatch):
    monkeypatch.chdir(clear)
    result = run_command("audit", *arguments, "--output", tmp_path / "audit", code=2)
    assert problem in result.stderr
    assert len(result.stderr.splitlines()) == 1
