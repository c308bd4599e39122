"""A controlled experiment of one short run; prints its metrics. test_runner.py kills it."""

import json
import sys
from dataclasses import replace
from pathlib import Path

from aleator.experiments.controlled.presets import base
from aleator.experiments.controlled.run import run_seed
from aleator.experiments.runner import Row, RunFunction, run_rows


def metrics(runs: Path) -> dict:
    """The metrics of the run, which is made in a folder if it is not there."""
    setting = base("quick")
    short = {**setting.recipe, "steps": 30, "checkpoint_every": 5}
    setting = replace(setting, dim=3, batch_size=16, group=None, smoothing_steps=10, points=100, recipe=short)
    rows = run_rows(RunFunction("controlled", run_seed), [Row(setting, (4,))], "cpu", runs, "small", 1, False)
    return rows[0]["metrics"]


if __name__ == "__main__":
    print(json.dumps(metrics(Path(sys.argv[1]))))
