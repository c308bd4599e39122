"""The work behind the API: embed a question, search, and describe the answer."""

import asyncio
import contextlib
import logging
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
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
from aleator.web.collection import CollectionView, item_fields, whole_text
from aleator.web.findings import Findings
from aleator.web.limits import Limits
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
    PromiseView,
    QueryView,
    SearchOptions,
    certainty,
)
from aleator.web.pictures import Picture, Pictures, check_upload
from aleator.web.problems import ProblemError, busy

if TYPE_CHECKING:
    from aleator.own_data import Run

_LOG = logging.getLogger("aleator.web")

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
    """

    def __init__(
        self, index: CredibleIndex, run: "Run | None", root: Path | None, limits: Limits, audit: Path | None = None
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
        self._labels = _label_model(index, run)
        self.collection = CollectionView(index, self._labels)
        self._findings = None if audit is None else Findings(audit, self.collection)
        self._run = run
        self._embedding = threading.Lock()  # tokenisers must not be shared by threads, and one batch uses all cores
        self._pictures = None if root is None else Pictures(root.resolve(), limits.stored_bytes, limits.pixels)
        self._workers = self._new_workers()

    async def work(self, task: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a long task on one of the worker threads."""
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._workers, lambda: task(*args, **kwargs))
        except DamagedFileError as damage:
            _LOG.error("%s", damage)  # with the name of the file, which is not the client's business
            raise busy("the index is damaged") from damage
        except IndexGoneError as gone:
            raise busy("the index was removed or replaced while the server runs; restart it") from gone
        except ConnectionError as error:  # the database server is gone
            raise busy("the index cannot be reached") from error
        except ValueError as error:
            if self.index.dim != self._dim:
                raise busy("the index was replaced while the server runs; restart it") from error
            raise

    def close(self) -> None:
        """Cancel waiting tasks. New threads are ready in case the application starts again."""
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._workers = self._new_workers()

    def _new_workers(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.limits.workers, thread_name_prefix="aleator")

    @property
    def images(self) -> bool:
        """Whether there are pictures to show."""
        return self._pictures is not None and self.collection.paths

    @property
    def model(self) -> InputKind | None:
        """What the model takes."""
        return None if self._run is None else self._run.inputs.kind

    @cached_property
    def info(self) -> CollectionInfo:
        """The description of the collection."""
        collection = self.collection
        return CollectionInfo(
            name=_name(self.index.location),
            items=len(collection),
            dim=self.index.dim,
            certainty=collection.distribution(),
            labels=collection.labels(),
            images=self.images,
            texts=collection.texts,
            model=self.model,
            model_features=None if self._run is None else self._run.inputs.features,
            kernel=repr(self.index.kernel),
            exact=self.index.recall_report is None,
            promise=self._promise(),
            findings={} if self._findings is None else self._findings.counts(),
            upload_bytes=self.limits.upload_bytes,
            pixels=self.limits.pixels,
        )

    def _promise(self) -> PromiseView | None:
        promise = self.index.promise
        if promise is None:
            return None
        return PromiseView(
            coverage=promise.coverage,
            questions=promise.questions,
            sets=promise.sets,
            mean_size=promise.mean_size,
            error=None if promise.rejection is None else promise.rejection.error,
            assurance=None if promise.rejection is None else promise.rejection.assurance,
            current=promise.items == len(self.index),
        )

    def item(self, position: int) -> ItemView:
        """The item at a position of the collection."""
        return self.collection.item(position, self.images)

    def findings(self, kind: Finding, offset: int, limit: int) -> FindingPage:
        """Some findings of the audit.

        Raises:
            ValueError: If there is no audit.
        """
        if self._findings is None:
            raise ValueError("there is no audit; start the server with --audit")
        return self._findings.page(kind, offset, limit, self.images)

    def picture(self, position: int, size: int | None) -> Picture:
        """The picture of an item.

        Raises:
            ValueError: If it has none.
        """
        path = self.collection.metadata(position).get("path")
        if self._pictures is None or not isinstance(path, str):
            raise ValueError("the collection has no image of this item")
        return self._pictures.show(path, size)

    def ask_about_item(self, position: int, options: SearchOptions) -> Answer:
        """Search with an item of the collection."""
        return self._search(self.collection.posterior(position), options, position)

    def ask_about_posterior(self, posterior: PosteriorQuestion, options: SearchOptions) -> Answer:
        """Search with a posterior."""
        length, dim = len(posterior.mu), self.index.dim
        problem = f"the collection has {dim} dimensions"
        require(length == dim, "mu", f"{length} numbers", problem, "use the encoder that made it")
        norm = math.hypot(*posterior.mu)
        require(abs(norm - 1) < 1e-3, "mu", f"of length {norm:.4g}", "is not a direction", "scale it to length 1")
        mu = torch.tensor([posterior.mu], dtype=torch.float64)
        return self._search(VonMisesFisher(mu, torch.tensor([float(posterior.kappa)], dtype=torch.float64)), options)

    def ask_about_raw(self, kind: InputKind, item: Any, options: SearchOptions) -> Answer:
        """Embed an item (the bytes of an image, a text, or a list of features), and search with its posterior."""
        run = self._model_for(kind)
        if kind == "images":
            check_upload(item, self.limits.pixels)
        with self._embedding:
            posterior, novelty = run.posteriors_and_novelty([item])
        parts = posterior.components
        finite = parts.mu.isfinite().all() & parts.kappa.isfinite().all()
        require(finite, "item", "this one", "its embedding is not finite", "send another")
        return self._search(posterior.double(), options, unlike=None if novelty is None else bool(novelty[0] > 0))

    def _model_for(self, kind: InputKind) -> "Run":
        if self._run is None:
            problem = "no model is loaded, so only items and posteriors can be asked about"
            raise ProblemError(409, f"{problem}; start the server with --model")
        if self.model != kind:
            raise ProblemError(409, f"the model takes {self.model}, not {kind}")
        return self._run

    def _search(
        self, query: PosteriorBatch, options: SearchOptions, item: int | None = None, unlike: bool | None = None
    ) -> Answer:
        """Search with a query of batch shape (1,), which may be the item at position `item` of the collection."""
        if options.by == "promised":
            return self._promised_set(query, options, item, unlike)
        own_key = None if item is None else self.collection.keys[item]
        own = 0 if own_key is None else 1  # an item finds itself, which does not count
        limit = options.limit + own
        all_hits = self.index.search(query, options.p, limit, options.by, threshold=options.threshold)[0]
        complete = len(all_hits) < limit
        hits = [hit for hit in map(self._hit_view, all_hits) if hit.key != own_key][: options.limit]
        size = len(hits) if complete and options.by == "match" else None
        levels: list[CredibleLevel] = []
        if options.by == "credible":
            size, levels = self.collection.credible_sets(query, options.p, leave_out=own)
        query_view = self._query_view(query, item, unlike)
        return Answer(query=query_view, by=options.by, p=options.p, size=size, hits=hits, levels=levels, sure=None)

    def _promised_set(
        self, query: PosteriorBatch, options: SearchOptions, item: int | None, unlike: bool | None
    ) -> Answer:
        """The answer set of a new question."""
        require(
            item is None,
            "by",
            "promised",
            "the promise is for new questions, and an item finds itself",
            "ask about something that is not in the collection",
        )
        answer = self.index.answer_sets(query)[0]
        hits = [self._hit_view(hit) for hit in answer.hits[: options.limit]]
        return Answer(
            query=self._query_view(query, None, unlike),
            by="promised",
            p=options.p,
            size=len(answer.hits),
            hits=hits,
            levels=[],
            sure=answer.sure,
        )

    def _query_view(self, query: PosteriorBatch, item: int | None, unlike: bool | None) -> QueryView:
        shown = one_mode(query)
        kappa = float(shown.kappa[0])
        probabilities = None if self._labels is None else self._labels.probabilities(query)
        return QueryView(
            kappa=certainty(kappa),
            surer_than=self.collection.surer_than(kappa, None if probabilities is None else probabilities[0]),
            labels=self._likely_labels(probabilities),
            unlike=unlike,
            mu=shown.mu[0].tolist(),
            modes=query.log_weights[0].exp().tolist() if query.modes > 1 else [],
            item=None if item is None else self.item(item),
        )

    def _likely_labels(self, probabilities: Tensor | None) -> list[LikelyLabel]:
        """The likeliest labels of probabilities (1, C)."""
        if probabilities is None or self._labels is None:
            return []
        (row,) = likely_labels(probabilities, self._labels.names)
        return [LikelyLabel(label=whole_text(name), probability=min(1.0, p)) for name, p in row]

    def _hit_view(self, hit: Hit) -> HitView:
        fields = item_fields(hit.id, hit.kappa, hit.metadata, self.images)
        return HitView(
            **fields,
            surer_than=self.collection.item_surer_than(fields["key"], hit.kappa),
            cosine=hit.cosine,
            mode=hit.mode,
            match_probability=hit.match_probability,
        )


def _label_model(index: CredibleIndex, run: "Run | None") -> LabelModel | None:
    """Label probabilities: of the items of the index if it was built with fitted ones, otherwise of the model."""
    if index.store.config.get("labels") is not None:
        with contextlib.suppress(ValueError):  # the items have fewer than two labels
            return index.label_model()
    return None if run is None else run.answers.labels


def _name(location: str | None) -> str:
    """A name for the collection. It never shows the address of a server, which may hold a password."""
    if location is None:
        return "in memory"
    if location.startswith("lance:") or ("://" in location and not location.startswith("postgres")):
        return Path(location.removeprefix("lance:").partition("#")[0]).name  # Lance: the last part of the path
    if "://" in location:
        return location.partition("#")[2] or "default"
    return Path(location).resolve().name
