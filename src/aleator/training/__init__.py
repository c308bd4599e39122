"""`fit` and its parts: recipe, objective, optimisers, checkpoints, logs."""

from aleator.training.loop import FitResult, fit
from aleator.training.objective import Objective
from aleator.training.recipe import Recipe

__all__ = ["FitResult", "Objective", "Recipe", "fit"]
