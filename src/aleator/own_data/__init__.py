"""A person's own data, end to end: read a collection, train, embed, evaluate."""

from .collection import Collection, Labels, example_sentences, read_collection
from .defaults import Settings
from .embedding import embed
from .evaluation import evaluate
from .learning import train
from .run import Run, load_run

__all__ = [
    "Collection",
    "Labels",
    "Run",
    "Settings",
    "embed",
    "evaluate",
    "example_sentences",
    "load_run",
    "read_collection",
    "train",
]
