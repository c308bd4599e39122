"""Hits: the items that a search returns."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from aleator.retrieval.items import Id, Metadata, decode_id, decode_metadata
from aleator.retrieval.search import ScoredCandidates
from aleator.retrieval.stores.base import Store


class Hit(NamedTuple):
    """One item of an answer.

    Attributes:
        id: Id of the item.
        cosine: Cosine of the item's mu with the mu of the query.
        kappa: Certainty of the item.
        match_probability: Probability that item and query match, given both posteriors; calibrated for hits if the
            index has maps.
        metadata: Metadata of the item.
        mode: Number of the query's mode that the item belongs to, in the order of its weights; 0 if it has one. For
            items and queries of several modes, `cosine` and `kappa` are those of this mode and of the item's nearest.
            A search by "nearest" takes the cosine with the likeliest direction of the query.

    Examples:
        >>> import torch, aleator as al
        >>> index = al.CredibleIndex.build(al.VonMisesFisher(torch.eye(3), 100.0), ids=["x", "y", "z"])
        >>> hit = index.search(al.VonMisesFisher(torch.eye(1, 3), 50.0))[0][0]
        >>> hit.id, hit.cosine, hit.kappa, round(hit.match_probability, 2)
        ('x', 1.0, 100.0, 0.96)
    """

    id: Id
    cosine: float
    kappa: float
    match_probability: float
    metadata: Metadata
    mode: int = 0


def group_by_mode(hits: Sequence[Hit]) -> list[tuple[int, list[Hit]]]:
    """The hits of a query by its modes: either these, or those.

    Args:
        hits: Hits of one query.

    Returns:
        Number of the mode and its hits, in the order of the first hits. One group for a query of one mode.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.retrieval import group_by_mode
        >>> index = al.CredibleIndex.build(al.VonMisesFisher(torch.eye(3), 100.0), ids=["cat", "dog", "fox"])
        >>> query = al.VMFMixture(torch.tensor([[0.4, 0.6]]).log(), al.VonMisesFisher(torch.eye(2, 3)[None], 50.0))
        >>> [(mode, [hit.id for hit in group]) for mode, group in group_by_mode(index.search(query)[0])]
        [(1, ['dog']), (0, ['cat'])]
    """
    groups: dict[int, list[Hit]] = {}
    for hit in hits:
        groups.setdefault(hit.mode, []).append(hit)
    return list(groups.items())


_make_hit = partial(tuple.__new__, Hit)  # like Hit._make, in a third of the time


def make_hits(store: Store, scored: ScoredCandidates, queries: int) -> list[list[Hit]]:
    """Look up ids and metadata of candidates, which are in their final order, and group the hits by query."""
    descriptions = store.describe(scored.candidates.row)
    described = list(map(descriptions.get, scored.candidates.row.tolist()))
    if None in described:  # removed while this search ran
        scored = scored.take(np.array([description is not None for description in described]))
    candidates = scored.candidates
    keys, metadata = zip(*filter(None, described), strict=True) if len(candidates) else ((), ())
    columns = (
        map(decode_id, keys),
        scored.cosine.tolist(),
        candidates.kappa.tolist(),
        scored.match_probability.tolist(),
        map(decode_metadata, metadata),
        [0] * len(candidates) if scored.mode is None else scored.mode.tolist(),
    )
    hits = list(map(_make_hit, zip(*columns, strict=True)))
    ends = np.searchsorted(candidates.query, np.arange(queries + 1)).tolist()
    return [hits[start:end] for start, end in pairwise(ends)]
