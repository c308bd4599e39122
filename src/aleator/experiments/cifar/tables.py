"""The CIFAR-10H experiments as tables of settings.

Each function below is one experiment. It takes a preset and returns the rows of its table. `base(preset)` is the main
row; every other row says only what it changes.

Presets:

- quick: minutes on two CPU cores. A few hundred images of each fold and a narrow network.
- paper: the paper's parameters. The hyperparameters that the paper chose for each loss, 8,192 batches of 128, a
  validation every 16 batches, selection by crop correlation. Negatives are drawn from all images (the published code
  drew them from the first 256). The learning rate halves in the second phase, as in that code.
- best: what we recommend.
    - The network stays as it was pretrained. New layers on its features learn the posteriors.
    - They see plain and augmented images. Images zoomed to as little as a quarter teach how little a part shows.
      Pretraining uses no zoom, because then the network would recognise the parts.
    - The acceptance kernel levels off. So does r: for two images that are certainly of one class it is 1/P(class).
    - Twelve dimensions, because ten classes at equal distances do not fit into eight.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

from aleator.experiments.cifar.folds import CifarSetting
from aleator.experiments.cifar.pretraining import PretrainingSetting
from aleator.experiments.runner import Row
from aleator.experiments.settings import LossName, Preset

# Folds of the results, and the single fold of the experiments that choose hyperparameters.
ALL_FOLDS, TUNING_FOLD = (0, 1, 2, 3, 4), 1

_PAPER_RECIPE: dict[str, Any] = {
    "steps": 8192,
    "optimiser": "adamw",
    "learning_rate": 1e-4,
    "kappa_learning_rate": 5e-5,
    "weight_decay": 0.01,
    "phases": "mu-then-kappa",
    "validate_every": 16,
    "select": "crop_rank",
    "select_in": "all",
    "precision": "bf16",
}
# Changes for the losses that the paper trains in one phase.
_JOINT = {"phases": "joint", "schedule": "step", "step_every": 0.5, "step_factor": 0.5}
# Arguments of ImageAugmentation.
_PLAIN = {"flip": True, "translate": 4}
_ZOOMED = {**_PLAIN, "zoom": 0.25}
_LINEAR: dict[str, Any] = {"head_first": None, "hidden": ()}  # one linear output layer, no first stage
_QUICK_NETWORK = {"width": 4, "epochs": 4, "batch_size": 128, "learning_rate": 0.1, "cutout": 0}

# Recipes that train all layers.
_ALL_LAYERS: dict[str, dict[str, Any]] = {
    "paper": _PAPER_RECIPE,
    "best": {
        "steps": 400,
        "optimiser": "adamw",
        "learning_rate": 1e-4,
        "weight_decay": 0.05,
        "schedule": "one-cycle",
        "validate_every": 50,
        "precision": "bf16",
    },
    "quick": {
        "steps": 60,
        "optimiser": "adamw",
        "learning_rate": 3e-4,
        "weight_decay": 0.05,
        "schedule": "one-cycle",
        "validate_every": 20,
    },
}
# Changes of the recipe of a head that learns with class posteriors: it meets every class in every step, so a few passes
# over the images suffice. More would overfit.
_WITH_CLASSES: dict[str, dict[str, Any]] = {
    "best": {"steps": 300, "learning_rate": 1e-3, "optimiser": "adamw", "weight_decay": 0.05, "log_every": 100},
    "quick": {},
}


def base(preset: Preset) -> CifarSetting:
    """The main row of a preset, on CIFAR-10H's soft labels: MCInfoNCE in "paper", the exact loss in the others."""
    if preset == "paper":
        return CifarSetting(negatives=32, recipe=_PAPER_RECIPE, watch=False)
    if preset == "best":
        return CifarSetting(
            loss="exact",
            dim=12,
            hidden=(256, 256, 256),
            kernel="acceptance",
            batch_size=512,
            augment=_ZOOMED,
            head_first={"steps": 1000, "learning_rate": 3e-4, "schedule": "one-cycle", "log_every": 500},
            views=10,
        )
    return CifarSetting(
        loss="exact",
        images=300,
        network=_QUICK_NETWORK,
        pretraining_images=8000,
        dim=12,
        hidden=(64, 64),
        kernel="acceptance",
        batch_size=128,
        samples=16,
        augment=_ZOOMED,
        head_first={"steps": 300, "learning_rate": 1e-3, "schedule": "one-cycle"},
    )


def all_layers(preset: Preset) -> CifarSetting:
    """The main row with one linear layer on the features, and all layers trained from the start."""
    return replace(base(preset), **_LINEAR, augment=_PLAIN, recipe=_ALL_LAYERS[preset])


