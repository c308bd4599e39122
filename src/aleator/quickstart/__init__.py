"""`aleator quickstart`: two demonstrations and a report, on two CPU cores, without data or network.

Known posteriors are recovered from matching pairs (circle.py), then real images are learned, evaluated and searched
(digits.py); report.py writes it up.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aleator.foundation import describe_run, require, write_json
from aleator.quickstart.circle import recover_circle
from aleator.quickstart.digits import learn_digits
from aleator.quickstart.report import next_commands, write_report

__all__ = ["next_commands", "quickstart"]


def quickstart(
    folder: Path,
    seed: int = 4,
    steps: int = 600,
    progress: bool | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Run both parts in a new folder; report.html shows the result, report.json holds its numbers."""
    require(
        not folder.exists() or (folder.is_dir() and not any(folder.iterdir())),
        "folder",
        str(folder),
        "is not empty",
        "name a new folder with --output",
    )
    require(steps >= 1, "steps", steps, "nothing would be learned", "leave it out")
    began = time.time()
    figures = folder / "figures"
    figures.mkdir(parents=True)
    log("1 of 2: posteriors that are known, learned again from matching pairs")
    report: dict[str, Any] = {"circle": recover_circle(figures, seed, steps, progress)}
    log("2 of 2: scikit-learn's digits, some of them hard to read")
    # The settings were chosen on the split that the plain seed makes: what they are worth shows on another.
    report["digits"] = learn_digits(folder, figures, seed + 1000, steps, progress)
    report["provenance"] = describe_run(began, "cpu")
    write_json(folder / "report.json", report)
    write_report(folder / "report.html", report, figures)
    return report
