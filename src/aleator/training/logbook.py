"""Where a run's numbers go: memory, CSV, TensorBoard, Weights & Biases, and a progress bar on a terminal."""

import csv
import io
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aleator.foundation import progress_bar, replace_file, require_one_of

Row = dict[str, Any]


class Logbook:
    """Tables of rows: `training` (loss, learning rate, ...) and `validation` (metrics), each row with a step.

    Only a writing logbook (process 0, with a folder) touches files. `rows` is the truth: a run that goes on
    hands the rows up to its checkpoint back, and the files are written again from them.
    """

    def __init__(self, folder: Path | None, loggers: Sequence[str] | None, writing: bool, config: Mapping[str, Any]):
        for logger in loggers or ():
            require_one_of("loggers", logger, ("csv", "tensorboard", "wandb"))
        self.folder = folder if writing else None
        self.loggers = loggers
        self.config = config
        self.rows: dict[str, list[Row]] = {"training": [], "validation": []}
        self.tensorboard: Any = None
        self.wandb: Any = None

    def open(self, rows: Mapping[str, list[Row]] | None, step: int) -> None:
        """Start writing, after `step` steps whose rows are given."""
        self.rows = {table: list((rows or {}).get(table, [])) for table in self.rows}
        if self.folder is None:
            return
        if self.loggers is None or "csv" in self.loggers:
            for table in self.rows:
                self._write_csv(table)
        if self.loggers is None or "tensorboard" in self.loggers:
            self.tensorboard = _tensorboard(self.folder, step, required=self.loggers is not None)
        if self.loggers is not None and "wandb" in self.loggers:
            self.wandb = _wandb(self.folder, self.config)

    def log(self, table: str, row: Row) -> None:
        rows = self.rows[table]
        rows.append(row)
        if self.folder is None:
            return
        if self.loggers is None or "csv" in self.loggers:
            self._write_csv(table, append=len(rows) > 1 and rows[0].keys() == row.keys())
        numbers = {f"{table}/{name}": value for name, value in row.items() if isinstance(value, float)}
        if self.tensorboard is not None:
            for name, value in numbers.items():
                self.tensorboard.add_scalar(name, value, row["step"])
        if self.wandb is not None:
            self.wandb.log(numbers, step=row["step"])

    def close(self) -> None:
        if self.tensorboard is not None:
            self.tensorboard.close()
        if self.wandb is not None:
            self.wandb.finish()

    def _write_csv(self, table: str, append: bool = False) -> None:
        assert self.folder is not None
        rows = self.rows[table]
        text = io.StringIO()
        columns = list({name: None for row in rows for name in row})
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        path = self.folder / f"{table}.csv"
        if append:
            writer.writerow(rows[-1])
            with open(path, "a") as file:
                file.write(text.getvalue())
            return
        writer.writeheader()
        writer.writerows(rows)
        replace_file(path, text.getvalue().encode())


class ProgressBar:
    """Steps, loss and time left; silent unless a person is watching."""

    def __init__(self, total: int, done: int, show: bool | None, writing: bool):
        self.progress = progress_bar(show, writing, loss=True)
        self.visible = not self.progress.disable
        self.task = self.progress.add_task("training", total=total, completed=done, loss="-")
        self.updated = 0.0

    def __enter__(self) -> "ProgressBar":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def advance(self, done: int, phase: str, loss: float | None = None) -> None:
        """Called at every step: five looks a second are enough."""
        if not self.visible:
            return
        now = time.perf_counter()
        if loss is not None:
            self.progress.update(self.task, loss=f"{loss:.4f}")
        if loss is not None or now - self.updated > 0.2:
            self.progress.update(self.task, completed=done, description=phase)
            self.updated = now


def _tensorboard(folder: Path, step: int, required: bool) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as missing:
        if required:
            raise ImportError("the logger 'tensorboard' needs: pip install 'aleator[tensorboard]'") from missing
        return None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)


def _wandb(folder: Path, config: Mapping[str, Any]) -> Any:
    try:
        import wandb
    except ImportError as missing:
        raise ImportError("the logger 'wandb' needs: pip install wandb") from missing
    return wandb.init(project="aleator", name=folder.name, dir=str(folder), config=dict(config), resume="allow")
