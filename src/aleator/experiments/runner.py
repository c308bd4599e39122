"""Runs an experiment: every setting with every seed, side by side, each kept as soon as it is done.

A run lives in a folder that its setting and seed name, so the same run is never made twice, not even by two
experiments that share it, and an interrupted experiment goes on where it stopped.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import multiprocessing
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from aleator.foundation import command, describe_run, progress_bar, write_json, writing_atomically


@dataclass(frozen=True)
class Outcome:
    """What a run gave: numbers for the tables, arrays for the figures."""

    metrics: dict[str, float]
    arrays: dict[str, Tensor]


class AnySetting(Protocol):
    """What one row of a table is made of: a dataclass with these names among others."""

    @property
    def name(self) -> str: ...
    @property
    def loss(self) -> str: ...


Run = Callable[[Any, int, str, Path], Outcome]


@dataclass(frozen=True)
class Row:
    """One row of a table: a setting and the seeds (or folds) that it is run with."""

    setting: AnySetting
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Job:
    run: Run
    setting: AnySetting
    seed: int

    @property
    def key(self) -> str:
        """A name for the run: readable, and different for every setting and seed."""
        text = json.dumps([self.run.__module__, dataclasses.asdict(self.setting)], sort_keys=True)  # type: ignore[call-overload]
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        return f"{file_name(f'{self.setting.name}-{self.setting.loss}')}-{digest}/{self.seed}"


def file_name(text: str) -> str:
    """What a row or figure is called, as part of a path."""
    return re.sub(r"[^\w.]+", "-", text)


def run_rows(
    run: Run,
    rows: Sequence[Row],
    device: str,
    runs: Path,
    label: str,
    jobs: int | None = None,
    progress: bool | None = None,
) -> list[dict[str, Any]]:
    """Make the runs that are still missing, and sum up all of them: the rows of a result.

    `label` names the experiment in the ledger of sittings, from which its wall time is told.
    """
    pending = {
        job.key: job for row in rows for seed in row.seeds if not _done(runs, job := Job(run, row.setting, seed))
    }
    if pending:
        began = time.time()
        try:
            _run_all(list(pending.values()), device, runs, jobs, progress)
        finally:
            made = sum(_done(runs, job) for job in pending.values())
            sitting = {"began": round(began), "seconds": round(time.time() - began, 1), "runs": made}
            _ledger(runs, label).parent.mkdir(parents=True, exist_ok=True)
            with _ledger(runs, label).open("a") as ledger:
                ledger.write(json.dumps(sitting) + "\n")
    return [_summary(run, row, runs) for row in rows]


def origin(run: Run, rows: Sequence[Row], runs: Path, label: str) -> dict[str, Any]:
    """Where a result came from: what its runs say of themselves, and the time that all sittings took together."""
    said = [outcome["provenance"] for row in rows for outcome in _outcomes(run, row, runs)]
    sittings = (
        [json.loads(line) for line in _ledger(runs, label).read_text().splitlines()]
        if _ledger(runs, label).is_file()
        else []
    )
    total = sum(len(row.seeds) for row in rows)
    made = min(total, sum(sitting["runs"] for sitting in sittings))
    return {
        "command": command(),
        "commit": ", ".join(sorted({str(each["commit"]) for each in said})),
        "device": ", ".join(sorted({each["device"] for each in said})),
        "python": said[0]["python"],
        "versions": said[0]["versions"],
        "wall_seconds": round(sum(sitting["seconds"] for sitting in sittings), 1),
        "sittings": len(sittings),
        "runs": total,
        "runs shared with other experiments": total - made,
        "finished": max(each["finished"] for each in said),
    }


def _ledger(runs: Path, label: str) -> Path:
    return runs / "sittings" / f"{label}.jsonl"


def default_jobs(device: str) -> int:
    """One run leaves most of a GPU idle; on a CPU, one process of one thread for each core is fastest."""
    return 10 if device.startswith("cuda") else max(1, len(os.sched_getaffinity(0)))


def outcome_arrays(run: Run, row: Row, runs: Path) -> dict[str, Tensor]:
    """The arrays of a row's first run."""
    from safetensors.torch import load_file

    return load_file(runs / Job(run, row.setting, row.seeds[0]).key / "arrays.safetensors")


def _done(runs: Path, job: Job) -> bool:
    return (runs / job.key / "outcome.json").is_file()