def with_loss(preset: Preset, loss: LossName) -> CifarSetting:
    """The main row with another loss. The paper's losses have the hyperparameters of its appendix."""
    setting = base(preset)
    if loss == "exact":
        return replace(setting, loss=loss)
    if preset != "paper":  # the paper's hyperparameters, but the preset's number of steps
        setting = replace(all_layers(preset), dim=8, negatives=8 if preset == "quick" else 32, kernel="vmf")
    joint = {**setting.recipe, **(_JOINT if preset == "paper" else {})}
    if loss == "mcinfonce":
        return replace(setting, loss=loss)
    if loss == "hib":
        return replace(setting, loss=loss, negatives="rolled", kappa_pos=32.0, kappa_start=32.0, a=2.0, b=1.0)
    if loss == "elk":
        return replace(setting, loss=loss, negatives=1, kappa_pos=32.0, kappa_start=32.0, recipe=joint)
    select = {"select": "recall_at_1"} if "select" in joint else {}
    return replace(setting, loss=loss, recipe={**joint, "phases": "mu", "mu_negatives": "given", **select})


def votes(preset: Preset) -> CifarSetting:
    """The main row with CIFAR-10N's votes: a second classifier, pretrained on them, adds its features."""
    setting = base(preset)
    return replace(setting, name="soft and votes", beside=(_voted(setting),))


def soft_targets(preset: Preset) -> CifarSetting:
    """The row with votes, trained on the match weights of all pairs instead of drawn positives."""
    return replace(votes(preset), name="soft and votes, soft targets", targets="soft")


def classes(preset: Preset) -> CifarSetting:
    """The row with votes, whose images are compared with learned posteriors of the classes, and less with each other.

    Four heads learn together, each from its part of the batch, and their mean is the answer.
    """
    return replace(_with_classes(preset), name="soft and votes, classes", members=4, pairs=0.3, batch_size=256)


def one_mode(preset: Preset) -> CifarSetting:
    """The row with classes, on features of four networks, with one head and more weight on pairs: two modes' rival.

    One head, because the mean over several would mix modes that do not correspond.
    """
    setting = replace(_with_classes(preset), name="soft and votes, one mode")
    return setting if preset == "quick" else replace(setting, beside=_three_more(setting))


def two_modes(preset: Preset) -> CifarSetting:
    """The row with one mode, with posteriors of two modes: a cat or a dog, and nothing between."""
    return replace(one_mode(preset), name="soft and votes, two modes", modes=2)


def _with_classes(preset: Preset) -> CifarSetting:
    """The row with votes, with images and learned class posteriors compared: what its three rows have in common."""
    setting = votes(preset)
    head = {**(setting.head_first or {}), **_WITH_CLASSES[preset]}
    return replace(setting, targets="classes", batch_size=128, head_first=head)


def _three_more(setting: CifarSetting) -> tuple[dict[str, Any], ...]:
    """Networks beside the setting's own: one pretrained on votes, and both once more with another seed."""
    return (_voted(setting), {**setting.network, "seed": 1}, {**_voted(setting), "seed": 1})


def _voted(setting: CifarSetting) -> dict[str, Any]:
    """The setting's network, pretrained on votes."""
    return {**setting.network, "labels": "votes"}


def classifier(setting: CifarSetting, name: str = "classifier") -> CifarSetting:
    """The classifiers that a setting starts from, measured by their softmax entropy."""
    return replace(setting, name=name, loss="softmax-entropy")


# Tables and figures


def cifar_losses(preset: Preset) -> list[Row]:
    """Certainty, by kappa and by label probabilities, against annotator entropy and crop size, loss by loss."""
    names: tuple[LossName, ...] = ("mcinfonce", "hib", "elk")
    names = names if preset == "paper" else ("exact", *names)
    rows = [_row(with_loss(preset, loss), preset) for loss in names]
    if preset != "paper":
        rows[1:1] = [_row(row(preset), preset) for row in (votes, soft_targets, classes, one_mode, two_modes)]
    rows.append(_row(classifier(base(preset)), preset))
    if preset == "best":
        four = replace(base(preset), beside=_three_more(base(preset)))
        rows.append(_row(classifier(four, "four classifiers"), preset))
    return rows


