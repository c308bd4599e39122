"""A small setting for the tests of the controlled experiments."""

from dataclasses import replace

from aleator.experiments.controlled.run import Setting
from aleator.experiments.controlled.tables import base


def tiny(**changes) -> Setting:
    """Three steps in three dimensions, with changes."""
    setting = base("quick")
    few = {**setting.recipe, "steps": 3, **changes.pop("recipe", {})}
    small = {"dim": 3, "batch_size": 8, "group": None, "smoothing_steps": 5, "points": 60, "recipe": few}
    return replace(setting, **{**small, **changes})
