"""The presets of the controlled experiments: the main row of each, and the changes that several tables make.

`base(preset)` is the main row, the Ambiguous setting. tables.py lists the experiments, whose rows change it.

Presets:

- quick: minutes on two CPU cores. Smaller networks and batches, one seed.
- paper: the published code's laws and settings, wherever they are not plain errors (`published.py`). Positives are
  partners of one latent of the anchor, and negatives are rejected for the same latent.
- corrected: the same experiment with every correction of `published.py`: pairs, negatives and kernel that fit together,
  and optimisation that converges.
- best: what we recommend. See docs/understanding.md for the reasons.
    - The encoder has three layers of 128 units instead of seven of up to 500. The true networks have ten units in each
      layer. Every step sees fresh pairs, so the error comes from estimating the weights, and fewer weights are better.
    - SOAP instead of Adam, which needs several times as many pairs for the same error.
    - 63 negatives for each anchor. More of them cost time and add little; the time is better spent on more pairs.
    - In `recovery` each input chooses 16 matches among the 63 others, instead of having one positive drawn for it. That
      is 16 times as many pairs for half as many encodings.
"""

from dataclasses import replace
from typing import Any

from aleator.experiments.controlled.published import corrected, middle_start
from aleator.experiments.controlled.published import published as published_setting
from aleator.experiments.controlled.run import Setting
from aleator.experiments.settings import LossName, Preset

# Seeds of the results, and of the experiment that chooses hyperparameters, as in the paper: no seed is in both.
RESULT_SEEDS, TUNING_SEEDS = (4, 5, 6, 7, 8), (1,)
TEN_SEEDS = tuple(range(4, 14))  # five more, which nothing was chosen by


def _recipe(preset: Preset, steps: int, **changes: Any) -> dict[str, Any]:
    """Arguments of `Recipe` for "quick" and "best"."""
    options: dict[str, Any] = {"optimiser": "soap", "schedule": "one-cycle", "learning_rate": 0.01}
    if preset == "best":  # factorising small matrices is slow on a GPU, and doing it less often costs no accuracy
        options["optimiser_options"] = {"every": 50}
    # TF32 rounds products inside the encoder only. Losses and samples stay in full precision.
    return {"steps": steps, **options, "precision": "tf32", "checkpoint_every": 10_000, "log_every": 500, **changes}


def base(preset: Preset) -> Setting:
    """The main row of a preset: the paper's Ambiguous setting, true kappas between 16 and 32."""
    if preset == "paper":
        return published_setting()
    if preset == "corrected":
        return corrected(published_setting())
    if preset == "best":
        return Setting(widths=(128, 128, 128), batch_size=2048, group=64, terms=32, recipe=_recipe(preset, 50_000))
    return Setting(
        widths=(64, 64),
        batch_size=256,
        group=32,
        terms=32,
        smoothing_steps=1000,
        points=2000,
        recipe=_recipe(preset, 1000, log_every=50, checkpoint_every=200),
    )


def with_loss(setting: Setting, loss: LossName, preset: Preset) -> Setting:
    """The setting with another loss, and the hyperparameters that the paper chose for it."""
    if loss == setting.loss == "exact" or (loss == "mcinfonce" and as_published(preset)):
        return setting
    count = 8 if preset == "quick" else 32
    setting = shorter(ungrouped(setting, preset), preset, best=20_000, quick=1000)
    setting = replace(setting, loss=loss, samples=sample_count(preset))
    if loss == "mcinfonce":
        return replace(setting, negatives=count)
    if loss == "infonce":
        recipe = {**setting.recipe, "phases": "mu", "mu_negatives": "given"}
        return replace(setting, negatives=count, mu_phase_negatives=None, recipe=recipe)
    return replace(together(setting), negatives="rolled" if loss == "hib" else 1, group=None)


def together(setting: Setting) -> Setting:
    """The setting with one phase, in which mu and kappa are trained together."""
    return replace(setting, mu_phase_negatives=None, recipe={**setting.recipe, "phases": "joint"})


def as_published(preset: Preset) -> bool:
    """Whether a preset has the sizes of the published experiments."""
    return preset in ("paper", "corrected")


def ungrouped(setting: Setting, preset: Preset) -> Setting:
    """The setting without groups: each anchor has its own negatives. The batch is smaller (paper: unchanged)."""
    if as_published(preset):
        return setting
    return replace(setting, batch_size={"best": 512, "quick": 128}[preset], group=None)


def sample_count(preset: Preset) -> int:
    """Number of Monte-Carlo samples."""
    return {"paper": 512, "corrected": 512, "best": 64, "quick": 16}[preset]


def from_its_middle(setting: Setting, preset: Preset) -> Setting:
    """The setting, with kappa in the middle of its own true range while mu learns, as the preset "corrected" has it."""
    return replace(setting, kappa_start=middle_start(setting)) if preset == "corrected" else setting


def shorter(setting: Setting, preset: Preset, **steps: int) -> Setting:
    """The setting with another number of steps: `steps` by preset. Presets that are not named keep theirs."""
    return replace(setting, recipe={**setting.recipe, "steps": steps[preset]}) if preset in steps else setting


def smaller(setting: Setting, batch_size: int, steps: int) -> Setting:
    """A setting of the published sizes, so small that it runs on two cores."""
    quick = base("quick")
    return replace(
        setting,
        widths=quick.widths,
        batch_size=batch_size,
        negatives=8,
        group=8,
        samples=16,
        smoothing_steps=quick.smoothing_steps,
        points=quick.points,
        recipe={**setting.recipe, "steps": steps, "log_every": 50, "checkpoint_every": 200},
    )


def first_seeds(preset: Preset, count: int) -> tuple[int, ...]:
    """The first `count` seeds of the results; one in the preset "quick"."""
    return RESULT_SEEDS[: 1 if preset == "quick" else count]
