"""Training: `fit` follows a `Recipe`.

`loop` is the training loop and reads from top to bottom. Its parts: `recipe` (settings), `objective` (batch -> loss),
`optimisers` and `soap`, `freezing` (which parameters a phase trains), `state` (progress and best weights), `fabric`
(device, precision, processes), `cuda_graph`, `run_folder` and `checkpoints` (what is on disk), `logbook`.
"""

from aleator.training.checkpoints import last_saved_step
from aleator.training.loop import FitResult, fit
from aleator.training.objective import Objective
from aleator.training.recipe import Recipe
from aleator.training.soap import SOAP

__all__ = ["SOAP", "FitResult", "Objective", "Recipe", "fit", "last_saved_step"]
