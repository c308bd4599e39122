"""An index that answers "which items could this be?" from the posteriors of queries and items."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace as with_changes
from pathlib import Path
from typing import Any, get_args

from aleator.evaluation import LabelModel
from aleator.foundation import (
    is_whole,
    plain_number,
    reject,
    require,
    require_count,
    require_one_of,
    require_probability,
    require_type,
)
from aleator.matching import DEFAULT_PRIOR, MatchMaps, VMFKernel, ZonalKernel
from aleator.posteriors import PosteriorBatch
from aleator.retrieval.filters import Filter, compile_filter
from aleator.retrieval.hits import Hit, make_hits
from aleator.retrieval.index_answers import AnsweringIndex
from aleator.retrieval.index_facts import encode_kernel
from aleator.retrieval.items import (
    Id,
    Items,
    NumberKeys,
    decode_id,
    directions,
    encode_id,
    encode_ids,
    items_of,
    make_items,
)
from aleator.retrieval.labels import label_numbers
from aleator.retrieval.mixture_search import (
    MixtureRequest,
    search_mixtures_by_density,
    search_mixtures_by_match,
    search_mixtures_nearest,
)
from aleator.retrieval.search import ScoredCandidates, SearchBy, SearchRequest, search_by_cosine, search_by_match
from aleator.retrieval.stores.base import Store
from aleator.retrieval.stores.lance.place import is_lance

_BLOCK = 1024  # queries answered together; limits the memory for a large batch
_DEFAULT_NEAREST = 10  # hits of a nearest search without a limit


class CredibleIndex(AnsweringIndex):
    """A searchable collection of posteriors with ids and metadata: in memory, in a folder, on a PostgreSQL server or
    on an object store.

    Make one with `build`, open a saved one with `open`.

    `add` and `remove` change all of their items or none. In a folder and on a server their changes are durable when
    they return. `save` then only updates the search structure, so that the index opens and answers faster. An index in
    memory is lost unless it is saved to a folder.

    Several threads may share one index, and several processes may open one folder. An index is also a context manager
    that closes itself.

    Args:
        store: Where the items are. Only needed for a store of your own; see `Store`.

    Examples:
        >>> import torch, aleator as al
        >>> posteriors = al.VonMisesFisher(torch.eye(3), torch.tensor([100.0, 50.0, 20.0]))
        >>> index = al.CredibleIndex.build(posteriors, ids=["cat", "dog", "fox"])
        >>> sure = al.VonMisesFisher(torch.tensor([[0.8, 0.6, 0.0]]), 1000.0)
        >>> unsure = al.VonMisesFisher(torch.tensor([[0.8, 0.6, 0.0]]), 5.0)
        >>> [hit.id for hit in index.search(sure, p=0.95)[0]]
        []
        >>> [hit.id for hit in index.search(unsure, p=0.95)[0]]
        ['cat', 'dog']
        >>> index.save("gallery")
        >>> index.close()
        >>> with al.CredibleIndex.open("gallery") as index:
        ...     len(index)
        3
    """

    @classmethod
    def build(
        cls,
        posteriors: PosteriorBatch,
        ids: Iterable[Id] | None = None,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
        *,
        location: str | Path | None = None,
        replace: bool = False,
        kernel: ZonalKernel | None = None,
        prior: float = DEFAULT_PRIOR,
        maps: MatchMaps | None = None,
        fingerprint: str | None = None,
        label_model: LabelModel | None = None,
        recall: float = 0.99,
        exact_below: int = 100_000,
        storage_options: Mapping[str, str] | None = None,
    ) -> "CredibleIndex":
        """Make an index of N posteriors.

        Args:
            posteriors: Posteriors of the items, batch shape (N,): `VonMisesFisher`, or `VMFMixture` for items with
                several modes. Components with a weight below 0.001 are dropped.
            ids: Strings or integers, each once. Default: 0, 1, ...
            metadata: One dict (or None) for each item, with values that JSON can store.
            location: A folder; a URL postgresql://host/database#name, where `name` is the name of the index in the
                database; or lance:folder/ or s3://bucket/name for Lance tables. Default: in memory.
            replace: Whether to replace an index that is already there.
            kernel: Kernel of the match probabilities, stored with the index. Default: `VMFKernel()`.
            prior: Share of matches among pairs of a query and an item, stored with the index.
            maps: Maps of calibrated match probabilities, such as `Run.maps`, stored with the index. Default: none. Hits
                have match probabilities by `MatchMaps.hit_log_odds`.
            fingerprint: Fingerprint of the encoder. The index then refuses posteriors with another fingerprint.
            label_model: Fitted label probabilities. `label_probabilities` takes its numbers, and the items of the index
                as the gallery. Default: Bayes' rule with the kernel.
            recall: Share of the exact answer that an approximate search must find.
            exact_below: Search is exact for fewer items than this, and approximate from there on. `recall_report` has
                the measured recall.
            storage_options: Options of the object store, such as {"aws_endpoint": ..., "aws_access_key_id": ...}.
                Default: the usual environment variables.

        Returns:
            The index.

        Raises:
            ValueError: If an argument is not valid, or if `location` holds an index and `replace` is false.
        """
        prior, recall = plain_number(prior), plain_number(recall)  # stored as JSON
        require_probability("prior", prior, "pass for example 0.5")
        require(0 < recall <= 1, "recall", recall, "is not a share in (0, 1]", "pass for example 0.99")
        require(
            is_whole(exact_below, 0), "exact_below", exact_below, "not a number of items", "pass for example 100_000"
        )
        if fingerprint is not None:
            require_type("fingerprint", fingerprint, str, "pass a text that names the encoder, or leave it out")
        items = items_of(posteriors, ids, metadata)
        config = {
            "dim": posteriors.dim,
            "kernel": encode_kernel(VMFKernel() if kernel is None else kernel),
            "prior": prior,
            "maps": None if maps is None or not maps.calibrated else maps.to_dict(),
            "fingerprint": fingerprint,
            "recall": recall,
            "exact_below": int(exact_below),
            "report": None,
            "promise": None,
            "labels": None if label_model is None else label_numbers(label_model),
        }
        if posteriors.modes > 1:
            config["modes"] = posteriors.modes
        if location is not None and is_lance(location):
            return cls(_lance_store().create(str(location), items, config, replace, storage_options))
        _require_no_options(storage_options)
        if location is not None and _is_url(location):
            return cls(_postgres_store().create(str(location), items, config, replace))
        folder = None if location is None else Path(location).expanduser()
        if folder is not None and not replace and _folder_store().exists(folder):
            reject("location", str(folder), "already holds an index", "add to it, or pass replace=True")
        index = cls(_folder_store().create(items, config))
        if folder is not None:
            index.save(folder)
        return index

    @classmethod
    def open(
        cls,
        location: str | Path,
        *,
        fingerprint: str | None = None,
        memory_map: bool = False,
        storage_options: Mapping[str, str] | None = None,
    ) -> "CredibleIndex":
        """Open an index that was built or saved before.

        Args:
            location: The folder, the postgresql:// URL, or the lance: or s3:// location. There, `location#12` opens
                version 12, which cannot change.
            fingerprint: Fingerprint of the encoder that will make the queries.
            memory_map: For folders: leave the vectors on disk and read what a search needs. For collections that are
                larger than memory. The index is then read-only.
            storage_options: Options of the object store. Default: the usual environment variables.

        Returns:
            The index.

        Raises:
            ValueError: If there is no index, if it is damaged, or if another encoder made it.
        """
        if is_lance(location):
            require(not memory_map, "memory_map", True, "is for folders", "leave it out: Lance reads what it needs")
            index = cls(_lance_store().open(str(location), storage_options))
        elif _is_url(location):
            _require_no_options(storage_options)
            require(not memory_map, "memory_map", True, "is for folders", "leave it out for a server")
            index = cls(_postgres_store().open(str(location)))
        else:
            index = cls(_folder_store().open(Path(location).expanduser(), memory_map))
        try:
            index._require_encoder(fingerprint)
        except ValueError:
            index.close()
            raise
        return index

    def search(
        self,
        queries: PosteriorBatch,
        p: float = 0.95,
        limit: int | None = None,
        by: SearchBy = "credible",
        *,
        threshold: float = 0.5,
        filter: Filter | None = None,
        kernel: ZonalKernel | None = None,
        prior: float | None = None,
        exact: bool = False,
        fingerprint: str | None = None,
    ) -> list[list[Hit]]:
        """Find the items that each query could be.

        Args:
            queries: Posteriors of the queries, batch shape (Q,), of one mode or several.
            p: Level of the credible set, for `by="credible"`.
            limit: Most hits for each query. Default: all of them, or 10 for `by="nearest"`.
            by: Which items belong to the answer. "credible": those whose mu lies in the p-credible set of the query,
                nearest first. "match": those whose match probability reaches the threshold, likeliest first.
                "nearest": the nearest ones. The credible set of a query with several modes is its region of highest
                density, and the likeliest of its directions decides which items are nearest. An item with several modes
                is at the direction of each component with a weight of 0.1 or more.
            threshold: Least match probability, for `by="match"`.
            filter: Conditions on metadata, such as {"label": "cat", "year": {"gte": 2020}}.
            kernel: Kernel of the match probabilities. Default: the kernel of the index. The maps of the index belong to
                its kernel, so another kernel is used without them.
            prior: Share of matches among pairs of a query and an item. Default: the prior of the index. It changes the
                prior odds and keeps the calibration.
            exact: Whether to search exactly where the index is approximate.
            fingerprint: Fingerprint of the encoder that made the queries.

        Returns:
            A list of hits for each query.

        Raises:
            ValueError: If an argument is not valid or has no effect, or if another encoder made the queries.
        """
        require_one_of("by", by, get_args(SearchBy))
        if limit is not None:
            require_count("limit", limit, "pass 1 or more, or None for all")
        limit, p, threshold, prior = (plain_number(value) for value in (limit, p, threshold, prior))
        if by == "credible":
            is_level = isinstance(p, int | float) and 0 < p < 1
            require(is_level, "p", p, "is not a level inside (0, 1)", "pass for example 0.95")
        in_range = isinstance(threshold, int | float) and 0 <= threshold < 1
        require(in_range, "threshold", threshold, "is not in [0, 1)", "pass for example 0.5")
        # What differs from its default was passed.
        for name, value, default, user in (("p", p, 0.95, "credible"), ("threshold", threshold, 0.5, "match")):
            way_out = f'leave it out, or pass by="{user}"'
            require(by == user or value == default, name, value, f'has no effect with by="{by}"', way_out)
        prior = self.prior if prior is None else prior
        require_probability("prior", prior, "pass for example 0.5")
        self._require_encoder(fingerprint)
        passes = compile_filter(filter) if filter else None
        request = self._request(
            queries,
            "queries",
            kernel=self.kernel if kernel is None else kernel,
            p=p if by == "credible" else None,
            threshold=threshold,
            limit=_DEFAULT_NEAREST if by == "nearest" and limit is None else limit,
            passes=passes,
            prior=prior,
            exact=exact,
        )
        answers: list[list[Hit]] = []
        with self._lock, self._store.one_version():
            for start in range(0, len(request), _BLOCK):
                block = request.block(start, start + _BLOCK)
                answers += make_hits(self._store, _search(self._store, block, by), len(block))
        return answers

    def add(
        self,
        posteriors: PosteriorBatch,
        ids: Iterable[Id] | None = None,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
        *,
        fingerprint: str | None = None,
    ) -> list[Id]:
        """Add N items, all or none.

        Args:
            posteriors: Posteriors of the items, batch shape (N,), with at most as many modes as those of `build`.
            ids: Strings or integers, each once and not in the index. Default: integers that are not in the index.
            metadata: One dict (or None) for each item, with values that JSON can store.
            fingerprint: Fingerprint of the encoder that made the posteriors.

        Returns:
            The ids of the new items.

        Raises:
            ValueError: If an argument is not valid, if an id is in the index, or if another encoder made the
                posteriors. The index is then unchanged.
        """
        self._require_encoder(fingerprint)
        with self._lock:
            mu = directions(posteriors, "posteriors", self.dim)
            fits, problem = posteriors.modes <= self.modes, f"the index was built for at most {self.modes}"
            require(fits, "posteriors", f"{posteriors.modes} modes", problem, "build a new index")
            keys = NumberKeys(self._store.reserve_ids(len(mu))) if ids is None else encode_ids(ids)
            items = make_items(posteriors, mu, keys, metadata, mixtures=self.modes > 1)
            if ids is None:
                items = _insert_numbered(self._store, items)
            else:
                self._store.insert(items)
        return [decode_id(key) for key in items.keys]

    def remove(self, ids: Iterable[Id]) -> None:
        """Remove items, all or none.

        Args:
            ids: Ids of the items, each once.

        Raises:
            ValueError: If an id is not in the index. The index is then unchanged.
        """
        with self._lock:
            self._store.delete(encode_ids(ids))

    def save(self, location: str | Path | None = None) -> None:
        """Bring the search structure up to date, or move the index to a folder.

        Args:
            location: A folder to move to. An index in that folder is replaced. Default: stay.

        Raises:
            ValueError: If an index in memory is saved without a folder, or if the folder holds other files.
        """
        elsewhere = location is not None and (is_lance(location) or _is_url(location))
        require(not elsewhere, "location", "a URL", "an index moves to folders only", "build one there")
        with self._lock:
            self._store.save(None if location is None else str(Path(location).expanduser()))

    def close(self) -> None:
        """Release files and connections."""
        self._store.close()

    def __enter__(self) -> "CredibleIndex":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._store)

    def __contains__(self, id: Id) -> bool:
        return bool(self._store.existing([encode_id(id)]))

    def __repr__(self) -> str:
        place = re.sub(r"//[^/@]*@", "//", self.location or "in memory")  # a URL without user and password
        return f"CredibleIndex({self.dim} dimensions, {place})"


def _search(store: Store, request: SearchRequest | MixtureRequest, by: SearchBy) -> ScoredCandidates:
    """Answer one block of queries."""
    if isinstance(request, SearchRequest):
        return search_by_match(store, request) if by == "match" else search_by_cosine(store, request)
    if by == "match":
        return search_mixtures_by_match(store, request)
    return search_mixtures_nearest(store, request) if by == "nearest" else search_mixtures_by_density(store, request)


def _insert_numbered(store: Store, items: Items) -> Items:
    """Insert items whose keys are numbers that the store proposed, under later numbers where an item has one of them.

    The numbers may be ids that a user gave, or that another process was proposed at the same time. Each step is twice
    as long as the one before, so that a million such ids take twenty.
    """
    step = 1
    while True:
        try:
            store.insert(items)
            return items
        except ValueError as refused:
            if isinstance(refused, ConnectionError) or not store.existing(list(items.keys)):
                raise
        first = int(items.keys[0]) + step
        items = with_changes(items, keys=NumberKeys(range(first, first + len(items))))
        step *= 2


def _is_url(location: str | Path) -> bool:
    return isinstance(location, str) and location.startswith(("postgresql://", "postgres://"))


def _require_no_options(options: Mapping[str, str] | None) -> None:
    require(options is None, "storage_options", "...", "are for object stores", "leave them out here")


# Stores are imported where they are used: faiss, psycopg and lancedb are heavy, and the last two are optional.


def _folder_store() -> Any:
    from aleator.retrieval.stores.folder import FolderStore

    return FolderStore


def _postgres_store() -> Any:
    try:
        from aleator.retrieval.stores.postgres import PostgresStore
    except ModuleNotFoundError as missing:
        reject("location", "postgresql://...", f"needs {missing.name}", "pip install 'aleator[postgres]'")
    return PostgresStore


def _lance_store() -> Any:
    try:
        import lancedb  # noqa: F401

        from aleator.retrieval.stores.lance.store import LanceStore
    except ModuleNotFoundError as missing:
        reject("location", "lance:...", f"needs {missing.name}", "pip install 'aleator[lance]'")
    return LanceStore
