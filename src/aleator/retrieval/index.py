"""An index that answers "which items could this be?", from the posterior of the query and those of the
items."""

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aleator.foundation import reject, require, require_one_of
from aleator.matching import DEFAULT_PRIOR, AcceptanceKernel, VMFKernel, ZonalKernel
from aleator.posteriors import VonMisesFisher
from aleator.retrieval.filters import Filter, compile_filter
from aleator.retrieval.items import (
    Id,
    Metadata,
    Numbered,
    decode_id,
    decode_metadata,
    directions,
    encode_id,
    encode_ids,
    prepare,
)
from aleator.retrieval.match_bound import MatchBound, match_probabilities
from aleator.retrieval.recall import RecallReport
from aleator.retrieval.scoring import cap_radii
from aleator.retrieval.search import best, climb, judge, walk
from aleator.retrieval.stores.base import Candidates, Store

_KERNELS = {"VMFKernel": VMFKernel, "AcceptanceKernel": AcceptanceKernel}
_QUERIES = 1024  # answered together; bounds the memory of a large batch
_SMALL = 4096  # items that are scored faster than bounded


class Hit(NamedTuple):
    """One retrieved item."""

    id: Id
    cosine: float  # of its mu with the query's
    kappa: float
    match_probability: float  # under both posteriors
    metadata: Metadata


_AS_HIT = partial(tuple.__new__, Hit)  # what Hit._make does, in a third of the time


