"""Runs an experiment: every setting with every seed, several at a time, each saved as soon as it is finished.

A run has its own folder, `runs/KEY`. The key is made from the setting and the seed, so the same run is never repeated,
not even by two experiments that share it. An interrupted experiment continues where it stopped.
"""

import dataclasses
import hashlib
import json
import math
import os
import re
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from aleator.experiments.workers import side_by_side
from aleator.foundation import (
    ProgressLines,
    command,
    describe_run,
    progress_bar,
    write_json,
    writing_atomically,
)


@dataclass(frozen=True)
class Outcome:
    """What a run returns.

    Args:
        metrics: Numbers for the tables, by name.
        arrays: Tensors for the figures, by name.
    """

    metrics: dict[str, float]
    arrays: dict[str, Tensor]


class AnySetting(Protocol):
    """The setting of a row: a frozen dataclass with at least these fields."""

    @property
    def name(self) -> str: ...
    @property
    def loss(self) -> str: ...


@dataclass(frozen=True)
class RunFunction:
    """A function that makes one run, with a name that never changes.

    Args:
        family: Name of the family of experiments. It is part of every cache key, so that finished runs are still found
            after the function has moved to another module.
        function: Called as function(setting, seed, device, folder).
    """

    family: str
    function: Callable[[Any, int, str, Path], Outcome]

    def __call__(self, setting: AnySetting, seed: int, device: str, folder: Path) -> Outcome:
        return self.function(setting, seed, device, folder)


