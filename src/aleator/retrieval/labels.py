"""Label probabilities with the items of an index as the gallery.

An index keeps the numbers of a `LabelModel` that was fitted elsewhere: kernel, beta and floor. Its own labelled items
are the gallery. So the labels follow the index: items that are added or removed count at once.
"""

import json
from typing import Any

import numpy as np
import torch

from aleator.evaluation import LabelModel, condense_gallery, entries_per_class
from aleator.foundation import require
from aleator.matching import VMFKernel
from aleator.retrieval.index_facts import IndexFacts
from aleator.retrieval.label_share import labels_of
from aleator.retrieval.snapshot import take_snapshot

# Of an index that was built without fitted numbers: Bayes' rule, and a floor of a hundredth.
_BETA, _FLOOR = 1.0, 0.01


def label_numbers(model: LabelModel) -> dict[str, Any]:
    """The numbers of a fitted model, as an index stores them."""
    kappa_pos = repr(float(model.kernel.kappa_pos))  # type: ignore[arg-type]
    return {"kappa_pos": kappa_pos, "beta": model.beta, "floor": model.floor}


def label_model_of(index: IndexFacts) -> LabelModel:
    """A label model whose gallery are the labelled items of an index.

    Labels are the metadata "labels" (a probability for each label) or "label".

    Args:
        index: The index.

    Returns:
        The model. Without numbers from a fit, it follows Bayes' rule with the kernel of the index.

    Raises:
        ValueError: If no item has a label, or all have the same one.
    """
    snapshot = take_snapshot(index)
    rows = [labels_of(json.loads(text)) for text in snapshot.metadata_json]
    labelled = np.array([bool(row) for row in rows], bool)
    names = tuple(sorted({name for row in rows for name in row}))
    way_out = 'give items metadata such as {"label": "cat"}'
    require(len(names) >= 2, "index", len(names), "its items have fewer than two labels", way_out)
    column = {name: c for c, name in enumerate(names)}
    weights = torch.zeros(int(labelled.sum()), len(names), dtype=torch.float64)
    for i, row in enumerate(row for row in rows if row):
        for name, probability in row.items():
            weights[i, column[name]] = probability
    gallery = snapshot.posteriors[torch.from_numpy(labelled)]
    entries, weights = condense_gallery(gallery, weights, entries_per_class(len(names)))
    numbers = index.store.config.get("labels")
    if numbers is None:
        return LabelModel(entries, weights, names, index.kernel, _BETA, _FLOOR)
    return LabelModel(
        entries, weights, names, VMFKernel(float(numbers["kappa_pos"])), numbers["beta"], numbers["floor"]
    )
