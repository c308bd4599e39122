"""Small heads on features of a trained network: they turn them into posteriors of one mode or several.

The network and the posteriors of a gallery stay as they are. So heads with different numbers of modes place their
questions in the same space, among the same items, and their answers can be compared.
"""

import torch
from torch import Generator, Tensor

from aleator.encoders import MLP, Encoder
from aleator.foundation import one_thread
from aleator.losses import ExactInfoNCE
from aleator.matching import ZonalKernel
from aleator.posteriors import PosteriorBatch, VonMisesFisher

_WIDTH, _BATCH, _CANDIDATES = 128, 128, 48
_RATE = 5e-3
_HALVINGS = 6  # of the interval of the scale of kappa
_SMALLEST_SCALE = 2.0**-4


def learn_head(
    modes: int,
    features: Tensor,
    labels: Tensor,
    gallery: VonMisesFisher,
    gallery_labels: Tensor,
    kernel: ZonalKernel,
    steps: int,
    seed: int,
) -> Encoder:
    """Train a head to find the items of the gallery that have the label of a question.

    The loss is the soft `ExactInfoNCE`: of some items of the gallery, those with the right label are the positives. A
    question whose label is not among them does not count.

    Args:
        modes: Number of modes of each posterior.
        features: Features of questions, (N, F).
        labels: Their labels, (N,).
        gallery: Posteriors of the items, batch shape (M,). They are not changed.
        gallery_labels: Their labels, (M,).
        kernel: What counts as a match.
        steps: Number of training steps.
        seed: Seed of everything random. Heads with the same seed see the same batches.

    Returns:
        The head: features (B, F) to posteriors.
    """
    torch.manual_seed(seed)
    dim = gallery.mu.shape[-1]
    head = Encoder(MLP(features.shape[1], (_WIDTH,)), dim, modes=modes)
    head.set_kappa_range(features[:256], (float(dim), 4.0 * dim))
    optimiser = torch.optim.AdamW(head.parameters(), lr=_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, total_steps=steps)
    loss = ExactInfoNCE(kernel)
    generator = Generator().manual_seed(seed)
    with one_thread():
        for _ in range(steps):
            asked = torch.randint(len(features), (_BATCH,), generator=generator)
            among = torch.randint(len(gallery), (_CANDIDATES,), generator=generator)
            right = (labels[asked, None] == gallery_labels[among]).float()
            optimiser.zero_grad()
            loss.soft(head(features[asked]), right, gallery[among]).backward()
            optimiser.step()
            schedule.step()
    return head.eval()


@torch.no_grad()
def covering_scale(
    q: PosteriorBatch, labels: Tensor, gallery: VonMisesFisher, gallery_labels: Tensor, level: float
) -> float:
    """The largest factor of kappa, at most 1, with which credible sets hold a right item as often as their level says.

    A smaller kappa makes sets larger. The factor is found by halving an interval. It is at least 1/16, even if the sets
    then still hold a right item less often.

    Args:
        q: Posteriors of questions, batch shape (N,).
        labels: Their labels, (N,).
        gallery: Posteriors of the items, batch shape (M,).
        gallery_labels: Their labels, (M,).
        level: Level of the credible sets, and the share of them that should hold a right item.

    Returns:
        The factor.
    """
    right = labels[:, None] == gallery_labels

    def covers(scale: float) -> bool:
        scaled = q.scale_kappa(scale)
        region = scaled.region(level)
        inside = scaled.unsqueeze(1).log_prob(gallery.mu) >= region.log_threshold[:, None]
        return (inside & right).any(1).double().mean().item() >= level

    if covers(1.0):
        return 1.0
    low, high = _SMALLEST_SCALE, 1.0
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if covers(middle) else (low, middle)
    return low
