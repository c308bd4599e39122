"""A small setting for the tests of the controlled experiments."""

from dataclasses import replace

from aleator.experiments.controlled.presets import base
from aleator.experiments.controlled.run import Setting


def tiny(**changes) -> Setting:
    """Three steps in three dimensions, with changes."""
    setting = base("quick")
    few = {**setting.recipe, "steps": 3, **changes.pop("recipe", {})}
    small = {"dim": 3, "batch_size": 8, "group": None, "smoothing_steps": 5, "points": 60, "recipe": few}
    return replace(setting, **{**small, **changes})
