"""`audit`: look for label errors, near duplicates, confused classes and odd items in a collection.

The features of the items decide. Labels are judged out of sample, see `aleator.evaluation.label_errors`: the heads that
judge a label have not seen it, nor copies of the item.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aleator.evaluation import (
    HeadSettings,
    LabelErrors,
    choose_head_settings,
    confused_classes,
    deal_into_folds,
    duplicate_ratio,
    intrinsic_dimension,
    judge_labels,
    linked_groups,
    near_duplicates,
    neighbour_graph,
    oddness,
    standardise,
)
from aleator.foundation import CountBar, describe_run, lock_beside, only_process, require, resolve_device
from aleator.own_data.auditing.features import AuditFeatures, audit_features
from aleator.own_data.auditing.files import FAR, MANY_TIMES, Audit, claim_audit_folder, write_audit
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.contents import item_digests
from aleator.own_data.collection.labels import Labels
from aleator.own_data.collection.left_out import describe_left_out, leave_out
from aleator.own_data.measuring.answers import label_rows
from aleator.own_data.runs.run import Run

NEIGHBOURS = 30
_FEWEST_ITEMS = 20


def audit(
    collection: Collection,
    output: str | Path,
    *,
    run: Run | None = None,
    features: str | Path | None = None,
    folds: int = 5,
    seed: int = 0,
    device: str = "auto",
    strict: bool = True,
    progress: bool | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> Audit:
    """Look for label errors, near duplicates, confused classes and odd ones out, and write what was found.

    The folder gets label_errors.csv, near_duplicates.csv, confused_classes.csv, odd_ones.csv, summary.json and, for
    images, figures/. A stopped audit is resumed by the same call.

    Args:
        collection: The items. Labels that are classes or soft are judged; others are not.
        output: A new folder.
        run: A trained run. Its network gives the features: of a pretrained network, those before the trained head.
        features: A .npy file of features (N, F), in place of a run. A collection of features needs neither.
        folds: Number of folds of the cross-fitting.
        seed: Seed of folds and heads.
        device: "auto", "cpu", "cuda" or "cuda:1", for example.
        strict: Whether items that cannot be read are an error, which lists them all. If not, they are left out, and the
            log lists them.
        progress: Whether to show progress bars. Default: on a terminal.
        log: Called with each line of the log, such as `print`.

    Returns:
        What was found.

    Raises:
        ValueError: If there are no features, too few items, or if `output` holds something else.

    Examples:
        >>> import numpy as np
        >>> from aleator.own_data import audit, read_collection
        >>> generator = np.random.default_rng(0)
        >>> classes = np.arange(60) % 3
        >>> np.save("x.npy", np.eye(3)[classes] + 0.1 * generator.standard_normal((60, 3)))
        >>> classes[7] = 0  # was 1
        >>> np.save("y.npy", classes)
        >>> found = audit(read_collection("x.npy", "y.npy"), "audit", device="cpu", progress=False)
        >>> int(found.label_errors.order()[0]), int(found.label_errors.likelier[7])
        (7, 1)
    """
    began = time.time()
    output = Path(output).expanduser()
    way_out = f"audit {_FEWEST_ITEMS} or more"
    require(len(collection) >= _FEWEST_ITEMS, "data", len(collection), "too few items to compare", way_out)
    with only_process(lock_beside(output), "output", "audit"):
        cache = claim_audit_folder(output, collection, run, features)
        chosen_device = resolve_device(device)
        digests = item_digests(collection, progress)
        found = audit_features(collection, run, features, cache, digests, chosen_device, progress, strict, log)
        collection, digests = leave_out(collection, found.problems), np.delete(digests, list(found.problems))
        report = describe_left_out(collection)
        if report:
            log(report)
        if collection.labels is not None and _judged(collection) is None:
            log(f"The labels are {collection.labels.kind}, which are not judged: only classes and soft labels are.")
        elif found.saw_labels:
            log(
                "The network of this run learned from labels. If it learned from these, it may know wrong ones by "
                "heart, and they are not found; features of a network that did not see them find more."
            )
        result = find_problems(
            collection, found, digests, folds=folds, seed=seed, device=chosen_device, progress=progress, log=log
        )
        result.summary["provenance"] = describe_run(began, chosen_device)
        write_audit(output, result)
        return result


def find_problems(
    collection: Collection,
    given: AuditFeatures,
    digests: np.ndarray,
    *,
    folds: int = 5,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: bool | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> Audit:
    """The audit without files: from features, and the digests of the items (N,), to what is wrong."""
    labels = _judged(collection)
    targets = None if labels is None else label_rows(labels).float().to(device)
    features = given.rows.to(device)
    settings = HeadSettings(False, 1e-2) if targets is None else choose_head_settings(features, targets, seed)
    neighbours = neighbour_graph(standardise(features, settings.each), min(NEIGHBOURS, len(collection) - 1))
    ratio = duplicate_ratio(neighbours)
    same = equal_contents(digests)
    pairs = np.concatenate([near_duplicates(neighbours, ratio), same])
    group = linked_groups(pairs, len(collection))
    duplicates = _groups(group)
    odd = oddness(neighbours)
    summary: dict[str, Any] = {
        "items": len(collection),
        "kind": collection.kind,
        "source": str(collection.source),
        "features": given.describe(),
        "near_duplicates": {
            "groups": len(duplicates),
            "items": sum(len(members) for members in duplicates),
            "same_content": len(np.unique(same)),
            "distance_ratio": ratio,
            "intrinsic_dimension": intrinsic_dimension(neighbours),
        },
        "odd_ones": {"more_than_twice_the_usual_distance": int((odd > FAR).sum())},
    }
    errors, confusions = None, []
    if labels is not None and targets is not None:
        classes = labels.hard()
        assert classes is not None
        fold = deal_into_folds(classes, folds, group, seed)
        with CountBar("judging labels", 2 * folds, 0, progress) as bar:
            errors = judge_labels(
                features,
                targets,
                neighbours,
                fold,
                groups=group,
                settings=settings,
                seed=seed,
                done=lambda: bar.advance(1),
            )
        confusions = confused_classes(errors, classes)
        summary["near_duplicates"]["groups_with_different_labels"] = sum(
            len(set(classes[list(members)].tolist())) > 1 for members in duplicates
        )
        summary["label_errors"] = _error_summary(errors, classes, labels, folds, settings)
        log(
            f"{summary['label_errors']['likely']} of {len(collection)} labels are likely wrong: "
            f"another one is at least {MANY_TIMES} times as probable"
        )
    return Audit(
        collection,
        digests,
        errors,
        confusions,
        duplicates,
        frozenset(same.reshape(-1).tolist()),
        odd,
        neighbours,
        summary,
    )


def _judged(collection: Collection) -> Labels | None:
    """The labels, if they are of a kind that is judged."""
    labels = collection.labels
    return labels if labels is not None and labels.kind in ("classes", "soft") else None


def equal_contents(digests: np.ndarray) -> np.ndarray:
    """Pairs of items with the same content, shape (P, 2): equal digests (N,)."""
    _, first, number = np.unique(digests, return_index=True, return_inverse=True)
    earlier = first[number.reshape(-1)]
    later = np.flatnonzero(earlier != np.arange(len(digests)))
    return np.stack([earlier[later], later], 1)


def _groups(group: np.ndarray) -> list[tuple[int, ...]]:
    """Groups of two items or more, the largest first."""
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    members = [tuple(part.tolist()) for part in np.split(order, starts[1:])]
    return sorted((part for part in members if len(part) > 1), key=len, reverse=True)


def _error_summary(
    errors: LabelErrors, classes: np.ndarray, labels: Labels, folds: int, settings: HeadSettings
) -> dict[str, Any]:
    judged = np.isfinite(errors.score)
    return {
        "classes": len(labels.names),
        "likely": int((errors.score > np.log(MANY_TIMES)).sum()),
        "another_label_is_likelier": int((errors.score > 0).sum()),
        "not_judged": int((~judged).sum()),
        "folds": folds,
        "scaled_each_feature": settings.each,
        "penalty": settings.penalty,
        "accuracy_out_of_sample": float((errors.probabilities.argmax(1) == classes).mean()),
        "log_likelihood_out_of_sample": errors.judges,
        "weights": errors.weights,
    }
