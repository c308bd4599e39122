"""Evaluate an embedded collection: without the items that the encoder has seen, and compared with baselines."""

from typing import Any

import numpy as np
import torch

from aleator.encoders import Chain
from aleator.foundation import reject, require, sample_numbers
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.contents import content_text, item_digests
from aleator.own_data.collection.labels import Labels
from aleator.own_data.collection.parts import can_be_evaluated, labels_at, select_items, select_labels
from aleator.own_data.collection.reading import read_collection
from aleator.own_data.collection.reading_ahead import prefetched, spans
from aleator.own_data.collection.used_items import CALIBRATION, TRAINING
from aleator.own_data.embedding.embedded import EmbeddedCollection
from aleator.own_data.embedding.embedding import fitted
from aleator.own_data.measuring.answers import label_metrics, label_rows
from aleator.own_data.measuring.baselines import Baselines, load_baselines
from aleator.own_data.measuring.comparison import compare_with_baselines
from aleator.own_data.measuring.evaluation import evaluate, evaluation_labels
from aleator.own_data.measuring.questions import Questions
from aleator.own_data.runs.pretrained import load_pretrained
from aleator.own_data.runs.run import Run, load_run

_MOST_QUERIES = {"images": 1500, "text": 1500, "features": 5000}  # networks take tens of milliseconds for an item
_AT_ONCE = 64  # items that go through a network at a time


def evaluate_embedded(
    embedded: EmbeddedCollection,
    labels: Labels,
    *,
    data: Collection | None = None,
    run: Run | None = None,
    baselines: bool = True,
    seed: int = 0,
) -> dict[str, Any]:
    """Evaluate posteriors against labels, as `evaluate` does, and compare them with baselines.

    Items that the encoder was trained or calibrated on are left out. The others are asked against training items that
    the run has kept, whether or not these are in the file; groups and pairs, and items whose run is gone, against each
    other. If too few others remain, all are evaluated, without baselines, and the first note says that the encoder has
    seen them.

    Baselines need the run, which keeps what they have learned, and the items themselves. Without these none is shown,
    and a note says why.

    Args:
        embedded: The posteriors and the records of their items.
        labels: Labels of the items.
        data: The items themselves. Default: read from where they were embedded.
        run: The run that made the posteriors. Default: loaded from where it was.
        baselines: Whether to compare with baselines.
        seed: Seed of everything random.

    Returns:
        What `evaluate` returns, and

        - what `label_metrics` returns, if the file has label probabilities
        - unlike: share of items that are unlike anything seen, if the file says it
        - left_out: numbers of items that were trained and calibrated on; None if that is not known
        - baselines: as `compare_with_baselines` returns it, unless it cannot be made
        - notes: also sentences on what was left out or could not be done

    Raises:
        ValueError: If no two items share a label, or all do, or if `data` holds other items, or `run` is another one.

    Examples:
        >>> import numpy as np
        >>> from aleator.own_data import evaluate_embedded, read_embedded, read_labels
        >>> from pathlib import Path
        >>> np.savez("few.npz", mu=np.eye(2, 3)[np.arange(20) % 2], kappa=np.arange(1.0, 21.0))
        >>> np.save("y.npy", np.arange(20) % 2)
        >>> metrics = evaluate_embedded(read_embedded("few.npz"), read_labels(Path("y.npy"), 20, "few.npz"))
        >>> metrics["recall_at_1"], metrics["left_out"]
        (1.0, None)
    """
    model = embedded.label_model if labels.kind in ("classes", "soft") else None
    if model is not None:
        labels = _with_names(labels, model.names)
    used = np.array([record.get("used", "") for record in embedded.records])
    asked = np.flatnonzero(used == "")
    notes: list[str] = []
    left_out: dict[str, int] | None = None
    unseen = embedded.marked
    if not embedded.marked:
        notes.append(
            "which of the items were trained on is not known: the posteriors file does not say it; no baselines"
        )
    elif len(asked) < len(used):
        left_out = {name: int((used == name).sum()) for name in (TRAINING, CALIBRATION)}
        hard = evaluation_labels(select_labels(labels, asked), len(asked)).hard() if len(asked) else None
        if hard is None or not can_be_evaluated(hard):
            seen = f"{len(used) - len(asked)} of {len(used)} items were trained on or calibrated on"
            notes.append(f"{seen}: the numbers are of items that the encoder has seen; no baselines")
            asked, left_out, unseen = np.arange(len(used)), {TRAINING: 0, CALIBRATION: 0}, False
        else:
            trained, calibrated = left_out.values()
            notes.append(f"left out: {trained} items that were trained on, {calibrated} of the calibration")
    else:
        left_out = {TRAINING: 0, CALIBRATION: 0}
    known = missing = None
    if unseen:
        try:
            run, known = _run_of(embedded, run)
        except (ValueError, OSError) as problem:
            if run is not None:
                raise
            missing = problem
    numbers, queries = _queries(embedded, labels, asked, known, seed)
    chosen = torch.as_tensor(asked)
    metrics = evaluate(
        embedded.q[chosen],
        select_labels(labels, asked),
        embedded.kernel,
        embedded.prior,
        maps=embedded.maps,
        questions=queries,
        seed=seed,
    )
    if model is not None:
        rows = label_rows(labels_at(labels, asked))
        metrics |= label_metrics(model.probabilities(embedded.q[chosen]), rows)
    if embedded.novelty is not None:
        metrics["unlike"] = (embedded.novelty[chosen] > 0).double().mean().item()
    metrics["left_out"] = left_out
    if baselines and unseen:
        try:
            if missing is not None:
                raise missing
            assert run is not None
            assert known is not None
            rows = _rows(_items(data, embedded, numbers), run, known, numbers)
            metrics["baselines"] = compare_with_baselines(
                queries,
                rows,
                rows if known.features is None or (queries.own >= 0).any() else known.features,
                head=known.head if model is not None else None,
                label_probabilities=None if model is None else model.probabilities(queries.q),
                learned_from=known.learned_from,
                inputs=known.inputs,
                seed=seed,
            )
        except (ValueError, OSError) as problem:
            if data is not None and missing is None:
                raise
            notes.append(f"no baselines: what they need is not at hand ({problem})")
    metrics["notes"] = notes + metrics["notes"]
    return metrics


