"""A figure of search results."""

from typing import TYPE_CHECKING

import numpy as np

from aleator.retrieval.hits import Hit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_QUERIES = 12  # panels in one figure
_MAX_NAMES = 5  # hits with their id, in each panel


def plot_hits(answers: list[list[Hit]]) -> "Figure":
    """One panel for each of the first queries: cosine against match probability, with the ids of the best hits."""
    from matplotlib.figure import Figure

    shown = answers[:_MAX_QUERIES]
    columns = max(1, min(3, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    figure = Figure(figsize=(4 * columns, 3 * rows), layout="constrained")
    for number, hits in enumerate(shown):
        axes = figure.add_subplot(rows, columns, number + 1)
        axes.set_title(f"query {number}: {len(hits)} hit{'' if len(hits) == 1 else 's'}", fontsize="medium")
        axes.set(xlabel="cosine", ylabel="match probability", ylim=(-0.05, 1.05))
        sizes = [10 + 10 * np.log1p(min(hit.kappa, 1e6)) for hit in hits]
        axes.scatter([h.cosine for h in hits], [h.match_probability for h in hits], s=sizes, alpha=0.6)
        for hit in hits[:_MAX_NAMES]:
            axes.annotate(str(hit.id)[:20], (hit.cosine, hit.match_probability), fontsize="x-small", parse_math=False)
    return figure
