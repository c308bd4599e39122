"""Experiments that make the paper's tables and figures, and our own.

- catalogue.py lists all experiments. Each is a table of settings (controlled/tables.py, cifar/tables.py).
- controlled/run.py and cifar/run.py make one run of a setting.
- runner.py makes all runs of an experiment and summarises them.
- joining.py joins a part of a table with what another machine has made of it.
- report.py writes results/README.md, with the paper's figures (paper.py) beside ours.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aleator.experiments.catalogue import EXPERIMENTS
from aleator.experiments.cifar.folds import require_data
from aleator.experiments.joining import join_results, require_joinable
from aleator.experiments.paper import paper_figure
from aleator.experiments.report import COLUMNS, shown_rows, with_error, write_report
from aleator.experiments.runner import (
    file_name,
    finished_rows,
    logged_starts,
    origin,
    outcome_arrays,
    run_rows,
    summaries,
)
from aleator.experiments.settings import PRESETS, Preset
from aleator.foundation import require, require_one_of, resolve_device, save_figure, write_json

__all__ = ["COLUMNS", "EXPERIMENTS", "PRESETS", "paper_figure", "reproduce", "require_data", "shown_rows", "with_error"]


def reproduce(
    name: str,
    preset: Preset = "quick",
    *,
    seeds: Sequence[int] | None = None,
    device: str = "auto",
    results: Path = Path("results"),
    runs: Path = Path("runs"),
    jobs: int | None = None,
    progress: bool | None = None,
    only: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Run an experiment and write its result, its figures and the report.

    Finished runs are kept in the folder `runs` and not repeated. After an interruption, the same call continues.

    Args:
        name: Name of the experiment, one of `EXPERIMENTS`.
        preset: "quick" (minutes on two CPU cores), "paper" (the published code's laws and parameters), "corrected" (the
            same with every correction; controlled experiments only) or "best" (ours).
        seeds: Seeds (folds, for the CIFAR experiments) to run. Default: those of the preset.
        device: "cpu", "cuda" or "auto".
        results: Folder of results. The file NAME/PRESET.json in it is replaced.
        runs: Folder of finished and unfinished runs.
        jobs: How many runs at the same time. Default: one for each core, at most 15 on a GPU.
        progress: Whether to show a progress bar. Default: on a terminal.
        only: Names of the rows to run; an empty list runs none. The table then has every row that has a finished run,
            with the seeds that are finished, and the rows and seeds that are stored in the file, for example from
            another machine. Figures are drawn once all rows have a run here. Default: all rows.

    Returns:
        What was written to NAME/PRESET.json: "experiment", "preset", "provenance" and "rows". A row has "setting",
        "loss", "seeds", "metrics" (name -> mean, stderr, values), "parameters" and "run_seconds".

    Raises:
        ValueError: If the experiment, the preset, the device or a row is unknown, if there is no finished run to show,
            or if stored seeds of a row have other settings.
        RuntimeError: If a run fails. The other runs are finished first.

    Examples:
        >>> from aleator.experiments import reproduce
        >>> result = reproduce("recovery", "quick", device="cpu")  # doctest: +SKIP
        >>> result["rows"][0]["metrics"]["kappa_rank"]["mean"]  # doctest: +SKIP
        0.9162263349937534
    """
    require_one_of("experiment", name, EXPERIMENTS)
    require_one_of("preset", preset, EXPERIMENTS[name].presets)
    device = str(resolve_device(device))
    experiment, label, target = EXPERIMENTS[name], f"{name}-{preset}", results / name / f"{preset}.json"
    rows = experiment.rows(preset)
    asked = rows if not seeds else [replace(row, seeds=tuple(seeds)) for row in rows]
    stored: dict[str, Any] | None = None
    if only is not None:
        for wanted in only:
            require_one_of("only", wanted, [row.setting.name for row in rows])
        asked = [row for row in asked if row.setting.name in only]
        stored = json.loads(target.read_text()) if target.is_file() else None
        known = [*(seeds or ()), *(seed for row in (stored or {"rows": []})["rows"] for seed in row["seeds"])]
        rows = [replace(row, seeds=tuple(dict.fromkeys((*row.seeds, *known)))) for row in rows]
        planned = [*asked, *finished_rows(experiment.run, rows, runs)]
        problem = f"holds no finished run of {name}, preset {preset}"
        require(bool(planned), "runs", str(runs), problem, "name a row to run, or the folder of the runs")
        if stored is not None:
            require_joinable(stored, planned, target)
    earlier = len(logged_starts(runs, label))
    run_rows(experiment.run, asked, device, runs, label, jobs, progress)
    here = asked if only is None else finished_rows(experiment.run, rows, runs)
    result: dict[str, Any] = {
        "experiment": name,
        "preset": preset,
        "provenance": origin(experiment.run, here, runs, label),
        "rows": summaries(experiment.run, here, runs),
    }
    if stored is not None:
        result = join_results(stored, result, rows, logged_starts(runs, label)[earlier:])
    write_json(target, result)
    arrays = [outcome_arrays(experiment.run, row, runs) for row in here]
    all_here = len(here) == len(rows)  # most figures compare the rows
    figures = experiment.draw(result["rows"][: len(here)], arrays) if all_here else {}
    for title, figure in figures.items():
        path = target.with_suffix("") / f"{file_name(title)}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_figure(figure, path)
    write_report(results)
    return result
