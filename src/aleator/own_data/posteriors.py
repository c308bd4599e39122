"""Posteriors files as `aleator embed` writes them, with the items beside them, and the most ambiguous of these."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aleator.foundation import reject, require
from aleator.matching import VMFKernel
from aleator.own_data.collection import Labels, named_labels
from aleator.posteriors import VonMisesFisher
from aleator.retrieval import match_settings, read_header, read_items, read_posteriors


@dataclass(frozen=True)
class Embedded:
    """N posteriors, what is known of each item, and the header: fingerprint, kernel and prior."""

    q: VonMisesFisher
    facts: list[dict[str, Any]]
    kernel: VMFKernel
    prior: float
    fingerprint: str | None

    def labels(self) -> Labels:
        """The labels that the items carry: classes, or probabilities of them."""
        missing = [i for i, facts in enumerate(self.facts) if "label" not in facts]
        if missing:
            reject("items", f"line {missing[0] + 1}", "carries no label", "embed labelled data, or pass --labels")
        if all("labels" in facts for facts in self.facts):
            names = sorted({name for facts in self.facts for name in facts["labels"]})
            place = {name: c for c, name in enumerate(names)}
            values = np.zeros((len(self.facts), len(names)), np.float32)
            for i, facts in enumerate(self.facts):
                for name, p in facts["labels"].items():
                    values[i, place[name]] = p
            return Labels("soft", values / values.sum(1, keepdims=True), tuple(names))
        return named_labels([str(facts["label"]) for facts in self.facts], "classes")


def read_embedded(path: str | Path) -> Embedded:
    """A posteriors file and the .jsonl beside it; without one, items are numbered."""
    path = Path(path).expanduser()
    q = read_posteriors(path)
    header = read_header(path)
    beside = path.with_suffix(".jsonl")
    facts: list[dict[str, Any]] = [{"id": i} for i in range(len(q))]
    if beside.is_file():
        ids, metadata = read_items(beside)
        assert ids is not None
        assert metadata is not None
        way_out = "embed again, both are written together"
        require(len(ids) == len(q), "items", str(beside), f"{len(ids)} lines for {len(q)} posteriors", way_out)
        facts = [{"id": id} | dict(known) for id, known in zip(ids, metadata, strict=True)]
    kernel, prior = match_settings(header)
    return Embedded(q, facts, kernel, prior, header.get("fingerprint"))


def ranked(embedded: Embedded, limit: int | None = None, surest: bool = False) -> Iterator[dict[str, Any]]:
    """The least certain items first, or the surest; each with its rank, kappa and the share of items less certain."""
    kappa = embedded.q.kappa
    order = torch.argsort(kappa, stable=True, descending=surest).tolist()
    for rank, i in enumerate(order[:limit], 1):
        below = len(order) - rank if surest else rank - 1
        yield {"rank": rank, **embedded.facts[i], "kappa": float(kappa[i]), "percentile": below / len(order)}
