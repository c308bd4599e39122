"""Train on a labelled collection: choose settings, train, calibrate, evaluate on held-out items, write a run folder.

The same call with the same folder resumes a run that was stopped. It does nothing if the run is finished.
"""

import contextlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from aleator.evaluation import MatchCalibration
from aleator.foundation import (
    ProcessGroup,
    describe_run,
    digest,
    is_whole,
    lock_beside,
    only_process,
    preserved_randomness,
    process_group,
    read_json,
    require,
    require_new_folder,
    resolve_device,
    sample_numbers,
    using_contents,
    write_json,
)
from aleator.losses import PrototypeLoss
from aleator.matching import MatchMaps, VMFKernel
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.contents import item_digests
from aleator.own_data.collection.labels import Labels
from aleator.own_data.collection.left_out import describe_left_out, leave_out, record_left_out
from aleator.own_data.collection.number_tables import with_columns
from aleator.own_data.collection.parts import Split, select_labels
from aleator.own_data.collection.used_items import learned_elsewhere, save_used_items
from aleator.own_data.learning.continuing import continued_settings, seen_items, start_classes
from aleator.own_data.learning.defaults import AUTO, Settings, choose_settings, held_out_share
from aleator.own_data.learning.encoding import encode_items
from aleator.own_data.learning.held_out_comparison import compare_held_out
from aleator.own_data.learning.mode_trial import try_modes
from aleator.own_data.learning.preparation import Job, PreparedTraining, prepare
from aleator.own_data.learning.recipe import learned_labels, train_encoder
from aleator.own_data.learning.splits import (
    allowed_share,
    describe_copies,
    describe_few_groups,
    describe_single_items,
    require_trainable,
    split_items,
)
from aleator.own_data.learning.time_limit import limit_time
from aleator.own_data.learning.tuning import TunedTraining, tune_network
from aleator.own_data.measuring.answers import fit_answers, gallery_sample
from aleator.own_data.measuring.encoded_items import EncodedItems
from aleator.own_data.measuring.evaluation import calibrate_on_labels, evaluate, evaluation_labels
from aleator.own_data.measuring.questions import Questions, fit_match_maps, held_out_questions
from aleator.own_data.runs.run import Run, load_run, save_run
from aleator.training import last_saved_step

Log = Callable[[str], None]

_SEEDS = 2**63  # torch takes no larger ones
# Most held-out items and training items that calibrate match probabilities. The first hits of a large gallery are
# nearer than those of a small one, so the gallery should be whole; but encoding many images takes minutes.
_QUERIES, _GALLERY, _GALLERY_OF_IMAGES = 2_000, 50_000, 10_000
_HEAD_SHARE = 0.25  # of the minutes for learning that a head gets before its network is tuned


