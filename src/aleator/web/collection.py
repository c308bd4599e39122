"""A collection as the page shows it: items by certainty, the distribution of kappa, sizes of credible sets.

It is read once, when the server starts: ids, metadata, kappa and directions stay in memory. Searching is the
index's work; here are the questions about the collection as a whole.
"""

import json
import math
from collections import Counter
from typing import Any

import numpy as np
import torch

from aleator.evaluation import metrics
from aleator.foundation import require
from aleator.posteriors import VonMisesFisher
from aleator.retrieval import (
    CredibleIndex,
    Id,
    cap_radii,
    cosines,
    decode_id,
    directions,
    encode_id,
    slack,
    take_snapshot,
)
from aleator.web.levels import LEVELS, cap_cosines
from aleator.web.models import CertaintyDistribution, Item, Items, Label, Level, RejectCurve, certainty

_BINS = 40
_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_MOST_LABELS = 200
_MOST_NEIGHBOURS = 8_000  # labelled items among which neighbours are sought: their cosines are all computed


class Collection:
    """The items of an index, by position."""

    def __init__(self, index: CredibleIndex):
        snapshot = take_snapshot(index)
        self.keys, self.mu, self.kappa = snapshot.keys, snapshot.mu, snapshot.kappa
        self._metadata_json = snapshot.metadata_json
        self._position = {key: position for position, key in enumerate(self.keys)}
        self._ascending = np.sort(self.kappa).astype(np.float64)
        facts = [json.loads(note) for note in self._metadata_json]
        self._labels = [_label(one) for one in facts]
        self.paths = any(isinstance(one.get("path"), str) for one in facts)
        self.texts = any(isinstance(one.get("text"), str) for one in facts)
        surest = np.argsort(-self.kappa, kind="stable")
        self._orders = {"surest": surest, "least-sure": surest[::-1], "added": np.arange(len(self.keys))}
        self._curve: RejectCurve | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, text: str) -> int | None:
        """The position of the item that a user names: by its id as JSON text or, failing that, as plain text."""
        exact = self._position.get(text)
        return self._position.get(json.dumps(text)) if exact is None else exact

    def metadata(self, position: int) -> dict[str, Any]:
        return json.loads(self._metadata_json[position])

    def posterior(self, position: int) -> VonMisesFisher:
        """Batch shape (1,)."""
        mu = torch.from_numpy(self.mu[position : position + 1].astype(np.float64))
        kappa = torch.from_numpy(self.kappa[position : position + 1].astype(np.float64))
        return VonMisesFisher(mu, kappa)

    def item(self, position: int, images: bool) -> Item:
        facts = facts_of(decode_id(self.keys[position]), float(self.kappa[position]), self.metadata(position), images)
        return Item(**facts, surer_than=self.surer_than(float(self.kappa[position])))

    def page(self, order: str, offset: int, limit: int, label: str | None, images: bool) -> Items:
        """Items in order of their certainty, or as they were added."""
        chosen = self._orders[order]
        if label is not None:
            chosen = chosen[[self._labels[position] == label for position in chosen.tolist()]]
        shown = [self.item(position, images) for position in chosen[offset : offset + limit].tolist()]
        return Items(total=len(chosen), offset=offset, items=shown)

    def surer_than(self, kappa: float) -> float:
        """The share of the items whose kappa is smaller."""
        return float(np.searchsorted(self._ascending, kappa)) / max(1, len(self))

    def labels(self) -> list[Label]:
        counted = Counter(label for label in self._labels if label is not None)
        return [Label(label=label, count=count) for label, count in counted.most_common(_MOST_LABELS)]

    def distribution(self) -> CertaintyDistribution:
        proper = self._ascending[(self._ascending > 0) & np.isfinite(self._ascending)]
        low, high = (proper[0], proper[-1]) if len(proper) else (1.0, 1.0)
        if high / low < 1.01:  # one value: a bin needs some width
            low, high = low / 1.1, high * 1.1
        edges = np.geomspace(low, high, _BINS + 1)
        inside = np.clip(self._ascending, edges[0], edges[-1])
        cell = np.clip(np.searchsorted(edges, inside, side="right") - 1, 0, _BINS - 1)
        last = max(0, len(self) - 1)
        quantiles = {f"{q:g}": certainty(self._ascending[round(q * last)]) for q in _QUANTILES} if len(self) else {}
        counts = np.bincount(cell, minlength=_BINS)
        return CertaintyDistribution(edges=edges.tolist(), counts=counts.tolist(), quantiles=quantiles)

    def credible_sets(self, query: VonMisesFisher, p: float, leave_out: int = 0) -> tuple[int, list[Level]]:
        """The size of the p-credible set of a query, batch shape (1,), and the sets of all levels.

        `leave_out` items are the query itself, which lies in every set of its own.
        """
        radius = np.append(cap_cosines(query.dim, float(query.kappa[0])), cap_radii(query, p))
        sizes = self._within(directions(query, "query")[0], radius) - leave_out
        lines = zip(LEVELS, radius.tolist(), sizes.tolist(), strict=False)
        return int(sizes[-1]), [Level(p=level, cosine=cosine, size=size) for level, cosine, size in lines]

    def _within(self, mu: np.ndarray, radius: np.ndarray) -> np.ndarray:
        """How many items' cosines with mu (D,) reach each radius (L,): exactly those that a search finds."""
        order = np.argsort(radius)
        edges = radius[order]
        cosine = (self.mu @ mu).astype(np.float64)
        # A float32 product decides all but the items close to an edge.
        above = np.searchsorted(edges, cosine)
        below = np.maximum(above - 1, 0)
        gap = np.minimum(np.abs(edges[np.minimum(above, len(edges) - 1)] - cosine), np.abs(edges[below] - cosine))
        close = np.nonzero(gap <= slack(len(mu)))[0]
        cosine[close] = cosines(np.broadcast_to(mu, (len(close), len(mu))), self.mu[close])
        reached = np.bincount(np.searchsorted(edges, cosine, side="right"), minlength=len(edges) + 1)
        sizes = np.empty(len(edges), np.int64)
        sizes[order] = reached[::-1].cumsum()[::-1][1:]
        return sizes

    def reject_curve(self) -> RejectCurve:
        """How often the nearest neighbour has an item's label, for the surest share of the items; kept once made."""
        if self._curve is None:
            labelled = [position for position, label in enumerate(self._labels) if label is not None]
            shared = [label for label, count in Counter(self._labels).items() if label is not None and count > 1]
            require(
                bool(shared),
                "labels",
                len(labelled),
                "no two items share a label, so there is no curve",
                'give items a "label" in their metadata',
            )
            chosen = np.array(labelled)
            if len(chosen) > _MOST_NEIGHBOURS:
                chosen = np.sort(np.random.default_rng(0).choice(chosen, _MOST_NEIGHBOURS, replace=False))
            _, codes = np.unique([self._labels[position] or "" for position in chosen], return_inverse=True)
            hits = metrics.neighbour_hits(self.mu[chosen], codes)
            kept = [round(0.05 * step, 2) for step in range(1, 21)]
            curve = metrics.reject_curve(self.kappa[chosen], hits, kept)
            self._curve = RejectCurve(kept=kept, hits=curve, items=len(chosen), labelled=len(labelled))
        return self._curve


def facts_of(id: Id, kappa: float, metadata: dict[str, Any], images: bool) -> dict[str, Any]:
    """What is shown of any item. An id or a text may hold halves of characters, which no response can carry."""
    text = metadata.get("text")
    return {
        "key": encode_id(id),
        "id": _whole(id) if isinstance(id, str) else id,
        "kappa": certainty(kappa),
        "label": _label(metadata),
        "text": _whole(text) if isinstance(text, str) else None,
        "image": images and isinstance(metadata.get("path"), str),
        "metadata": metadata,
    }


def _label(metadata: dict[str, Any]) -> str | None:
    """A label as text; a list of probabilities is none."""
    label = metadata.get("label")
    if isinstance(label, bool) or not isinstance(label, str | int | float):
        return None
    return _whole(label) if isinstance(label, str) else f"{label:g}" if math.isfinite(label) else None


def _whole(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
