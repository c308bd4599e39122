"""`aleator quickstart`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from .errors import plain_errors


def quickstart(
    output: Annotated[Path, typer.Option(help="a new folder for the figures and the report")] = Path(
        "aleator-quickstart"
    ),
    seed: Annotated[int, typer.Option(help="of the process and the encoder")] = 4,
    steps: Annotated[int, typer.Option(help="of training")] = 600,
) -> None:
    """Recover known posteriors from matching pairs alone: no data, no download, about two minutes on two cores."""
    from aleator.quickstart import quickstart as run

    with plain_errors():
        report = run(output, seed, steps)
    table = Table("metric", "value")
    for name in ("mu_rmse", "mu_rank", "kappa_rmse", "kappa_rank"):
        table.add_row(name, f"{report[name]:.3f}")
    for level, share in report["coverage"].items():
        table.add_row(f"latents in the {float(level):.0%} credible cap", f"{share:.1%}")
    Console().print(table)
    print(f"Figures and report: {output}")
