"""What `aleator audit` found, for the page."""

import logging
import math
from pathlib import Path

from aleator.own_data import read_findings
from aleator.web.collection import CollectionView
from aleator.web.models import Finding, FindingPage, FindingView

_LOG = logging.getLogger("aleator.web")


class Findings:
    """The findings of an audit, in its order.

    A finding is left out if the collection does not have its item, or if the item has another label or another content
    there: it has been mended since, or the audit was made of other items.

    Args:
        folder: The folder of the audit.
        collection: The collection that is served.
    """

    def __init__(self, folder: Path, collection: CollectionView):
        tables = read_findings(folder)
        rows: dict[Finding, list[dict[str, str]]] = {
            "label-errors": tables["label_errors"],
            "near-duplicates": tables["near_duplicates"],
            "odd-ones": tables["odd_ones"],
        }
        self._collection = collection
        self._found: dict[Finding, list[tuple[int, dict[str, str]]]] = {
            kind: [(place, row) for row in found if (place := self._place(row)) is not None]
            for kind, found in rows.items()
        }
        self._left_out = {kind: len(found) - len(self._found[kind]) for kind, found in rows.items()}
        missing = sum(self._left_out.values())
        if missing:
            problem = "%d of %d findings of the audit %s do not fit the items of the index as they are now; left out"
            _LOG.warning(problem, missing, sum(map(len, rows.values())), folder)

    def counts(self) -> dict[Finding, int]:
        """The number of findings of each kind."""
        return {kind: len(found) for kind, found in self._found.items()}

    def page(self, kind: Finding, offset: int, limit: int, images: bool) -> FindingPage:
        """Some findings of a kind."""
        found = self._found[kind]
        items = [self._view(position, row, images) for position, row in found[offset : offset + limit]]
        return FindingPage(total=len(found), left_out=self._left_out[kind], offset=offset, items=items)

    def _place(self, row: dict[str, str]) -> int | None:
        """The position of a finding's item; None if the finding does not fit the collection."""
        place = self._collection.find(row["id"])
        if place is None:
            return None
        metadata = self._collection.metadata(place)
        pairs = ((self._collection.label(place), _label(row)), (metadata.get("content"), row["content"] or None))
        return place if all(now is None or then is None or now == then for now, then in pairs) else None

    def _view(self, position: int, row: dict[str, str], images: bool) -> FindingView:
        item = self._collection.item(position, images)
        return FindingView(
            **item.model_dump(),
            given=_label(row),
            likelier=row.get("likelier"),
            p_given=_number(row.get("p_given")),
            p_likelier=_number(row.get("p_likelier")),
            group=None if row.get("group") is None else int(row["group"]),
            labels_differ=None if row.get("labels_differ") is None else row["labels_differ"] == "yes",
            distance=_number(row.get("distance")),
        )


def _label(row: dict[str, str]) -> str | None:
    """The label that an item had when the audit was made."""
    return row.get("given", row.get("label")) or None


def _number(cell: str | None) -> float | None:
    value = math.nan if cell is None else float(cell)
    return value if math.isfinite(value) else None
