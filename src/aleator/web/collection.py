"""A collection as the page shows it: items by certainty, the distribution of kappa, sizes of credible sets.

The items are read once, when the server starts. Ids, metadata, kappa and directions stay in memory. The index searches;
this module answers questions about the collection as a whole.
"""

import json
import math
from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aleator.evaluation import LabelModel, label_certainty, neighbour_hits, reject_curve
from aleator.foundation import require, sample_numbers
from aleator.own_data import one_mode
from aleator.posteriors import PosteriorBatch, VonMisesFisher
from aleator.retrieval import (
    CredibleIndex,
    Id,
    cap_radii,
    cosines,
    decode_id,
    directions,
    encode_id,
    highest_log_density,
    label_text,
    region_thresholds,
    slack,
    take_snapshot,
)
from aleator.stored import rounded_certainty
from aleator.web.credible_levels import LEVELS, cap_cosines
from aleator.web.models import (
    CertaintyDistribution,
    CredibleLevel,
    ItemPage,
    ItemView,
    LabelCount,
    Order,
    RejectCurve,
    certainty,
)

_BINS = 40
_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_MOST_LABELS = 200
_MOST_PAIRS = 20_000_000  # of an item and an entry of the label model, about ten seconds when the server starts
_USES = ("training", "calibration")  # what `aleator embed` says about items that a run has seen
_FEWEST_NEW = 20  # other labelled items, for a reject curve of them alone
_MOST_NEIGHBOURS = 8_000  # labelled items of the reject curve, which computes the cosines of all pairs


