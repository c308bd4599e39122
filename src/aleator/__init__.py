"""Probabilistic contrastive learning with von Mises-Fisher posteriors: embeddings that know what they do not know."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aleator.data import (
        GenerativeProcess,
        LabelledBatches,
        LabelRowBatches,
        PairBatches,
        SoftLabelBatches,
        SoftPairBatches,
    )
    from aleator.encoders import Encoder, controlled_encoder, load_encoder
    from aleator.losses import ELK, HIB, ContrastiveLoss, ExactInfoNCE, InfoNCE, MCInfoNCE, PrototypeLoss
    from aleator.matching import (
        AcceptanceKernel,
        VMFKernel,
        ZonalKernel,
        log_positivity,
        match_probability,
        pairwise_log_positivity,
    )
    from aleator.own_data import AleatorClassifier, AleatorModel
    from aleator.posteriors import VMFMixture, VonMisesFisher
    from aleator.retrieval import CredibleIndex
    from aleator.training import FitResult, Recipe, fit

__version__ = "0.1.0"

# The package that each public name comes from. It is imported when the name is first used, so `import aleator` costs
# nothing. Type checkers read the imports above; a test holds the three lists equal.
_PACKAGE_OF = {
    "AcceptanceKernel": "matching",
    "AleatorClassifier": "own_data",
    "AleatorModel": "own_data",
    "ContrastiveLoss": "losses",
    "CredibleIndex": "retrieval",
    "ELK": "losses",
    "Encoder": "encoders",
    "ExactInfoNCE": "losses",
    "FitResult": "training",
    "GenerativeProcess": "data",
    "HIB": "losses",
    "InfoNCE": "losses",
    "LabelRowBatches": "data",
    "LabelledBatches": "data",
    "MCInfoNCE": "losses",
    "PairBatches": "data",
    "PrototypeLoss": "losses",
    "Recipe": "training",
    "SoftLabelBatches": "data",
    "SoftPairBatches": "data",
    "VMFKernel": "matching",
    "VMFMixture": "posteriors",
    "VonMisesFisher": "posteriors",
    "ZonalKernel": "matching",
    "controlled_encoder": "encoders",
    "fit": "training",
    "load_encoder": "encoders",
    "log_positivity": "matching",
    "match_probability": "matching",
    "pairwise_log_positivity": "matching",
}


def __getattr__(name: str) -> Any:
    if name in _PACKAGE_OF:
        value = globals()[name] = getattr(import_module(f"aleator.{_PACKAGE_OF[name]}"), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "ELK",
    "HIB",
    "AcceptanceKernel",
    "AleatorClassifier",
    "AleatorModel",
    "ContrastiveLoss",
    "CredibleIndex",
    "Encoder",
    "ExactInfoNCE",
    "FitResult",
    "GenerativeProcess",
    "InfoNCE",
    "LabelRowBatches",
    "LabelledBatches",
    "MCInfoNCE",
    "PairBatches",
    "PrototypeLoss",
    "Recipe",
    "SoftLabelBatches",
    "SoftPairBatches",
    "VMFKernel",
    "VMFMixture",
    "VonMisesFisher",
    "ZonalKernel",
    "controlled_encoder",
    "fit",
    "load_encoder",
    "log_positivity",
    "match_probability",
    "pairwise_log_positivity",
]
