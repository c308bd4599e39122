"""The controlled experiments as tables of settings.

Each function below is one experiment. It takes a preset and returns the rows of its table. `base(preset)` is the main
row, the Ambiguous setting (presets.py); every other row says only what it changes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from aleator.experiments.controlled.presets import (
    RESULT_SEEDS,
    TEN_SEEDS,
    TUNING_SEEDS,
    as_published,
    base,
    first_seeds,
    from_its_middle,
    sample_count,
    shorter,
    smaller,
    together,
    ungrouped,
    with_loss,
)
from aleator.experiments.controlled.published import CORRECTIONS, changed, corrected, middle_start, walk
from aleator.experiments.controlled.published import published as published_setting
from aleator.experiments.controlled.published_constants import PUBLISHED_OFFSETS
from aleator.experiments.controlled.run import Setting
from aleator.experiments.runner import Row
from aleator.experiments.settings import LossName, Preset


def _with_corrected(settings: Sequence[Setting]) -> list[Setting]:
    """Settings of the preset "paper", and after them those of the preset "corrected"."""
    return [*settings, *(replace(corrected(each), name=f"{each.name}, corrected") for each in settings)]


def recovery(preset: Preset) -> list[Row]:
    """Table 1: Ambiguous, Clear and Injective."""
    ambiguous = base(preset)
    clear = _clear(ambiguous, preset)
    injective = from_its_middle(replace(ambiguous, name="injective", family="point", terms=None), preset)
    if preset == "paper":
        return [Row(setting, RESULT_SEEDS) for setting in _with_corrected((ambiguous, clear, injective))]
    if preset == "corrected":
        return [Row(setting, RESULT_SEEDS) for setting in (ambiguous, clear, injective)]
    injective = shorter(injective, preset, best=5000, quick=400)
    drawn = [shorter(setting, preset, best=10_000) for setting in (ambiguous, clear)]
    chosen = [replace(setting, targets="chosen", choices=16, group=64) for setting in (*drawn, injective)]
    beside = [replace(setting, name=f"{setting.name}, one drawn positive") for setting in drawn]
    rows = [Row(setting, TEN_SEEDS if preset == "best" else first_seeds(preset, 1)) for setting in chosen]
    return rows + [Row(setting, first_seeds(preset, 5)) for setting in (beside if preset == "best" else beside[:1])]


def _clear(ambiguous: Setting, preset: Preset) -> Setting:
    """The Clear setting: true kappas between 64 and 128."""
    clear = replace(ambiguous, name="clear", kappa_range=(64.0, 128.0), terms=None if as_published(preset) else 56)
    return from_its_middle(clear, preset)


def circle(preset: Preset) -> list[Row]:
    """The figure in the plane."""
    if as_published(preset):
        # As in the published scripts: one negative, in both phases.
        plane = replace(published_setting(2, steps=8192, mu_negatives="given"), name="dim-2")
        plane = replace(plane, negatives=1, mu_phase_negatives=None, group=None)
        # Corrected: as many negatives as in ten dimensions. One tells too little about kappa.
        short = replace(corrected(plane), negatives=32, group=16)
        # And four times as many batches: with 8,192, what kappa learns still depends on where its network started.
        better = replace(short, recipe={**short.recipe, "steps": 32_768})
        if preset == "corrected":
            return [Row(better, RESULT_SEEDS)]
        settings = {"dim-2": plane, "dim-2, corrected, 8,192 batches": short, "dim-2, corrected": better}
        return [Row(replace(setting, name=name), RESULT_SEEDS) for name, setting in settings.items()]
    # An encoder that starts with a large kappa maps the circle with a fold, which training cannot undo.
    plane = shorter(base(preset), preset, best=10_000, quick=1500)
    return [Row(replace(plane, name="dim-2", dim=2, kappa_start=(1.0, 2.0)), first_seeds(preset, 5))]


def samples(preset: Preset) -> list[Row]:
    """The bias of Monte-Carlo estimates against the number of samples; the exact loss has none."""
    counts = (1, 4, 16, 64, 256, 512)[: {"quick": 3, "best": 5}.get(preset, 6)]
    setting = with_loss(base(preset), "mcinfonce", preset)
    setting = shorter(setting, preset, best=10_000, quick=600)
    if preset == "best":
        setting = replace(setting, negatives=16)
    rows = [Row(replace(setting, name=f"samples-{n}", samples=n), first_seeds(preset, 3)) for n in counts]
    exact = replace(setting, name="no samples", loss="exact", kernel="acceptance")
    return rows if as_published(preset) else [*rows, Row(exact, first_seeds(preset, 3))]


def families(preset: Preset) -> list[Row]:
    """Posteriors that are not vMF."""
    setting = base(preset)
    rows = [Row(setting, first_seeds(preset, 5))]
    for family in ("gaussian", "laplace"):
        other = replace(setting, name=family, family=family, terms=None)
        rows.append(Row(shorter(other, preset, best=5000, quick=500), first_seeds(preset, 5)))
    return rows


def losses(preset: Preset) -> list[Row]:
    """The losses side by side, each with the hyperparameters that the paper chose for it."""
    names: tuple[LossName, ...] = ("mcinfonce", "hib", "elk")
    names = names if as_published(preset) else ("exact", *names, "infonce")
    settings = [with_loss(base(preset), loss, preset) for loss in names]
    if preset == "paper":  # the published ELK has a wrong constant, which decides where it ends
        settings.append(replace(settings[-1], name="ambiguous, fitted constants", fitted_constants=True))
    return [Row(setting, first_seeds(preset, 5)) for setting in settings]


def encoder_dim(preset: Preset) -> list[Row]:
    """Encoders of another dimension than the process's ten."""
    setting = shorter(base(preset), preset, best=5000, quick=500)
    rows = []
    for dim in (4, 8, 10, 16, 32, 64, 128) if preset != "quick" else (8, 16):
        row = replace(setting, name=f"encoder-dim-{dim}", encoder_dim=dim)
        if dim >= 64:  # learned posteriors are sharper there, and the series needs more terms
            row = replace(row, terms=None)
        if as_published(preset):  # the published network grows with the encoder's dimension
            row = replace(row, widths=(10 * dim, *[50 * dim] * 5, 10 * dim))
            if preset == "corrected":
                row = replace(row, kappa_widths=setting.widths)
        if as_published(preset) and dim >= 32:  # the published scripts save memory there
            row = replace(row, negatives=8)
        if as_published(preset) and dim >= 64:
            row = replace(row, samples=256, batch_size=512 if dim == 64 else 256)
        rows.append(Row(row, first_seeds(preset, 3)))
    return rows


