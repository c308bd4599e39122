"""Train on a labelled collection: read it, plan, learn, calibrate and measure on held-out items, write a run folder.

The same call with the same folder resumes a run that was stopped. It does nothing if the run is finished.
"""

import contextlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aleator.evaluation import LabelModel, MatchCalibration
from aleator.foundation import (
    ProcessGroup,
    describe_run,
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
from aleator.own_data.collection.labels import Labels
from aleator.own_data.collection.left_out import describe_left_out, record_left_out
from aleator.own_data.collection.parts import Split, select_labels
from aleator.own_data.collection.used_items import learned_elsewhere, save_used_items
from aleator.own_data.learning.continuing import start_classes
from aleator.own_data.learning.defaults import AUTO, Settings
from aleator.own_data.learning.encoding import encode_items
from aleator.own_data.learning.held_out_comparison import compare_held_out
from aleator.own_data.learning.mode_trial import try_modes
from aleator.own_data.learning.plan import Plan, TrainingData, make_plan, run_to_continue
from aleator.own_data.learning.preparation import Job, PreparedTraining, prepare
from aleator.own_data.learning.recipe import learned_labels, train_encoder
from aleator.own_data.learning.splits import describe_few_groups
from aleator.own_data.learning.time_limit import limit_time
from aleator.own_data.learning.tuning import TunedTraining, tune_network
from aleator.own_data.measuring.answers import Answers, fit_answers, gallery_sample
from aleator.own_data.measuring.baselines import Baselines
from aleator.own_data.measuring.encoded_items import EncodedItems
from aleator.own_data.measuring.evaluation import calibrate_on_labels, evaluate
from aleator.own_data.measuring.questions import Questions, fit_match_maps, held_out_questions
from aleator.own_data.runs.run import Run, load_run, save_run
from aleator.training import last_saved_step

Log = Callable[[str], None]

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
    data = TrainingData.read(collection, run_to_continue(settings), progress)
    requested = json.loads(json.dumps(vars(settings)))
    described = data.describe()
    if _is_finished(folder, requested, described):
        log(f"{folder} is finished already")
        return load_run(folder)
    plan = make_plan(data, settings, gpu=torch_device.type == "cuda")
    config = {
        "settings": vars(plan.settings),
        "chosen": [choice.name for choice in plan.choices],
        "requested": requested,
        "data": described,
    }
    with process_group() as group, preserved_randomness(torch_device), contextlib.ExitStack() as held:
        if group.first:
            held.enter_context(only_process(lock_beside(folder), "output", "train"))
        if _claim_folder(folder, config, group):
            log(f"{folder} is finished already")
            return load_run(folder)
        job = Job(folder, group, device, progress, log if group.first else lambda line: None, strict, began)
        _log_plan(plan, job)
        others = _learned_elsewhere(plan)
        if baselines and others:
            job.log(f"no baselines: {settings.start} learned from {others} items that are not learned from here")
        learned = _learn(plan, job)
        if group.first:
            calibrated = _calibrate(learned, job, baselines and not others)
            _save(learned, calibrated, job, config, figures)
        group.wait()
    return load_run(folder)


@dataclass(frozen=True)
class _Learned:
    """What was learned.

    Args:
        plan: The plan as it was followed: without items that could not be read, with the number of steps.
        given: The items as they came: pixels, or features. Baselines get the same.
        training: The items and the trained encoder.
        labels: Label probabilities by the learned class posteriors, if there are classes.
    """

    plan: Plan
    given: PreparedTraining
    training: PreparedTraining
    labels: LabelModel | None


@dataclass(frozen=True)
class _Calibrated:
    """What calibration and measurement on held-out items gave: the parts of a run folder beside the encoder."""

    match: dict[str, Any]
    answers: Answers
    metrics: dict[str, Any]
    baselines: Baselines | None


def _learn(plan: Plan, job: Job) -> _Learned:
    """Read the items, and train the encoder."""
    first, modes_are_open = plan.data.first, plan.settings.modes == AUTO
    plan = plan.changed(modes=1) if modes_are_open else plan
    start = None if first is None else (first.encoder, first.inputs)
    given = prepare(plan.data.collection, plan.settings, job, start)
    if job.group.first:
        record_left_out(job.folder, [*plan.data.collection.problems, *given.problems.values()])
    plan = plan.without(given.problems)
    report = describe_left_out(plan.data.collection)
    if report:
        job.log(report)
    if modes_are_open:
        plan, given = try_modes(given, plan, job)
    tuned = plan.settings.tune is not None

    def begin(loss: PrototypeLoss, own_labels: Labels) -> None:
        start_classes(loss, given, own_labels, plan.split, plan.settings.seed)

    evaluated = len(_looked_at(plan, given.learns_from_pixels)) + len(plan.split.calibration)
    limit = limit_time("training", given, evaluated, plan.settings, job, _HEAD_SHARE if tuned else 1.0)
    steps, loss = train_encoder(given, plan, job, None if first is None else begin, limit)
    training = given
    plan = plan.changed(steps=plan.settings.steps or steps)
    if tuned:
        evaluated = len(_looked_at(plan, plan.data.collection.kind == "images")) + 2 * len(plan.split.calibration)
        steps, training, loss = tune_network(training, loss, plan, job, evaluated)
        plan = plan.changed(tune_steps=plan.settings.tune_steps or steps)
    return _Learned(plan, given, training, learned_labels(loss, plan.data.labels, plan.split))


def _calibrate(learned: _Learned, job: Job, with_baselines: bool) -> _Calibrated:
    """Scale kappa, fit match and label probabilities and novelty, and measure them, all on held-out items."""
    plan, training = learned.plan, learned.training
    data, split, settings, seed = plan.data, plan.split, plan.settings, plan.settings.seed
    grouping = data.grouping
    few_groups = describe_few_groups(grouping, split)
    calibration = MatchCalibration(VMFKernel(settings.kappa_pos))
    if not few_groups:
        q, own = training.posteriors(split.calibration), select_labels(data.labels, split.calibration)
        calibration = calibrate_on_labels(q, own, VMFKernel(settings.kappa_pos), seed)
        training.encoder.scale_kappa(calibration.kappa_scale)
    kernel = VMFKernel(calibration.kappa_pos)
    gallery = _gallery(plan, training.learns_from_pixels)
    encoded = encode_items(training, _looked_at(plan, training.learns_from_pixels))
    prior, maps, metrics = _fit_and_measure_matches(
        encoded, grouping, split, gallery, kernel, seed, calibrated=not few_groups
    )
    if few_groups:
        metrics["notes"].insert(0, few_groups)
    else:
        job.log(
            f"calibrated on {len(split.calibration) + len(split.test)} held-out items: "
            f"kappa x {calibration.kappa_scale:.2f}, kappa_pos {calibration.kappa_pos:.3g} for match "
            f"probabilities, {prior:.3g} of random pairs match"
        )
    answers, tested, label_metrics = fit_answers(
        encoded, data.collection, data.labels, split, kernel, seed, learned.labels
    )
    metrics |= label_metrics
    baselines = None
    if with_baselines:
        tuned_from = settings.backbone if data.first is None else ""
        new = split.test[~np.isin(data.digests[split.test], data.digests[split.train])]
        metrics["baselines"], baselines = compare_held_out(
            learned.given,
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
    return _Calibrated(match, answers, metrics, baselines)


def _save(learned: _Learned, calibrated: _Calibrated, job: Job, config: dict[str, Any], figures: bool) -> None:
    """Write the run folder, and remove what only an unfinished training needs."""
    plan, training, folder = learned.plan, learned.training, job.folder
    save_used_items(folder, plan.data.digests, plan.split, None if plan.data.first is None else plan.data.first.folder)
    provenance = describe_run(job.began, next(training.encoder.parameters()).device)
    save_run(
        folder,
        training.complete_encoder(),
        training.inputs,
        config | {"settings": vars(plan.settings)},  # with the number of steps
        calibrated.metrics | {"provenance": provenance},
        calibrated.match,
        calibrated.answers,
        figures,
        calibrated.baselines,
    )
    for part in ("training", "tuning"):  # RUN/encoder is the complete one
        shutil.rmtree(folder / part / "encoder", ignore_errors=True)
    shutil.rmtree(folder / "cache", ignore_errors=True)


def _gallery(plan: Plan, learns_from_pixels: bool) -> np.ndarray:
    """Numbers of the training items that held-out items are compared with."""
    most = _GALLERY_OF_IMAGES if learns_from_pixels else _GALLERY
    return sample_numbers(plan.split.train, most, plan.settings.seed)


def _looked_at(plan: Plan, learns_from_pixels: bool) -> np.ndarray:
    """Numbers of all items whose posteriors are needed after training."""
    sample = gallery_sample(plan.data.labels, plan.split.train, plan.settings.seed)
    gallery = _gallery(plan, learns_from_pixels)
    return np.unique(np.concatenate([sample, gallery, plan.split.calibration, plan.split.test]))


def _learned_elsewhere(plan: Plan) -> int:
    """How many items the first run learned from that this one does not learn from; baselines would know less."""
    first, data = plan.data.first, plan.data
    return 0 if first is None else learned_elsewhere(first.folder, data.digests[plan.split.train])


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


def _log_plan(plan: Plan, job: Job) -> None:
    """Say what is about to be done, and why."""
    first = plan.data.first
    job.log(_summary(plan.data.collection, plan.data.labels, plan.split))
    for note in plan.notes:
        job.log(note)
    for choice in plan.choices:
        job.log(f"{choice.name} = {choice.value}: {choice.reason}")
    if first is not None:
        job.log(_continued(first, plan.data.labels, plan.data.seen))
    done = last_saved_step(job.folder / "training")
    if done is not None:
        job.log(f"goes on: {job.folder} holds the training up to step {done}")


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
