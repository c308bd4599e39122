"""`aleator reproduce`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from aleator.cli.errors import plain_errors


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
    data_dir: Annotated[
        Path | None, typer.Option(help="folder with CIFAR-10, -10H and -10N", envvar="ALEATOR_DATA")
    ] = None,
) -> None:
    """Run one of the paper's experiments and print the paper's figures beside ours.

    Example: aleator reproduce recovery --preset best --device cuda
    """
    from aleator.experiments import reproduce as run
    from aleator.foundation import require

    with plain_errors():
        chosen = None
        if seeds is not None:
            parts = seeds.split(",")
            require(all(part.strip().isdecimal() for part in parts), "seeds", seeds, "not whole numbers", "pass 4,5,6")
            chosen = [int(part) for part in parts]
        if experiment.startswith("cifar-"):
            from aleator.experiments import require_data

            require_data(data_dir)  # all of it, before anything is trained
        found = run(experiment, preset, seeds=chosen, device=device, results=results, runs=runs, jobs=jobs)
    show(found)
    print(f"{results / experiment / preset}.json, figures beside it, and the report {results / 'README.md'}")


def show(found: dict[str, Any]) -> None:
    """A line for each figure, so that the table fits a terminal however many figures a row has."""
    from aleator.experiments import COLUMNS, paper_figure, shown_rows, with_error

    table = Table("setting", "loss", "figure", "ours", "paper")
    for row in shown_rows(found["rows"]):
        first = (row["setting"], row["loss"])
        for metric in (name for name in COLUMNS if name in row["metrics"]):
            theirs = paper_figure(found["experiment"], row["setting"], row["loss"], metric)
            ours = with_error(*(row["metrics"][metric][part] for part in ("mean", "stderr")))
            table.add_row(*first, COLUMNS[metric], ours, "" if theirs is None else with_error(*theirs))
            first = ("", "")
        table.add_section()
    Console().print(table)