class CredibleIndex:
    """Posteriors with ids and metadata, in memory, in a folder or on a PostgreSQL server.

        index = CredibleIndex.build(posteriors, ids, metadata)    # in memory
        index.save("gallery/")                                    # now in a folder
        index = CredibleIndex.open("gallery/")                    # or "postgresql://host/database#gallery"
        for hits in index.search(queries, p=0.95): ...

    `add` and `remove` are atomic. In a folder and on a server they are durable when they return; `save` only
    folds them into the search structure, so that it opens and answers faster. In memory nothing lasts until
    `save`.
    """

    def __init__(self, store: Store):
        """Use `build` or `open`."""
        self._store = store
        self._lock = threading.RLock()

    @classmethod
    def build(
        cls,
        posteriors: VonMisesFisher,
        ids: Iterable[Id] | None = None,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
        *,
        location: str | Path | None = None,
        replace: bool = False,
        kernel: ZonalKernel | None = None,
        prior: float = DEFAULT_PRIOR,
        fingerprint: str | None = None,
        recall: float = 0.99,
        exact_below: int = 100_000,
    ) -> "CredibleIndex":
        """An index of N posteriors, batch shape (N,).

        Args:
            ids: strings or integers, each once; 0, 1, ... by default.
            metadata: one JSON-like dict (or None) for each item.
            location: None keeps the index in memory; a folder, or a postgresql:// URL whose #fragment names
            the
                index among others in the database.
            replace: whether an index that is already there may go, in one step.
            kernel, prior: for match probabilities; VMFKernel(20.0) and 1/2 by default. Kept with the index.
            fingerprint: of the encoder. Posteriors of another encoder are then refused.
            recall, exact_below: from `exact_below` items on, search is approximate and finds this share,
            which
                the index measures: `recall_report`.
        """
        mu = directions(posteriors, "posteriors")
        require(0 < prior < 1, "prior", prior, "is not a probability inside (0, 1)", "pass for example 0.5")
        require(0 < recall <= 1, "recall", recall, "is not a share in (0, 1]", "pass for example 0.99")
        keys = Numbered(range(len(mu))) if ids is None else encode_ids(ids)
        config = {
            "dim": mu.shape[1],
            "kernel": _encode_kernel(VMFKernel() if kernel is None else kernel),
            "prior": prior,
            "fingerprint": fingerprint,
            "recall": recall,
            "exact_below": exact_below,
            "report": None,
        }
        items = prepare(mu, posteriors.kappa, keys, metadata)
        if location is not None and _is_url(location):
            return cls(_server().create(str(location), items, config, replace))
        folder = None if location is None else Path(location)
        require(
            folder is None or replace or not _embedded().exists(folder),
            "location",
            str(folder),
            "already holds an index",
            "add to it, or pass replace=True",
        )
        index = cls(_embedded().create(items, config))
        if folder is not None:
            index.save(folder)
        return index

    @classmethod
    def open(cls, location: str | Path, *, fingerprint: str | None = None, memory_map: bool = False) -> "CredibleIndex":
        """The index in a folder or at a postgresql:// URL.

        `memory_map` (folders) leaves vectors on disk and reads what a search needs: for collections larger
        than memory. Such an index is read-only.
        """
        if _is_url(location):
            require(not memory_map, "memory_map", True, "is for folders", "leave it out for a server")
            index = cls(_server().open(str(location)))
        else:
            index = cls(_embedded().open(Path(location), memory_map))
        try:
            index._require_encoder(fingerprint)
        except ValueError:
            index.close()
            raise
        return index

    def __len__(self) -> int:
        return len(self._store)

    def __contains__(self, id: Id) -> bool:
        return bool(self._store.present([encode_id(id)]))

    def __repr__(self) -> str:
        place = re.sub(r"//[^/@]*@", "//", self.location or "in memory")  # a URL without user and password
        return f"CredibleIndex({self.dim} dimensions, {place})"

    @property
    def dim(self) -> int:
        return self._store.config["dim"]

    @property
    def location(self) -> str | None:
        return self._store.location

    @property
    def fingerprint(self) -> str | None:
        return self._store.config["fingerprint"]

    @property
    def kernel(self) -> ZonalKernel:
        facts = self._store.config["kernel"]
        return _KERNELS[facts["name"]](facts["kappa_pos"])

    @property
    def recall_report(self) -> RecallReport | None:
        """What the index measured about its approximate search; None where every search is exact."""
        facts = self._store.config["report"]
        return None if facts is None else RecallReport.from_dict(facts)

    def add(
        self,
        posteriors: VonMisesFisher,
        ids: Iterable[Id] | None = None,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
        *,
        fingerprint: str | None = None,
    ) -> list[Id]:
        """Add N items, all or none, and return their ids; an id that is already there is an error."""
        self._require_encoder(fingerprint)
        with self._lock:
            mu = directions(posteriors, "posteriors", self.dim)
            keys = Numbered(self._store.reserve(len(mu))) if ids is None else encode_ids(ids)
            self._store.insert(prepare(mu, posteriors.kappa, keys, metadata))
        return [decode_id(key) for key in keys]

    def remove(self, ids: Iterable[Id]) -> None:
        """Remove items, all or none; an id that is not there is an error."""
        with self._lock:
            self._store.delete(encode_ids(ids))

    def save(self, location: str | Path | None = None) -> None:
        """Make the search structure current (see the class). A location moves an embedded index to that
        folder, and replaces the index there, if any, in one step."""
        with self._lock:
            self._store.save(None if location is None else str(location))

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> "CredibleIndex":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def search(
        self,
        queries: VonMisesFisher,
        p: float = 0.95,
        limit: int | None = None,
        by: str = "credible",
        *,
        threshold: float = 0.5,
        filter: Filter | None = None,
        kernel: ZonalKernel | None = None,
        prior: float | None = None,
        exact: bool = False,
        fingerprint: str | None = None,
    ) -> list[list[Hit]]:
        """For each of Q queries, batch shape (Q,), its hits in order.

        Args:
            p: credible level of `by="credible"`.
            limit: at most so many hits; None is all of them (10 for `by="nearest"`).
            by: "credible": items whose mu lies in the query's p-cap, nearest first. "match": items whose
            match
                probability reaches the threshold, likeliest first. "nearest": the nearest.
            filter: conditions on metadata, such as {"label": "cat", "year": {"gte": 2020}}.
            kernel, prior: for match probabilities, instead of the index's own.
            exact: search everything, also where the index is approximate.
        """
        require_one_of("by", by, ("credible", "match", "nearest"))
        require(limit is None or limit >= 1, "limit", limit, "asks for nothing", "pass 1 or more, or None")
        require(0 <= threshold < 1, "threshold", threshold, "is not in [0, 1)", "pass for example 0.5")
        prior = self._store.config["prior"] if prior is None else prior
        require(0 < prior < 1, "prior", prior, "is not a probability inside (0, 1)", "pass for example 0.5")
        self._require_encoder(fingerprint)
        passes = compile_filter(filter) if filter else None
        mu = directions(queries, "queries", self.dim)
        kappa = queries.kappa.detach().cpu().double().numpy()
        radius = cap_radii(queries, p) if by == "credible" else np.full(len(mu), -np.inf)
        kernel = self.kernel if kernel is None else kernel
        report = None if exact else self.recall_report
        answers: list[list[Hit]] = []
        with self._lock:
            for start in range(0, len(mu), _QUERIES):
                block = slice(start, start + _QUERIES)
                ask = mu[block], kappa[block], kernel, prior
                if by == "match":
                    answers += self._search_match(*ask, report, threshold, limit, passes)
                else:
                    most = 10 if by == "nearest" and limit is None else limit
                    answers += self._search_cap(*ask, report, radius[block], most, passes)
        return answers

    def _search_cap(self, mu, kappa, kernel, prior, report, radius, limit, passes) -> list[list[Hit]]:
        decide = judge(self._store, mu, radius, passes)
        if limit is None:
            found, cosine = decide(climb(self._store, report, mu, radius))
        else:
            found, cosine = walk(self._store, report, mu, radius, limit, decide)
        chosen = best(found, (cosine,), limit)
        found, cosine = found.take(chosen), cosine[chosen]
        probability = match_probabilities(mu, kappa, found, kernel, prior)
        return self._hits(found, cosine, probability, len(mu))

    def _search_match(self, mu, kappa, kernel, prior, report, threshold, limit, passes) -> list[list[Hit]]:
        radius, bound = np.full(len(mu), -np.inf), None
        if threshold > 0 and len(self) > _SMALL:
            bound = MatchBound(self.dim, kappa, self._store.kappa_range(), kernel, prior, threshold)
            radius = bound.radius
        found, cosine = judge(self._store, mu, radius, passes)(climb(self._store, report, mu, radius))
        if bound is not None:
            possible = bound.admits(found.query, cosine, found.kappa)
            found, cosine = found.take(possible), cosine[possible]
        probability = match_probabilities(mu, kappa, found, kernel, prior)
        likely = probability >= np.float32(threshold)
        found, cosine, probability = found.take(likely), cosine[likely], probability[likely]
        chosen = best(found, (probability, cosine), limit)
        return self._hits(found.take(chosen), cosine[chosen], probability[chosen], len(mu))

    def _hits(self, found: Candidates, cosine: np.ndarray, probability: np.ndarray, queries: int) -> list[list[Hit]]:
        """Hits by query, for candidates that are already in their final order."""
        described = self._store.describe(found.row)
        known = list(map(described.get, found.row.tolist()))
        if None in known:  # removed while this search went on
            there = np.array([one is not None for one in known])
            found, cosine, probability = found.take(there), cosine[there], probability[there]
        keys, notes = zip(*filter(None, known), strict=True) if len(found) else ((), ())
        columns = (
            map(decode_id, keys),
            cosine.tolist(),
            found.kappa.tolist(),
            probability.tolist(),
            map(decode_metadata, notes),
        )
        hits = list(map(_AS_HIT, zip(*columns, strict=True)))
        ends = np.searchsorted(found.query, np.arange(queries + 1)).tolist()
        return [hits[start:end] for start, end in pairwise(ends)]

    def _require_encoder(self, fingerprint: str | None) -> None:
        own = self.fingerprint
        require(
            fingerprint is None or own is None or fingerprint == own,
            "fingerprint",
            fingerprint,
            f"the index was made by the encoder {own!r}",
            "embed with that encoder, or build a new index",
        )


def _encode_kernel(kernel: ZonalKernel) -> dict[str, Any]:
    name = type(kernel).__name__
    if not isinstance(kernel, VMFKernel | AcceptanceKernel):
        reject("kernel", name, "cannot be stored", f"use {' or '.join(_KERNELS)}; `search` takes any kernel")
    return {"name": name, "kappa_pos": float(kernel.kappa_pos.detach())}


def _is_url(location: str | Path) -> bool:
    return isinstance(location, str) and location.startswith(("postgresql://", "postgres://"))


# Backends are imported where they are used: faiss and psycopg are heavy, and psycopg is optional.


def _embedded() -> Any:
    from aleator.retrieval.stores.folder import FolderStore

    return FolderStore


def _server() -> Any:
    from aleator.retrieval.stores.postgres import PostgresStore

    return PostgresStore
