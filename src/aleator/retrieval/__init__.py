"""Credible retrieval: `CredibleIndex` in memory, in a folder or on a PostgreSQL server."""

from aleator.retrieval.contents import read_contents
from aleator.retrieval.figure import picture
from aleator.retrieval.index import CredibleIndex, Hit
from aleator.retrieval.items import Id, decode_id, directions, encode_id
from aleator.retrieval.posteriors_file import (
    match_settings,
    read_header,
    read_items,
    read_posteriors,
    write_items,
    write_posteriors,
)
from aleator.retrieval.recall import RecallReport
from aleator.retrieval.scoring import TIE, cap_radii, cosines, slack

__all__ = [
    "TIE",
    "CredibleIndex",
    "Hit",
    "Id",
    "RecallReport",
    "cap_radii",
    "cosines",
    "decode_id",
    "directions",
    "encode_id",
    "match_settings",
    "picture",
    "read_contents",
    "read_header",
    "read_items",
    "read_posteriors",
    "slack",
    "write_items",
    "write_posteriors",
]
