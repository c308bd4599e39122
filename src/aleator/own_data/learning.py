"""A labelled collection -> a run folder: choose what was left open, train, measure on what was held out.

The same call with the same folder goes on where it was stopped, and does nothing if it was finished.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aleator.data import ImageAugmentation, LabelledBatches, PairBatches
from aleator.foundation import (
    ProcessGroup,
    describe_run,
    one_thread,
    process_group,
    require,
    resolve_device,
    write_json,
)
from aleator.losses import ExactInfoNCE
from aleator.matching import VMFKernel
from aleator.own_data.collection import Collection, Labels
from aleator.own_data.defaults import Settings, choose
from aleator.own_data.evaluation import calibrate_on_labels, evaluate
from aleator.own_data.preparation import Job, posteriors, prepare
from aleator.own_data.run import Run, load_run, save_run
from aleator.own_data.splits import Split, labels_of, require_trainable, split
from aleator.training import Recipe, fit

Log = Callable[[str], None]


def train(
    collection: Collection,
    folder: str | Path,
    settings: Settings = Settings(),  # noqa: B008 (it is frozen)
    *,
    device: str = "auto",
    progress: bool | None = None,
    log: Log = lambda line: None,
) -> Run:
    """Train an encoder on the collection and write the run folder; see `run` for what is in it."""
    folder = Path(folder).expanduser()
    began = time.time()
    here = resolve_device(device)
    labels = require_trainable(collection)
    parts = split(collection, labels, settings.holdout, settings.seed)
    values, choices = choose(collection, labels, len(parts.train), settings)
    with process_group() as group:
        config = {"settings": values, "chosen": [choice.name for choice in choices], "data": _described(collection)}
        finished = _claim(folder, config, group)
        if finished:
            log(f"{folder} is finished already")
            return load_run(folder)
        if group.first:
            log(_summary(collection, labels, parts))
            for choice in choices:
                log(f"{choice.name} = {choice.value}: {choice.why}")
        job = prepare(collection, values, folder, group, device, progress)
        kernel = VMFKernel(values["kappa_pos"])
        batches = _batches(job, labels_of(labels, parts.train), parts, values, here)
        # A second thread has nothing to do on a small head but wait.
        small = values["backbone"] != "resnet18" and values["batch_size"] * values["width"] <= 2**15
        with one_thread() if small else nullcontext():
            result = fit(
                job.encoder,
                ExactInfoNCE(kernel),
                batches,
                _recipe(values),
                folder=folder / "training",
                device=device,
                loggers=("csv",),
                progress=progress,
                config={"data": config["data"]},
            )
        if not group.first:
            group.wait()
            return load_run(folder)
        log(f"trained {result.steps} steps in {result.seconds:.0f} s")
        q = posteriors(job, parts.calibration)
        calibration = calibrate_on_labels(q, labels_of(labels, parts.calibration), kernel, settings.seed)
        log(
            f"calibrated on {len(q)} held-out items: kappa x {calibration.kappa_scale:.2f}, "
            f"kappa_pos {calibration.kappa_pos:.3g} for match probabilities"
        )
        job.encoder.scale_kappa(calibration.kappa_scale)
        q = posteriors(job, parts.test)
        kernel = VMFKernel(calibration.kappa_pos)
        metrics = evaluate(q, labels_of(labels, parts.test), kernel, calibration.prior, seed=settings.seed)
        metrics["provenance"] = describe_run(began, next(job.encoder.parameters()).device)
        match = {"kappa_pos": calibration.kappa_pos, "prior": calibration.prior}
        save_run(folder, job.complete(), job.inputs, config, metrics, match)
        shutil.rmtree(folder / "training" / "encoder", ignore_errors=True)  # the whole one lies above
        shutil.rmtree(folder / "cache", ignore_errors=True)
        group.wait()
    return load_run(folder)


def _recipe(values: dict[str, Any]) -> Recipe:
    return Recipe(
        values["steps"],
        learning_rate=values["learning_rate"],
        schedule="one-cycle",
        weight_decay=1e-4,
        optimiser="adamw",
        clip_norm=5.0,
        seed=values["seed"],
        checkpoint_every=max(50, values["steps"] // 10),
        log_every=min(50, values["steps"]),
    )


def _batches(job: Job, labels: Labels, parts: Split, values: dict[str, Any], device: torch.device) -> Any:
    items = job.part(parts.train)
    image = job.inputs.kind == "images" and job.network is None
    augment = _augmentation(job, values["augment"]) if image else None
    known = torch.as_tensor(labels.values)
    if labels.kind == "pairs":
        return PairBatches(items, known, values["batch_size"], augment=augment, device=device)
    with_itself = augment is not None or labels.kind == "soft"
    return LabelledBatches(items, known, values["batch_size"], with_itself=with_itself, augment=augment, device=device)


def _augmentation(job: Job, kind: str) -> ImageAugmentation:
    shift = 0 if kind == "none" else (job.inputs.size or 0) // 8
    return ImageAugmentation(kind == "flip", shift, mean=job.inputs.mean, std=job.inputs.std)


def _described(collection: Collection) -> dict[str, Any]:
    """What the run remembers of its data, so that it is not taken up with other data."""
    labels = collection.labels
    assert labels is not None
    values = hashlib.sha256(np.ascontiguousarray(labels.values).tobytes()).hexdigest()
    return {
        "source": str(collection.source),
        "kind": collection.kind,
        "items": len(collection),
        "digest": collection.digest(),
        "labels": labels.kind,
        "labels_digest": values,
        "classes": list(labels.names) if labels.kind != "groups" else len(labels.names),
    }


def _claim(folder: Path, config: dict[str, Any], group: ProcessGroup) -> bool:
    """Make the folder this run's, or check that it is; returns whether the run is finished."""
    path = folder / "config.json"
    begun = path.is_file()
    if begun:
        known, now = json.loads(path.read_text()), json.loads(json.dumps(config))
        different = [
            name
            for part in ("settings", "data")
            for name in now[part]
            if name != "source" and known[part].get(name) != now[part][name]
        ]
        # Before the first step nothing is lost: a collection that was mended may start again.
        untrained = not (folder / "training").exists()
        require(
            untrained or not different,
            "output",
            str(folder),
            f"belongs to another run ({', '.join(different)} differ)",
            "name a new folder, or repeat the command that began it",
        )
        begun = not different
        if different and group.first:
            shutil.rmtree(folder / "cache", ignore_errors=True)
    else:
        empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
        require(empty, "output", str(folder), "is not empty", "name a new folder")
    group.wait()
    if group.first and not begun:
        write_json(path, config)
    group.wait()
    return (folder / "metrics.json").is_file()


def _summary(collection: Collection, labels: Labels, parts: Split) -> str:
    what = {
        "classes": f"{len(labels.names)} classes",
        "groups": f"{len(labels.names)} groups",
        "soft": f"probabilities of {len(labels.names)} classes",
        "pairs": f"{len(labels.values)} pairs",
    }[labels.kind]
    ignored = f"; {collection.ignored} other files are ignored" if collection.ignored else ""
    held = len(parts.calibration) + len(parts.test)
    return f"{len(collection)} {collection.kind}, {what}; {held} are held out{ignored}"
