"""Items by how certain they are: the order, and what is told about each item.

`rank_stored` takes what a posteriors file holds, without torch. `aleator.own_data.rank_by_certainty` computes the same
from posteriors.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from aleator.stored.arrays import ANSWERS, read_arrays, read_header
from aleator.stored.items import read_records

CertaintyScore = Literal["labels", "kappa"]
_UNIT = 1e-5  # mu whose length is this close to 1 needs no other check
_SURE = 1e-5  # a certainty this close to the highest that is possible is no less sure


@dataclass(frozen=True)
class ListedItems:
    """What is told about n items of a list, in its order.

    Args:
        kappa: Their kappa, shape (n,).
        modes: For each item the weights of its modes. None for posteriors of one mode.
        certainty: How sure the label is, shape (n,). None without label probabilities.
        could_be: The likeliest labels of each item. None without label probabilities.
        unlike: Whether it is unlike anything seen, shape (n,). None if nobody can tell.

    Examples:
        >>> import numpy as np
        >>> from aleator.stored import ListedItems
        >>> list(ListedItems(np.array([5.0]), unlike=np.array([True])).facts())
        [{'kappa': 5.0, 'unlike': True}]
    """

    kappa: np.ndarray
    modes: Sequence[list[float]] | None = None
    certainty: np.ndarray | None = None
    could_be: Sequence[Sequence[tuple[str, float]]] | None = None
    unlike: np.ndarray | None = None

    def facts(self) -> Iterator[dict[str, Any]]:
        """For each item what is known about it: "kappa", "modes", "certainty", "could_be" and "unlike"."""
        for n, kappa in enumerate(self.kappa.tolist()):
            facts: dict[str, Any] = {"kappa": kappa}
            if self.modes is not None:
                facts["modes"] = self.modes[n]
            if self.certainty is not None and self.could_be is not None:
                facts["certainty"] = float(rounded_certainty(self.certainty[n : n + 1])[0])
                facts["could_be"] = {name: round(p, 4) for name, p in self.could_be[n]}
            if self.unlike is not None:
                facts["unlike"] = bool(self.unlike[n])
            yield facts


def rank_rows(
    records: Sequence[Mapping[str, Any]],
    score: np.ndarray,
    ties: np.ndarray,
    describe: Callable[[np.ndarray], ListedItems],
    limit: int | None = None,
    surest: bool = False,
    unlike: np.ndarray | None = None,
) -> Iterator[dict[str, Any]]:
    """List the items with the smallest score first.

    Args:
        records: For each of N items its "id" and what else is known.
        score: How certain each item is, shape (N,).
        ties: What decides between items of the same score, shape (N,). Where it is equal too, items keep their order.
        describe: What is told about the items with these numbers.
        limit: Number of items to list. Default: all.
        surest: Whether to list the largest scores first instead.
        unlike: Whether each item is unlike anything seen, shape (N,). Of items of the same score, these come before the
            others whatever `ties` says, because the score of what is out of place means little. Default: none is.

    Yields:
        The record of each item with its "rank" from 1, "percentile", the share of items that are less certain, and
        what `describe` tells.

    Examples:
        >>> import numpy as np
        >>> from aleator.stored import ListedItems, rank_rows
        >>> kappa = np.array([50.0, 5.0])
        >>> list(rank_rows([{"id": "a"}, {"id": "b"}], kappa, kappa, lambda items: ListedItems(kappa[items]), 1))
        [{'rank': 1, 'id': 'b', 'kappa': 5.0, 'percentile': 0.0}]
    """
    usual = np.zeros(len(score)) if unlike is None else 1.0 - unlike
    order = np.lexsort((-ties, -usual, -score) if surest else (ties, usual, score))
    listed = order[:limit]
    for place, (i, facts) in enumerate(zip(listed.tolist(), describe(listed).facts(), strict=True)):
        below = len(order) - place - 1 if surest else place
        kappa = facts.pop("kappa")
        yield {"rank": place + 1, **records[i], "kappa": kappa, "percentile": below / len(order), **facts}


def rank_stored(
    path: str | Path, limit: int | None = None, surest: bool = False, by: CertaintyScore | None = None
) -> list[dict[str, Any]] | None:
    """List the items of a posteriors file by certainty, from what the file holds alone. torch is not needed.

    Args:
        path: The posteriors file. Its checksums are verified.
        limit: Number of items to list. Default: all.
        surest: Whether to list the most certain items first.
        by: "labels" or "kappa". Default: labels if the file has label probabilities, kappa otherwise.

    Returns:
        The rows of `aleator.own_data.rank_by_certainty`. None if they must be computed: for posteriors of several
        modes, for files without checksums, and for files and arguments that may be wrong.

    Raises:
        ValueError: If a file is missing or damaged, or if the two files have different lengths.

    Examples:
        >>> import numpy as np
        >>> from aleator.stored import rank_stored
        >>> np.savez("two.npz", mu=np.eye(2, 3), kappa=np.array([50.0, 5.0]))
        >>> rank_stored("two.npz", limit=1)
        [{'rank': 1, 'id': 1, 'kappa': 5.0, 'percentile': 0.0}]
    """
    path = Path(path).expanduser()
    arrays, header = read_arrays(path), read_header(path)
    labelled = "labels" in header
    by = by or ("labels" if labelled else "kappa")
    known = by in get_args(CertaintyScore) and (labelled or by == "kappa")
    answered = not labelled or set(ANSWERS) <= set(arrays)
    unaltered = "version" in header or not header  # a header that was written by hand may be wrong
    if not (known and answered and unaltered and _plainly_valid(arrays["mu"], arrays["kappa"])):
        return None
    facts = json.loads(header["labels"]) if labelled else {}
    certainty, numbers, probabilities = (arrays.get(name) for name in ANSWERS)
    score = kappa = arrays["kappa"]
    unlike = arrays["novelty"] > 0 if "novelty" in arrays else None
    if certainty is not None and numbers is not None and by == "labels":
        score = label_scores(certainty, numbers[:, 0].astype(int), arrays["labels.weights"], facts["floor"])

    def describe(items: np.ndarray) -> ListedItems:
        odd = None if unlike is None else unlike[items]
        if certainty is None or numbers is None or probabilities is None:
            return ListedItems(kappa[items], unlike=odd)
        likely = name_labels(numbers[items].astype(int).tolist(), probabilities[items].tolist(), facts["names"])
        return ListedItems(kappa[items], None, certainty[items], likely, odd)

    return list(rank_rows(read_records(path, len(kappa)), score, kappa, describe, limit, surest, unlike))


def rounded_certainty(certainty: np.ndarray) -> np.ndarray:
    """Certainties of labels without their last digits, which are noise.

    Args:
        certainty: Certainties in [0, 1], shape (N,).

    Returns:
        The same, to six digits, shape (N,), float64.

    Examples:
        >>> import numpy as np
        >>> from aleator.stored import rounded_certainty
        >>> rounded_certainty(np.array([0.12345678]))
        array([0.123457])
    """
    return np.round(certainty.astype(np.float64), 6)


def label_scores(certainty: np.ndarray, likeliest: np.ndarray, weights: np.ndarray, floor: float) -> np.ndarray:
    """Certainties of labels as scores to rank by: `rounded_certainty`, but 1 for items that are as sure as they can be.

    The floor of label probabilities bounds the certainty, to another height for each label. Items that reach the bound
    are equally sure, whatever their label is.

    Args:
        certainty: Certainties in [0, 1], shape (N,).
        likeliest: Number of the likeliest label of each item, shape (N,).
        weights: Mass that the entries of the gallery give to each of C labels, shape (M, C).
        floor: Share of the probability that goes to the labels in proportion to their frequency.

    Returns:
        Scores, shape (N,), float64.

    Examples:
        >>> import numpy as np
        >>> from aleator.stored import label_scores
        >>> label_scores(np.array([0.7, 0.713603]), np.array([0, 1]), np.eye(2), 0.1)
        array([0.7, 1. ])
    """
    mass = weights.sum(0, dtype=np.float64)
    least = floor * mass / mass.sum()  # of the probability of each label

    def entropies(p: np.ndarray) -> np.ndarray:
        return -p * np.log(np.where(p > 0, p, 1.0))

    lowest = entropies(least).sum() - entropies(least) + entropies(1 - floor + least)
    highest = 1 - lowest / np.log(len(mass))
    return np.where(certainty > highest[likeliest] - _SURE, 1.0, rounded_certainty(certainty))


def name_labels(
    numbers: Sequence[Sequence[int]],
    probabilities: Sequence[Sequence[float]],
    names: Sequence[str],
    least: float = 0.01,
) -> list[list[tuple[str, float]]]:
    """Names and probabilities of the likeliest labels of each item.

    Args:
        numbers: For each item the numbers of its likeliest labels, the likeliest first.
        probabilities: Their probabilities.
        names: Names of all labels.
        least: Labels that are less probable are left out, except for the first one.

    Returns:
        For each item its labels with their probabilities, the most probable first.

    Examples:
        >>> from aleator.stored import name_labels
        >>> name_labels([[0, 2, 1]], [[0.75, 0.25, 0.0]], ["coat", "shoe", "shirt"])
        [[('coat', 0.75), ('shirt', 0.25)]]
    """
    return [
        [(names[c], p) for k, (c, p) in enumerate(zip(row, row_values, strict=True)) if k == 0 or p >= least]
        for row, row_values in zip(numbers, probabilities, strict=True)
    ]


def _plainly_valid(mu: np.ndarray, kappa: np.ndarray) -> bool:
    """Whether these are posteriors of one mode beyond doubt. Where it is False, `VonMisesFisher` decides."""
    if mu.ndim != 2 or mu.shape[1] < 2 or {mu.dtype, kappa.dtype} - {np.dtype("float32"), np.dtype("float64")}:
        return False
    lengths = np.sqrt(np.einsum("nd,nd->n", mu, mu, dtype=np.float64))
    return bool((np.abs(lengths - 1) < _UNIT).all() and (kappa >= 0).all())
