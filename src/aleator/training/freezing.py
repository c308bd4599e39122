"""Which parameters a phase trains, and which it freezes."""

import contextlib
from collections.abc import Iterator

from torch import nn

from aleator.encoders import Encoder
from aleator.training.recipe import Part


def set_training_mode(encoder: Encoder, loss: nn.Module, part: Part, trainable: set[nn.Parameter]) -> None:
    """Put the modules into training mode, and freeze what a phase of this part does not train.

    A frozen module is in evaluation mode, so its running statistics stay as they are, too.

    Args:
        encoder: The encoder.
        loss: The loss, which may have parameters of its own.
        part: What the phase trains.
        trainable: Parameters that may be trained at all; see `restored_requires_grad`.
    """
    encoder.train()
    loss.train()
    frozen: list[nn.Module] = []
    if encoder.separable and part != "joint":
        frozen = encoder.kappa_modules() if part == "mu" else encoder.mu_modules()
    frozen_parameters = {parameter for module in frozen for parameter in module.eval().parameters()}
    for parameter in trainable:
        parameter.requires_grad_(parameter not in frozen_parameters)


def unfrozen_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that require gradients now."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


@contextlib.contextmanager
def restored_requires_grad(*modules: nn.Module) -> Iterator[set[nn.Parameter]]:
    """The parameters that require gradients; after the block they do so again, whatever the phases froze."""
    parameters = {parameter for module in modules for parameter in unfrozen_parameters(module)}
    try:
        yield parameters
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