def cifar_labels(preset: Preset) -> list[Row]:
    """Soft labels, hard labels, CIFAR-10's own labels, and CIFAR-10N's votes."""
    setting = base(preset)
    hard = replace(setting, name="hard", labels="hard")
    train = replace(setting, name="train", labels="train")
    if preset == "paper":
        joint = {**setting.recipe, **_JOINT}
        hard = replace(hard, dim=16, negatives="rolled", recipe=joint)
        train = replace(train, negatives="rolled", kappa_pos=64.0, kappa_start=64.0)
        return [_row(row, preset) for row in (setting, hard, train)]
    return [_row(row, preset) for row in (setting, hard, train, votes(preset))]


def cifar_rejection(preset: Preset) -> list[Row]:
    """Recall@1 of the surest images, as more and more of the others are rejected."""
    return (
        [_row(base(preset), preset)] if preset == "paper" else [_row(s, preset) for s in (base(preset), votes(preset))]
    )


def cifar_retrieval(preset: Preset) -> list[Row]:
    """Queries and their 95 % credible sets."""
    return cifar_rejection(preset)


def cifar_gallery(preset: Preset) -> list[Row]:
    """The surest and the least sure images of every class."""
    return cifar_rejection(preset)


def cifar_scratch(preset: Preset) -> list[Row]:
    """With and without pretraining."""
    setting = base(preset)
    longer = {"quick": 120, "best": 4000, "paper": 8192}[preset]
    changes: dict[str, Any] = {"schedule": "one-cycle", "learning_rate": 1e-3, "steps": longer}
    if preset == "paper":
        changes["phases"] = "joint"
    if preset == "best":  # as many validations as in a run of 400 steps; they take as long as training
        changes["validate_every"] = 500
    recipe = {**_ALL_LAYERS[preset], **changes}
    # From scratch, 6,000 images are too few. The train images are used instead, as in the published code.
    scratch = replace(all_layers(preset), name="scratch", labels="train", pretrained=False, recipe=recipe)
    pretrained = replace(setting, name="pretrained", labels="train")
    if preset == "paper":
        pretrained = replace(pretrained, negatives="rolled", kappa_pos=64.0, kappa_start=64.0)
        scratch = replace(scratch, negatives="rolled", kappa_pos=64.0, kappa_start=64.0)
    return [_row(pretrained, preset), _row(scratch, preset)]


def cifar_infonce(preset: Preset) -> list[Row]:
    """Does certainty cost accuracy? InfoNCE, which learns the direction alone, beside the others."""
    names: tuple[LossName, ...] = ("mcinfonce", "infonce")
    names = names if preset == "paper" else ("exact", *names)
    return [_row(with_loss(preset, loss), preset) for loss in names]


def cifar_tuning(preset: Preset) -> list[Row]:
    """The paper's grid, on one fold: dimension, negatives, kappa_pos and phases, then HIB's a and b."""
    quick = preset == "quick"
    dims = (8,) if quick else (8, 16)
    counts = ("rolled", 1) if quick else ("rolled", 1, 32)
    kernels = (16.0,) if quick else (16.0, 32.0, 64.0)
    # Only "paper" selects among validations during training. All rows are measured on validation images at the end.
    watched = {"validate_every": None} if preset == "best" else {}
    rows = []
    for loss in ("mcinfonce", "hib", "elk"):
        setting = with_loss(preset, loss)
        for dim, negatives, kappa_pos, phases in product(dims, counts, kernels, ("joint", "mu-then-kappa")):
            name = f"D {dim}, M {0 if negatives == 'rolled' else negatives}, kappa_pos {kappa_pos:g}, {phases}"
            together = _JOINT if preset == "paper" and phases == "joint" else {}
            recipe = {**_ALL_LAYERS[preset], "phases": phases, **together, **watched}
            changes: dict[str, Any] = {"dim": dim, "negatives": negatives, "recipe": recipe}
            rows.append(replace(setting, name=name, kappa_pos=kappa_pos, kappa_start=kappa_pos, **changes))
    hib = with_loss(preset, "hib")
    hib = replace(hib, recipe={**hib.recipe, **watched})
    grid = product((1.0, 2.0), (0.0, 1.0)) if quick else product((0.5, 1.0, 2.0, 4.0), (-2.0, -1.0, 0.0, 1.0, 2.0))
    rows += [replace(hib, name=f"a {a:g}, b {b:g}", a=a, b=b) for a, b in grid]
    return [Row(row, (TUNING_FOLD,)) for row in rows]