def _run_all(jobs: list[Job], device: str, runs: Path, count: int | None, progress: bool | None) -> None:
    count = min(count or default_jobs(device), len(jobs))
    with progress_bar(progress, elapsed=True) as bar:
        task = bar.add_task(f"{len(jobs)} runs, {count} at a time", total=len(jobs))
        failures = []
        for job, error in _one_by_one(jobs, device, runs) if count == 1 else _side_by_side(jobs, device, runs, count):
            bar.advance(task)
            if error is not None:
                failures.append((job, error))
    if failures:
        job, error = failures[0]
        raise RuntimeError(f"{len(failures)} of {len(jobs)} runs failed, the first being {job.key}") from error


def _one_by_one(jobs: list[Job], device: str, runs: Path) -> Iterator[tuple[Job, Exception | None]]:
    """In this process, one after another: each job as it ends, with its error."""
    for job in jobs:
        try:
            _work(job, device, runs)
        except Exception as error:
            yield job, error
        else:
            yield job, None


def _side_by_side(jobs: list[Job], device: str, runs: Path, count: int) -> Iterator[tuple[Job, BaseException | None]]:
    """In processes of their own."""
    with _shared_gpu(device), _pool(count) as pool:
        waiting: dict[Future, Job] = {pool.submit(_work, job, device, runs): job for job in jobs}
        try:
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(future), future.exception()
        except BaseException:  # interrupted: nobody waits for what is still running
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in list((pool._processes or {}).values()):
                worker.terminate()
            raise


@contextlib.contextmanager
def _pool(count: int) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes of one thread each; the environment is read when a library is loaded, so it is set before."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        with ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _start_worker) as pool:
            yield pool
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _start_worker() -> None:
    """One thread, and the end where the parent ends: who outlived it would write into a second sitting's runs."""
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _work(job: Job, device: str, runs: Path) -> None:
    """One run, from its start or its last checkpoint to its outcome on disk."""
    from safetensors.torch import save_file

    began, folder = time.time(), runs / job.key
    folder.mkdir(parents=True, exist_ok=True)
    outcome = job.run(job.setting, job.seed, device, folder)
    with writing_atomically(folder / "arrays.safetensors") as temporary:
        save_file({name: value.contiguous() for name, value in outcome.arrays.items()}, temporary)
    facts = {
        "setting": dataclasses.asdict(job.setting),  # type: ignore[call-overload]
        "seed": job.seed,
        "metrics": outcome.metrics,
        "provenance": describe_run(began, device),
    }
    write_json(folder / "outcome.json", facts)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


@contextlib.contextmanager
def _shared_gpu(device: str) -> Iterator[None]:
    """NVIDIA's service that lets processes use one GPU at the same time; without it they take turns."""
    control = shutil.which("nvidia-cuda-mps-control")
    if not device.startswith("cuda") or control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="mps", ignore_cleanup_errors=True) as folder:
        names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
        os.environ.update(dict.fromkeys(names, folder))
        try:
            subprocess.run([control, "-d"], check=False, capture_output=True)
            yield
        finally:
            subprocess.run([control], input=b"quit\n", check=False, capture_output=True)
            for name in names:
                del os.environ[name]


def _outcomes(run: Run, row: Row, runs: Path) -> list[dict[str, Any]]:
    return [json.loads((runs / Job(run, row.setting, s).key / "outcome.json").read_text()) for s in row.seeds]


def _summary(run: Run, row: Row, runs: Path) -> dict[str, Any]:
    outcomes = _outcomes(run, row, runs)
    names = [name for name in outcomes[0]["metrics"] if all(name in o["metrics"] for o in outcomes)]
    return {
        "setting": row.setting.name,
        "loss": row.setting.loss,
        "seeds": list(row.seeds),
        "metrics": {name: _mean([o["metrics"][name] for o in outcomes]) for name in names},
        "parameters": dataclasses.asdict(row.setting),  # type: ignore[call-overload]
        "run_seconds": [o["provenance"]["wall_seconds"] for o in outcomes],
    }


def _mean(values: list[float]) -> dict[str, Any]:
    # A kappa that ended alike for all inputs has no rank correlation, and the mean of its row is not a number either.
    several = len(values) > 1 and all(map(math.isfinite, values))
    spread = statistics.stdev(values) / math.sqrt(len(values)) if several else None
    return {"mean": statistics.fmean(values), "stderr": spread, "values": values}
