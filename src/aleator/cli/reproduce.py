"""`aleator reproduce`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from .errors import plain_errors


def reproduce(
    experiment: Annotated[str, typer.Argument(help="for example recovery, circle or losses")],
    preset: Annotated[str, typer.Option(help="quick, paper or best")] = "quick",
    seeds: Annotated[str | None, typer.Option(help="in place of the preset's, as in 4,5,6")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto")] = "auto",
    results: Annotated[Path, typer.Option(help="folder of results")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="folder of runs; the same command goes on from what is there")] = Path(
        "runs"
    ),
    jobs: Annotated[int | None, typer.Option(help="runs side by side", min=1)] = None,
) -> None:
    """Run one of the paper's experiments and print the paper's figures beside ours.

    Example: aleator reproduce recovery --preset best --device cuda
    """
    from aleator.checks import require
    from aleator.experiments import reproduce as run

    with plain_errors():
        chosen = None
        if seeds is not None:
            parts = seeds.split(",")
            require(all(part.strip().isdecimal() for part in parts), "seeds", seeds, "not whole numbers", "pass 4,5,6")
            chosen = [int(part) for part in parts]
        found = run(experiment, preset, seeds=chosen, device=device, results=results, runs=runs, jobs=jobs)
    show(found)
    print(f"{results / experiment / preset}.json, figures beside it, and the report {results / 'README.md'}")


def show(found: dict[str, Any]) -> None:
    from aleator.experiments.report import COLUMNS, cell, winners

    rows = found["rows"] if len(found["rows"]) <= 20 else winners(found["rows"])
    metrics = [name for name in COLUMNS if any(name in row["metrics"] for row in rows)]
    table = Table("setting", "loss", *(COLUMNS[name] for name in metrics), caption="ours ± standard error (paper's)")
    for row in rows:
        cells = [cell(found["experiment"], row, name) for name in metrics]
        table.add_row(row["setting"], row["loss"], *cells)
    Console().print(table)
