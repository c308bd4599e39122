"""An index that answers "which items could this be?" from the posteriors of queries and items."""

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace as with_changes
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from aleator.evaluation import LabelModel, likely_labels
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
from aleator.matching import DEFAULT_PRIOR, AcceptanceKernel, MatchMaps, VMFKernel, ZonalKernel
from aleator.posteriors import PosteriorBatch, VMFMixture, VonMisesFisher
from aleator.retrieval.answer_sets import AnswerSet, answer
from aleator.retrieval.encoder_names import encoder_facts, encoder_name
from aleator.retrieval.filters import Filter, Predicate, compile_filter
from aleator.retrieval.hits import Hit, make_hits
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
from aleator.retrieval.metadata_labels import label_model_of, label_numbers
from aleator.retrieval.mixture_search import (
    MixtureRequest,
    mixture_request,
    region_thresholds,
    search_mixtures_by_density,
    search_mixtures_by_match,
    search_mixtures_nearest,
)
from aleator.retrieval.promise import Promise, SetsOf
from aleator.retrieval.recall import RecallReport
from aleator.retrieval.scoring import cap_radii
from aleator.retrieval.search import ScoredCandidates, SearchBy, SearchRequest, search_by_cosine, search_by_match
from aleator.retrieval.set_calibration import Right, calibrate_sets
from aleator.retrieval.stores.base import Store
from aleator.retrieval.stores.lance.place import is_lance

_BLOCK = 1024  # queries answered together; limits the memory for a large batch
_DEFAULT_NEAREST = 10  # hits of a nearest search without a limit
_STORED_KERNELS = {"VMFKernel": VMFKernel, "AcceptanceKernel": AcceptanceKernel}


