"""Pretrained networks, frozen, from packages and from Hugging Face, and how their inputs are prepared."""

import importlib.util

from torch import nn

from aleator.data import Inputs
from aleator.encoders import EfficientNetLite0, HubText, HubVision, find_model
from aleator.foundation import reject, require

# Used if a network comes without its own mean and deviation.
_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def load_pretrained(backbone: str, kind: str, size: int | None = None) -> tuple[nn.Module, Inputs]:
    """Load a network for "images" or "text", frozen, and its `Inputs`.

    Args:
        backbone: "efficientnet-lite0", or "hf:NAME" with a name on the hub or a folder.
        kind: What the items are.
        size: Side of the images. Default: what the network was trained on.
    """
    if backbone == "efficientnet-lite0":
        mean, std = (EfficientNetLite0.MEAN,) * 3, (EfficientNetLite0.DEVIATION,) * 3
        inputs = Inputs("images", size=size or 224, mean=mean, std=std)
        return EfficientNetLite0.pretrained().requires_grad_(False), inputs
    name = backbone.removeprefix("hf:")
    installed = importlib.util.find_spec("transformers") is not None
    require(installed, "backbone", f"hf:{name}", "needs the package transformers", "pip install 'aleator[hub]'")
    source = find_model(name, "backbone")  # before transformers is imported, which takes seconds
    try:
        _hide_progress_bars()
        if kind == "text":
            network: nn.Module = HubText.from_pretrained(source)
            inputs = Inputs("text")
        else:
            network = HubVision.from_pretrained(source)
            inputs = _vision_inputs(source)
    except (OSError, ValueError) as problem:
        first_line = str(problem).strip().splitlines()[0]
        reject("backbone", f"hf:{name}", f"cannot be loaded ({first_line})", "name a folder, or a model on the hub")
    return network.requires_grad_(False).eval(), inputs


def _hide_progress_bars() -> None:
    """Keep transformers from showing a progress bar for every file that it reads."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def _vision_inputs(name: str) -> Inputs:
    """Size, mean and deviation from the network's own image processor."""
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        processor, _ = ImageProcessingMixin.get_image_processor_dict(name)
    except OSError:  # the network has none
        processor = {}
    size = processor.get("crop_size") or processor.get("size") or 224
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge") or 224
    mean, std = processor.get("image_mean", _IMAGENET["mean"]), processor.get("image_std", _IMAGENET["std"])
    return Inputs("images", size=int(size), mean=tuple(mean), std=tuple(std))
