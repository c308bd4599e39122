"""What the API does, apart from HTTP: embed a question, search, and describe the answer."""

import asyncio
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch

from aleator.data import InputKind
from aleator.foundation import require
from aleator.posteriors import VonMisesFisher
from aleator.retrieval import CredibleIndex
from aleator.web.collection import Collection, facts_of
from aleator.web.limits import Limits
from aleator.web.models import Answer, Ask, CollectionInfo, Hit, Item, Level, Posterior, Query, certainty
from aleator.web.pictures import Picture, Pictures, check_upload
from aleator.web.problems import ProblemError, busy

if TYPE_CHECKING:
    from aleator.own_data import Run

P = ParamSpec("P")
T = TypeVar("T")


class Service:
    """One collection, its index, and the model that embeds questions, if there is one."""

    def __init__(self, index: CredibleIndex, run: "Run | None", root: Path | None, limits: Limits):
        if run is not None:
            dim = run.encoder.dim
            require(dim == index.dim, "model", f"{dim} dimensions", f"the index has {index.dim}", "use its own model")
        if root is not None:
            require(root.is_dir(), "root", str(root), "there is no such folder", "name the folder with the images")
        self.index = index
        self.limits = limits
        self.collection = Collection(index)
        self._run = run
        self._embedding = threading.Lock()  # tokenisers must not be shared by threads, and one batch uses all cores
        self._pictures = None if root is None else Pictures(root.resolve(), limits.stored_bytes, limits.pixels)
        self._workers = self._new_workers()

    async def work(self, task: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a task that takes long on one of the few threads kept for such."""
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._workers, lambda: task(*args, **kwargs))
        except Exception as error:
            if type(error).__module__.partition(".")[0] == "psycopg":  # the index's server went away
                raise busy("the index cannot be reached") from error
            raise

    def close(self) -> None:
        """Leave off whatever waits; an application that is started again goes on with new threads."""
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._workers = self._new_workers()

    def _new_workers(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.limits.workers, thread_name_prefix="aleator")

    @property
    def images(self) -> bool:
        return self._pictures is not None and self.collection.paths

    @property
    def model(self) -> InputKind | None:
        return None if self._run is None else self._run.inputs.kind

    @cached_property
    def info(self) -> CollectionInfo:
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
            upload_bytes=self.limits.upload_bytes,
            pixels=self.limits.pixels,
        )

    def item(self, position: int) -> Item:
        return self.collection.item(position, self.images)

    def picture(self, position: int, size: int | None) -> Picture:
        path = self.collection.metadata(position).get("path")
        if self._pictures is None or not isinstance(path, str):
            raise ValueError("the collection has no image of this item")
        return self._pictures.show(path, size)

    def ask_about_item(self, position: int, ask: Ask) -> Answer:
        return self._search(self.collection.posterior(position), ask, position)

    def ask_about_posterior(self, posterior: Posterior, ask: Ask) -> Answer:
        require(
            len(posterior.mu) == self.index.dim,
            "mu",
            f"{len(posterior.mu)} numbers",
            f"the collection has {self.index.dim} dimensions",
            "use the encoder that made it",
        )
        length = math.hypot(*posterior.mu)
        require(abs(length - 1) < 1e-3, "mu", f"of length {length:.4g}", "is not a direction", "scale it to length 1")
        mu = torch.tensor([posterior.mu], dtype=torch.float64)
        return self._search(VonMisesFisher(mu, torch.tensor([float(posterior.kappa)], dtype=torch.float64)), ask)

    def ask_about_raw(self, kind: InputKind, item: Any, ask: Ask) -> Answer:
        """About something that the model embeds: the bytes of an image, a text, a list of features."""
        run = self._model_of(kind)
        if kind == "images":
            check_upload(item, self.limits.pixels)
        with self._embedding:
            posterior = run.posteriors([item])
        mu, kappa = posterior.mu.double(), posterior.kappa.double()
        require(mu.isfinite().all() & kappa.isfinite().all(), "item", "this one", "has no embedding", "send another")
        return self._search(VonMisesFisher(mu, kappa), ask)

    def _model_of(self, kind: InputKind) -> "Run":
        if self._run is None:
            way_out = "so only items and posteriors can be asked about; start with --model"
            raise ProblemError(409, f"no model is loaded, {way_out}")
        if self.model != kind:
            raise ProblemError(409, f"the model takes {self.model}, not {kind}")
        return self._run

    def _search(self, query: VonMisesFisher, ask: Ask, item: int | None = None) -> Answer:
        own = None if item is None else self.collection.keys[item]
        more = 0 if own is None else 1  # an item finds itself
        found = self.index.search(query, ask.p, ask.limit + more, ask.by, threshold=ask.threshold)[0]
        complete = len(found) < ask.limit + more
        hits = [hit for hit in map(self._hit, found) if hit.key != own][: ask.limit]
        size = len(hits) if complete and ask.by == "match" else None
        levels: list[Level] = []
        if ask.by == "credible":
            size, levels = self.collection.credible_sets(query, ask.p, more)
        kappa = float(query.kappa[0])
        described = Query(
            kappa=certainty(kappa),
            surer_than=self.collection.surer_than(kappa),
            mu=query.mu[0].tolist(),
            item=None if item is None else self.item(item),
        )
        return Answer(query=described, by=ask.by, p=ask.p, size=size, hits=hits, levels=levels)

    def _hit(self, hit: Any) -> Hit:
        return Hit(
            **facts_of(hit.id, hit.kappa, hit.metadata, self.images),
            surer_than=self.collection.surer_than(hit.kappa),
            cosine=hit.cosine,
            match_probability=hit.match_probability,
        )


def _name(location: str | None) -> str:
    """What to call the collection: never the address of a server, which may hold a password."""
    if location is None:
        return "in memory"
    if "://" in location:
        return location.partition("#")[2] or "default"
    return Path(location).resolve().name
