"""Device, precision and processes of a run, through lightning-fabric."""

import logging
from typing import TYPE_CHECKING, Any

import torch

from aleator.foundation import launched_process, resolve_device
from aleator.training.recipe import Precision

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Fabric's names. TF32 is float32 for Fabric; `fit` sets the precision of matrix products itself.
_PRECISIONS: dict[Precision, Any] = {"32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


def make_fabric(precision: Precision, device: str) -> "Fabric":
    """Fabric for one process on `device`, or for DDP over all processes that torchrun started."""
    from lightning_fabric import Fabric

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it prints tips at the start of every run
    resolved = resolve_device(device)
    launched = launched_process()
    if launched.count == 1:
        return Fabric(
            accelerator=resolved.type,
            devices=1 if resolved.index is None else [resolved.index],
            precision=_PRECISIONS[precision],
        )
    return Fabric(
        accelerator=resolved.type,
        strategy="ddp",
        devices=launched.local_count,
        num_nodes=launched.count // launched.local_count,
        precision=_PRECISIONS[precision],
    )


class Uncast:
    """A batch that Fabric hands on as it is.

    For mixed precision Fabric would round every number of a batch before the forward pass: inputs, and match weights.
    Autocast rounds what goes into products, where they are taken.
    """

    def __init__(self, batch: Any):
        self.batch = batch


def module_input(fabric: "Fabric", batch: Any) -> Any:
    """A batch as a module of Fabric takes it."""
    from lightning_fabric.plugins.precision import MixedPrecision

    return Uncast(batch) if isinstance(fabric.strategy.precision, MixedPrecision) else batch


def gather_objects(fabric: "Fabric", value: Any) -> list[Any]:
    """The values of all processes, in the order of the ranks."""
    if fabric.world_size == 1:
        return [value]
    values: list[Any] = [None] * fabric.world_size
    torch.distributed.all_gather_object(values, value)
    return values
