"""Logs of a run: in memory, CSV, TensorBoard, Weights & Biases, and a progress bar on a terminal."""

import csv
import io
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from aleator.foundation import ProgressLines, naming_file, progress_bar, replace_file, require_one_of

LoggerName = Literal["csv", "tensorboard", "wandb"]
Table = Literal["training", "validation"]
Row = dict[str, Any]

_REFRESH_SECONDS = 0.2


class Logbook:
    """Two tables of rows: "training" (loss, learning rate, ...) and "validation" (metrics). Each row has a step.

    `rows` is the source of all files: a resumed run hands over the rows up to its checkpoint, and the CSV files are
    written again from them.

    Args:
        folder: Folder of the run; None writes no files.
        loggers: Which files to write. None: CSV, and TensorBoard if it is installed.
        writing: Whether this process writes files. Only the first one does.
        config: Configuration of the run, for Weights & Biases.
    """

    def __init__(
        self, folder: Path | None, loggers: Sequence[LoggerName] | None, writing: bool, config: Mapping[str, Any]
    ):
        for logger in loggers or ():
            require_one_of("loggers", logger, get_args(LoggerName))
        self.folder = folder if writing else None
        self.loggers = loggers
        self.config = config
        self.rows: dict[Table, list[Row]] = {"training": [], "validation": []}
        self.tensorboard: Any = None
        self.wandb: Any = None

    def open(self, rows: Mapping[str, list[Row]], step: int) -> None:
        """Start writing.

        Args:
            rows: Rows of the run so far, by table.
            step: Number of updates so far.
        """
        self.rows = {table: list(rows.get(table, [])) for table in self.rows}
        if self.folder is None:
            return
        if self.loggers is None or "csv" in self.loggers:
            for table in self.rows:
                self._write_csv(table)
        if self.loggers is None or "tensorboard" in self.loggers:
            self.tensorboard = _open_tensorboard(self.folder, step, required=self.loggers is not None)
        if self.loggers is not None and "wandb" in self.loggers:
            self.wandb = _open_wandb(self.folder, self.config)

    def log(self, table: Table, row: Row) -> None:
        """Add a row to a table, and write it to all files."""
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
        """Finish the files."""
        if self.tensorboard is not None:
            self.tensorboard.close()
        if self.wandb is not None:
            self.wandb.finish()

    def _write_csv(self, table: Table, append: bool = False) -> None:
        """Write a whole table, or append its last row."""
        assert self.folder is not None
        rows = self.rows[table]
        text = io.StringIO()
        columns = list({name: None for row in rows for name in row})
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        path = self.folder / f"{table}.csv"
        if append:
            writer.writerow(rows[-1])
            with naming_file(path), open(path, "a") as file:
                file.write(text.getvalue())
            return
        writer.writeheader()
        writer.writerows(rows)
        replace_file(path, text.getvalue().encode())


class ProgressBar:
    """Progress of training: steps, loss, time left. A bar on a terminal, a line now and then elsewhere.

    Args:
        total: Number of steps of the run.
        done: Number of steps so far.
        show: Whether to show it. None: yes, but lines only of training that takes longer than ten seconds.
        writing: Whether this process shows it. Only the first one does.
    """

    def __init__(self, total: int, done: int, show: bool | None, writing: bool):
        self.progress = progress_bar(show, writing, loss=True)
        self.visible = not self.progress.disable
        self.task = self.progress.add_task("training", total=total, completed=done, loss="-")
        self.lines = ProgressLines("training", total, done, show, writing)
        self.updated, self.loss = 0.0, ""

    def __enter__(self) -> "ProgressBar":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def advance(self, done: int, phase: str, loss: float | None = None) -> None:
        """Show the number of steps and, if it is known, the loss. Called after every step, it updates rarely."""
        if loss is not None:
            self.loss = f", loss {loss:.4f}"
        self.lines.at(done, self.loss)
        if not self.visible:
            return
        now = time.perf_counter()
        if loss is not None:
            self.progress.update(self.task, loss=f"{loss:.4f}")
        if loss is not None or now - self.updated > _REFRESH_SECONDS:
            self.progress.update(self.task, completed=done, description=phase)
            self.updated = now


def _open_tensorboard(folder: Path, step: int, required: bool) -> Any:
    """A TensorBoard writer that drops what an earlier start logged after `step`; None if it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as missing:
        if required:
            raise ImportError("the logger 'tensorboard' needs: pip install 'aleator[tensorboard]'") from missing
        return None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)


def _open_wandb(folder: Path, config: Mapping[str, Any]) -> Any:
    """A run of Weights & Biases."""
    try:
        import wandb
    except ImportError as missing:
        raise ImportError("the logger 'wandb' needs: pip install wandb") from missing
    return wandb.init(project="aleator", name=folder.name, dir=str(folder), config=dict(config), resume="allow")
