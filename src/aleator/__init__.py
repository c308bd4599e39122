"""Probabilistic contrastive learning with von Mises-Fisher posteriors: embeddings that know what they do not know."""

from typing import Any

from .encoders import Encoder, controlled_encoder, load_encoder
from .harmonics import AcceptanceKernel, VMFKernel, ZonalKernel
from .losses import ELK, HIB, ExactInfoNCE, InfoNCE, MCInfoNCE
from .positivity import log_positivity, match_probability, pairwise_log_positivity
from .recipe import Recipe
from .vmf import VonMisesFisher

__version__ = "0.1.0"

# Parts that need more than torch, numpy and scipy are imported when they are first asked for.
_LATER = {
    "fit": "training",
    "FitResult": "training",
    "CredibleIndex": "retrieval",
    "GenerativeProcess": "generative",
    "LabelledBatches": "data",
    "PairBatches": "data",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "ELK",
    "HIB",
    "AcceptanceKernel",
    "CredibleIndex",
    "Encoder",
    "ExactInfoNCE",
    "FitResult",
    "GenerativeProcess",
    "InfoNCE",
    "LabelledBatches",
    "MCInfoNCE",
    "PairBatches",
    "Recipe",
    "VMFKernel",
    "VonMisesFisher",
    "ZonalKernel",
    "controlled_encoder",
    "fit",
    "load_encoder",
    "log_positivity",
    "match_probability",
    "pairwise_log_positivity",
]
