"""`aleator quickstart`: three demonstrations and a report, in about two minutes on two CPU cores, without a download.

circle.py recovers known posteriors from matching pairs. digits.py trains on real images, evaluates and searches them.
modes.py asks about digits that could be one of two numerals. report.py writes the report.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aleator.foundation import describe_run, require_at_least, require_new_folder, write_json
from aleator.own_data import load_run
from aleator.quickstart.circle import recover_circle
from aleator.quickstart.digits import learn_digits
from aleator.quickstart.modes import compare_modes
from aleator.quickstart.report import next_commands, write_report

__all__ = ["next_commands", "quickstart"]


def quickstart(
    folder: Path,
    seed: int = 4,
    steps: int = 600,
    progress: bool | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Run the demonstrations and write report.html and report.json.

    Args:
        folder: A new folder.
        seed: Seed of everything random.
        steps: Number of training steps in each of the first two demonstrations.
        progress: Whether to show progress bars. Default: on a terminal.
        log: Called with each line of the log.

    Returns:
        The contents of report.json.

    Raises:
        ValueError: If the folder is not empty.
    """
    require_new_folder("folder", folder, "name a new folder with --output")
    require_at_least("steps", steps, 1)
    began = time.time()
    figures = folder / "figures"
    figures.mkdir(parents=True)
    log("1 of 3: recover known posteriors from matching pairs")
    report: dict[str, Any] = {"circle": recover_circle(figures, seed, steps, progress)}
    log("2 of 3: train on scikit-learn's digits, some of them hard to read")
    # The settings of training were chosen on the split of the plain seed. The report uses another split.
    report["digits"] = learn_digits(folder, figures, seed + 1000, steps, progress)
    log("3 of 3: ask about digits that could be one of two numerals, with one mode and with two")
    report["modes"] = compare_modes(figures, load_run(folder / "run"), seed + 1000, steps)
    report["provenance"] = describe_run(began, "cpu")
    write_json(folder / "report.json", report)
    write_report(folder / "report.html", report, figures)
    return report
