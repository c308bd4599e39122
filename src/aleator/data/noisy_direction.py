"""Posteriors that are not von Mises-Fisher: the direction of a vector plus noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

NoiseFamily = Literal["gaussian", "laplace"]


@dataclass(frozen=True)
class NoisyDirection:
    """Distribution of z = (mu + noise) / |mu + noise| on the unit sphere.

    It is not a vMF. Experiments use it as the truth, to see how a model that assumes vMF posteriors does.

    Args:
        mu: Unit vectors (..., D).
        kappa: Positive numbers (...); the larger, the less noise.
        family: Noise in every coordinate: "gaussian" of variance 1 / kappa, or "laplace" of scale 1 / kappa.

    Examples:
        >>> import torch
        >>> from aleator.data import NoisyDirection
        >>> q = NoisyDirection(torch.eye(3), torch.full((3,), 20.0), "gaussian")
        >>> q.sample((5,)).shape
        torch.Size([5, 3, 3])
    """

    mu: Tensor
    kappa: Tensor
    family: NoiseFamily

    @property
    def mode(self) -> Tensor:
        """mu, (..., D)."""
        return self.mu

    def sample(self, sample_shape: Sequence[int] = (), generator: Generator | None = None) -> Tensor:
        """Draw latents.

        Args:
            sample_shape: Shape of the draws for each distribution.
            generator: Random generator. Default: torch's own.

        Returns:
            Unit vectors (*sample_shape, ..., D).
        """
        noise = self.mu.new_empty(*sample_shape, *self.mu.shape)
        if self.family == "gaussian":
            scaled = noise.normal_(generator=generator) / self.kappa.sqrt().unsqueeze(-1)
        else:  # the difference of two exponential variables is a Laplace variable
            noise.exponential_(generator=generator)
            noise -= torch.empty_like(noise).exponential_(generator=generator)
            scaled = noise / self.kappa.unsqueeze(-1)
        return F.normalize(self.mu + scaled, dim=-1)

    def spread(self, samples: int = 4096, generator: Generator | None = None) -> Tensor:
        """Estimate E(1 - mu.z), the mean cosine distance from the mode.

        Args:
            samples: Number of samples for each distribution.
            generator: Random generator. Default: torch's own.

        Returns:
            The means over the samples, (...).
        """
        total, block = torch.zeros_like(self.kappa), 64
        for start in range(0, samples, block):
            z = self.sample((min(block, samples - start),), generator)
            total += (1 - torch.linalg.vecdot(z, self.mu)).sum(0)
        return total / samples

    def __getitem__(self, index: Any) -> "NoisyDirection":
        return NoisyDirection(self.mu[index], self.kappa[index], self.family)