def train(
    collection: Collection,
    folder: str | Path,
    settings: Settings = Settings(),  # noqa: B008 (it is frozen)
    *,
    device: str = "auto",
    baselines: bool = True,
    strict: bool = True,
    figures: bool = True,
    progress: bool | None = None,
    log: Log = lambda line: None,
    began: float | None = None,
) -> Run:
    """Train an encoder on a labelled collection and write a run folder.

    A part of the items is held out. Half of it calibrates match and label probabilities, the other half evaluates
    them. Then both halves calibrate those that the run keeps. Under torchrun several processes train one encoder.

    Args:
        collection: Items with labels.
        folder: The run folder: a new folder, or that of the same run, which is then resumed.
        settings: How to train. Settings that are None are chosen from the data.
        device: "auto", "cpu", "cuda" or "cuda:1", for example.
        baselines: Whether to compare the result with what its features can do without it, see `compare_with_baselines`,
            and to keep in the run what `evaluate` needs to compare it on new items, at most about 70 MB.
        strict: Whether items that cannot be read are an error, which lists them all. If not, they are left out, and the
            log lists them.
        figures: Whether to draw figures of the metrics.
        progress: Whether to show progress bars. Default: on a terminal.
        log: Called with each line of the log, such as `print`.
        began: From when the minutes of the settings count, by `time.time`. Default: now.

    Returns:
        The finished run.

    Raises:
        ValueError: If nothing can be learned from the collection, an item is damaged, or the folder belongs to
            something else.

    Examples:
        >>> import numpy as np
        >>> from aleator.own_data import Settings, read_collection, train
        >>> np.save("x.npy", np.random.default_rng(0).standard_normal((80, 3)))
        >>> np.save("y.npy", np.arange(80) % 2)
        >>> run = train(read_collection("x.npy", "y.npy"), "run", Settings(steps=1, width=8), device="cpu")
        >>> run.metrics["items"], run.encoder.dim
        (8, 8)
    """
    began = time.time() if began is None else began
    folder = Path(folder).expanduser()
    torch_device = resolve_device(device)  # one that is not there is refused before any work
    gpu = torch_device.type == "cuda"
    in_range = is_whole(settings.seed, 0) and settings.seed < _SEEDS
    require(in_range, "seed", settings.seed, "not a whole number from 0 to 2^63 - 1", "pass for example 0")
    a_share = settings.holdout is None or isinstance(settings.holdout, Real)
    require(a_share, "holdout", settings.holdout, "is not a number", "pass for example 0.2")
    labels = require_trainable(collection)
    if settings.start is not None:
        there = Path(settings.start).expanduser().is_dir()
        require(there, "start", settings.start, "there is no such folder", "name one that `aleator train` made")
    first = None if settings.start is None else load_run(settings.start)
    if first is not None:
        collection = with_columns(collection, first.columns)
    requested = json.loads(json.dumps(vars(settings)))
    digests = item_digests(collection, progress)
    data = _describe(collection, labels, digests)
    if first is not None:
        data["start"] = first.fingerprint
    if _is_finished(folder, requested, data):
        log(f"{folder} is finished already")
        return load_run(folder)
    seen = None if first is None else seen_items(first, digests)
    notes = [*collection.notes, describe_single_items(labels)]
    holdout = settings.holdout
    if holdout is None:
        usual = held_out_share(len(collection))
        holdout = allowed_share(collection, labels, usual, settings.seed, seen, digests)
        if holdout > usual:
            notes.append(f"holdout = {holdout:g}: {usual:.2g} would leave too few classes or groups to test")
        settings = replace(settings, holdout=holdout)
    if first is not None:
        settings = continued_settings(settings, first, collection)

    split = split_items(collection, labels, holdout, settings.seed, seen, digests)
    grouping = evaluation_labels(labels, len(collection))
    notes += [describe_copies(digests, split), describe_few_groups(grouping, split)]
    others = 0 if first is None else learned_elsewhere(first.folder, digests[split.train])
    if others and baselines:
        baselines = False
        notes.append(f"no baselines: {settings.start} learned from {others} items that are not learned from here")
    complete_settings, choices = choose_settings(collection, labels, len(split.train), settings, gpu)
    identity = {name: value for name, value in data.items() if name != "source"}  # the files may be moved
    config: dict[str, Any] = {
        "settings": dict(complete_settings),
        "chosen": [choice.name for choice in choices],
        "requested": requested,
        "data": data,
    }
    with process_group() as group, preserved_randomness(torch_device), contextlib.ExitStack() as held:
        if group.first:
            held.enter_context(only_process(lock_beside(folder), "output", "train"))
        if _claim_folder(folder, config, group):
            log(f"{folder} is finished already")
            return load_run(folder)
        if group.first:
            log(_summary(collection, labels, split))
            for note in filter(None, notes):
                log(note)
            for choice in choices:
                log(f"{choice.name} = {choice.value}: {choice.reason}")
            if first is not None:
                log(_continued(first, labels, seen))
            done = last_saved_step(folder / "training")
            if done is not None:
                log(f"goes on: {folder} holds the training up to step {done}")
        job = Job(folder, group, device, progress, log, strict, began)
        start = None if first is None else (first.encoder, first.inputs)
        modes_are_open = complete_settings["modes"] == AUTO
        complete_settings |= {"modes": 1} if modes_are_open else {}
        training = prepare(collection, complete_settings, job, start)
        if group.first:
            record_left_out(folder, [*collection.problems, *training.problems.values()])
        if training.problems:
            collection = leave_out(collection, training.problems)
            labels = require_trainable(collection)
            digests = np.delete(digests, list(training.problems))
            seen = None if first is None else seen_items(first, digests)
            split = split_items(collection, labels, holdout, settings.seed, seen, digests)
            grouping = evaluation_labels(labels, len(collection))
            if settings.batch_size is None:  # it was chosen for all items
                complete_settings["batch_size"] = min(complete_settings["batch_size"], len(split.train))
        report = describe_left_out(collection)
        if report and group.first:
            log(report)
        if modes_are_open:
            tried = try_modes(training, labels, split, complete_settings, job, identity)
            complete_settings["modes"], training = tried
        given = training  # what the baselines get: pixels, or features

        seed, tuned = complete_settings["seed"], complete_settings["tune"] is not None

        def begin(loss: PrototypeLoss, own_labels: Labels) -> None:
            start_classes(loss, given, own_labels, split, settings.seed)

        def items_to_evaluate(learns_from_pixels: bool) -> tuple[np.ndarray, np.ndarray]:
            gallery = sample_numbers(split.train, _GALLERY_OF_IMAGES if learns_from_pixels else _GALLERY, seed)
            return gallery, np.unique(_looked_at(labels, split, gallery, seed))

        evaluated = len(items_to_evaluate(training.learns_from_pixels)[1]) + len(split.calibration)
        share = _HEAD_SHARE if tuned else 1.0
        limit = limit_time("training", training, evaluated, complete_settings, job, share)
        _, loss = train_encoder(
            training, labels, split, complete_settings, job, identity, None if first is None else begin, limit
        )
        if tuned:
            evaluated = len(items_to_evaluate(collection.kind == "images")[1]) + 2 * len(split.calibration)
            training, loss = tune_network(
                training, loss, collection, labels, split, complete_settings, job, identity, evaluated
            )
        learned = learned_labels(loss, labels, split)
        if group.first:
            few_groups = describe_few_groups(grouping, split)
            calibration = MatchCalibration(VMFKernel(complete_settings["kappa_pos"]))
            if not few_groups:
                calibration = _calibrate_kappa(training, labels, split, complete_settings)
            kernel = VMFKernel(calibration.kappa_pos)
            gallery, looked_at = items_to_evaluate(training.learns_from_pixels)
            encoded = encode_items(training, looked_at)
            prior, maps, metrics = _fit_and_measure_matches(
                encoded, grouping, split, gallery, kernel, seed, calibrated=not few_groups
            )
            if few_groups:
                metrics["notes"].insert(0, few_groups)
            else:
                log(
                    f"calibrated on {len(split.calibration) + len(split.test)} held-out items: "
                    f"kappa x {calibration.kappa_scale:.2f}, kappa_pos {calibration.kappa_pos:.3g} for match "
                    f"probabilities, {prior:.3g} of random pairs match"
                )
            answers, tested, label_metrics = fit_answers(encoded, collection, labels, split, kernel, seed, learned)
            metrics |= label_metrics
            kept = None
            if baselines:
                tuned_from = complete_settings["backbone"] if first is None else ""
                new = split.test[~np.isin(digests[split.test], digests[split.train])]
                metrics["baselines"], kept = compare_held_out(
                    given,
                    encoded,
                    grouping,
                    split,
                    sample_numbers(new, _QUERIES, seed),
                    gallery,
                    tested,
                    tuned_from if isinstance(training, TunedTraining) else None,
                    seed,
                )
            match = {"kappa_pos": calibration.kappa_pos, "prior": prior, "maps": maps.to_dict()}
            save_used_items(folder, digests, split, None if first is None else first.folder)
            metrics["provenance"] = describe_run(began, next(training.encoder.parameters()).device)
            config["settings"] = complete_settings  # with the number of steps
            save_run(
                folder, training.complete_encoder(), training.inputs, config, metrics, match, answers, figures, kept
            )
            for part in ("training", "tuning"):  # RUN/encoder is the complete one
                shutil.rmtree(folder / part / "encoder", ignore_errors=True)
            shutil.rmtree(folder / "cache", ignore_errors=True)
        group.wait()
    return load_run(folder)


