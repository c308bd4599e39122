"""Pretrained networks from Hugging Face, kept as they are, and how their inputs are prepared."""

from torch import nn

from aleator.data import Inputs
from aleator.encoders import HubText, HubVision
from aleator.foundation import reject

# What ImageNet networks expect where their own preparation is not known.
_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def load_pretrained(name: str, kind: str) -> tuple[nn.Module, Inputs]:
    """The network called `name` (a hub name or a folder), frozen, and its `Inputs`."""
    try:
        _quiet()
        if kind == "text":
            network: nn.Module = HubText.from_pretrained(name)
            inputs = Inputs("text")
        else:
            network = HubVision.from_pretrained(name)
            inputs = _vision_inputs(name)
    except ImportError:
        reject("backbone", f"hf:{name}", "needs the package transformers", "pip install 'aleator[hub]'")
    except (OSError, ValueError) as problem:
        first_line = str(problem).strip().splitlines()[0]
        reject("backbone", f"hf:{name}", f"cannot be loaded ({first_line})", "name a folder, or a model on the hub")
    return network.requires_grad_(False).eval(), inputs


def _quiet() -> None:
    """The library would draw a bar for every file that it reads."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def _vision_inputs(name: str) -> Inputs:
    """Size, mean and deviation as the network's own image processor has them."""
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        facts, _ = ImageProcessingMixin.get_image_processor_dict(name)
    except OSError:  # none beside the weights
        facts = {}
    size = facts.get("crop_size") or facts.get("size") or 224
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge") or 224
    mean, std = facts.get("image_mean", _IMAGENET["mean"]), facts.get("image_std", _IMAGENET["std"])
    return Inputs("images", size=int(size), mean=tuple(mean), std=tuple(std))
