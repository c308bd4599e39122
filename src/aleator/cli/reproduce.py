"""`aleator reproduce`: run an experiment of the paper, and print our figures beside the paper's."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from aleator.cli.errors import kept_in, plain_errors
from aleator.cli.terminal import Terminal, print_line


def reproduce(
    experiment: Annotated[str, typer.Argument(help="name of the experiment: one of the list above")],
    preset: Annotated[
        str, typer.Option(help="quick (minutes on two cores), paper (the published code), corrected, or best (ours)")
    ] = "quick",
    seeds: Annotated[str | None, typer.Option(help="seeds to run, for example 4,5,6; default: the preset's")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto")] = "auto",
    results: Annotated[Path, typer.Option(help="folder of results: tables as JSON, figures, a report")] = Path(
        "results"
    ),
    runs: Annotated[Path, typer.Option(help="folder of runs; the same command continues after an interruption")] = Path(
        "runs"
    ),
    jobs: Annotated[
        int | None, typer.Option(help="runs at the same time; default: one for each core, at most 15 on a GPU", min=1)
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="name of a row to run; may be repeated; the other rows of the table stay")
    ] = None,
    finished: Annotated[bool, typer.Option("--finished", help="run nothing: the table of what is finished")] = False,
    data_dir: Annotated[
        Path | None, typer.Option(help="folder with CIFAR-10, CIFAR-10H and CIFAR-10N", envvar="ALEATOR_DATA")
    ] = None,
) -> None:
    """Run an experiment of the paper and print our figures beside the paper's.

    Example: aleator reproduce recovery --preset best --device cuda

    Part of a long table: aleator reproduce losses --preset paper --only ambiguous --seeds 4,5

    With known posteriors: recovery, circle, samples, families, losses, encoder-dim, high-dim, shared-backbone, tuning,
    infonce, optimisers, phases, published, laws, modes, landscape.

    With CIFAR-10H: cifar-losses, cifar-labels, cifar-rejection, cifar-retrieval, cifar-gallery, cifar-scratch,
    cifar-infonce, cifar-tuning, cifar-overfitting.
    """
    from aleator.experiments import reproduce as run
    from aleator.foundation import require

    with plain_errors(lambda: kept_in(runs, "the runs that are finished")):
        require(not (finished and only), "only", only, "nothing is run with --finished", "leave out one of them")
        seed_numbers = None
        if seeds is not None:
            parts = seeds.split(",")
            require(all(part.strip().isdecimal() for part in parts), "seeds", seeds, "not whole numbers", "pass 4,5,6")
            seed_numbers = [int(part) for part in parts]
        if experiment.startswith("cifar-"):
            from aleator.experiments import require_data

            require_data(data_dir)  # read all files before anything is trained
        result = run(
            experiment,
            preset,  # type: ignore[arg-type]  # any other word is refused
            seeds=seed_numbers,
            device=device,
            results=results,
            runs=runs,
            jobs=jobs,
            only=[] if finished else only,
        )
    show(result)
    figures = "figures beside it" if only is None and not finished else "figures beside it once it has all rows"
    print_line(f"{results / experiment / preset}.json, {figures}, and the report {results / 'README.md'}")


def show(result: dict[str, Any]) -> None:
    """Print a result as a table with one line for each metric, so that it fits a terminal."""
    from aleator.experiments import COLUMNS, paper_figure, shown_rows, with_error

    table = Table("setting", "loss", "figure", "ours", "paper")
    for row in shown_rows(result):
        first = (row["setting"], row["loss"])
        for metric in (name for name in COLUMNS if name in row["metrics"]):
            theirs = paper_figure(result["experiment"], row["setting"], row["loss"], metric)
            ours = with_error(*(row["metrics"][metric][part] for part in ("mean", "stderr")))
            table.add_row(*first, COLUMNS[metric], ours, "" if theirs is None else with_error(*theirs))
            first = ("", "")
        table.add_section()
    Terminal().print(table)