def _calibrate_kappa(
    training: PreparedTraining, labels: Labels, split: Split, settings: dict[str, Any]
) -> MatchCalibration:
    """Scale the kappa of the encoder so that it is right on one half of the held-out items."""
    q, own = training.posteriors(split.calibration), select_labels(labels, split.calibration)
    calibration = calibrate_on_labels(q, own, VMFKernel(settings["kappa_pos"]), settings["seed"])
    training.encoder.scale_kappa(calibration.kappa_scale)
    return calibration


def _looked_at(labels: Labels, split: Split, gallery: np.ndarray, seed: int) -> np.ndarray:
    """Numbers of all items whose posteriors are needed after training."""
    sample = gallery_sample(labels, split.train, seed)
    return np.concatenate([sample, gallery, split.calibration, split.test])


def _fit_and_measure_matches(
    encoded: EncodedItems,
    grouping: Labels,
    split: Split,
    gallery_numbers: np.ndarray,
    kernel: VMFKernel,
    seed: int,
    calibrated: bool,
) -> tuple[float, MatchMaps, dict[str, Any]]:
    """Fit match probabilities on one half of the held-out items and evaluate the other half; then fit on both.

    Both halves are asked against training items, as the new items of a user will be. Unless `calibrated`, the prior
    alone is measured, and no map is fitted.

    Returns:
        Prior and maps of match probabilities, from all held-out items; and the metrics, from the first fit.
    """
    gallery = encoded.posteriors(gallery_numbers)

    def ask(part: np.ndarray) -> Questions:
        numbers = sample_numbers(part, _QUERIES, seed)
        return held_out_questions(encoded.posteriors(numbers), numbers, gallery, gallery_numbers, grouping)

    def fitted(queries: Questions) -> MatchMaps:
        return fit_match_maps(queries, kernel, seed) if calibrated else MatchMaps()

    queries = ask(split.calibration)
    metrics = evaluate(
        encoded.posteriors(split.test),
        select_labels(grouping, split.test),
        kernel,
        queries.prior,
        maps=fitted(queries),
        questions=ask(split.test),
        seed=seed,
    )
    queries = ask(np.concatenate([split.calibration, split.test]))
    return queries.prior, fitted(queries), metrics


