"""Settings of training. Those that the user leaves open are chosen from the data, each with a reason for the log."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import torch

from aleator.foundation import make_numbers_plain, require, require_at_least, require_one_of
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.labels import Labels
from aleator.own_data.learning.mirroring import mirror_test
from aleator.posteriors import VonMisesFisher
from aleator.special import log_sphere_area

# How training images are changed: shifted and mirrored, shifted only, or not at all.
Augmentation = Literal["flip", "crop", "none"]
# What of a pretrained network is trained: the head after it; its last layers; all of it; changes of low rank.
Tuning = Literal["head", "last", "all", "lora"]

AUTO: Literal["auto"] = "auto"  # of modes: a trial decides (mode_trial.py)
_DEFAULT_BACKBONES = {
    "images": "small-resnet",
    "features": "features",
    "text": "hf:sentence-transformers/all-MiniLM-L6-v2",
}
# Density ratio of a certain match, in units of the match lift; see kernel_width. Label probabilities of items that are
# compared with classes gain from a sharper kernel.
_PEAK, _PEAK_OF_CLASSES = 10.0, 100.0
_SHARPNESS = 1.7  # least kappa_pos of a head on features with hard labels, in units of D
PRETRAINED = "efficientnet-lite0"  # the network that comes out of a package; others are named hf:NAME
FROM_SCRATCH = ("small-resnet", "resnet18")  # networks that are trained from the first weight on
_MOST_CLASSES = 2000  # with more classes, items are compared with each other and not with classes
_HELD_OUT = 600  # items that are held out if this is between 5 % and 20 % of the collection
_MINUTES, _MINUTES_OF_TUNING = 5.0, 10.0
# A head on features that compares with classes: passes over the items, alone and in an ensemble; and limits.
_PASSES, _PASSES_OF_MEMBER = 12, 8
_LEAST_STEPS, _MOST_STEPS, _MOST_MEMBERS = 300, 2000, 4
_LEAST_PASSES_OF_TWO = 5  # two networks that see the items so often are better than one
_MANY_ITEMS = 20_000  # from which a head that learns classes is large
_TUNING_RATES = {"last": 5e-4, "all": 3e-4, "lora": 3e-4}
_RANK = 8
# More than these would fill the memory and learn nothing.
_MOST = {"dim": 4096, "modes": 16, "members": 64, "width": 16_384, "size": 4096, "rank": 4096}
_MIRRORED_SHARE = 0.85  # of right neighbours that mirrored images must keep


@dataclass(frozen=True)
class Settings:
    """How to train. What is None is chosen from the data.

    Args:
        backbone: "small-resnet" or "resnet18" (images, trained from scratch; the first is made for a CPU), "features"
            (.npy features), "efficientnet-lite0" (images, pretrained on ImageNet, from a package), or "hf:NAME", a
            pretrained network from Hugging Face. A head is trained on the features of a pretrained network.
        tune: What else of a pretrained network is trained, after the head: "head", nothing; "last", the last quarter of
            its layers; "all", all of it; "lora", changes of low rank to it. Default: "head".
        rank: Rank of these changes, for "lora".
        tune_steps: Most steps that train the network. Default: ten passes over the items. `minutes` may end it before.
        tune_learning_rate: Highest learning rate of these steps.
        start: Folder of a finished run to continue, with new items or new classes. Its encoder is trained further.
        dim: D, the dimension of the posteriors.
        modes: Number of modes of each posterior. 2: an item may be either of two things, and nothing between. "auto":
            one or two, whichever has the better held-out labels in a short trial. Default: 1.
        kappa_pos: Concentration of the kernel: how close two latents must be to match.
        batch_size: Number of items in a batch; for groups and pairs, number of matching pairs.
        steps: Most training steps. Default: as many passes as help. `minutes` may end training before.
        minutes: Time that the whole training may take, from reading the items to evaluation. Learning gets what is left
            by the clock, but at least a quarter, so reading that takes very long comes on top. Default: 5 for a
            network, 10 to tune one; a head has no limit and makes the steps that help, about a minute.
        learning_rate: Highest learning rate of the one-cycle schedule.
        weight_decay: Weight decay of AdamW.
        dropout: Share of the units of the head's hidden layers that are left out in training.
        width: Width of the network's first layer, or of the head's hidden layers.
        members: Number of networks in the head on features. Each learns from its own part of every batch, and their
            embeddings are averaged.
        size: Side of the images, in pixels.
        augment: How training images are changed: "flip" (shifted and mirrored), "crop" (shifted) or "none".
        holdout: Share of the items that is held out for calibration and evaluation. Default: about 600 items, but
            between 5 % and 20 %.
        seed: Seed of everything random.

    Examples:
        >>> from aleator.own_data import Settings
        >>> Settings(steps=300, dim=16).steps
        300
    """

    backbone: str | None = None
    dim: int | None = None
    modes: int | Literal["auto"] | None = None
    kappa_pos: float | None = None
    batch_size: int | None = None
    steps: int | None = None
    minutes: float | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None
    dropout: float | None = None
    width: int | None = None
    members: int | None = None
    size: int | None = None
    augment: Augmentation | None = None
    holdout: float | None = None
    seed: int = 0
    tune: Tuning | None = None
    rank: int | None = None
    tune_steps: int | None = None
    tune_learning_rate: float | None = None
    start: str | None = None

    def __post_init__(self) -> None:
        make_numbers_plain(self)


@dataclass(frozen=True, kw_only=True)
class CompleteSettings(Settings):
    """How a training runs: every setting that it needs has a value; see `choose_settings`."""

    backbone: str = field()
    dim: int = field()
    modes: int | Literal["auto"] = field()
    kappa_pos: float = field()
    batch_size: int = field()
    learning_rate: float = field()
    weight_decay: float = field()
    width: int = field()
    holdout: float = field()


@dataclass(frozen=True)
class Choice:
    """A setting that was chosen from the data, and why."""

    name: str
    value: object
    reason: str


def choose_settings(
    collection: Collection, labels: Labels, train_items: int, requested: Settings, gpu: bool = False
) -> tuple[CompleteSettings, list[Choice]]:
    """Fill in the settings that the user left open.

    Args:
        collection: The collection.
        labels: Its labels.
        train_items: Number of items to train on.
        requested: The user's settings.
        gpu: Whether training runs on a GPU, which takes larger batches and networks in the same time.

    Returns:
        All settings, and the choices that were made.
    """
    settings = dict(vars(requested))
    choices: list[Choice] = []

    def choose(name: str, value: object, reason: str) -> None:
        if settings[name] is None:
            settings[name] = value
            choices.append(Choice(name, value, reason))

    choose("backbone", _DEFAULT_BACKBONES[collection.kind], f"the collection holds {collection.kind}")
    _require_backbone(settings["backbone"], collection.kind)
    from_scratch = settings["backbone"] in FROM_SCRATCH

    lift = match_lift(labels, len(collection))
    settings["modes"] = 1 if settings["modes"] is None else settings["modes"]
    with_classes = compares_with_classes(labels)
    # A head that learns classes from many features can fill more directions, and gains from a wider network.
    large_head = not from_scratch and _is_large(labels, train_items)
    dim = 2 ** round(math.log2((10 if large_head else 5) * math.sqrt(lift)))
    dim = min(128 if large_head else 64, max(8, dim))
    choose("dim", dim, f"about one in {lift:.3g} random pairs matches; more classes need more directions")
    _require_whole_number("dim", settings["dim"], 2)
    peak = _PEAK_OF_CLASSES if with_classes else _PEAK
    kappa_pos = kernel_width(settings["dim"], lift, peak)
    reason = f"a certain match is {peak:g} x {lift:.3g} times as likely as a random pair"
    if not from_scratch and labels.kind == "classes" and with_classes and kappa_pos < _SHARPNESS * settings["dim"]:
        kappa_pos, reason = _SHARPNESS * settings["dim"], "a sharp kernel tells classes apart better"
    choose("kappa_pos", kappa_pos, reason)

    batch_size = 64 if from_scratch and not gpu else 256 if gpu or large_head or not with_classes else 128
    choose("batch_size", min(batch_size, max(8, train_items // 4), train_items), f"for {train_items} training items")
    _require_whole_number("batch_size", settings["batch_size"], 1)  # the choices below divide by it
    if from_scratch:
        if settings["steps"] is None:
            choose("minutes", _MINUTES, "training stops earlier if more passes would not help; see --minutes")
        choose("learning_rate", 6e-3 if with_classes else 1e-3, "highest rate of the one-cycle schedule")
        choose("weight_decay", 0.1 if with_classes else 1e-4, "for a network that is trained from scratch")
        choose("size", 32, "small images train fast; larger ones, such as --size 64, show more detail")
        thin = settings["backbone"] == "resnet18" and not gpu
        choose("width", 8 if thin else 32 if settings["backbone"] == "small-resnet" else 64, "of the first layer")
        choose("augment", *_choose_augmentation(collection, labels))
        require_one_of("augment", settings["augment"], get_args(Augmentation))
    else:
        members = _members(train_items, settings["batch_size"]) if with_classes else 1
        choose("members", members, "networks in the head, which answer together; fewer if there are many items")
        _require_whole_number("members", settings["members"], 1)
        way_out = f"pass at most {settings['batch_size']}"
        enough = settings["members"] <= settings["batch_size"]
        require(enough, "members", settings["members"], "each needs items of its own in a batch", way_out)
        if settings["minutes"] is None:
            steps = usual_steps_of_head(labels, train_items, settings["batch_size"], settings["members"])
            passes_of_each = steps * settings["batch_size"] / train_items / settings["members"]
            choose("steps", steps, f"{passes_of_each:.0f} passes of each network over the training items")
        choose("learning_rate", 2e-3 if with_classes else 1e-3, "highest rate of the one-cycle schedule")
        choose("weight_decay", 0.01 if with_classes else 1e-4, "for a head on features")
        dropout = 0.0 if not with_classes else 0.5 if labels.kind == "soft" else 0.2
        choose("dropout", dropout, f"for a head on features and {labels.kind}")
        choose("width", 384 if large_head else 256, "two hidden layers of this width on the features")
    if settings["backbone"] == PRETRAINED:
        choose("size", 224 if gpu else 128, "the network was trained on 224; on a CPU, 128 take a quarter of the time")
    _choose_tuning(settings, choose, collection, labels)
    if collection.kind != "images":
        problem = f"changes images, and {collection.source} holds {collection.kind}"
        require(settings["augment"] is None, "augment", settings["augment"], problem, "leave it out")
    _require_of_use(settings, requested.start is not None)
    for name in ("steps", "size", "width", "modes", "rank", "tune_steps"):
        if settings[name] is not None and (name, settings[name]) != ("modes", AUTO):
            _require_whole_number(name, settings[name], 1)
    if settings["minutes"] is not None:
        way_out = "pass a positive number of minutes, such as 5"
        positive = 0 < settings["minutes"] < math.inf
        require(positive, "minutes", settings["minutes"], "not a positive number", way_out)
    kappa_pos = settings["kappa_pos"]
    way_out = "pass for example 20.0, or leave it out"
    require(0 < kappa_pos < math.inf, "kappa_pos", kappa_pos, "not a positive number", way_out)
    return CompleteSettings(**settings), choices


def _require_of_use(settings: dict[str, Any], continued: bool) -> None:
    """Raise if a setting was given that would change nothing. A continued run has the shape of the first one."""
    backbone, tuned = settings["backbone"], settings["tune"] is not None
    from_scratch = backbone in FROM_SCRATCH
    frozen = f"{backbone} is not trained; pass --tune last, all or lora as well, or leave it out"
    no_head = f"{backbone} is trained from scratch, without a head on features; leave it out"
    of_use = {
        "augment": (from_scratch or tuned, frozen),
        "rank": (settings["tune"] == "lora", "it is the rank of --tune lora; pass that as well, or leave it out"),
        "tune_steps": (tuned, frozen),
        "tune_learning_rate": (tuned, frozen),
    }
    if not continued:
        fixed = f"{backbone} takes items as they are, or has its own size; leave it out"
        of_use |= {
            "size": (from_scratch or backbone == PRETRAINED, fixed),
            "members": (not from_scratch, no_head),
            "dropout": (not from_scratch, no_head),
        }
    for name, (used, why) in of_use.items():
        reason, _, way_out = why.partition("; ")
        require(used or settings[name] is None, name, settings[name], f"has no effect: {reason}", way_out)


def _choose_tuning(
    settings: dict[str, Any], choose: Callable[[str, object, str], None], collection: Collection, labels: Labels
) -> None:
    """Choose how a pretrained network is trained after its head, if it is. `tune` becomes None if it is not."""
    tune = settings["tune"]
    if tune is not None:
        require_one_of("tune", tune, get_args(Tuning))
        pretrained = settings["backbone"] == PRETRAINED or settings["backbone"].startswith("hf:")
        way_out = f"pass --backbone {PRETRAINED} or hf:NAME, or leave it out"
        require(pretrained, "tune", tune, f"{settings['backbone']} is not a pretrained network", way_out)
    if tune in (None, "head"):
        settings["tune"] = None
        return
    if tune == "lora":
        choose("rank", _RANK, "of the changes to each layer")
    choose("tune_learning_rate", _TUNING_RATES[tune], "highest rate of the steps that train the network")
    if settings["tune_steps"] is None:
        reason = "for head and network; training stops earlier if more passes would not help; see --minutes"
        choose("minutes", _MINUTES_OF_TUNING, reason)
    if collection.kind == "images":
        choose("augment", *_choose_augmentation(collection, labels))
        require_one_of("augment", settings["augment"], get_args(Augmentation))


def _members(train_items: int, batch_size: int) -> int:
    """Number of networks in a head on features: as many as a minute is enough for, but no more than four.

    Each learns from its own part of a batch, so there is at least one item for each.
    """
    each = max(_PASSES_OF_MEMBER * train_items // batch_size, _LEAST_STEPS)
    least = 2 if 2 * _LEAST_PASSES_OF_TWO * train_items <= _MOST_STEPS * batch_size else 1
    return min(_MOST_MEMBERS, max(least, _MOST_STEPS // each), batch_size)


def usual_steps_of_head(labels: Labels, train_items: int, batch_size: int, members: int) -> int:
    """Number of steps of a head on features if the user does not say how long it may train.

    Args:
        labels: Labels of the collection.
        train_items: Number of items to train on.
        batch_size: Number of items in a batch.
        members: Number of networks in the head.

    Returns:
        The number. More would not help.
    """
    with_classes = compares_with_classes(labels)
    return _steps_of_head(train_items, batch_size, members, with_classes)


def _is_large(labels: Labels, train_items: int) -> bool:
    """Whether a head learns classes from many items."""
    return compares_with_classes(labels) and labels.kind == "classes" and train_items >= _MANY_ITEMS


def _steps_of_head(train_items: int, batch_size: int, members: int, with_classes: bool) -> int:
    """Number of steps of a head on features: about a minute on a CPU. A step teaches each member a part of a batch."""
    if not with_classes:
        return min(max(30 * train_items // batch_size, _LEAST_STEPS), 1500)
    passes = _PASSES if members == 1 else _PASSES_OF_MEMBER
    return min(members * max(passes * train_items // batch_size, _LEAST_STEPS), _MOST_STEPS)


def held_out_share(count: int) -> float:
    """Share of a collection of `count` items that is held out if the user does not say: about 600 items."""
    return min(0.2, max(0.05, _HELD_OUT / count))


def compares_with_classes(labels: Labels) -> bool:
    """Whether training compares items with classes. Otherwise it compares them with each other.

    Groups and pairs say which items match, and new ones are to be recognised later: they have no classes to learn.
    """
    return labels.kind in ("classes", "soft") and len(labels.names) <= _MOST_CLASSES


def _choose_augmentation(collection: Collection, labels: Labels) -> tuple[Augmentation, str]:
    """Whether mirrored images still match their class, and the reason in words."""
    plain, mirrored = mirror_test(collection, labels)
    if mirrored >= _MIRRORED_SHARE * plain:
        return "flip", "images are shifted and mirrored: mirrored ones still resemble their class"
    reason = f"nearest neighbours are right for {plain:.0%} of the images and for {mirrored:.0%} of mirrored ones"
    return "crop", f"images are shifted, not mirrored: {reason}"


def match_lift(labels: Labels, count: int) -> float:
    """How much more often labels match in a matching pair than in a random pair of items: 1 / P(random pair matches).

    Args:
        labels: Labels of the items.
        count: Number of items.
    """
    if labels.kind == "pairs":
        return min(64.0, max(2.0, count / max(1.0, 2 * len(labels.values) / count)))
    counts = labels.counts().astype(np.float64)
    return float(1 / np.square(counts / counts.sum()).sum())


def kernel_width(dim: int, lift: float, peak: float = _PEAK) -> float:
    """The kappa_pos of a kernel for a given match lift.

    The expected positivity r of two equal points is then `peak` times the lift. r is smaller for posteriors that are
    not points, and should still reach the lift.

    Args:
        dim: D, the dimension of the posteriors.
        lift: How much more likely a matching pair is than a random pair; see `match_lift`.
        peak: Largest expected positivity, in units of the lift.

    Returns:
        kappa_pos, rounded to three digits.

    Examples:
        >>> from aleator.own_data import kernel_width
        >>> kernel_width(8, lift=10.0)
        7.21
    """
    target = math.log(peak * lift) - log_sphere_area(dim)
    low, high = 1e-2, 1e5
    mode = torch.nn.functional.one_hot(torch.tensor(0), dim).double()
    for _ in range(60):  # bisection
        middle = math.sqrt(low * high)
        peak = float(VonMisesFisher(mode, torch.tensor(middle, dtype=torch.float64)).log_prob(mode))
        low, high = (middle, high) if peak < target else (low, middle)
    return float(f"{high:.3g}")


def _require_whole_number(name: str, value: Any, least: int) -> None:
    way_out = f"pass a whole number of {least} or more, or leave it out"
    require(isinstance(value, int), name, value, "not a whole number", way_out)
    require_at_least(name, value, least, way_out)
    most = _MOST.get(name, math.inf)
    require(value <= most, name, value, f"more than {most}", f"pass at most {most}, or leave it out")


def _require_backbone(backbone: str, kind: str) -> None:
    """Raise unless a backbone takes items of this kind."""
    fits = {
        "images": backbone in (*FROM_SCRATCH, PRETRAINED) or backbone.startswith("hf:"),
        "features": backbone == "features",
        "text": backbone.startswith("hf:"),
    }[kind]
    way_out = {
        "images": f"choose small-resnet, resnet18, {PRETRAINED} or hf:NAME",
        "features": "choose features",
        "text": "choose hf:NAME",
    }[kind]
    require(fits, "backbone", backbone, f"does not take {kind}", way_out)
