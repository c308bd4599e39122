"""The paper's tables and figures: experiments as data (tables.py), a runner, a report.

`reproduce("recovery", "best")` runs one and writes `results/recovery/best.json` with its figures and the report.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aleator.experiments.catalogue import EXPERIMENTS, PRESETS
from aleator.experiments.cifar.folds import require_data
from aleator.experiments.paper import paper_figure
from aleator.experiments.report import COLUMNS, shown_rows, with_error, write_report
from aleator.experiments.runner import file_name, origin, outcome_arrays, run_rows
from aleator.foundation import require_one_of, resolve_device, write_json

__all__ = ["COLUMNS", "EXPERIMENTS", "PRESETS", "paper_figure", "reproduce", "require_data", "shown_rows", "with_error"]


def reproduce(
    name: str,
    preset: str = "quick",
    *,
    seeds: Sequence[int] | None = None,
    device: str = "auto",
    results: Path = Path("results"),
    runs: Path = Path("runs"),
    jobs: int | None = None,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Run an experiment, or what is left of it, and write its result, figures and the report.

    Args:
        name: one of EXPERIMENTS.
        preset: "quick" (two CPU cores, minutes), "paper" (the paper's parameters) or "best" (ours).
        seeds: in place of the preset's.
        device: "cpu", "cuda" or "auto".
        results: the folder of results; NAME/PRESET.json in it is replaced.
        runs: where each run is kept; the same command goes on from what is there.
        jobs: how many runs side by side; by default ten on a GPU, one for each core on a CPU.
        progress: whether to show a bar; None means on a terminal.
    """
    require_one_of("experiment", name, EXPERIMENTS)
    require_one_of("preset", preset, PRESETS)
    device = str(resolve_device(device))
    experiment, label = EXPERIMENTS[name], f"{name}-{preset}"
    rows = experiment.rows(preset)
    if seeds:
        rows = [replace(row, seeds=tuple(seeds)) for row in rows]
    table = run_rows(experiment.run, rows, device, runs, label, jobs, progress)
    result = {
        "experiment": name,
        "preset": preset,
        "provenance": origin(experiment.run, rows, runs, label),
        "rows": table,
    }
    write_json(results / name / f"{preset}.json", result)
    arrays = [outcome_arrays(experiment.run, row, runs) for row in rows]
    for title, figure in experiment.draw(table, arrays).items():
        target = results / name / preset / f"{file_name(title)}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target)
    write_report(results)
    return result