def _describe(collection: Collection, labels: Labels, digests: np.ndarray) -> dict[str, Any]:
    """What identifies the data: a run is resumed with the same data only. Names of items decide nothing."""
    return {
        "source": str(collection.source),
        "kind": collection.kind,
        "items": len(collection),
        "contents": digest(digests),
        "labels": labels.kind,
        "labels_digest": digest(list(labels.names), np.ascontiguousarray(labels.values)),
        "classes": list(labels.names) if labels.kind != "groups" else len(labels.names),
        **({} if collection.columns is None else {"columns": collection.columns}),
    }


def _is_finished(folder: Path, requested: dict[str, Any], data: dict[str, Any]) -> bool:
    """Whether a folder holds the finished run of this very command.

    Where it is False, `_claim_folder` decides: other requests may lead to the same settings.
    """
    path, way_out = folder / "config.json", "train in a new folder"
    if not path.is_file() or not (folder / "metrics.json").is_file():
        return False
    with using_contents(path, way_out):
        stored = read_json(path, way_out)
        return stored.get("requested") == requested and not _different("data", stored, {"data": data})


def _claim_folder(folder: Path, config: dict[str, Any], group: ProcessGroup) -> bool:
    """Write config.json into a new folder, or check that the folder belongs to this run.

    Returns:
        Whether the run is finished.
    """
    path = folder / "config.json"
    if not path.is_file():
        require_new_folder("output", folder)
        write = True
    else:
        way_out = "train in a new folder"
        with using_contents(path, way_out):
            different = _differences(read_json(path, way_out), json.loads(json.dumps(config)))
        # Before the first step there is nothing to lose: the same folder may start again with corrected data.
        # A folder with metrics, and without the steps, holds a model that was copied or saved.
        finished = (folder / "metrics.json").exists()
        continuing = f"; --from {folder} continues it in a new folder" if finished else ""
        untrained = not (folder / "training").exists() and not finished
        require(
            untrained or not different,
            "output",
            str(folder),
            f"belongs to another run ({different})",
            "name a new folder, or repeat the command that started it" + continuing,
        )
        write = bool(different)
        if write and group.first:
            shutil.rmtree(folder / "cache", ignore_errors=True)
            (folder / "training_minutes.json").unlink(missing_ok=True)
            (folder / "modes.json").unlink(missing_ok=True)
    group.wait()
    if write and group.first:
        write_json(path, config)
    group.wait()
    return (folder / "metrics.json").is_file()


