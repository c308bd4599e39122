"""The work behind the API: embed a question, search, and describe the answer."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from aleator.data import InputKind
from aleator.evaluation import LabelModel, likely_labels
from aleator.foundation import DamagedFileError, require
from aleator.own_data import one_mode
from aleator.posteriors import PosteriorBatch, VonMisesFisher
from aleator.retrieval import CredibleIndex, Hit, IndexGoneError
from aleator.web.batches import Batches
from aleator.web.collection import item_fields, whole_text
from aleator.web.limits import Limits
from aleator.web.metrics import Metrics
from aleator.web.models import (
    Answer,
    CollectionInfo,
    CredibleLevel,
    Finding,
    FindingPage,
    HitView,
    ItemView,
    LikelyLabel,
    PosteriorQuestion,
    QueryView,
    SearchOptions,
    certainty,
)
from aleator.web.pictures import Picture, Pictures, check_upload
from aleator.web.problems import ProblemError, busy
from aleator.web.served import Served, promised, read_served, state_of

if TYPE_CHECKING:
    from aleator.own_data import Run

_LOG = logging.getLogger("aleator.web")
_TICK = 1.0  # seconds between two looks at the clock of the background task
_LARGEST_SHARE = 0.25  # of the time for reading the collection again
_REPLACED = "the index was replaced while the server runs; restart it"

P = ParamSpec("P")
T = TypeVar("T")


class Service:
    """One collection, its index, and the model that embeds questions.

    Args:
        index: The index.
        run: The model; None if only items and posteriors can be asked about.
        root: Folder of the images; None for no pictures.
        limits: Limits on images and threads.
        audit: Folder of an audit; None for no findings.
        metrics: Where to count.
    """

    def __init__(
        self,
        index: CredibleIndex,
        run: "Run | None",
        root: Path | None,
        limits: Limits,
        audit: Path | None = None,
        metrics: Metrics | None = None,
    ):
        if run is not None:
            dim = run.encoder.dim
            problem = f"the index has {index.dim}"
            require(dim == index.dim, "model", f"{dim} dimensions", problem, "use the model that made it")
        if root is not None:
            require(root.is_dir(), "root", str(root), "there is no such folder", "name the folder with the images")
        self.index = index
        self._dim = index.dim
        self.limits = limits
        self.metrics = metrics or Metrics()
        self._run, self._audit = run, audit
        self._pictures = None
        if root is not None:
            self._pictures = Pictures(root.resolve(), limits.stored_bytes, limits.pixels, metrics=self.metrics)
        self.served = self._read()
        self.metrics.gauge("aleator_items", lambda: len(self.served.collection))
        self._workers = self._new_workers()
        # One thread encodes: tokenisers must not be shared by threads, and one batch uses all cores.
        note = self.metrics.observe
        self._encoding = Batches(
            self._encode, limits.batch, limits.window, note=lambda n: note("aleator_batch_size", n, work="encode")
        )
        self._searching = Batches(
            self._search_all,
            limits.batch,
            threads=limits.workers,
            note=lambda n: note("aleator_batch_size", n, work="search"),
        )

    # ---- the collection, as it is now

    def refresh(self) -> bool:
        """Read the collection again if items or settings of the index were changed; whether they were.

        If the index was replaced by one of another dimension, the last collection stays.
        """
        if state_of(self.index) == self.served.state:
            return False
        self._require_dimension()
        served = self._read()
        self._require_dimension()  # it may have been replaced meanwhile
        self.served = served
        return True

    def info(self) -> CollectionInfo:
        """The collection as it was read, and what is promised now: items may have changed since."""
        try:
            now = promised(self.index)
        except Exception as error:  # the next question gets the same error, and says the reason
            _LOG.warning("what the index promises could not be read: %s", error)
            now = {"promise": None}
        return self.served.info.model_copy(update=now)

    async def keep_fresh(self) -> None:
        """Look at the index again and again, until cancelled."""
        due = time.monotonic() + self.limits.refresh
        await asyncio.to_thread(self.metrics.write)
        while True:
            await asyncio.sleep(min(_TICK, max(0.0, due - time.monotonic())))
            await asyncio.to_thread(self.metrics.write)
            if time.monotonic() < due:
                continue
            began = time.monotonic()
            try:
                with self._errors_for_clients():
                    await asyncio.to_thread(self.refresh)
            except Exception as error:  # a question gets the same error, and with it the reason
                _LOG.warning("the collection could not be read again: %s", error)
            took = time.monotonic() - began
            due = time.monotonic() + max(self.limits.refresh, took * (1 / _LARGEST_SHARE - 1))

    def _require_dimension(self) -> None:
        if self.index.dim != self._dim:
            raise busy(_REPLACED)

    def _read(self) -> Served:
        began = time.monotonic()
        served = read_served(self.index, self._run, self._pictures is not None, self.limits, self._audit)
        self.metrics.count("aleator_collection_reads_total")
        self.metrics.count("aleator_collection_read_seconds_total", time.monotonic() - began)
        return served

    # ---- threads

    async def work(self, task: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a long task on one of the worker threads."""
        loop = asyncio.get_running_loop()
        with self._errors_for_clients():
            return await loop.run_in_executor(self._workers, lambda: task(*args, **kwargs))

    async def _batched(self, future: Awaitable[T]) -> T:
        with self._errors_for_clients():
            return await future

    @contextlib.contextmanager
    def _errors_for_clients(self) -> Iterator[None]:
        """Turn errors of the index into errors that a client gets."""
        try:
            yield
        except DamagedFileError as damage:
            _LOG.error("%s", damage)  # with the name of the file, which is not the client's business
            raise busy("the index is damaged") from damage
        except IndexGoneError as gone:
            raise busy("the index was removed or replaced while the server runs; restart it") from gone
        except ConnectionError as error:  # the database server is gone
            raise busy("the index cannot be reached") from error
        except ValueError as error:
            if self.index.dim != self._dim:
                raise busy(_REPLACED) from error
            raise

    def close(self) -> None:
        """Cancel waiting tasks. New threads are ready in case the application starts again."""
        self._encoding.close()
        self._searching.close()
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._workers = self._new_workers()

    def _new_workers(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.limits.workers, thread_name_prefix="aleator")

    # ---- items

    def item(self, served: Served, position: int) -> ItemView:
        """The item at a position of the collection."""
        return served.collection.item(position, served.images)

    def findings(self, served: Served, kind: Finding, offset: int, limit: int) -> FindingPage:
        """Some findings of the audit.

        Raises:
            ValueError: If there is no audit.
        """
        if served.findings is None:
            raise ValueError("there is no audit; start the server with --audit")
        return served.findings.page(kind, offset, limit, served.images)

    def picture(self, served: Served, position: int, size: int | None, known: str | None = None) -> Picture:
        """The picture of an item; without its data if the client has the version `known`.

        Raises:
            ValueError: If it has none.
        """
        path = served.collection.metadata(position).get("path")
        if self._pictures is None or not isinstance(path, str):
            raise ValueError("the collection has no image of this item")
        return self._pictures.show(path, size, known)

    # ---- questions

    async def ask_about_item(self, served: Served, position: int, options: SearchOptions) -> Answer:
        """Search with an item of the collection."""
        require(
            options.by != "promised",
            "by",
            "promised",
            "the promise is for new questions, and an item finds itself",
            "ask about something that is not in the collection",
        )
        return await self._search(served, served.collection.posterior(position), options, position)

    async def ask_about_posterior(self, posterior: PosteriorQuestion, options: SearchOptions) -> Answer:
        """Search with a posterior."""
        length, dim = len(posterior.mu), self.index.dim
        problem = f"the collection has {dim} dimensions"
        require(length == dim, "mu", f"{length} numbers", problem, "use the encoder that made it")
        norm = math.hypot(*posterior.mu)
        require(abs(norm - 1) < 1e-3, "mu", f"of length {norm:.4g}", "is not a direction", "scale it to length 1")
        mu = torch.tensor([posterior.mu], dtype=torch.float64)
        query = VonMisesFisher(mu, torch.tensor([float(posterior.kappa)], dtype=torch.float64))
        return await self._search(self.served, query, options)

    async def ask_about_raw(self, kind: InputKind, item: Any, options: SearchOptions) -> Answer:
        """Embed an item (the bytes of an image, a text, or a list of features), and search with its posterior."""
        run = self._model_for(kind)
        prepared = await self.work(self._prepare, run, kind, item)
        shape = tuple(prepared.shape[1:]) if isinstance(prepared, Tensor) else ()
        posterior, excess = await self._batched(asyncio.wrap_future(self._encoding.submit(shape, prepared)))
        parts = posterior.components
        finite = parts.mu.isfinite().all() & parts.kappa.isfinite().all()
        require(finite, "item", "this one", "its embedding is not finite", "send another")
        unlike = None if excess is None else bool(excess > 0)
        return await self._search(self.served, posterior.double(), options, unlike=unlike)

    def _prepare(self, run: "Run", kind: InputKind, item: Any) -> Any:
        """One item as the encoder takes it: a tensor (1, ...) or a list of one text."""
        if kind == "images":
            check_upload(item, self.limits.pixels)
        if kind == "features":
            wanted = run.inputs.features
            problem = f"the model takes {wanted} for an item"
            require(len(item) == wanted, "features", f"{len(item)} numbers", problem, "send one row of features")
        return run.inputs.prepare([item])

    def _encode(self, _: Any, prepared: list[Any]) -> list[tuple[PosteriorBatch, Tensor | None]]:
        """The posterior (1,) of each prepared item, and its novelty, from one pass of the encoder."""
        assert self._run is not None
        batch = [text for one in prepared for text in one] if isinstance(prepared[0], list) else torch.cat(prepared)
        if isinstance(batch, Tensor):
            batch = batch.to(next(self._run.encoder.parameters()).device)
        posteriors, novelty = self._run.encode(batch)
        return [(posteriors[i : i + 1], None if novelty is None else novelty[i]) for i in range(len(prepared))]

    def _model_for(self, kind: InputKind) -> "Run":
        if self._run is None:
            problem = "no model is loaded, so only items and posteriors can be asked about"
            raise ProblemError(409, f"{problem}; start the server with --model")
        if self._run.inputs.kind != kind:
            raise ProblemError(409, f"the model takes {self._run.inputs.kind}, not {kind}")
        made_by = self.index.fingerprint
        if made_by is not None and made_by != self._run.fingerprint:
            raise busy("the index was replaced by that of another model while the server runs; restart it")
        return self._run

    async def _search(
        self,
        served: Served,
        query: PosteriorBatch,
        options: SearchOptions,
        item: int | None = None,
        unlike: bool | None = None,
    ) -> Answer:
        """Search with a query of batch shape (1,), which may be the item at position `item` of the collection."""
        if options.by == "promised":
            await self.work(self._require_promise)
        own = 0 if item is None else 1  # an item finds itself, which does not count
        level = {"credible": options.p, "match": options.threshold}.get(options.by)
        key = (options.by, level, type(query), query.modes, query.dim, served.labels is not None)
        question = query, options.limit + own, served.labels
        hits, sure, probabilities = await self._batched(asyncio.wrap_future(self._searching.submit(key, question)))
        return await self.work(self._describe, served, query, options, item, unlike, hits, sure, probabilities)

    def _require_promise(self) -> None:
        if self.index.promise is None:
            changed = "items have changed since the index was calibrated"
            problem = changed if self.index.promise_is_void else "the index makes no promise"
            raise ProblemError(409, f"{problem}; run `aleator index calibrate`, or search another way")

    def _search_all(
        self, key: tuple[Any, ...], questions: list[tuple[PosteriorBatch, int, LabelModel | None]]
    ) -> list[tuple[list[Hit], bool | None, Tensor | None]]:
        """Hits of questions with equal keys from one search, whether the first is sure, and label probabilities."""
        by, level, *_ = key
        queries = type(questions[0][0]).cat([query for query, _, _ in questions])
        most = max(limit for _, limit, _ in questions)
        sure: list[bool | None] = [None] * len(questions)
        if by == "promised":
            answers = self.index.answer_sets(queries)
            found, sure = [answer.hits for answer in answers], [answer.sure for answer in answers]
        else:
            named = {"credible": {"p": level}, "match": {"threshold": level}}.get(by, {})
            found = self.index.search(queries, limit=most, by=by, **named)
            found = [hits[:limit] for hits, (_, limit, _) in zip(found, questions, strict=True)]
        # The collection may have been read again between two questions of the batch.
        models = {id(labels): labels for _, _, labels in questions}
        rows = {name: None if model is None else model.probabilities(queries) for name, model in models.items()}
        of_labels = [rows[id(labels)] for _, _, labels in questions]
        each = [None if row is None else row[i : i + 1] for i, row in enumerate(of_labels)]
        return list(zip(found, sure, each, strict=True))

    def _describe(
        self,
        served: Served,
        query: PosteriorBatch,
        options: SearchOptions,
        item: int | None,
        unlike: bool | None,
        found: list[Hit],
        sure: bool | None,
        probabilities: Tensor | None,
    ) -> Answer:
        """The answer that a client gets."""
        own_key, own = (None, 0) if item is None else (served.collection.keys[item], 1)
        views = [self._hit_view(served, hit) for hit in found[: options.limit + own]]
        hits = [hit for hit in views if hit.key != own_key][: options.limit]
        size, levels = None, list[CredibleLevel]()
        if options.by == "promised":
            size = len(found)
        elif options.by == "match" and len(found) < options.limit + own:
            size = len(hits)
        elif options.by == "credible":
            size, levels = served.collection.credible_sets(query, options.p, leave_out=own)
        view = self._query_view(served, query, item, unlike, probabilities)
        return Answer(query=view, by=options.by, p=options.p, size=size, hits=hits, levels=levels, sure=sure)

    def _query_view(
        self,
        served: Served,
        query: PosteriorBatch,
        item: int | None,
        unlike: bool | None,
        probabilities: Tensor | None,
    ) -> QueryView:
        shown = one_mode(query)
        kappa = float(shown.kappa[0])
        return QueryView(
            kappa=certainty(kappa),
            surer_than=served.collection.surer_than(kappa, None if probabilities is None else probabilities[0]),
            labels=_likely_labels(served, probabilities),
            unlike=unlike,
            mu=shown.mu[0].tolist(),
            modes=query.log_weights[0].exp().tolist() if query.modes > 1 else [],
            item=None if item is None else self.item(served, item),
        )

    def _hit_view(self, served: Served, hit: Hit) -> HitView:
        fields = item_fields(hit.id, hit.kappa, hit.metadata, served.images)
        surer_than, likeliest = served.collection.certainty_of(fields["key"], hit.kappa)
        return HitView(
            **fields,
            surer_than=surer_than,
            likeliest=likeliest,
            cosine=hit.cosine,
            mode=hit.mode,
            match_probability=hit.match_probability,
        )


def _likely_labels(served: Served, probabilities: Tensor | None) -> list[LikelyLabel]:
    """The likeliest labels of probabilities (1, C)."""
    if probabilities is None or served.labels is None:
        return []
    (row,) = likely_labels(probabilities, served.labels.names)
    return [LikelyLabel(label=whole_text(name), probability=min(1.0, p)) for name, p in row]
