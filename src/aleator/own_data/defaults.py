"""Settings that nobody gave, chosen from the data, each with its reason."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from aleator.foundation import require, require_one_of
from aleator.own_data.collection import Collection, Labels
from aleator.posteriors import VonMisesFisher
from aleator.special import log_sphere_area


@dataclass(frozen=True)
class Settings:
    """How to train. None: chosen from the data.

    Args:
        backbone: "resnet18" (images, from scratch), "features" (.npy), or "hf:NAME": a pretrained network from Hugging
            Face, kept as it is, with a head that learns.
        dim: D of the posteriors.
        kappa_pos: of the kernel that says what counts as a match.
        width: of the ResNet's first layer, or of the head's hidden layers.
        size: side of the images.
        augment: "flip", "crop" or "none", for images.
    """

    backbone: str | None = None
    dim: int | None = None
    kappa_pos: float | None = None
    batch_size: int | None = None
    steps: int | None = None
    learning_rate: float | None = None
    width: int | None = None
    size: int | None = None
    augment: str | None = None
    holdout: float = 0.2
    seed: int = 0


@dataclass(frozen=True)
class Choice:
    """A setting that was chosen, and why."""

    name: str
    value: object
    why: str


def choose(collection: Collection, labels: Labels, train_items: int, given: Settings) -> tuple[dict, list[Choice]]:
    """Every setting's value, and the choices that were made."""
    values = {name: value for name, value in vars(given).items()}
    choices: list[Choice] = []

    def settle(name: str, value: object, why: str) -> None:
        if values[name] is None:
            values[name] = value
            choices.append(Choice(name, value, why))

    backbones = {"images": "resnet18", "features": "features", "text": "hf:sentence-transformers/all-MiniLM-L6-v2"}
    settle("backbone", backbones[collection.kind], f"the collection holds {collection.kind}")
    _require_backbone(values["backbone"], collection.kind)
    frozen = values["backbone"] != "resnet18"

    lift = match_lift(labels, len(collection))
    dim = min(64, max(8, 2 ** round(math.log2(lift))))
    settle("dim", dim, f"a random pair matches about once in {lift:.3g}, and that many directions must fit")
    require(isinstance(values["dim"], int) and values["dim"] >= 2, "dim", values["dim"], "too small", "pass 2 or more")
    kappa_pos = kernel_width(values["dim"], lift)
    settle("kappa_pos", kappa_pos, f"a sure match is then {_PEAK:g} x {lift:.3g} times likelier than a random pair")
    gpu = torch.cuda.is_available()
    batch_size = 256 if frozen or gpu else 64
    settle("batch_size", min(batch_size, max(8, train_items // 4)), f"for {train_items} training items")
    most = 1500 if frozen else 20_000 if gpu else 600  # a few minutes, on two cores or on a GPU
    steps = min(max((30 if frozen else 40) * train_items // values["batch_size"], 300), most)
    settle("steps", steps, f"{steps * values['batch_size'] / train_items:.0f} passes over the training items")
    settle("learning_rate", 1e-3, "one cycle, up and down")
    if collection.kind == "images" and not frozen:
        settle("size", 32, "small images train fast; --size 64 sees more")
        settle("width", 64 if gpu else 8, "a full ResNet-18" if gpu else "a thin ResNet-18, for want of a GPU")
        settle("augment", "flip", "images are shifted and mirrored; --augment crop if left and right differ")
        require_one_of("augment", values["augment"], ("flip", "crop", "none"))
    if frozen:
        settle("width", 256, "two hidden layers on the features")
    for name in ("batch_size", "steps", "size", "width"):
        value = values[name]
        require(value is None or (isinstance(value, int) and value >= 1), name, value, "not positive", "leave it out")
    return values, choices


def match_lift(labels: Labels, count: int) -> float:
    """How much likelier a pair drawn to match is than a random pair, if the labels were known: 1 / P(match)."""
    if labels.kind == "pairs":
        return min(64.0, max(2.0, count / max(1.0, 2 * len(labels.values) / count)))
    counts = labels.counts().astype(np.float64)
    return float(1 / np.square(counts / counts.sum()).sum())


_PEAK = 10.0


def kernel_width(dim: int, lift: float) -> float:
    """kappa_pos for which two equal points count `_PEAK` times the lift: room for posteriors that are not points."""
    target = math.log(_PEAK * lift) - log_sphere_area(dim)
    low, high = 1e-2, 1e5
    for _ in range(60):
        middle = math.sqrt(low * high)
        mode = torch.nn.functional.one_hot(torch.tensor(0), dim).double()
        peak = float(VonMisesFisher(mode, torch.tensor(middle, dtype=torch.float64)).log_prob(mode))
        low, high = (middle, high) if peak < target else (low, middle)
    return float(f"{high:.3g}")


def _require_backbone(backbone: str, kind: str) -> None:
    known = {"images": ("resnet18",), "features": ("features",), "text": ()}[kind]
    hub = backbone.startswith("hf:") and kind != "features"
    allowed = [*known, *(["hf:NAME"] if kind != "features" else [])]
    require(backbone in known or hub, "backbone", backbone, f"does not take {kind}", f"choose {' or '.join(allowed)}")
