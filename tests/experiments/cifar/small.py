"""Small settings and made-up images for the tests of the CIFAR-10H experiments."""

from dataclasses import replace

import torch

from aleator.data.cifar import CifarImages
from aleator.experiments.cifar.folds import CifarSetting

SEEDED = torch.Generator().manual_seed

TINY = CifarSetting(
    loss="exact",
    network={"width": 1, "epochs": 2, "batch_size": 16, "learning_rate": 0.05, "cutout": 0},
    dim=3,
    batch_size=8,
    samples=3,
    augment={"zoom": 0.5},
    head_first={"steps": 3, "learning_rate": 1e-2},
    recipe={"steps": 4, "validate_every": 2, "learning_rate": 1e-3},
)
HIDDEN = replace(TINY, hidden=(6,), kernel="acceptance")
# Metrics that every encoder with a certainty has.
MEASURED = {
    "entropy_rank",
    "crop_rank",
    "crop_random_rank",
    "recall_at_1",
    "recall_at_1_surer_half",
    "map_at_r",
    "match_ece",
    "match_recall_at_1",
    "label_entropy_rank",
    "label_crop_rank",
    "label_log_likelihood",
    "label_accuracy",
}


def coloured(n: int, seed: int) -> CifarImages:
    """Noisy images whose colour shows the class."""
    labels = torch.randint(10, (n,), generator=SEEDED(seed))
    colour = torch.stack([labels * 25, 255 - labels * 25, labels % 3 * 100], 1)[:, :, None, None]
    noise = torch.randint(-20, 20, (n, 3, 32, 32), generator=SEEDED(seed + 1))
    return CifarImages((colour + noise).clamp(0, 255).to(torch.uint8), labels)
