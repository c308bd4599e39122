"""Everything that the server shows, as of one moment: items, label probabilities, findings of an audit."""

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aleator.evaluation import LabelModel
from aleator.foundation import redacted
from aleator.retrieval import CredibleIndex, Promise
from aleator.web.collection import CollectionView
from aleator.web.findings import Findings
from aleator.web.limits import Limits
from aleator.web.models import CollectionInfo, PromiseView

if TYPE_CHECKING:
    from aleator.own_data import Run


@dataclass(frozen=True)
class Served:
    """A collection as it was read. A request uses one of these from beginning to end: positions belong to it."""

    state: object  # of the index, before the items were read
    collection: CollectionView
    labels: LabelModel | None
    findings: Findings | None
    images: bool
    info: CollectionInfo


def state_of(index: CredibleIndex) -> object:
    """A value that differs once items or settings of an index were changed, by any process."""
    return index.state(), index.store.config


def read_served(
    index: CredibleIndex, run: "Run | None", pictures: bool, limits: Limits, audit: Path | None = None
) -> Served:
    """Read the items of an index.

    Args:
        index: The index.
        run: The model; None if there is none.
        pictures: Whether there is a folder of pictures.
        limits: Limits that the page shows.
        audit: Folder of an audit; None for no findings.

    Returns:
        The collection of this moment.
    """
    state = state_of(index)  # first: what changes from here on is read next time
    labels = _label_model(index, run)
    collection = CollectionView(index, labels)
    findings = None if audit is None else Findings(audit, collection)
    images = pictures and collection.paths
    info = CollectionInfo(
        name=_name(index.location),
        key=_key(index.location),
        items=len(collection),
        dim=index.dim,
        certainty=collection.distribution(),
        by_labels=collection.by_labels,
        labels=collection.labels(),
        images=images,
        texts=collection.texts,
        model=None if run is None else run.inputs.kind,
        model_features=None if run is None else run.inputs.features,
        kernel=repr(index.kernel),
        exact=index.recall_report is None,
        **promised(index),
        findings={} if findings is None else findings.counts(),
        upload_bytes=limits.upload_bytes,
        pixels=limits.pixels,
    )
    return Served(state, collection, labels, findings, images, info)


def promised(index: CredibleIndex) -> dict[str, Any]:
    """What the index promises at this moment, and whether a promise is void; two fields of `CollectionInfo`."""
    return {"promise": _promise(index.promise), "promise_is_void": index.promise_is_void}


def _promise(promise: Promise | None) -> PromiseView | None:
    if promise is None:
        return None
    return PromiseView(
        coverage=promise.coverage,
        questions=promise.questions,
        sets=promise.sets,
        mean_size=promise.mean_size,
        error=None if promise.rejection is None else promise.rejection.error,
        assurance=None if promise.rejection is None else promise.rejection.assurance,
    )


def _label_model(index: CredibleIndex, run: "Run | None") -> LabelModel | None:
    """Label probabilities: of the items of the index if it was built with fitted ones, otherwise of the model."""
    if index.store.config.get("labels") is not None:
        with contextlib.suppress(ValueError):  # the items have fewer than two labels
            return index.label_model()
    return None if run is None else run.answers.labels


def _key(location: str | None) -> str:
    """A digest of the place of the collection: folders in different places may have one name."""
    place = location if location is None or "://" in location else str(Path(location).resolve())
    return hashlib.sha256(redacted(str(place)).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _name(location: str | None) -> str:
    """A name for the collection. It never shows the address of a server, which may hold a password."""
    if location is None:
        return "in memory"
    if location.startswith("lance:") or ("://" in location and not location.startswith("postgres")):
        return Path(location.removeprefix("lance:").partition("#")[0]).name  # Lance: the last part of the path
    if "://" in location:
        return location.partition("#")[2] or "default"
    return Path(location).resolve().name
