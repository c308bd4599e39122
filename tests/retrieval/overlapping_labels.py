"""Posteriors of labels that overlap, for answer sets."""

import torch

from aleator import CredibleIndex, VonMisesFisher


def seen(n: int, generator: torch.Generator, labels: int = 6, dim: int = 6) -> tuple[VonMisesFisher, list[str]]:
    """n posteriors around the centres of labels; kappa says how far each lies from its centre."""
    centres = torch.nn.functional.normalize(
        torch.randn(labels, dim, generator=torch.Generator().manual_seed(0)), dim=-1
    )
    label = torch.randint(labels, (n,), generator=generator)
    kappa = 2 + 20 * torch.rand(n, generator=generator)
    mu = VonMisesFisher(centres[label], kappa).sample(generator=generator)
    return VonMisesFisher(mu, kappa), [f"label {i}" for i in label.tolist()]


def questions_and_index(
    questions: int, items: int, seed: int = 1, **build: object
) -> tuple[VonMisesFisher, list[str], CredibleIndex, VonMisesFisher, list[str]]:
    """Questions with their labels, and an index of items with their labels."""
    generator = torch.Generator().manual_seed(seed)
    q, right = seen(questions, generator)
    gallery, labels = seen(items, generator)
    index = CredibleIndex.build(gallery, metadata=[{"label": label} for label in labels], **build)  # type: ignore[arg-type]
    return q, right, index, gallery, labels
