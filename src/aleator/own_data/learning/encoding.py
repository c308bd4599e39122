"""Encode items after training, once for all that calibrates and measures."""

import numpy as np
import torch

from aleator.own_data.learning.preparation import PreparedTraining
from aleator.own_data.measuring.encoded_items import EncodedItems
from aleator.own_data.measuring.views import posteriors_and_views
from aleator.posteriors import PosteriorBatch


def encode_items(training: PreparedTraining, numbers: np.ndarray) -> EncodedItems:
    """Posteriors and views of some items, by the encoder as it is now.

    Args:
        training: The items and the trained encoder.
        numbers: Item numbers, in any order, some perhaps twice.
    """
    numbers = np.unique(numbers)
    parts = [posteriors_and_views(training.encoder, batch) for batch in training.batches(numbers)]
    views = {name: torch.cat([part[name] for _, part in parts]) for name in parts[0][1]}
    q = PosteriorBatch.cat([q for q, _ in parts])
    return EncodedItems(numbers, q, views)
