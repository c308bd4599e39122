"""Evaluate an embedded collection: without the items that the encoder was trained on, and beside rivals."""

from typing import Any

import numpy as np
import torch

from aleator.data import Inputs
from aleator.foundation import require, sample_numbers
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.contents import content_text, item_digests
from aleator.own_data.collection.labels import Labels
from aleator.own_data.collection.parts import can_be_evaluated, labels_at, select_items, select_labels
from aleator.own_data.collection.reading import read_collection
from aleator.own_data.collection.reading_ahead import prefetched, spans
from aleator.own_data.collection.used_items import CALIBRATION, TRAINING
from aleator.own_data.embedding.embedded import EmbeddedCollection
from aleator.own_data.measuring.answers import label_metrics, label_rows
from aleator.own_data.measuring.comparison import Items, compare_with_rivals
from aleator.own_data.measuring.evaluation import evaluate, evaluation_labels
from aleator.own_data.measuring.questions import Questions, held_out_questions

_SIDE = 32  # of the images that raw neighbours compare
_MOST = {"images": (1500, 4000), "features": (5000, 20_000), "text": (5000, 20_000)}  # questions, gallery


def evaluate_embedded(
    embedded: EmbeddedCollection,
    labels: Labels,
    *,
    data: Collection | None = None,
    rivals: bool = True,
    seed: int = 0,
) -> dict[str, Any]:
    """Evaluate posteriors against labels, as `evaluate` does, and compare them with rivals.

    Items that the encoder was trained or calibrated on are left out. Those that it was trained on are the gallery of
    the comparison, if there are any. If too few others remain, all are evaluated, without rivals, and the first note
    says that the encoder has seen them.

    Args:
        embedded: The posteriors and the records of their items.
        labels: Labels of the items.
        data: The items themselves, which the rivals need. Default: read from where they were embedded.
        rivals: Whether to compare with rivals.
        seed: Seed of everything random.

    Returns:
        What `evaluate` returns, and

        - what `label_metrics` returns, if the file has label probabilities
        - unlike: share of items that are unlike anything seen, if the file says it
        - left_out: numbers of items that were trained and calibrated on; None if that is not known
        - rivals: as `compare_with_rivals` returns it, unless it cannot be made
        - notes: sentences on what was left out or could not be done

    Raises:
        ValueError: If no two items share a label, or all do, or if `data` holds other items.

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
    asked, gallery = np.flatnonzero(used == ""), np.flatnonzero(used == TRAINING)
    notes: list[str] = []
    left_out: dict[str, int] | None = None
    if not embedded.marked:
        notes.append("which of the items were trained on is not known: the posteriors file does not say it")
    elif len(asked) < len(used):
        left_out = {name: int((used == name).sum()) for name in (TRAINING, CALIBRATION)}
        grouping = evaluation_labels(select_labels(labels, asked), len(asked)).hard() if len(asked) else None
        if grouping is None or not can_be_evaluated(grouping):
            seen = f"{len(used) - len(asked)} of {len(used)} items were trained on or calibrated on"
            notes.append(f"{seen}: the numbers are of items that the encoder has seen; no rivals")
            asked, gallery, left_out = np.arange(len(used)), gallery[:0], {TRAINING: 0, CALIBRATION: 0}
            rivals = False
        else:
            trained, calibrated = left_out.values()
            notes.append(f"left out: {trained} items that were trained on, {calibrated} of the calibration")
    else:
        left_out = {TRAINING: 0, CALIBRATION: 0}
    chosen = torch.as_tensor(asked)
    metrics = evaluate(
        embedded.q[chosen],
        select_labels(labels, asked),
        embedded.kernel,
        embedded.prior,
        maps=embedded.maps,
        questions=_questions(embedded, labels, asked, gallery, seed),
        seed=seed,
    )
    if model is not None:
        rows = label_rows(labels_at(labels, asked))
        metrics |= label_metrics(model.probabilities(embedded.q[chosen]), rows)
    if embedded.novelty is not None:
        metrics["unlike"] = (embedded.novelty[chosen] > 0).double().mean().item()
    metrics["left_out"] = left_out
    if rivals:
        comparison = _compare(embedded, labels, asked, gallery, data, seed, notes)
        if comparison is not None:
            metrics["rivals"] = comparison
    metrics["notes"] = notes
    return metrics


def _questions(
    embedded: EmbeddedCollection, labels: Labels, asked: np.ndarray, gallery: np.ndarray, seed: int
) -> Questions | None:
    """New items as questions against those that were trained on; None if there is no such gallery."""
    if not len(gallery) or labels.kind not in ("classes", "soft"):
        return None
    most_questions, most_gallery = _MOST["features"]
    asked, gallery = (sample_numbers(*part, seed) for part in ((asked, most_questions), (gallery, most_gallery)))
    q, items = (embedded.q[torch.as_tensor(numbers)] for numbers in (asked, gallery))
    return held_out_questions(q, asked, items, gallery, labels)


def _compare(
    embedded: EmbeddedCollection,
    labels: Labels,
    asked: np.ndarray,
    gallery: np.ndarray,
    data: Collection | None,
    seed: int,
    notes: list[str],
) -> dict[str, Any] | None:
    """The comparison with rivals.

    If nobody named the items, they are looked for where they were embedded. None, and a note, if they are no longer
    there.
    """
    named = data is not None
    try:
        if data is None:
            require(embedded.source is not None, "data", None, "the file does not say what was embedded", "pass --data")
            data = read_collection(str(embedded.source), labels_optional=True, strict=False)
        questions, items = _raw_items(data, embedded, labels, asked, gallery, seed)
    except (ValueError, OSError) as problem:
        if named:
            raise
        notes.append(f"no rivals: the items are not at hand ({problem})")
        return None
    assert questions is not None
    inputs = {"images": f"pixels, {_SIDE} x {_SIDE}", "features": "features", "text": "words"}[data.kind]
    has_labels = embedded.label_model is not None and labels.kind in ("classes", "soft")
    probabilities = embedded.label_model.probabilities(questions.q) if has_labels else None  # type: ignore[union-attr]
    return compare_with_rivals(questions, items, label_probabilities=probabilities, inputs=inputs, seed=seed)


def _raw_items(
    data: Collection, embedded: EmbeddedCollection, labels: Labels, asked: np.ndarray, gallery: np.ndarray, seed: int
) -> list[Items | None]:
    """The items that are asked about and those of the gallery, as the rivals see them; None where there are none."""
    _require_kind(data, embedded)
    data = _of_embedded(data, [record["id"] for record in embedded.records])
    most_questions, most_gallery = _MOST[data.kind]
    if labels.kind in ("groups", "pairs"):
        gallery = gallery[:0]
    sides: list[Items | None] = []
    for numbers, most in ((asked, most_questions), (gallery, most_gallery)):
        numbers = sample_numbers(numbers, most, seed)
        if not len(numbers):
            sides.append(None)
            continue
        _require_same_contents(data, embedded, numbers)
        sides.append(Items(_raw(data, numbers), embedded.q[torch.as_tensor(numbers)], labels_at(labels, numbers)))
    return sides


def _require_kind(data: Collection, embedded: EmbeddedCollection) -> None:
    """Raise if other kinds of items were embedded. Those without names are told apart by their numbers alone."""
    first = embedded.records[0]
    kind = "images" if "path" in first else "text" if "text" in first else "features"
    problem = f"holds {data.kind}, and {kind} were embedded"
    require(data.kind == kind, "data", str(data.source), problem, "name the data that was embedded")


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


def _raw(data: Collection, numbers: np.ndarray) -> torch.Tensor | list[str]:
    """Some items: images (n, 3, S, S) of uint8, features (n, F), or texts."""
    if data.kind == "text":
        return [str(data.items[i]) for i in numbers]
    if data.kind == "images":
        inputs = Inputs("images", size=_SIDE)
        return torch.stack(list(prefetched(lambda i: inputs.load(data.raw(i, i + 1)[0]), numbers.tolist())))
    blocks = []
    for start, stop in spans(0, len(data), 65_536):
        inside = numbers[(numbers >= start) & (numbers < stop)]
        if len(inside):
            blocks.append(data.raw(start, stop)[inside - start])
    return torch.from_numpy(np.concatenate(blocks))
