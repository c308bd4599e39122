"""What `aleator audit` found, for the page."""

import math
from pathlib import Path

from aleator.own_data import read_findings
from aleator.web.collection import CollectionView
from aleator.web.models import Finding, FindingPage, FindingView


class Findings:
    """The findings of an audit, in its order. Items that the collection does not have are left out.

    Args:
        folder: The folder of the audit.
        collection: The collection that is served.
    """

    def __init__(self, folder: Path, collection: CollectionView):
        tables = read_findings(folder)
        suspicious = [row for row in tables["label_errors"] if float(row["score"]) > 0]
        rows: dict[Finding, list[dict[str, str]]] = {
            "label-errors": suspicious,
            "near-duplicates": tables["near_duplicates"],
            "odd-ones": tables["odd_ones"],
        }
        self._collection = collection
        self._found: dict[Finding, list[tuple[int, dict[str, str]]]] = {
            kind: [(place, row) for row in found if (place := collection.find(row["id"])) is not None]
            for kind, found in rows.items()
        }

    def counts(self) -> dict[Finding, int]:
        """The number of findings of each kind."""
        return {kind: len(found) for kind, found in self._found.items()}

    def page(self, kind: Finding, offset: int, limit: int, images: bool) -> FindingPage:
        """Some findings of a kind."""
        found = self._found[kind]
        items = [self._view(position, row, images) for position, row in found[offset : offset + limit]]
        return FindingPage(total=len(found), offset=offset, items=items)

    def _view(self, position: int, row: dict[str, str], images: bool) -> FindingView:
        item = self._collection.item(position, images)
        return FindingView(
            **item.model_dump(),
            given=row.get("given", row.get("label")) or None,
            likelier=row.get("likelier"),
            p_given=_number(row.get("p_given")),
            p_likelier=_number(row.get("p_likelier")),
            group=None if row.get("group") is None else int(row["group"]),
            labels_differ=None if row.get("labels_differ") is None else row["labels_differ"] == "yes",
            distance=_number(row.get("distance")),
        )


def _number(cell: str | None) -> float | None:
    value = math.nan if cell is None else float(cell)
    return value if math.isfinite(value) else None
