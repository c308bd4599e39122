"""`aleator quickstart`: a demonstration of two minutes that needs no data."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from aleator.cli.errors import plain_errors
from aleator.cli.terminal import Terminal, print_line, say

_CIRCLE_WORDS = {
    "mu_rmse": "error of the cosines between directions",
    "mu_rank": "rank correlation of these cosines",
    "kappa_rmse": "error of kappa",
    "kappa_rank": "rank correlation of kappa",
}


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
    table = Table("real digits", "named", "found")
    table.add_row("nearest neighbours that show the same numeral", "", f"{digits['recall_at_1']:.1%}")
    table.add_row("the same, of the half with the larger kappa", "", f"{digits['recall_at_1_surer_half']:.1%}")
    table.add_row("credible sets that hold the right numeral", "95%", f"{digits['credible_set_holds_the_numeral']:.1%}")
    table.add_row("calibration error of the match probabilities of hits", "", f"{digits['match_ece_hits']:.3f}")
    table.add_row("rank correlation of uncertainty and degradation", "", f"{digits['degradation_rank']:.2f}")
    table.add_section()
    table.add_row(Text("known posteriors, recovered", style="bold"))
    for level, share in circle["coverage"].items():
        table.add_row("credible caps that hold the true latent", f"{float(level):.0%}", f"{share:.1%}")
    for name, words in _CIRCLE_WORDS.items():
        table.add_row(words, "", f"{circle[name]:.3f}")
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