def high_dim(preset: Preset) -> list[Row]:
    """Process and encoder of a higher dimension; in some, the published rule with its constant and the right one."""
    setting = shorter(base(preset), preset, best=5000, quick=500)
    rows = []
    for dim in (10, 16, 32, 40, 48, 56, 64) if preset != "quick" else (16, 32):
        row = replace(setting, name=f"dim-{dim}", dim=dim)
        if preset == "paper":
            row = replace(row, accept_offset=PUBLISHED_OFFSETS[dim])
        if as_published(preset):  # the published scripts save memory in all rows
            row = replace(row, samples=256, batch_size=256, negatives=8 if dim >= 64 else 32)
        rows.append(row)
    if preset == "paper":
        rows += [_right_constant(row) for row in rows if row.dim in (40, 64)]
    if preset == "quick":  # with a start and a rate that learn in minutes
        fitted = published_setting(40)
        for name in ("He's initialisation", "one cycle to 1e-3"):
            fitted = changed(fitted, CORRECTIONS[name])
        fitted = replace(smaller(fitted, batch_size=256, steps=4000), name="dim-40, published rule")
        rows += [fitted, _right_constant(fitted)]
    return [Row(row, first_seeds(preset, 3)) for row in rows]


def _right_constant(setting: Setting) -> Setting:
    """A row with the published rule, as it would be with the right constant."""
    return replace(changed(setting, CORRECTIONS["right constant of the rule"]), name=f"{setting.name}, right constant")


def shared_backbone(preset: Preset) -> list[Row]:
    """One network with two heads against two networks."""
    setting = shorter(base(preset), preset, best=10_000)
    # In the paper the process shares a backbone too: its kappa is a function of mu. That is easier for a shared encoder
    # than two unrelated functions, so it needs its own comparison with two networks.
    related = replace(setting, name="two networks for kappa of mu", kappa_of="mu")
    if preset == "paper":  # the published code shows kappa's network inputs in the place of mu when it sets its range
        related = replace(related, range_of="input")
    shared = replace(related, name="shared backbone", encoder_kappa_of="mu")
    rows = [setting, related, shared]
    if preset == "paper":
        rows.append(replace(corrected(shared), name="shared backbone, corrected"))
    if not as_published(preset):
        rows.insert(1, replace(setting, name="one network for two functions", encoder_kappa_of="features"))
    return [Row(row, first_seeds(preset, 5)) for row in rows]


