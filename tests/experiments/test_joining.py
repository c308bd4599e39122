"""A part of a table is joined with what is stored of it."""

import dataclasses
import json
from pathlib import Path

import pytest

from aleator.experiments.controlled.run import Setting
from aleator.experiments.joining import join_results, require_joinable
from aleator.experiments.runner import Row, mean_over_seeds

ONE, TWO = Setting(name="one"), Setting(name="two")
TABLE = [Row(ONE, (4, 5)), Row(TWO, (4, 5))]


def result(setting, seeds, commit, **metrics):
    row = {
        "setting": setting.name,
        "loss": setting.loss,
        "seeds": list(seeds),
        "metrics": {name: mean_over_seeds(list(values)) for name, values in metrics.items()},
        "parameters": json.loads(json.dumps(dataclasses.asdict(setting))),
        "run_seconds": [10.0 * seed for seed in seeds],
    }
    provenance = {"command": commit, "commit": commit, "device": "cpu", "wall_seconds": 7.0, "runs": len(seeds)}
    return {"experiment": "x", "preset": "quick", "provenance": provenance, "rows": [row]}


def test_rows_stand_in_the_order_of_the_table():
    joined = join_results(result(TWO, [4], "a", mu_rank=[0.5]), result(ONE, [4], "b", mu_rank=[0.7]), TABLE, [])
    assert [row["setting"] for row in joined["rows"]] == ["one", "two"]
    assert (joined["provenance"]["commit"], joined["provenance"]["runs"]) == ("a, b", 2)


def test_seeds_of_a_row_are_joined_and_means_follow():
    stored, fresh = result(ONE, [4, 5], "a", x=[1.0, 2.0], y=[0.0, 0.0]), result(ONE, [5, 6], "b", x=[4.0, 7.0])
    (row,) = join_results(stored, fresh, TABLE, [{"seconds": 3.0}])["rows"]
    assert row["seeds"] == [4, 5, 6]
    assert row["metrics"] == {"x": {"mean": 4.0, "stderr": pytest.approx(3**0.5), "values": [1.0, 4.0, 7.0]}}
    assert row["run_seconds"] == [40.0, 50.0, 60.0]


def test_seconds_of_this_call_are_added_once():
    stored, fresh = result(ONE, [4], "a", x=[1.0]), result(ONE, [5], "b", x=[2.0])
    assert join_results(stored, fresh, TABLE, [{"seconds": 3.0}])["provenance"]["wall_seconds"] == 10.0
    assert join_results(stored, fresh, TABLE, [])["provenance"]["wall_seconds"] == 7.0


def test_where_all_runs_are_here_the_provenance_is_theirs():
    fresh = result(ONE, [4], "b", x=[1.0], new=[2.0])
    assert join_results(result(ONE, [4], "a", x=[5.0]), fresh, TABLE, []) == fresh


def test_other_settings_are_refused_only_where_they_would_be_mixed():
    stored = result(dataclasses.replace(ONE, samples=3), [4], "a", x=[1.0])
    with pytest.raises(
        ValueError, match=r"^results = 'r/x': quick.json has runs of one with other settings \(samples\)"
    ):
        require_joinable(stored, [Row(ONE, (5,))], Path("r/x/y/quick.json"))
    require_joinable(stored, [Row(ONE, (4,)), Row(ONE, (5,))], Path("r/x/quick.json"))  # made again
    require_joinable(stored, [Row(TWO, (5,))], Path("r/x/quick.json"))  # another row
