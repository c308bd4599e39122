"""Posteriors files as they lie on disk: arrays, header, checksums and items. Nothing here needs torch."""

from aleator.stored.arrays import ANSWERS, one_line, read_arrays, read_header, reject_numbers
from aleator.stored.checksums import UNSEALED, VERSION, WAY_OUT, items_header, seal_posteriors
from aleator.stored.items import Id, Metadata, join_items, read_items, read_items_beside, read_records, write_items
from aleator.stored.ranking import (
    CertaintyScore,
    ListedItems,
    label_scores,
    name_labels,
    rank_rows,
    rank_stored,
    rounded_certainty,
)

__all__ = [
    "ANSWERS",
    "UNSEALED",
    "VERSION",
    "WAY_OUT",
    "CertaintyScore",
    "Id",
    "ListedItems",
    "Metadata",
    "items_header",
    "join_items",
    "label_scores",
    "name_labels",
    "one_line",
    "rank_rows",
    "rank_stored",
    "read_arrays",
    "read_header",
    "read_items",
    "read_items_beside",
    "read_records",
    "reject_numbers",
    "rounded_certainty",
    "seal_posteriors",
    "write_items",
]
