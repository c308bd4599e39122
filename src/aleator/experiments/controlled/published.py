"""The settings of the published code, and what is corrected in them, one change at a time.

`published()` is what the scripts of the paper's authors run, apart from plain errors (docs/understanding-paper.md lists
them). `CORRECTIONS` are the changes that lead from there to `corrected()`: the same experiment, with pairs, negatives,
kernel and optimisation that fit together. The experiment `published` (tables.py) makes a row after each change.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from aleator.experiments.controlled.published_constants import PUBLISHED_OFFSETS
from aleator.experiments.controlled.run import Setting

# The published code halves the learning rate in the middle of each phase (the text says a tenth). The second phase
# starts at the geometric mean of the first phase's two rates.
PUBLISHED_RATE: dict[str, Any] = {
    "learning_rate": 1e-4,
    "kappa_learning_rate": 1e-4 / math.sqrt(2),
    "schedule": "step",
    "step_every": 0.5,
    "step_factor": 0.5,
}
_CORRECTED_RATE: dict[str, Any] = {
    "learning_rate": 1e-3,
    "kappa_learning_rate": None,
    "schedule": "one-cycle",
    "step_every": 0.25,
    "step_factor": 0.1,
}
PUBLISHED_KAPPA_WIDTHS = (10, 50, 50, 50, 50, 50, 10)

# Name -> changes of the setting. Those of "recipe" change single entries of it. Positives stay partners of one latent:
# with many negatives from P(x) that is the law whose minimum is the truth for MCInfoNCE (theory.md, section 3).
CORRECTIONS: dict[str, dict[str, Any]] = {
    "He's initialisation": {"initialisation": "he"},
    "one cycle to 1e-3": {"recipe": _CORRECTED_RATE},
    "process over the sphere": {"smoothing": "sphere"},
    "range of kappa set on mu": {"range_of": "kappa_of"},  # of a kappa that is computed from mu; others have no other
    "right constant of the rule": {"accept_offset": None},
    "negatives summed": {"average_negatives": False},
    "drawn negatives for mu too": {"mu_phase_negatives": None, "recipe": {"mu_negatives": "given"}},
    "negatives from P(x)": {"rule": "marginal"},
    "kernel that accepts the pairs": {"kernel": "acceptance"},
    "kappa alike while mu learns": {"kappa_start": "middle"},
    # Not for accuracy: a step takes three quarters of the time, and mu and kappa are as good.
    "negatives shared by 64 anchors": {"group": 64},
    "exact constant of ELK": {"fitted_constants": False},
}
_NOT_IN_ELK = {"average_negatives", "kernel"}  # fields that ELK with its single negative does not use


def published(dim: int = 10, **recipe: Any) -> Setting:
    """The published code's Ambiguous setting in some dimension.

    Groups of 16 anchors share the candidates of their negatives. Each anchor has as many negatives as in the published
    code, from the same law, but fewer inputs are encoded.
    """
    return Setting(
        loss="mcinfonce",
        dim=dim,
        accept_offset=PUBLISHED_OFFSETS[dim],
        kernel="vmf",
        smoothing="published",
        positives="partner",
        rule="rejected-latent",
        negatives=32,
        average_negatives=True,
        mu_phase_negatives=0,
        group=16,
        kappa_widths=PUBLISHED_KAPPA_WIDTHS,
        initialisation="torch",
        calibrated=True,
        recipe={
            "steps": 100_000,
            "phases": "mu-then-kappa",
            "mu_negatives": "rolled",
            **PUBLISHED_RATE,
            "precision": "tf32",  # in the encoder only; losses and samples stay in full precision
            "checkpoint_every": 10_000,
            "log_every": 500,
            **recipe,
        },
    )


def changed(setting: Setting, changes: Mapping[str, Any]) -> Setting:
    """The setting with one correction. Corrections of what it does not have leave it as it is."""
    fields = dict(changes)
    if setting.loss == "elk" and fields.keys() <= _NOT_IN_ELK:
        return setting
    if setting.recipe.get("phases") != "mu-then-kappa" and "mu_phase_negatives" in fields:
        return setting
    if setting.mu_phase_negatives is None and "mu_phase_negatives" in fields:
        return setting  # the plane: both phases have the same negatives
    if setting.dim == 2 and "smoothing" in fields:
        return setting  # in the plane the published process covers an arc; a whole circle is learned with a fold
    if setting.dim == 2 and "initialisation" in fields:
        return setting  # its batches tell little about kappa; torch's start is nearly constant and stays smooth
    if "group" in fields:
        if setting.group is None:
            return setting  # each anchor has its own negatives
        fields["group"] = min(fields["group"], setting.batch_size)
    if fields.get("kappa_start") == "middle":
        fields["kappa_start"] = middle_start(setting)
    recipe = {**setting.recipe, **fields.pop("recipe", {})}
    return replace(setting, **fields, recipe=recipe)


def middle_start(setting: Setting) -> tuple[float, float]:
    """A narrow range of kappa around the geometric mean of the true range's ends.

    A point mass has an infinite kappa. 10,000 is as good: no kernel of the experiments sees so small a difference.
    """
    low, high = setting.kappa_range
    middle = 1e4 if setting.family == "point" else math.sqrt(low * high)
    return (0.98 * middle, 1.02 * middle)


def corrected(setting: Setting) -> Setting:
    """The setting with all corrections."""
    *_, (_, last) = walk(setting)
    return last


def walk(setting: Setting) -> Iterator[tuple[str, Setting]]:
    """The setting, then the setting after each correction in turn, with the name of the last change.

    Corrections that leave the setting as it is are left out.
    """
    yield "published", setting
    for name, changes in CORRECTIONS.items():
        before, setting = setting, changed(setting, changes)
        if setting != before:
            yield name, setting
