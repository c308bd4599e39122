"""`aleator quickstart`: a demonstration of two minutes that needs no data."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from aleator.cli.errors import plain_errors
from aleator.cli.terminal import Terminal, print_line, say


def quickstart(
    output: Annotated[Path, typer.Option(help="new folder for the report, figures and index")] = Path(
        "aleator-quickstart"
    ),
    seed: Annotated[int, typer.Option(help="seed of everything random")] = 4,
    steps: Annotated[int, typer.Option(help="training steps in each part")] = 600,
) -> None:
    """A demonstration of two minutes, without data or download: recover known posteriors, search real images, and ask
    about images that could be one of two things.

    Example: aleator quickstart --output first-look
    """
    from aleator.quickstart import next_commands
    from aleator.quickstart import quickstart as run

    with plain_errors():
        report = run(output, seed, steps, log=say)
    circle, digits, modes = report["circle"], report["digits"], report["modes"]
    table = Table("known posteriors, recovered", "", title_justify="left")
    for name in ("mu_rmse", "mu_rank", "kappa_rmse", "kappa_rank"):
        table.add_row(name, f"{circle[name]:.3f}")
    for level, share in circle["coverage"].items():
        table.add_row(f"latents in the {float(level):.0%} credible cap", f"{share:.1%}")
    table.add_section()
    table.add_row("[bold]real digits", "")
    table.add_row("Recall@1", f"{digits['recall_at_1']:.1%}")
    table.add_row("Recall@1 of the surer half", f"{digits['recall_at_1_surer_half']:.1%}")
    table.add_row("uncertainty against degradation, rank correlation", f"{digits['degradation_rank']:.2f}")
    table.add_row("calibration error of match probabilities, of hits", f"{digits['match_ece_hits']:.3f}")
    table.add_row("credible sets that hold the right numeral", f"{digits['credible_set_holds_the_numeral']:.1%}")
    Terminal().print(table)
    print_line(
        f"Either this, or that ({output / 'figures' / 'either-or.png'}):" if modes["shown"] else "Either this, or that:"
    )
    for sentence in modes["sentences"]:
        print_line(f"  {sentence}")
    print_line(f"Report: {output / 'report.html'}")
    print_line("What to try next:")
    for line in next_commands(output):
        print_line(f"  {line}")