def cifar_overfitting(preset: Preset) -> list[Row]:
    """What holds overfitting on 6,000 images back: the recommended setting with one part taken away or changed."""
    setting, voted = base(preset), votes(preset)
    head = dict(setting.head_first or {})
    recipe, times = _ALL_LAYERS[preset], {"quick": 2, "paper": 1, "best": 3}[preset]
    constant = {**recipe, "steps": times * recipe["steps"], "schedule": "constant", "weight_decay": 0.0}
    network = PretrainingSetting(**setting.network)
    pretrained: dict[str, dict[str, Any]] = {
        "short pretraining": {"epochs": max(network.epochs // 3, 2)},
        "mixed pretraining": {"mixup": 0.5},
        "zoomed pretraining": {"zoom": 0.5},
    }
    faster = {**head, "learning_rate": 10 * head["learning_rate"]} if head else None
    longer = {**head, "steps": 3 * head["steps"]} if head else None
    plain: dict[str, dict[str, Any]] = {
        "recommended": {},
        **{name: {"network": {**setting.network, **change}} for name, change in pretrained.items()},
        "no augmentation": {"augment": None},
        "no zoom": {"augment": _PLAIN},
        "seen zoomed twice": {"augmented": 2},
        "vMF kernel": {"kernel": "vmf"},
        "no hidden layer": {"hidden": ()},
        "one hidden layer": {"hidden": setting.hidden[:1]},
        "three times as long": {"head_first": longer},
        "ten times the learning rate": {"head_first": faster},
        "D 8": {"dim": 8},
        "D 16": {"dim": 16},
        "all layers afterwards": {"recipe": recipe},
        "all layers from the start": {**_LINEAR, "augment": _PLAIN, "recipe": recipe},
        "all layers, long, constant rate": {**_LINEAR, "augment": None, "recipe": constant},
    }
    alone: dict[str, Any] = {"network": _voted(setting), "beside": ()}
    with_votes: dict[str, dict[str, Any]] = {
        "votes": {},
        "votes, seen zoomed twice": {"augmented": 2},
        "a second network without votes": {"beside": ({**setting.network, "seed": 1},)},
        "the network of votes alone": alone,
        "votes in training too": {"labels": "votes", "repeat": 3},
    }
    rows = [replace(setting, name=name, **changes) for name, changes in plain.items()]
    rows += [replace(voted, name=name, **changes) for name, changes in with_votes.items()]
    rows += [classifier(setting), classifier(replace(setting, **alone), "classifier, votes")]
    return [Row(row, (TUNING_FOLD,)) for row in rows]


def _row(setting: CifarSetting, preset: Preset) -> Row:
    """A row on all folds; on one in the preset "quick"."""
    return Row(setting, ALL_FOLDS[:1] if preset == "quick" else ALL_FOLDS)


CIFAR: dict[str, Callable[[Preset], list[Row]]] = {
    "cifar-losses": cifar_losses,
    "cifar-labels": cifar_labels,
    "cifar-rejection": cifar_rejection,
    "cifar-retrieval": cifar_retrieval,
    "cifar-gallery": cifar_gallery,
    "cifar-scratch": cifar_scratch,
    "cifar-infonce": cifar_infonce,
    "cifar-tuning": cifar_tuning,
    "cifar-overfitting": cifar_overfitting,
}

# The paper's figures, (experiment, setting, loss) -> metric -> (mean, error), None if no error is reported.
_SOFT: dict[str, tuple[float, float | None]] = {"entropy_rank": (0.29, 0.01), "crop_rank": (0.68, 0.01)}
CIFAR_PAPER: dict[tuple[str, str, str], dict[str, tuple[float, float | None]]] = {
    ("cifar-losses", "soft", "mcinfonce"): _SOFT,
    ("cifar-losses", "soft", "hib"): {"entropy_rank": (0.28, 0.00), "crop_rank": (0.69, 0.02)},
    ("cifar-losses", "soft", "elk"): {"entropy_rank": (0.14, 0.05), "crop_rank": (0.51, 0.03)},
    ("cifar-labels", "soft", "mcinfonce"): _SOFT,
    ("cifar-labels", "hard", "mcinfonce"): {"entropy_rank": (0.24, 0.01), "crop_rank": (0.64, 0.02)},
    ("cifar-labels", "train", "mcinfonce"): {"entropy_rank": (0.28, 0.01), "crop_rank": (0.69, 0.02)},
    ("cifar-scratch", "pretrained", "mcinfonce"): {"entropy_rank": (0.33, None), "crop_rank": (0.70, None)},
    ("cifar-scratch", "scratch", "mcinfonce"): {"entropy_rank": (0.31, None), "crop_rank": (0.62, None)},
    ("cifar-infonce", "soft", "mcinfonce"): {"recall_at_1": (0.863, None)},
    ("cifar-infonce", "soft", "infonce"): {"recall_at_1": (0.858, None)},
}
