"""An experiment of two runs that last for minutes, side by side. test_workers.py stops it."""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from aleator.experiments.runner import Outcome, Row, RunFunction, run_rows


@dataclass(frozen=True)
class Sleep:
    name: str
    loss: str = "none"


def sleep(setting: Sleep, seed: int, device: str, folder: Path) -> Outcome:
    """A run that writes which process makes it, and then sleeps."""
    (folder / "pid").write_text(str(os.getpid()))
    time.sleep(300)
    return Outcome({}, {})


if __name__ == "__main__":
    run_rows(RunFunction("sleep", sleep), [Row(Sleep("long"), (1, 2))], "cpu", Path(sys.argv[1]), "sleep", 2, False)