def _differences(stored: dict[str, Any], config: dict[str, Any]) -> str:
    """What differs: names of settings, and the data, which may have moved to another path; empty if nothing does."""
    settings, data = (_different(part, stored, config) for part in ("settings", "data"))
    before, now = stored["data"].get("items"), config["data"]["items"]
    counts = f": {before} items then, {now} now" if before != now else ""
    said = [f"other {', '.join(settings)}"] if settings else []
    return "; ".join(said + [f"its data were others{counts}"] * bool(data))


def _different(part: str, stored: dict[str, Any], config: dict[str, Any]) -> list[str]:
    """The names of `_differences` in one part: "settings" or "data"."""
    before = stored[part]
    return [
        name
        for name, value in config[part].items()
        if name != "source" and before.get(name) != value and not _measured(name, value)
    ]


def _measured(name: str, value: Any) -> bool:
    """Whether a setting is found in training: modes, and the number of steps that fit into the time."""
    return (name in ("steps", "tune_steps") and value is None) or (name == "modes" and value == AUTO)


def _continued(first: Run, labels: Labels, seen: np.ndarray | None) -> str:
    """Line of the log about the run that is continued."""
    new = [name for name in labels.names if name not in first.label_names] if first.label_names else []
    classes = f"; new classes: {', '.join(new[:8])}{', ...' if len(new) > 8 else ''}" if new else ""
    if seen is None:
        return f"continues {first.folder}, which does not say what it was trained on{classes}"
    return f"continues {first.folder}, which was trained on {int(seen.sum())} of {len(seen)} items{classes}"


def _summary(collection: Collection, labels: Labels, split: Split) -> str:
    """First line of the log."""
    labelled = {
        "classes": f"{len(labels.names)} classes",
        "groups": f"{len(labels.names)} groups",
        "soft": f"probabilities of {len(labels.names)} classes",
        "pairs": f"{len(labels.values)} pairs",
    }[labels.kind]
    held_out = len(np.setdiff1d(np.concatenate([split.calibration, split.test]), split.train))
    files = "other file is" if collection.ignored == 1 else "other files are"
    ignored = f"; {collection.ignored} {files} ignored" if collection.ignored else ""
    items = {"features": "rows of features", "text": "texts"}.get(collection.kind, collection.kind)
    return f"{len(collection)} {items}, {labelled}; {held_out} are held out{ignored}"
