"""Credible retrieval: `CredibleIndex` in memory, in a folder or on a PostgreSQL server."""

from aleator.retrieval.index import CredibleIndex, Hit
from aleator.retrieval.recall import RecallReport

__all__ = ["CredibleIndex", "Hit", "RecallReport"]
