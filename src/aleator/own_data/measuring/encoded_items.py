"""Posteriors and views of items after training: computed once, and then shared by all that calibrates and measures."""

from dataclasses import dataclass

import numpy as np
import torch

from aleator.own_data.measuring.views import Views
from aleator.posteriors import PosteriorBatch


@dataclass(frozen=True)
class EncodedItems:
    """Posteriors and views of n items.

    Args:
        numbers: Item numbers, ascending, shape (n,).
        q: Posteriors, batch shape (n,), on the CPU.
        views: Views (n, F) by name; see `posteriors_and_views`.
    """

    numbers: np.ndarray
    q: PosteriorBatch
    views: Views

    def posteriors(self, numbers: np.ndarray) -> PosteriorBatch:
        """Posteriors of some of the items, in this order."""
        return self.q[self._places(numbers)]

    def views_of(self, numbers: np.ndarray) -> Views:
        """Views of some of the items, in this order."""
        places = self._places(numbers)
        return {name: view[places] for name, view in self.views.items()}

    def _places(self, numbers: np.ndarray) -> torch.Tensor:
        places = np.searchsorted(self.numbers, numbers)
        assert np.array_equal(self.numbers[np.minimum(places, len(self.numbers) - 1)], numbers), "not encoded"
        return torch.as_tensor(places)