def tuning(preset: Preset) -> list[Row]:
    """The paper's grid for the losses that it tunes, on a seed of its own: first the rest, then HIB's a and b.

    "The rest" is the number of negatives M, whether the loss's parameters are learned, and the phases.
    """
    setting = shorter(ungrouped(base(preset), preset), preset, best=3000, quick=200)
    rows = []
    counts: tuple[int | str, ...] = ("rolled", 1, 32) if preset != "quick" else ("rolled", 1)
    for loss in ("hib", "elk", "mcinfonce"):
        tuned = replace(setting, loss=loss, samples=sample_count(preset))
        for negatives, learnable, phases in product(counts, (False, True), ("joint", "mu-then-kappa")):
            name = f"M {0 if negatives == 'rolled' else negatives}, {'learnable' if learnable else 'fixed'}, {phases}"
            recipe, group = {**setting.recipe, "phases": phases}, setting.group if negatives == 32 else None
            row = replace(tuned, name=name, negatives=negatives, group=group, learnable=learnable, recipe=recipe)
            rows.append(together(row) if phases == "joint" else row)
    scales, offsets = ((0.5, 1, 2, 4), (-8, -4, -2, -1, 0, 1, 2, 4, 8)) if preset != "quick" else ((1, 4), (0, -2))
    hib = replace(together(setting), loss="hib", negatives="rolled", group=None, samples=sample_count(preset))
    rows += [replace(hib, name=f"a {a}, b {b}", a=float(a), b=float(b)) for a, b in product(scales, offsets)]
    return [Row(row, TUNING_SEEDS) for row in rows]


def infonce(preset: Preset) -> list[Row]:
    """Does certainty cost accuracy in the mean? InfoNCE, which learns the mean alone, beside the others."""
    names: tuple[LossName, ...] = ("mcinfonce", "infonce")
    names = names if as_published(preset) else ("exact", *names)
    return [Row(with_loss(base(preset), loss, preset), first_seeds(preset, 5)) for loss in names]


def optimisers(preset: Preset) -> list[Row]:
    """The error against the number of pairs, with Adam, which scales each weight by itself, and with SOAP."""
    counts = (2000, 8000) if preset == "quick" else (500, 2000, 8000)
    setting = base("best")
    if preset == "quick":  # but not quick's encoder: it is so small that its own error would hide the optimiser's
        quick = base(preset)
        setting = replace(ungrouped(setting, preset), points=quick.points, recipe=quick.recipe)
    changes: dict[str, dict[str, Any]] = {
        "adam": {"optimiser": "adam", "optimiser_options": {}, "learning_rate": 0.003},
        "soap": {},
    }
    rows = []
    for name, change in changes.items():
        for steps in counts:
            row = replace(setting, name=f"{name}, {steps} steps", recipe={**setting.recipe, **change, "steps": steps})
            rows.append(Row(row, first_seeds(preset, 3)))
    return rows


def phases(preset: Preset) -> list[Row]:
    """What kappa loses by being at random while mu learns, and by a kernel that is not the rule that accepts pairs."""
    setting = base(preset)
    if as_published(preset):
        return [Row(row, first_seeds(preset, 5)) for row in (setting, replace(together(setting), name="together"))]
    setting = shorter(setting, preset, best=10_000, quick=2000)  # quick: each phase as long as a run of both elsewhere
    first = {**setting.recipe, "phases": "mu-then-kappa", "mu_negatives": "given"}
    orders: dict[str, dict[str, Any]] = {
        "mu first, kappa at random": {"recipe": first, "calibrated": True},
        "mu first, kappa alike": {"recipe": first, "calibrated": True, "kappa_start": (22.0, 23.0)},
        "together": {},
    }
    rows = []
    for kernel, (order, changes) in product(("acceptance", "vmf"), orders.items()):
        name = order if kernel == "acceptance" else f"{order}, vMF kernel"
        rows.append(Row(replace(setting, name=name, kernel=kernel, **changes), first_seeds(preset, 3)))
    return rows


