"""The optimiser of a recipe, and its learning rate."""

from typing import Any

import torch
from torch import Tensor, nn

from aleator.foundation import reject, require
from aleator.training.recipe import Optimiser, Recipe
from aleator.training.soap import SOAP

_CLASSES: dict[Optimiser, Any] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "soap": SOAP,
}


def make_optimiser(
    recipe: Recipe,
    encoder_parameters: list[nn.Parameter],
    loss_parameters: list[nn.Parameter],
    device: torch.device,
    cuda_graph: bool,
) -> torch.optim.Optimizer:
    """Build the optimiser of a phase.

    Args:
        recipe: Its optimiser, options and weight decay.
        encoder_parameters: Parameters of the encoder that this phase trains.
        loss_parameters: Parameters of the loss that this phase trains. They are not decayed.
        device: The training device.
        cuda_graph: Whether the step is to run as a CUDA graph.

    Returns:
        The optimiser.

    Raises:
        ValueError: If there is nothing to train, or if the optimiser does not know one of the options.
    """
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
        # One pass over all parameters takes a quarter of the time on a CPU. Fabric's gradient scaler (precision "16")
        # cannot clip the gradients of a fused optimiser.
        options.setdefault("fused", recipe.precision != "16")
    if cuda_graph and recipe.optimiser != "sgd":  # SGD does not count its steps, and has no such option
        options.setdefault("capturable", True)
    try:
        optimiser = _CLASSES[recipe.optimiser](groups, lr=recipe.learning_rate, **options)
    except TypeError as unknown:
        reject("optimiser_options", dict(recipe.optimiser_options), str(unknown), "see its documentation for the names")
    place_learning_rate(optimiser, device if cuda_graph else None)
    return optimiser


def place_learning_rate(optimiser: torch.optim.Optimizer, device: torch.device | None) -> None:
    """Make the learning rate a tensor on `device`, for a CUDA graph; or a number if `device` is None.

    A checkpoint may hold either.
    """
    for group in optimiser.param_groups:
        group["lr"] = float(group["lr"]) if device is None else torch.tensor(float(group["lr"]), device=device)


def set_learning_rate(optimiser: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of all parameters, whether it is a number or a tensor."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):  # a CUDA graph reads it at this address
            group["lr"].fill_(learning_rate)
        else:
            group["lr"] = learning_rate


def turn_bases(optimiser: torch.optim.Optimizer, updates: int) -> None:
    """After a replayed step: update the bases of SOAP, when an ordinary step would. Other optimisers have none.

    Args:
        optimiser: Any optimiser.
        updates: Number of updates of the weights so far. SOAP's first step chooses its bases and changes no weight.
    """
    if isinstance(optimiser, SOAP) and updates and updates % optimiser.defaults["every"] == 0:
        optimiser.turn()