@dataclass(frozen=True)
class Row:
    """One row of a table: a setting, and the seeds (or folds) to run it with."""

    setting: AnySetting
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class ExperimentRun:
    """One run of an experiment: a setting with one seed."""

    function: RunFunction
    setting: AnySetting
    seed: int

    @property
    def key(self) -> str:
        """Cache key, also the run's folder: readable, and different for every family, setting and seed.

        Fields with their default value are left out, so a new field does not change the keys of finished runs.
        """
        text = json.dumps([self.function.family, _chosen_fields(self.setting)], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        return f"{file_name(f'{self.setting.name}-{self.setting.loss}')}-{digest}/{self.seed}"


def file_name(text: str) -> str:
    """Text as part of a path: everything but letters, digits, `_` and `.` becomes a hyphen."""
    return re.sub(r"[^\w.]+", "-", text)


def run_rows(
    function: RunFunction,
    rows: Sequence[Row],
    device: str,
    runs: Path,
    label: str,
    jobs: int | None = None,
    progress: bool | None = None,
) -> list[dict[str, Any]]:
    """Make the runs that are missing, and summarise each row over its seeds.

    Args:
        function: Makes one run.
        rows: Settings and their seeds.
        device: Such as "cpu" or "cuda".
        runs: Folder of all runs.
        label: Name of the experiment and preset. The time of each start is logged under it.
        jobs: How many runs at the same time. Default: `default_jobs`.
        progress: Whether to show a progress bar. Default: on a terminal.

    Returns:
        The rows of a result: setting, loss, seeds, metrics (mean, stderr, values), parameters, seconds of each run.

    Raises:
        RuntimeError: If a run fails. The other runs are finished and saved first.
    """
    missing = {run.key: run for run in _seed_by_seed(function, rows) if not _is_finished(runs, run)}
    if missing:
        began, start = time.time(), time.monotonic()
        try:
            _run_all(list(missing.values()), device, runs, jobs, progress)
        finally:
            finished = sum(_is_finished(runs, run) for run in missing.values())
            entry = {"began": round(began), "seconds": round(time.monotonic() - start, 1), "runs": finished}
            _start_log(runs, label).parent.mkdir(parents=True, exist_ok=True)
            with _start_log(runs, label).open("a") as file:
                file.write(json.dumps(entry) + "\n")
    return summaries(function, rows, runs)


def summaries(function: RunFunction, rows: Sequence[Row], runs: Path) -> list[dict[str, Any]]:
    """The rows of a result, all of whose runs are finished; see `run_rows`."""
    return [_summary(function, row, runs) for row in rows]


def finished_rows(function: RunFunction, rows: Sequence[Row], runs: Path) -> list[Row]:
    """The rows with those of their seeds whose runs are finished; rows without any are left out."""
    finished = [
        Row(row.setting, tuple(s for s in row.seeds if _is_finished(runs, ExperimentRun(function, row.setting, s))))
        for row in rows
    ]
    return [row for row in finished if row.seeds]


def _seed_by_seed(function: RunFunction, rows: Sequence[Row]) -> Iterator[ExperimentRun]:
    """All runs of a table: every row with its first seed, then every row with its second one, and so on.

    Runs of one row have the same length. If all of them ran at the same time, they would all wait for the compiler at
    the same time, and leave the device idle.
    """
    for place in range(max((len(row.seeds) for row in rows), default=0)):
        for row in rows:
            if place < len(row.seeds):
                yield ExperimentRun(function, row.setting, row.seeds[place])


def origin(function: RunFunction, rows: Sequence[Row], runs: Path, label: str) -> dict[str, Any]:
    """Provenance of a result: what its runs recorded, and the total time of all starts of the experiment."""
    provenances = [outcome["provenance"] for row in rows for outcome in _outcomes(function, row, runs)]
    starts = logged_starts(runs, label)
    total = sum(len(row.seeds) for row in rows)
    own = min(total, sum(start["runs"] for start in starts))
    return {
        "command": command(),
        "commit": ", ".join(sorted({str(each["commit"]) for each in provenances})),
        "device": ", ".join(sorted({each["device"] for each in provenances})),
        "python": provenances[0]["python"],
        "versions": provenances[0]["versions"],
        "wall_seconds": round(sum(start["seconds"] for start in starts), 1),
        "sittings": len(starts),
        "runs": total,
        "runs shared with other experiments": total - own,
        "finished": max(each["finished"] for each in provenances),
    }


def logged_starts(runs: Path, label: str) -> list[dict[str, Any]]:
    """The starts of an experiment that had something to run: when each began, its seconds, its finished runs."""
    log = _start_log(runs, label)
    return [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []


def _start_log(runs: Path, label: str) -> Path:
    """File with one line for each start of an experiment that had something to run."""
    return runs / "sittings" / f"{label}.jsonl"


def default_jobs(device: str) -> int:
    """How many runs at the same time: one for each core, as each keeps one busy, and at most 15 on a GPU."""
    cores = max(1, len(os.sched_getaffinity(0)))
    return min(15, cores) if device.startswith("cuda") else cores


def outcome_arrays(function: RunFunction, row: Row, runs: Path) -> dict[str, Tensor]:
    """The arrays of a row's first run."""
    from safetensors.torch import load_file

    return load_file(runs / ExperimentRun(function, row.setting, row.seeds[0]).key / "arrays.safetensors")


def _fields(setting: AnySetting) -> dict[str, Any]:
    """The fields of a setting by name; settings inside it become dictionaries too."""
    return dataclasses.asdict(setting)  # type: ignore[call-overload]


def _chosen_fields(setting: AnySetting) -> dict[str, Any]:
    """The fields of a setting that do not have their default value, by name."""
    chosen = _fields(setting)
    for field in dataclasses.fields(setting):  # type: ignore[arg-type]
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if getattr(setting, field.name) == default:
            del chosen[field.name]
    return chosen


def _is_finished(runs: Path, run: ExperimentRun) -> bool:
    """Whether a run has an outcome, and no default of its setting has changed since."""
    path = runs / run.key / "outcome.json"
    if not path.is_file():
        return False
    stored = json.loads(path.read_text())["setting"]
    today = json.loads(json.dumps(_fields(run.setting)))  # tuples as lists, as in the file
    return all(today[name] == value for name, value in stored.items() if name in today)


def _run_all(todo: list[ExperimentRun], device: str, runs: Path, jobs: int | None, progress: bool | None) -> None:
    """Make all runs; raise at the end if some have failed."""
    jobs = min(jobs or default_jobs(device), len(todo))
    with progress_bar(progress, elapsed=True) as bar:
        title = f"{len(todo)} runs, {jobs} at a time"
        task, lines = bar.add_task(title, total=len(todo)), ProgressLines(title, len(todo), 0, progress)
        failures = []
        for run, error in side_by_side(partial(_make_run, device=device, runs=runs), todo, device, jobs):
            bar.advance(task)
            lines.at(int(bar.tasks[0].completed))
            if error is not None:
                failures.append((run, error))
    if failures:
        run, error = failures[0]
        raise RuntimeError(f"{len(failures)} of {len(todo)} runs failed, the first being {run.key}") from error


def _make_run(run: ExperimentRun, device: str, runs: Path) -> None:
    """Make one run, from its last checkpoint if there is one, and write its outcome."""
    from safetensors.torch import save_file

    began, folder = time.time(), runs / run.key
    folder.mkdir(parents=True, exist_ok=True)
    outcome = run.function(run.setting, run.seed, device, folder)
    with writing_atomically(folder / "arrays.safetensors") as temporary:
        save_file({name: value.contiguous() for name, value in outcome.arrays.items()}, temporary)
    record = {
        "setting": _fields(run.setting),
        "seed": run.seed,
        "metrics": outcome.metrics,
        "provenance": describe_run(began, device),
    }
    write_json(folder / "outcome.json", record)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def _outcomes(function: RunFunction, row: Row, runs: Path) -> list[dict[str, Any]]:
    """outcome.json of each run of a row."""
    keys = [ExperimentRun(function, row.setting, seed).key for seed in row.seeds]
    return [json.loads((runs / key / "outcome.json").read_text()) for key in keys]


def _summary(function: RunFunction, row: Row, runs: Path) -> dict[str, Any]:
    """A row of the result; metrics that not every run has are left out."""
    outcomes = _outcomes(function, row, runs)
    names = [name for name in outcomes[0]["metrics"] if all(name in o["metrics"] for o in outcomes)]
    return {
        "setting": row.setting.name,
        "loss": row.setting.loss,
        "seeds": list(row.seeds),
        "metrics": {name: mean_over_seeds([o["metrics"][name] for o in outcomes]) for name in names},
        "parameters": _fields(row.setting),
        "run_seconds": [o["provenance"]["wall_seconds"] for o in outcomes],
    }


def mean_over_seeds(values: list[float]) -> dict[str, Any]:
    """Mean and standard error over runs. The error is None for a single run, or if a value is not finite.

    A rank correlation is NaN if a run ends with the same kappa for all inputs; then the mean is NaN too.
    """
    has_error = len(values) > 1 and all(map(math.isfinite, values))
    stderr = statistics.stdev(values) / math.sqrt(len(values)) if has_error else None
    return {"mean": statistics.fmean(values), "stderr": stderr, "values": values}