class CredibleIndex:
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

    def __init__(self, store: Store):
        way_out = "make an index with CredibleIndex.build(posteriors), or open one with CredibleIndex.open(location)"
        require(hasattr(store, "config"), "store", type(store).__name__, "not a store", way_out)
        self._store = store
        self._lock = threading.RLock()

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

    # Answers that rest on labels: sets with guaranteed coverage, and label probabilities

    @property
    def promise(self) -> Promise | None:
        """What `calibrate` promised about answer sets; None if the index is not calibrated, or the promise is void."""
        state = self.state()  # first: it brings the settings up to date
        stored = self._store.config.get("promise")
        return Promise.from_dict(stored) if stored is not None and stored.get("state") == state else None

    @property
    def promise_is_void(self) -> bool:
        """Whether the index was calibrated, and its items have changed since. Then nothing is promised."""
        return self.promise is None and self._store.config.get("promise") is not None

    def calibrate(
        self,
        questions: PosteriorBatch,
        right: Right,
        coverage: float = 0.95,
        *,
        error: float | None = None,
        assurance: float = 0.9,
        sets: SetsOf | None = None,
        fingerprint: str | None = None,
    ) -> Promise:
        """Find the level at which answer sets hold a right answer as often as promised, and store it with the index.

        The questions must be like those that will be asked, and must not be items that the encoder was trained on.
        Items of the index may have been. A question with a label that is itself an item of the index is answered
        without itself. The promise is void once items were added or removed: calibrate again.

        Args:
            questions: Posteriors of the calibration questions, batch shape (n,).
            right: The right answers. One label for each question: all items with this "label" in their metadata are
                right. Or a list of ids for each question.
            coverage: Share of questions whose set holds a right answer. n must be at least coverage / (1 - coverage).
            error: Largest share of wrong answers among the first answers that are given. Questions with a lower
                confidence are marked as not sure. Default: none are.
            assurance: Probability, over the calibration questions, that the coverage is kept, and the error. With few
                questions (fewer than 45 for 0.95 and 0.9), the coverage is kept on average over calibrations.
            sets: "labels": one item of each label that the question could have, the default if `right` holds labels.
                "ranked": the nearest items, as many as the question needs.
            fingerprint: Fingerprint of the encoder that made the questions.

        Returns:
            The promise. `answer_sets` keeps it, and `promise` has it when the index is opened again.

        Raises:
            ValueError: If an argument is not valid, if another encoder made the questions, if there are too few
                questions, or if no sets or no confidence can keep the promise. The index is then unchanged.

        Examples:
            >>> import torch, aleator as al
            >>> _ = torch.manual_seed(0)
            >>> centres = torch.eye(3)
            >>> def seen(n):  # items and questions of three labels that overlap
            ...     label = torch.arange(n) % 3
            ...     return al.VonMisesFisher(al.VonMisesFisher(centres[label], 5.0).sample(), 5.0), label
            >>> items, labels = seen(300)
            >>> index = al.CredibleIndex.build(items, metadata=[{"label": int(label)} for label in labels])
            >>> questions, right = seen(200)
            >>> promise = index.calibrate(questions, right, coverage=0.9)
            >>> print(promise)
            sets hold a right answer for 90 % of questions like the 200 of the calibration (90 % assured)
            >>> sets = index.answer_sets(seen(1000)[0])
            >>> 1 < sum(len(answer.hits) for answer in sets) / 1000 < 3
            True
        """
        self._require_encoder(fingerprint)
        coverage, error, assurance = map(plain_number, (coverage, error, assurance))  # stored as JSON
        request = self._nearest_request(questions, "questions", self.kernel)
        kernel = self._store.config["kernel"]
        with self._lock:
            promise = calibrate_sets(self._store, request, right, coverage, error, assurance, sets, kernel)
            self._store.configure(promise=promise.to_dict())
        return promise

    def answer_sets(self, queries: PosteriorBatch, *, fingerprint: str | None = None) -> list[AnswerSet]:
        """Find sets of items that hold a right answer as often as `calibrate` promised.

        Args:
            queries: Posteriors of the queries, batch shape (Q,).
            fingerprint: Fingerprint of the encoder that made the queries.

        Returns:
            A set for each query, and whether its first item is sure enough to be the answer.

        Raises:
            ValueError: If the index is not calibrated, if its items have changed since, if an argument is not valid, or
                if another encoder made the queries.
        """
        self._require_encoder(fingerprint)
        with self._lock, self._store.one_version():
            promise = self.promise
            if promise is None:
                size = f"{len(self._store)} items"  # not its location, which a client of a server may not know
                problem = "have changed since it was calibrated" if self.promise_is_void else "is not calibrated"
                reject("index", size, problem, "call index.calibrate, or run `aleator index calibrate`")
            request = self._nearest_request(queries, "queries", decode_kernel(promise.kernel))
            return answer(self._store, request, promise)

    def label_model(self) -> LabelModel:
        """Label probabilities with the labelled items of this index as the gallery.

        It holds the items of this moment. Labels are the metadata "labels" (a probability for each label) or "label".

        Returns:
            The model. If `build` was given a fitted one, it has the numbers that were fitted there, with other items.

        Raises:
            ValueError: If the items have fewer than two different labels.
        """
        with self._lock:
            return label_model_of(self, self.kernel)

    def label_probabilities(self, queries: PosteriorBatch) -> list[dict[str, float]]:
        """Which labels each query could have. For many calls, keep `label_model()` and call it.

        Args:
            queries: Posteriors of the queries, batch shape (Q,).

        Returns:
            For each query the probability of each label, the likeliest first.

        Raises:
            ValueError: If the items have fewer than two different labels.

        Examples:
            >>> import torch, aleator as al
            >>> items = al.VonMisesFisher(torch.eye(3)[[0, 0, 1]], 50.0)
            >>> labels = [{"label": "cat"}, {"label": "cat"}, {"label": "dog"}]
            >>> index = al.CredibleIndex.build(items, metadata=labels)
            >>> between = al.VonMisesFisher(torch.tensor([[0.6, 0.8, 0.0]]), 5.0)
            >>> [{name: round(p, 2) for name, p in row.items()} for row in index.label_probabilities(between)]
            [{'dog': 0.51, 'cat': 0.49}]
        """
        model = self.label_model()
        rows = likely_labels(model.probabilities(queries), model.names, most=len(model.names), least=0.0)
        return [dict(row) for row in rows]

    # Items

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

    # What the index is, as its store keeps it

    @property
    def store(self) -> Store:
        """The store that keeps the items."""
        return self._store

    @property
    def dim(self) -> int:
        """Dimension D of the posteriors."""
        return self._store.config["dim"]

    @property
    def modes(self) -> int:
        """Largest number of modes of an item: that of the posteriors that the index was built from."""
        return self._store.config.get("modes", 1)

    def state(self) -> str:
        """What the index holds, as a digest of all ids, metadata and posteriors.

        Returns:
            A text that is equal for equal items, in any order and in any store. What was measured with an index holds
            for this state of it.

        Examples:
            >>> import torch, aleator as al
            >>> index = al.CredibleIndex.build(al.VonMisesFisher(torch.eye(3), 5.0), ids=["x", "y", "z"])
            >>> before = index.state()
            >>> index.remove(["x"])
            >>> index.state() == before
            False
            >>> _ = index.add(al.VonMisesFisher(torch.eye(1, 3), 5.0), ["x"])
            >>> index.state() == before
            True
        """
        return self._store.state()

    @property
    def location(self) -> str | None:
        """Folder or URL of the index; None for an index in memory."""
        return self._store.location

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint of the encoder that made the items, if it was given to `build`."""
        return self._store.config["fingerprint"]

    @property
    def encoder(self) -> dict[str, Any]:
        """The fingerprint of the encoder and, if known, its "run", the day when it was "trained", and the "source"."""
        return {"fingerprint": self.fingerprint, **self._store.config.get("encoder", {})}

    def remember_encoder(self, header: Mapping[str, str]) -> None:
        """Keep the name of the encoder, from the header of a posteriors file.

        Args:
            header: What `read_header` gives.
        """
        facts = encoder_facts(header)
        if facts:
            self._store.configure(encoder=facts)

    def surer_than(self, kappa: np.ndarray) -> np.ndarray:
        """Share of the items with a smaller kappa.

        Args:
            kappa: Certainties, shape (n,).

        Returns:
            Shares, shape (n,); 0 for an empty index.
        """
        return self._store.count_below(kappa) / max(1, len(self._store))

    @property
    def kernel(self) -> ZonalKernel:
        """Kernel of the match probabilities."""
        return decode_kernel(self._store.config["kernel"])

    @property
    def prior(self) -> float:
        """Share of matches among pairs of a query and an item."""
        return self._store.config["prior"]

    @property
    def maps(self) -> MatchMaps:
        """Maps of calibrated match probabilities; the identity if none were given."""
        return MatchMaps.from_dict(self._store.config.get("maps"))

    @property
    def recall_report(self) -> RecallReport | None:
        """Measured recall of the approximate search; None if every search is exact."""
        report = self._store.config["report"]
        return None if report is None else RecallReport.from_dict(report)

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

    def _maps_for(self, kernel: ZonalKernel) -> MatchMaps:
        """The maps of the index, which belong to its kernel; the identity for another kernel."""
        known = isinstance(kernel, VMFKernel | AcceptanceKernel)
        return self.maps if known and encode_kernel(kernel) == self._store.config["kernel"] else MatchMaps()

    def _require_encoder(self, fingerprint: str | None) -> None:
        own = self.fingerprint
        same = fingerprint is None or own is None or fingerprint == own
        way_out = "embed with that encoder, or build a new index"
        problem = f"the index was made by the encoder {encoder_name(self.encoder)}"
        require(same, "fingerprint", fingerprint, problem, way_out)

    def _nearest_request(
        self, queries: PosteriorBatch, argument: str, kernel: ZonalKernel
    ) -> SearchRequest | MixtureRequest:
        """A request for the nearest items of queries."""
        return self._request(queries, argument, kernel=kernel)

    def _request(
        self,
        queries: PosteriorBatch,
        argument: str,
        *,
        kernel: ZonalKernel,
        p: float | None = None,
        threshold: float = 0.0,
        limit: int | None = None,
        passes: Predicate | None = None,
        prior: float | None = None,
        exact: bool = False,
    ) -> SearchRequest | MixtureRequest:
        """A request of queries, for their p-credible sets or, without p, for any items."""
        mu = directions(queries, argument, self.dim)
        kappa = queries.components.kappa.detach().cpu().double()  # (Q, K)
        one_mode = queries.modes == 1 and self.modes == 1
        plain = SearchRequest(
            mu=mu,
            kappa=kappa[:, 0].numpy(),
            radius=cap_radii(queries.components[:, 0], p) if p is not None and one_mode else np.full(len(mu), -np.inf),
            threshold=threshold,
            limit=limit,
            passes=passes,
            kernel=kernel,
            prior=self.prior if prior is None else prior,
            maps=self._maps_for(kernel),
            report=None if exact else self.recall_report,
        )
        if one_mode:
            return plain
        components = VonMisesFisher(torch.from_numpy(mu).double().view(*kappa.shape, -1), kappa, validate_args=False)
        stored = VMFMixture(queries.log_weights.detach().cpu().double(), components, validate_args=False)
        return mixture_request(stored, np.full(len(mu), -np.inf) if p is None else region_thresholds(stored, p), plain)


def encode_kernel(kernel: ZonalKernel) -> dict[str, Any]:
    """A kernel as an index stores it."""
    name = type(kernel).__name__
    if not isinstance(kernel, VMFKernel | AcceptanceKernel):
        reject("kernel", name, "cannot be stored", f"use {' or '.join(_STORED_KERNELS)}; `search` takes any kernel")
    return {"name": name, "kappa_pos": float(kernel.kappa_pos.detach())}


def decode_kernel(stored: dict[str, Any]) -> ZonalKernel:
    """The kernel that `encode_kernel` described."""
    return _STORED_KERNELS[stored["name"]](stored["kappa_pos"])


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
