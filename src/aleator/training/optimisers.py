"""The optimiser that a recipe asks for, and its learning rate."""

from typing import Any

import torch
from torch import Tensor, nn

from aleator.foundation import reject, require
from aleator.training.recipe import OPTIMISERS, Recipe
from aleator.training.soap import SOAP


def make_optimiser(
    recipe: Recipe,
    encoder_parameters: list[nn.Parameter],
    loss_parameters: list[nn.Parameter],
    device: torch.device,
    captured: bool,
) -> torch.optim.Optimizer:
    require(
        bool(encoder_parameters),
        "encoder",
        "no parameter",
        "requires a gradient in this phase, so there is nothing to train",
        "unfreeze some, or choose other phases",
    )
    groups: list[dict[str, Any]] = [{"params": encoder_parameters, "weight_decay": recipe.weight_decay}]
    if loss_parameters:
        groups.append({"params": loss_parameters, "weight_decay": 0.0})
    options = dict(recipe.optimiser_options)
    if recipe.optimiser != "soap":
        # One pass over all parameters: a quarter of the time on a CPU. A gradient scaler could then not clip.
        options.setdefault("fused", recipe.precision != "16")
    if captured and recipe.optimiser != "sgd":  # which keeps no count of its steps
        options.setdefault("capturable", True)
    try:
        optimiser = OPTIMISERS[recipe.optimiser](groups, lr=recipe.learning_rate, **options)
    except TypeError as unknown:
        reject("optimiser_options", dict(recipe.optimiser_options), str(unknown), "see its documentation for the names")
    place_learning_rate(optimiser, device if captured else None)
    return optimiser


def place_learning_rate(optimiser: torch.optim.Optimizer, device: torch.device | None) -> None:
    """A tensor on the device for a captured step, a plain number otherwise; the checkpoint may hold either."""
    for group in optimiser.param_groups:
        group["lr"] = float(group["lr"]) if device is None else torch.tensor(float(group["lr"]), device=device)


def set_learning_rate(optimiser: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):  # a captured step reads it from the device
            group["lr"].fill_(learning_rate)
        else:
            group["lr"] = learning_rate


def turn_bases(optimiser: torch.optim.Optimizer, updates: int) -> None:
    """What a captured step of SOAP cannot do itself, when an ordinary one would; other optimisers have no bases.

    `updates` are those of the weights so far: SOAP's first step only chooses its bases.
    """
    if isinstance(optimiser, SOAP) and updates and updates % optimiser.defaults["every"] == 0:
        optimiser.turn()
