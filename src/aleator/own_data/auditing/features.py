"""Features for an audit: given ones, or those of a run's network."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from aleator.encoders import Chain
from aleator.foundation import reject, require
from aleator.own_data.collection.arrays import FeatureFile
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.problems import Problem, stop_at
from aleator.own_data.collection.reading_ahead import BATCH_SIZES, spans
from aleator.own_data.embedding.embedding import fitted
from aleator.own_data.embedding.readable import prepare_readable
from aleator.own_data.embedding.rows import read_rows, stream_rows
from aleator.own_data.learning.defaults import PRETRAINED
from aleator.own_data.runs.run import Run


@dataclass(frozen=True)
class AuditFeatures:
    """Features of all items.

    Args:
        rows: Features, shape (N, F), float32.
        source: Where they come from, in words.
        saw_labels: Whether the network that made them was trained on labels of such items.
        problems: What is wrong with items that could not be read, by their number. `rows` is without them.
    """

    rows: Tensor
    source: str
    saw_labels: bool = False
    problems: Mapping[int, Problem] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """What summary.json says about them."""
        return {"source": self.source, "width": self.rows.shape[1], "network_saw_labels": self.saw_labels}


def audit_features(
    collection: Collection,
    run: Run | None,
    features: str | Path | None,
    cache: Path,
    digests: np.ndarray,
    device: torch.device,
    progress: bool | None,
    strict: bool = True,
    log: Callable[[str], None] = lambda line: None,
) -> AuditFeatures:
    """Features of every item of a collection.

    Of a run on a pretrained network, the features of that network are taken, which saw no label; of a run on features,
    the features themselves; otherwise the output of the trained backbone.

    Args:
        collection: The items.
        run: The run, if its network is to be used.
        features: A .npy file of features, in place of a run.
        cache: Folder for rows that are not complete yet.
        digests: Those of the items, shape (N,).
        device: Where the network runs.
        progress: Whether to show a progress bar. None: on a terminal.
        strict: Whether items that cannot be read are an error. Otherwise they are left out.
        log: Called with a line if earlier work is continued.
    """
    if features is not None:
        require(run is None, "features", str(features), "a run is given too", "pass one of them")
        return AuditFeatures(_read(FeatureFile(Path(features).expanduser()), collection), str(features))
    if collection.kind == "features":
        assert isinstance(collection.items, FeatureFile)
        return AuditFeatures(_read(collection.items, collection), str(collection.source))
    if run is None:
        way_out = "pass a run of `aleator train`, or a .npy file of features"
        reject("data", str(collection.source), f"{collection.kind} have no features yet", way_out)
    collection = fitted(collection, run)
    network, saw_labels = _network(run)
    width = _width(network, run, collection, device)
    path = cache / "features.rows"
    problems = stream_rows(
        path,
        width,
        network,
        lambda rows: rows,
        run.inputs,
        collection,
        (0, len(collection)),
        digests=digests,
        title="features",
        batch_size=BATCH_SIZES[collection.kind],
        device=device,
        progress=progress,
        strict=strict,
        log=log,
    )
    rows = np.delete(np.concatenate(list(read_rows(path, width))), list(problems), axis=0)
    return AuditFeatures(torch.from_numpy(rows), f"network of {run.folder}", saw_labels, problems)


def _read(file: FeatureFile, collection: Collection) -> Tensor:
    rows, items = len(file), len(collection)
    problem = f"has {rows} rows, and {collection.source} has {items} items"
    require(rows == items, "features", str(file.path), problem, "store one row for each item, in the same order")
    return torch.from_numpy(np.concatenate([file[start:stop] for start, stop in spans(0, rows, 65_536)]))


def _network(run: Run) -> tuple[nn.Module, bool]:
    """The part of a run's encoder that gives features, and whether it was trained on labels."""
    backbone, settings = run.encoder.backbone, run.config.get("settings", {})
    pretrained = str(settings.get("backbone", "")).startswith("hf:") or settings.get("backbone") == PRETRAINED
    if pretrained and isinstance(backbone, Chain):  # the parts after the network are the trained head
        return backbone.parts[0], settings.get("tune") is not None
    return backbone, True


@torch.inference_mode()
def _width(network: nn.Module, run: Run, collection: Collection, device: torch.device) -> int:
    """F, the number of features that the network gives."""
    batch: Any = None
    problems: dict[int, Problem] = {}
    for i in range(len(collection)):
        batch, _, problem = prepare_readable(run.inputs, collection, i, i + 1)
        if not problem:
            break
        problems |= problem
    else:
        stop_at(list(problems.values()), len(collection))
    output = network.to(device).eval()(batch.to(device) if isinstance(batch, Tensor) else batch)
    return int(output.shape[1])
