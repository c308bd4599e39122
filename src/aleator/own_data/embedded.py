"""An embedded collection: the contents of a posteriors file that `aleator embed` wrote."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aleator.foundation import reject, require
from aleator.matching import VMFKernel
from aleator.own_data.labels import Labels, named_labels
from aleator.posteriors import VonMisesFisher
from aleator.retrieval import match_settings, read_header, read_items, read_posteriors


@dataclass(frozen=True)
class EmbeddedCollection:
    """N posteriors, with a record of each item and the settings of their match probabilities.

    Args:
        q: Posteriors, batch shape (N,).
        records: For each item its "id" and what else is known, such as "path", "text" and "label".
        kernel: Kernel of calibrated match probabilities.
        prior: Prior of calibrated match probabilities.
        fingerprint: Checksum of the encoder.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.own_data import EmbeddedCollection
        >>> q = al.VonMisesFisher(torch.eye(2), torch.tensor([5.0, 50.0]))
        >>> records = [{"id": 0, "label": "b"}, {"id": 1, "label": "a"}]
        >>> embedded = EmbeddedCollection(q, records, al.VMFKernel(), 0.5, None)
        >>> embedded.labels().values
        array([1, 0])
    """

    q: VonMisesFisher
    records: list[dict[str, Any]]
    kernel: VMFKernel
    prior: float
    fingerprint: str | None

    def labels(self) -> Labels:
        """The labels in the records.

        Returns:
            Soft labels if every record has "labels", classes otherwise.

        Raises:
            ValueError: If a record has no label.
        """
        for i, record in enumerate(self.records):
            if "label" not in record:
                reject("items", f"line {i + 1}", "has no label", "embed labelled data, or pass --labels")
        if not all("labels" in record for record in self.records):
            return named_labels([str(record["label"]) for record in self.records], "classes")
        names = sorted({name for record in self.records for name in record["labels"]})
        column = {name: c for c, name in enumerate(names)}
        probabilities = np.zeros((len(self.records), len(names)), np.float32)
        for i, record in enumerate(self.records):
            for name, probability in record["labels"].items():
                probabilities[i, column[name]] = probability
        return Labels("soft", probabilities / probabilities.sum(1, keepdims=True), tuple(names))


def read_embedded(path: str | Path) -> EmbeddedCollection:
    """Read a posteriors file and the .jsonl file beside it. Without the latter, items are numbered.

    Args:
        path: A .safetensors or .npz file with mu (N, D) and kappa (N,).

    Returns:
        The posteriors and the records of the items. Kernel and prior are the defaults if the file has none.

    Raises:
        ValueError: If a file is missing or damaged, or if the two files have different lengths.

    Examples:
        >>> import numpy as np
        >>> from aleator.own_data import read_embedded
        >>> np.savez("two.npz", mu=np.eye(2, 3), kappa=np.array([5.0, 50.0]))
        >>> read_embedded("two.npz").records
        [{'id': 0}, {'id': 1}]
    """
    path = Path(path).expanduser()
    q = read_posteriors(path)
    header = read_header(path)
    kernel, prior = match_settings(header)
    records = _read_records(path.with_suffix(".jsonl"), len(q))
    return EmbeddedCollection(q, records, kernel, prior, header.get("fingerprint"))


def rank_by_kappa(
    embedded: EmbeddedCollection, limit: int | None = None, surest: bool = False
) -> Iterator[dict[str, Any]]:
    """List the most ambiguous items first.

    Args:
        embedded: The items and their posteriors.
        limit: Number of items to list. Default: all.
        surest: Whether to list the most certain items first instead.

    Yields:
        The record of each item with its "rank" from 1, "kappa", and "percentile", the share of items with a smaller
        kappa.

    Examples:
        >>> import numpy as np
        >>> from aleator.own_data import rank_by_kappa, read_embedded
        >>> np.savez("two.npz", mu=np.eye(2, 3), kappa=np.array([50.0, 5.0]))
        >>> list(rank_by_kappa(read_embedded("two.npz"), limit=1))
        [{'rank': 1, 'id': 1, 'kappa': 5.0, 'percentile': 0.0}]
    """
    kappa = embedded.q.kappa
    order = torch.argsort(kappa, stable=True, descending=surest).tolist()
    for rank, i in enumerate(order[:limit], 1):
        below = len(order) - rank if surest else rank - 1
        yield {"rank": rank, **embedded.records[i], "kappa": float(kappa[i]), "percentile": below / len(order)}


def _read_records(path: Path, count: int) -> list[dict[str, Any]]:
    """The records of `count` items from a .jsonl file; numbers alone if there is no such file."""
    if not path.is_file():
        return [{"id": i} for i in range(count)]
    ids, metadata = read_items(path)
    assert ids is not None
    assert metadata is not None
    way_out = "embed again: both files are written together"
    require(len(ids) == count, "items", str(path), f"has {len(ids)} lines for {count} posteriors", way_out)
    return [{"id": id} | dict(entry) for id, entry in zip(ids, metadata, strict=True)]
