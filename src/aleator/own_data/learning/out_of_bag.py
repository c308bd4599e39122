"""Learn from every item of a small collection, and still judge each by networks that have not seen it.

A head has several networks, and each leaves out a third of the items: what it learns from is its bag. An item is out of
bag for the networks that left it out. Their mean is an answer about the item as about a new one, so it can calibrate
and evaluate (Breiman 1996, "Out-of-bag estimation"). The mean of all networks answers for new items.

A third is left out because the items are dealt into three parts, several times, and each network leaves out one part.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Generator, Tensor

from aleator.data import LabelRowBatches, SoftBatch
from aleator.encoders import Chain, Encoder, Ensemble, Features
from aleator.evaluation import deal_into_folds
from aleator.foundation import derived_seed, require
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.labels import Labels
from aleator.own_data.learning.defaults import AUTO, FROM_SCRATCH, Settings, compares_with_classes
from aleator.posteriors import PosteriorBatch

if TYPE_CHECKING:
    from aleator.own_data.learning.preparation import RowSubset

PARTS = 3  # of a deal; with fewer networks, an item could be in every bag


def require_bags(settings: Settings, collection: Collection, labels: Labels) -> None:
    """Raise if networks cannot leave out items of their own, which `holdout=0` asks for."""
    from_scratch = settings.backbone in FROM_SCRATCH or (settings.backbone is None and collection.kind == "images")
    reasons = {
        "a network that is trained from scratch needs items that are held out": from_scratch,
        f"it is for classes, not for {labels.kind}": labels.kind != "classes" or not compares_with_classes(labels),
        "a trial of modes needs items that are held out": settings.modes == AUTO,
        "a network that is tuned needs items that are held out": settings.tune not in (None, "head"),
        "a continued run needs items that are held out": settings.start is not None,
    }
    for reason, holds in reasons.items():
        require(not holds, "holdout", 0, reason, "pass 0.2, for example, or leave it out")


def deal_bags(classes: np.ndarray, kinds: np.ndarray, members: int, seed: int) -> Tensor:
    """Which items each network learns from.

    Args:
        classes: Class of each item, shape (N,). A network leaves out about a third of each class.
        kinds: Equal for equal items, shape (N,). Copies of one item are in the same bags.
        members: Number M of networks, at least three.
        seed: Seed of the deal.

    Returns:
        Booleans, shape (M, N). Every item is out of the bag of some network.
    """
    require(members >= PARTS, "members", members, "an item could be in every bag", f"pass {PARTS} or more")
    deals = [deal_into_folds(classes, PARTS, kinds, derived_seed(seed, deal)) for deal in range(-(-members // PARTS))]
    return torch.stack([torch.as_tensor(deals[m // PARTS] != m % PARTS) for m in range(members)])


class BagBatches(LabelRowBatches):
    """Batches of items with their label rows, in which each network of an `Ensemble` gets items of its own bag.

    An `Ensemble` splits a batch into equal parts, the first for its first network. An item can be in several parts.

    Args:
        inputs: Items, shape (N, ...).
        labels: Classes (N,), or probabilities (N, C).
        batch_size: Number of places in a batch, about. The parts are equal, and no larger than the smallest bag.
        in_bag: From `deal_bags`, shape (M, N).
        device: Where to keep the items.
    """

    def __init__(
        self,
        inputs: "Tensor | RowSubset",
        labels: Tensor,
        batch_size: int,
        in_bag: Tensor,
        device: torch.device | None = None,
    ):
        super().__init__(inputs, labels, min(batch_size, len(inputs)), device=device)
        self.in_bag = in_bag.to(self.device)
        self.each = max(1, min(batch_size // len(in_bag), int(in_bag.sum(1).min())))

    @torch.no_grad()
    def __call__(self, step: int, generator: Generator) -> SoftBatch:
        """Draw a batch: items (B, ...) and their label rows (B, C)."""
        # The items with the least of independent random numbers are a draw without replacement.
        order = torch.rand(self.in_bag.shape, generator=generator, device=self.device).masked_fill(~self.in_bag, 2.0)
        numbers = order.topk(self.each, 1, largest=False).indices.flatten()
        return SoftBatch(self._take(numbers, generator), self.label_rows(numbers))


@torch.no_grad()
def out_of_bag_posteriors(encoder: Encoder, items: Tensor, in_bag: Tensor) -> PosteriorBatch:
    """Posteriors of items from the networks that did not learn from them.

    Args:
        encoder: The encoder. Its backbone ends in an `Ensemble` of M networks.
        items: Items, shape (n, F).
        in_bag: Whether they were in each network's bag, shape (M, n).

    Returns:
        Posteriors, batch shape (n,), in evaluation mode.
    """
    assert isinstance(encoder.backbone, Chain)
    ensemble = encoder.backbone.parts[-1]
    assert isinstance(ensemble, Ensemble)
    was_training = encoder.training
    encoder.eval()
    features = encoder.backbone(items).unflatten(1, (len(in_bag), -1))  # networks of one shape
    out = (~in_bag).to(features).T.unsqueeze(-1)  # (n, M, 1)
    # The output layer takes the sum of what the networks give, over M. So those that count are scaled to M in all.
    features = features * (out * len(in_bag) / out.sum(1, keepdim=True))
    q = encoder.with_backbone(Features(features[0].numel()))(features.flatten(1))
    encoder.train(was_training)
    return q