def _run_of(embedded: EmbeddedCollection, run: Run | None) -> tuple[Run, Baselines]:
    """The run that made the posteriors, and the baselines that it has kept."""
    if run is None:
        way_out = "pass --run"
        require(embedded.run is not None, "run", None, "the file does not say which run made it", way_out)
        run = load_run(str(embedded.run))
    problem, way_out = "did not make these posteriors: its encoder is another", "name the run that did"
    require(run.fingerprint == embedded.fingerprint, "run", str(run.folder), problem, way_out)
    known = load_baselines(run.folder)
    if known is None:
        problem = "keeps no features of its training items: it was trained without baselines, or is a copy without them"
        reject("run", str(run.folder), problem, "train without --no-baselines")
    return run, known


def _queries(
    embedded: EmbeddedCollection, labels: Labels, asked: np.ndarray, known: Baselines | None, seed: int
) -> tuple[np.ndarray, Questions]:
    """New items as queries against training items that the run has kept, or against each other; and their numbers."""
    most = _MOST_QUERIES["features" if known is None else embedded.kind]
    grouping = evaluation_labels(labels, len(embedded.records))
    numbers = (
        _sample_groups(grouping, asked, most, seed) if grouping.kind == "groups" else sample_numbers(asked, most, seed)
    )
    q, own_labels = embedded.q[torch.as_tensor(numbers)], labels_at(grouping, numbers)
    if known is None or known.gallery is None or grouping.kind == "groups":
        return numbers, Questions(q, own_labels, q, own_labels, own=np.arange(len(numbers)))
    assert known.labels is not None
    return numbers, Questions(q, own_labels, known.gallery, known.labels, own=np.full(len(numbers), -1))


def _sample_groups(grouping: Labels, asked: np.ndarray, most: int, seed: int) -> np.ndarray:
    """Of the items `asked`, those of as many random groups as have at most `most` items."""
    group = grouping.values[asked]
    order = np.random.default_rng(seed).permutation(len(grouping.names))
    counts = np.bincount(group, minlength=len(grouping.names))
    enough = order[np.cumsum(counts[order]) <= most]
    return asked[np.isin(group, enough)] if len(asked) > most else asked