class CollectionView:
    """The items of an index by position, in the order in which they were added.

    Args:
        index: The index. It is read completely.
        label_model: Label probabilities. With them, items are ordered by the certainty of their label; otherwise, and
            in very large collections, by kappa.
    """

    def __init__(self, index: CredibleIndex, label_model: LabelModel | None = None):
        snapshot = take_snapshot(index)
        self.keys, self._posteriors = snapshot.keys, snapshot.posteriors
        shown = one_mode(snapshot.posteriors)
        self.mu, self.kappa = shown.mu.numpy(), shown.kappa.numpy()
        self._metadata_json = snapshot.metadata_json
        self._position = {key: position for position, key in enumerate(self.keys)}
        self._ascending = np.sort(self.kappa).astype(np.float64)
        self._likeliest: np.ndarray | None = None  # probability of the likeliest label of each item
        self._scores = self._certainties(label_model)
        ascending = np.lexsort((self.kappa, self._scores))  # of equal scores, kappa decides
        self._ascending_scores, self._kappa_in_order = self._scores[ascending], self.kappa[ascending]
        metadata = [json.loads(text) for text in self._metadata_json]
        self._labels = [_label(item) for item in metadata]
        self._used = np.array([item.get("used") in _USES for item in metadata], bool)
        self.paths = any(isinstance(item.get("path"), str) for item in metadata)
        self.texts = any(isinstance(item.get("text"), str) for item in metadata)
        surest = np.lexsort((-self.kappa, -self._scores))
        self._orders = {"surest": surest, "least-sure": surest[::-1], "added": np.arange(len(self.keys))}
        self._curve: RejectCurve | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, text: str) -> int | None:
        """The position of an item by its id: as JSON text or, if there is none, as plain text."""
        exact = self._position.get(text)
        return self._position.get(json.dumps(text)) if exact is None else exact

    def metadata(self, position: int) -> dict[str, Any]:
        """The metadata of an item."""
        return json.loads(self._metadata_json[position])

    def label(self, position: int) -> str | None:
        """The label of an item."""
        return self._labels[position]

    def posterior(self, position: int) -> PosteriorBatch:
        """The posterior of an item, batch shape (1,)."""
        return self._posteriors[position : position + 1].double()

    def item(self, position: int, images: bool) -> ItemView:
        """The description of an item; `images` says whether pictures can be shown."""
        id, kappa = decode_id(self.keys[position]), float(self.kappa[position])
        fields = item_fields(id, kappa, self.metadata(position), images)
        surer_than = self._share_below(self._scores[position], self.kappa[position])
        return ItemView(**fields, surer_than=surer_than, likeliest=self._likeliest_of(position))

    def page(
        self, order: Order, offset: int, limit: int, label: str | None, images: bool, find: str | None = None
    ) -> ItemPage:
        """Some items in order of their certainty, or as they were added; those with a label, or a part of an id."""
        chosen = self._orders[order]
        if label is not None:
            chosen = chosen[[self._labels[position] == label for position in chosen.tolist()]]
        if find:
            part = find.casefold()
            chosen = chosen[[part in str(decode_id(self.keys[position])).casefold() for position in chosen.tolist()]]
        shown = [self.item(position, images) for position in chosen[offset : offset + limit].tolist()]
        return ItemPage(total=len(chosen), offset=offset, items=shown)

    def surer_than(self, kappa: float, labels: Tensor | None = None) -> float:
        """The share of the items that are less certain than something with this kappa and these probabilities (C,)."""
        if self.by_labels and labels is not None:
            return self._share_below(float(rounded_certainty(label_certainty(labels).numpy())), kappa)
        return float(np.searchsorted(self._ascending, kappa)) / max(1, len(self))

    def certainty_of(self, key: str, kappa: float) -> tuple[float, float | None]:
        """`surer_than` and `likeliest` of an item. One that was added later counts by kappa."""
        position = self._position.get(key)
        if position is None:
            return self.surer_than(kappa), None
        return self._share_below(self._scores[position], kappa), self._likeliest_of(position)

    def _likeliest_of(self, position: int) -> float | None:
        return None if self._likeliest is None else float(self._likeliest[position])

    def _share_below(self, score: float, kappa: float) -> float:
        """The share of the items with a smaller score, or with the same score and a smaller kappa."""
        first, last = (int(np.searchsorted(self._ascending_scores, score, side)) for side in ("left", "right"))
        return (first + int(np.searchsorted(self._kappa_in_order[first:last], kappa))) / max(1, len(self))

    def _certainties(self, model: LabelModel | None) -> np.ndarray:
        """The score (n,) by which items are ordered."""
        self.by_labels = model is not None and len(self) * len(model.gallery) <= _MOST_PAIRS
        if model is None or not self.by_labels:
            return self.kappa.astype(np.float64)
        certainty, _, likeliest = model.certainty_and_label(self._posteriors)
        self._likeliest = likeliest.numpy()
        return rounded_certainty(certainty.numpy())

    def labels(self) -> list[LabelCount]:
        """The most frequent labels."""
        counted = Counter(label for label in self._labels if label is not None)
        return [LabelCount(label=label, count=count) for label, count in counted.most_common(_MOST_LABELS)]

    def distribution(self) -> CertaintyDistribution:
        """A histogram of kappa."""
        proper = self._ascending[(self._ascending > 0) & np.isfinite(self._ascending)]
        low, high = (proper[0], proper[-1]) if len(proper) else (1.0, 1.0)
        if high / low < 1.01:  # all kappas are about equal, but bins need a width
            low, high = low / 1.1, high * 1.1
        edges = np.geomspace(low, high, _BINS + 1)
        inside = np.clip(self._ascending, edges[0], edges[-1])
        cell = np.clip(np.searchsorted(edges, inside, side="right") - 1, 0, _BINS - 1)
        last = max(0, len(self) - 1)
        quantiles = {f"{q:g}": certainty(self._ascending[round(q * last)]) for q in _QUANTILES} if len(self) else {}
        counts = np.bincount(cell, minlength=_BINS)
        return CertaintyDistribution(edges=edges.tolist(), counts=counts.tolist(), quantiles=quantiles)

    def credible_sets(self, query: PosteriorBatch, p: float, leave_out: int = 0) -> tuple[int, list[CredibleLevel]]:
        """The size of the p-credible set of a query of batch shape (1,), and the sets of all levels.

        Each set counts `leave_out` items less: a query that is an item of the collection lies in all of its own sets.
        """
        if not isinstance(query, VonMisesFisher) or self._posteriors.modes > 1:
            return self._regions(query, p, leave_out)
        radius = np.append(cap_cosines(query.dim, float(query.kappa[0])), cap_radii(query, p))
        sizes = self._within(directions(query, "query")[0], radius) - leave_out
        lines = zip(LEVELS, radius.tolist(), sizes.tolist(), strict=False)
        return int(sizes[-1]), [CredibleLevel(p=level, cosine=cosine, size=size) for level, cosine, size in lines]

    def _regions(self, query: PosteriorBatch, p: float, leave_out: int) -> tuple[int, list[CredibleLevel]]:
        """`credible_sets` where query or items have several modes: the sets are regions of highest density."""
        threshold = region_thresholds(query, torch.tensor([*LEVELS, p], dtype=torch.float64)[:, None])[:, 0]
        density = np.sort(highest_log_density(query, self._posteriors))
        sizes = len(density) - np.searchsorted(density, threshold)
        sizes = sizes - leave_out * (highest_log_density(query, query)[0] >= threshold)
        lines = zip(LEVELS, sizes.tolist(), strict=False)
        return int(sizes[-1]), [CredibleLevel(p=level, cosine=None, size=size) for level, size in lines]

    def _within(self, mu: np.ndarray, radius: np.ndarray) -> np.ndarray:
        """The number (L,) of items whose cosine with mu (D,) reaches each radius (L,), exactly as a search counts."""
        order = np.argsort(radius)
        edges = radius[order]
        cosine = (self.mu @ mu).astype(np.float64)
        # A float32 product decides, except for items close to an edge. Their cosines are computed exactly.
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
        """How often the nearest neighbour has the same label, for the most certain items. It is computed once.

        Items that the encoder was trained or calibrated on would make it too good. They are neighbours only, unless too
        few others have labels.

        Raises:
            ValueError: If no two items share a label.
        """
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
            chosen = sample_numbers(np.array(labelled), _MOST_NEIGHBOURS, seed=0)
            new = ~self._used[chosen]
            asked = new if new.sum() >= _FEWEST_NEW else np.ones(len(chosen), bool)
            _, codes = np.unique([self._labels[position] or "" for position in chosen], return_inverse=True)
            hits = neighbour_hits(self.mu[chosen], codes)
            kept = [round(0.05 * step, 2) for step in range(1, 21)]
            curve = reject_curve(self._scores[chosen][asked], hits[torch.from_numpy(asked)], kept)
            self._curve = RejectCurve(kept=kept, hits=curve, items=int(asked.sum()), labelled=len(labelled))
        return self._curve


def item_fields(id: Id, kappa: float, metadata: dict[str, Any], images: bool) -> dict[str, Any]:
    """The fields of an `ItemView` except `surer_than` and `likeliest`."""
    text = metadata.get("text")
    return {
        "key": encode_id(id),
        "id": whole_text(id) if isinstance(id, str) else id,
        "kappa": certainty(kappa),
        "label": _label(metadata),
        "text": whole_text(text) if isinstance(text, str) else None,
        "image": images and isinstance(metadata.get("path"), str),
        "metadata": metadata,
    }


def _label(metadata: dict[str, Any]) -> str | None:
    """A label as text; None if there is none, or if it is a list of probabilities."""
    label = metadata.get("label")
    if isinstance(label, bool) or not isinstance(label, str | int | float):
        return None
    return whole_text(label) if isinstance(label, str) else label_text(label) if math.isfinite(label) else None


def whole_text(text: str) -> str:
    """Text that UTF-8 can encode: half a surrogate pair becomes a question mark."""
    return text.encode("utf-8", "replace").decode()
