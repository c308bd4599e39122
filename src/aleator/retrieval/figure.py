"""A picture of answers: where each query's hits lie, and how likely each is a match."""

from typing import TYPE_CHECKING

import numpy as np

from aleator.retrieval.index import Hit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 12  # queries in one picture
_NAMED = 5  # hits with their ids, in each


def picture(answers: list[list[Hit]]) -> "Figure":
    """One panel for each of the first queries: cosine against match probability, with ids of the best hits."""
    from matplotlib.figure import Figure

    shown = answers[:_MOST]
    columns = max(1, min(3, len(shown)))
    lines = max(1, -(-len(shown) // columns))
    figure = Figure(figsize=(4 * columns, 3 * lines), layout="constrained")
    for number, hits in enumerate(shown):
        axes = figure.add_subplot(lines, columns, number + 1)
        axes.set_title(f"query {number}: {len(hits)} hit{'' if len(hits) == 1 else 's'}", fontsize="medium")
        axes.set(xlabel="cosine", ylabel="match probability", ylim=(-0.05, 1.05))
        sizes = [10 + 10 * np.log1p(min(hit.kappa, 1e6)) for hit in hits]
        axes.scatter([h.cosine for h in hits], [h.match_probability for h in hits], s=sizes, alpha=0.6)
        for hit in hits[:_NAMED]:
            axes.annotate(str(hit.id)[:20], (hit.cosine, hit.match_probability), fontsize="x-small", parse_math=False)
    return figure