def _items(data: Collection | None, embedded: EmbeddedCollection, numbers: np.ndarray) -> Collection:
    """The items that were embedded, in the order of the posteriors. Those of these numbers must not have changed."""
    if data is None:
        require(embedded.source is not None, "data", None, "the file does not say what was embedded", "pass --data")
        data = read_collection(str(embedded.source), labels_optional=True, strict=False)
    _require_kind(data, embedded)
    data = _of_embedded(data, [record["id"] for record in embedded.records])
    _require_same_contents(data, embedded, numbers)
    return data


@torch.inference_mode()
def _rows(data: Collection, run: Run, known: Baselines, numbers: np.ndarray) -> torch.Tensor:
    """Features of some items as the run has got them, before its head: rows (n, K)."""
    if data.kind == "features":
        data = fitted(data, run)
        parts = []
        for start, stop in spans(0, len(data), 65_536):
            inside = numbers[(numbers >= start) & (numbers < stop)]
            if len(inside):
                parts.append(data.raw(start, stop)[inside - start])
        return known.rows(torch.from_numpy(np.concatenate(parts)))

    def item(number: int) -> Any:
        return data.raw(number, number + 1)[0]

    if known.inputs == "pixels":
        return known.rows(torch.stack(list(prefetched(lambda i: run.inputs.load(item(i)), numbers.tolist()))))
    assert isinstance(run.encoder.backbone, Chain)  # the network, then the head
    network = run.encoder.backbone.parts[0]
    if known.network is not None:
        problem, way_out = "was changed in training, and began as that of another run", "compare on the first run"
        require(known.network != "", "network", str(run.folder), problem, way_out)
        network, _ = load_pretrained(known.network, data.kind, run.inputs.size)
    blocks = [numbers[start:stop].tolist() for start, stop in spans(0, len(numbers), _AT_ONCE)]
    batches = prefetched(lambda block: run.inputs.prepare([item(i) for i in block]), blocks)
    return known.rows(torch.cat([network.eval()(batch) for batch in batches]))


def _require_kind(data: Collection, embedded: EmbeddedCollection) -> None:
    """Raise if other kinds of items were embedded. Those without names are told apart by their numbers alone."""
    problem = f"holds {data.kind}, and {embedded.kind} were embedded"
    require(data.kind == embedded.kind, "data", str(data.source), problem, "name the data that was embedded")


def _of_embedded(data: Collection, ids: list[Any]) -> Collection:
    """The items with these ids, in their order. Items that were left out of the embedding are left out here too."""
    found, way_out = data.ids(), "name the data that was embedded"
    # Earlier releases named rows by their numbers, also where a table has a column id.
    if found == ids or list(range(len(data))) == ids:
        return data
    problem = f"has {len(found)} items for {len(ids)} posteriors"
    require(data.kind != "features" and len(found) >= len(ids), "data", str(data.source), problem, way_out)
    number_of = {id: i for i, id in enumerate(found)}
    missing = [id for id in ids if id not in number_of]
    problem = f"holds other {'images' if data.kind == 'images' else 'items'} ({len(missing)} are not there)"
    require(not missing, "data", str(data.source), problem, way_out)
    return select_items(data, np.array([number_of[id] for id in ids], np.int64))


def _require_same_contents(data: Collection, embedded: EmbeddedCollection, numbers: np.ndarray) -> None:
    """Raise if some of these items are no longer what was embedded. Other programs do not say what that was."""
    if data.columns is not None or not all("content" in embedded.records[i] for i in numbers):
        return  # of a table, the run may have taken other columns
    now = item_digests(data)[numbers] if data.kind == "features" else item_digests(select_items(data, numbers))
    then = [embedded.records[i]["content"] for i in numbers]
    changed = sum(content_text(one) != other for one, other in zip(now.tolist(), then, strict=True))
    problem = f"{changed} of {len(numbers)} items have changed since they were embedded"
    require(not changed, "data", str(data.source), problem, "embed them again")


def _with_names(labels: Labels, names: tuple[str, ...]) -> Labels:
    """Classes or soft labels, with the classes in another order. All classes that occur must be among the names."""
    rows = label_rows(labels, names).numpy()
    return Labels(labels.kind, rows.argmax(1) if labels.kind == "classes" else rows.astype(np.float32), names)