def published(preset: Preset) -> list[Row]:
    """From the published code's settings to the corrected ones, one change at a time.

    Each row has all changes of the rows before it. The last one trains mu and kappa together. Then the same for Clear
    (without "quick"), and for ELK, as far as the changes concern it. "Alone" is one change of the published settings.
    """
    start = base("paper")
    if preset == "quick":  # all rows in minutes: they show that every step of the walk runs, not what it reaches
        start = smaller(start, batch_size=64, steps=400)
    rows = [replace(setting, name=name) for name, setting in walk(start)]
    rows.append(replace(together(rows[-1]), name="mu and kappa together"))
    if preset != "quick":
        rows += [replace(row, name=f"{row.name}, clear") for row in map(_to_clear, rows)]
    elk = replace(with_loss(start, "elk", "paper"), fitted_constants=True)
    others = [replace(setting, name=f"{name}, ELK") for name, setting in walk(elk)]
    # He's start decides where ELK ends. So the learning rate also has a row without it.
    faster = changed(elk, CORRECTIONS["one cycle to 1e-3"])
    others.insert(1, replace(faster, name="one cycle to 1e-3 alone, ELK"))
    # ELK can end in two places, and few seeds may show one of them only.
    return [Row(row, first_seeds(preset, 3)) for row in rows] + [Row(row, first_seeds(preset, 5)) for row in others]


def _to_clear(setting: Setting) -> Setting:
    """A row of `published` with the Clear setting's range of kappa, from a start that is like its own."""
    clear = replace(setting, kappa_range=(64.0, 128.0))
    alike = setting.kappa_start == middle_start(setting)
    return replace(clear, kappa_start=middle_start(clear)) if alike else clear


def laws(preset: Preset) -> list[Row]:
    """What the exact loss learns from each law of negatives, if it assumes this law and if it does not."""
    setting = base(preset if preset == "quick" else "best")
    drawn = replace(setting, negatives=63, group=16)
    if preset == "quick":  # shows that the rows run; too short to tell the laws apart, which "landscape" does
        drawn = replace(setting, negatives=8, group=None, batch_size=64)
        drawn = shorter(drawn, preset, quick=500)
    changes: dict[str, dict[str, Any]] = {
        "from P(x)": {},
        "from P(x), odds": {"loss_rule": "rejected-pair"},
        "rejected for the pair": {"rule": "rejected-pair"},
        "rejected for the pair, no odds": {"rule": "rejected-pair", "loss_rule": "marginal"},
        "rejected for the latent": {"rule": "rejected-latent", "positives": "partner"},
        "rejected for the latent, no odds": {
            "rule": "rejected-latent",
            "positives": "partner",
            "loss_rule": "marginal",
        },
        "partner, from P(x)": {"positives": "partner"},
    }
    rows = [replace(drawn, name=name, **change) for name, change in changes.items()]
    return [Row(row, first_seeds(preset, 5 if row.assumed_rule == row.rule else 2)) for row in rows]


def modes(preset: Preset) -> list[Row]:
    """Posteriors of two and three modes, learned as such and as one; and of one mode, learned as two.

    Pairs carry their true match probability (soft targets). One row has drawn matches: they say less, and need more
    steps.
    """
    setting = replace(base(preset if preset == "quick" else "best"), targets="soft", batch_size=512, group=None)
    setting = shorter(setting, preset, best=1500)
    if preset == "quick":  # the second mode is found after some 400 steps; a few minutes on one core
        setting = shorter(replace(setting, dim=3, batch_size=96, points=500), preset, quick=500)
    longer = shorter(setting, preset, best=8000).recipe
    changes: dict[str, dict[str, Any]] = {
        "two modes": {"modes": 2},
        "two modes, learned as one": {"modes": 2, "encoder_modes": 1},
        "three modes": {"modes": 3},
        "one mode, learned as two": {"encoder_modes": 2},
        "one mode": {},
        "two modes, drawn matches": {"modes": 2, "targets": "chosen", "choices": 16, "group": 64, "recipe": longer},
    }
    rows = [replace(setting, name=name, **change) for name, change in changes.items()]
    if preset == "quick":
        rows = rows[:3]
    return [Row(row, first_seeds(preset, 2 if row.modes == 3 else 5)) for row in rows]


CONTROLLED: dict[str, Callable[[Preset], list[Row]]] = {
    "recovery": recovery,
    "circle": circle,
    "samples": samples,
    "families": families,
    "losses": losses,
    "encoder-dim": encoder_dim,
    "high-dim": high_dim,
    "shared-backbone": shared_backbone,
    "tuning": tuning,
    "infonce": infonce,
    "optimisers": optimisers,
    "phases": phases,
    "published": published,
    "laws": laws,
    "modes": modes,
}
