"""Batches of posteriors: move, cast, reshape, index and join them like tensors.

Each operation acts on mu (..., D) and on kappa (...). Shapes and dimensions in the arguments are those of the batch.
The last dimension of mu never changes. The result is not validated, because its source is valid. So no operation waits
for a GPU, and all of them can be recorded in a CUDA graph.
"""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Distribution

from aleator.foundation import require, require_float

Scale = Tensor | float  # named here: inside the class, `float` is the method


class PosteriorBatch(Distribution):
    """Base class of posteriors with a direction mu and a concentration kappa.

    The methods work like those of `torch.Tensor`. They return new posteriors, through which gradients flow.

    Attributes:
        mu: Unit vectors, shape (..., D).
        kappa: Concentrations, shape (...).

    Examples:
        >>> import torch, aleator as al
        >>> q = al.VonMisesFisher.uniform(3, (4, 5))
        >>> q[0], q.flatten().batch_shape, q.to(torch.float64).mu.dtype
        (VonMisesFisher(batch_shape=(5,), dim=3, dtype=torch.float32), torch.Size([20]), torch.float64)
    """

    mu: Tensor
    kappa: Tensor

    @property
    def dim(self) -> int:
        """The dimension D of the space around the sphere."""
        return self._event_shape[0]

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move to another device or cast to another dtype.

        Args:
            *args: As for `torch.Tensor.to`: a device, a dtype, both, or a tensor to follow.
            **kwargs: As for `torch.Tensor.to`.

        Returns:
            Posteriors with the same batch shape.

        Raises:
            ValueError: If the dtype is neither float32 nor float64.
        """
        mu = self.mu.to(*args, **kwargs)
        require_float("mu", mu)
        return self._derive(mu, self.kappa.to(*args, **kwargs))

    def cpu(self) -> Self:
        """Move to the CPU.

        Returns:
            Posteriors with the same batch shape.
        """
        return self.to("cpu")

    def float(self) -> Self:
        """Cast to float32.

        Returns:
            Posteriors with the same batch shape.
        """
        return self.to(torch.float32)

    def double(self) -> Self:
        """Cast to float64.

        Returns:
            Posteriors with the same batch shape.
        """
        return self.to(torch.float64)

    def detach(self) -> Self:
        """Cut off from the graph of gradients.

        Returns:
            Posteriors with the same batch shape and the same memory, without gradients.
        """
        return self._derive(self.mu.detach(), self.kappa.detach())

    def reshape(self, *shape: Any) -> Self:
        """Change the batch shape.

        Args:
            *shape: The new batch shape, as numbers or as one sequence. One entry may be -1.

        Returns:
            Posteriors with that batch shape.
        """
        return self._reshaped(self.kappa.reshape(*shape))

    def unsqueeze(self, dim: int) -> Self:
        """Insert a batch dimension of size 1.

        Args:
            dim: Place of the new dimension. Negative numbers count from the end of the new batch shape.

        Returns:
            Posteriors with one batch dimension more.
        """
        return self._reshaped(self.kappa.unsqueeze(dim))

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Join several batch dimensions into one.

        Args:
            start_dim: First batch dimension to join.
            end_dim: Last batch dimension to join.

        Returns:
            Posteriors; by default with batch shape (N,).
        """
        return self._reshaped(self.kappa.flatten(start_dim, end_dim))

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """Divide one batch dimension into several.

        Args:
            dim: The batch dimension to divide.
            sizes: Sizes of the new dimensions. One may be -1.

        Returns:
            Posteriors with `len(sizes) - 1` batch dimensions more.
        """
        return self._reshaped(self.kappa.unflatten(dim, sizes))

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        """Repeat along new batch dimensions and those of size 1, without a copy.

        Args:
            batch_shape: The new batch shape. -1 keeps a size.

        Returns:
            Posteriors with that batch shape.
        """
        return self._derive(self.mu.expand(*batch_shape, self.dim), self.kappa.expand(tuple(batch_shape)))

    def split(self, sizes: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Split into parts along a batch dimension.

        Args:
            sizes: Sizes of the parts, or one size for all parts but the last.
            dim: The batch dimension to divide.

        Returns:
            The parts, in order.
        """
        mu, kappa = self.mu.split(sizes, self._mu_dim(dim)), self.kappa.split(sizes, dim)
        return tuple(self._derive(*part) for part in zip(mu, kappa, strict=True))

    def index_select(self, dim: int, index: Tensor) -> Self:
        """Pick posteriors along one batch dimension.

        Args:
            dim: The batch dimension.
            index: Positions to pick, int64, shape (N,). They may repeat.

        Returns:
            Posteriors with N in place of the size of that dimension.
        """
        return self._derive(self.mu.index_select(self._mu_dim(dim), index), self.kappa.index_select(dim, index))

    def roll(self, shift: int, dim: int) -> Self:
        """Shift along one batch dimension. Posteriors that leave at the end come back at the start.

        Args:
            shift: Number of places.
            dim: The batch dimension.

        Returns:
            Posteriors with the same batch shape.
        """
        return self._derive(self.mu.roll(shift, self._mu_dim(dim)), self.kappa.roll(shift, dim))

    def scale_kappa(self, factor: Scale) -> Self:
        """Multiply every kappa by a factor.

        Args:
            factor: A number >= 0, or a tensor of such numbers that broadcasts with kappa.

        Returns:
            Posteriors with the same batch shape.
        """
        if self._validate_args:
            require(torch.as_tensor(factor) >= 0, "factor", factor, "negative or NaN", "pass a number >= 0")
        return self._derive(self.mu, self.kappa * factor)

    def rotate(self, rotation: Tensor) -> Self:
        """Rotate every direction: mu @ rotation.

        Args:
            rotation: An orthogonal matrix, shape (D, D), in the dtype of mu.

        Returns:
            Posteriors with the same batch shape.
        """
        if self._validate_args:
            product = rotation @ rotation.mT
            straight = (product - torch.eye(len(product), dtype=product.dtype, device=product.device)).abs() <= 1e-3
            require(straight.all(), "rotation", rotation, "not orthogonal", "pass for example aligning_rotation(a, b)")
        return self._derive(self.mu @ rotation, self.kappa)

    @classmethod
    def cat(cls, posteriors: Sequence[Self], dim: int = 0) -> Self:
        """Join posteriors along a batch dimension.

        Args:
            posteriors: Posteriors of one dimension D. Their batch shapes may differ in `dim` only.
            dim: The batch dimension. Negative numbers count from the end.

        Returns:
            One batch. Its methods validate their arguments if those of some part do.

        Raises:
            ValueError: If the sequence is empty, if D differs, or if a part has no batch dimension.
        """
        posteriors = tuple(posteriors)
        require(len(posteriors) > 0, "posteriors", posteriors, "empty", "pass at least one")
        first = posteriors[0]
        for q in posteriors:
            require(q.dim == first.dim, "posteriors", f"dimension {q.dim}", f"the first has {first.dim}", "use one D")
            require(len(q.batch_shape) > 0, "posteriors", q, "no batch dimension", f"use {cls.__name__}.stack")
        mu = torch.cat([q.mu for q in posteriors], first._mu_dim(dim))
        joined = first._derive(mu, torch.cat([q.kappa for q in posteriors], dim))
        joined._validate_args = any(q._validate_args for q in posteriors)
        return joined

    @classmethod
    def stack(cls, posteriors: Sequence[Self], dim: int = 0) -> Self:
        """Join posteriors along a new batch dimension.

        Args:
            posteriors: Posteriors of one dimension D and one batch shape.
            dim: Place of the new dimension. Negative numbers count from the end of the new batch shape.

        Returns:
            One batch. Its methods validate their arguments if those of some part do.

        Raises:
            ValueError: If the sequence is empty, or if D differs.
        """
        return cls.cat([q.unsqueeze(dim) for q in posteriors], dim)

    def __getitem__(self, index: Any) -> Self:
        """Index the batch like a tensor: `q[3]`, `q[mask]`, `q[:, None]`."""
        index = index if isinstance(index, tuple) else (index,)
        ellipsis = any(i is Ellipsis for i in index)
        return self._derive(self.mu[(*index, slice(None)) if ellipsis else (*index, Ellipsis)], self.kappa[index])

    def __len__(self) -> int:
        require(len(self.batch_shape) > 0, "posterior", self, "has no batch", "use mu and kappa directly")
        return self.batch_shape[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)}, dim={self.dim}, dtype={self.mu.dtype})"

    def _derive(self, mu: Tensor, kappa: Tensor) -> Self:
        """Posteriors with valid mu (..., D) and kappa (...), not validated; methods validate if the source's do."""
        new = object.__new__(type(self))
        new.mu, new.kappa = mu, kappa
        Distribution.__init__(new, kappa.shape, mu.shape[-1:], validate_args=False)
        new._validate_args = self._validate_args
        return new

    def _reshaped(self, kappa: Tensor) -> Self:
        """Posteriors with this kappa, a reshaped one, and mu in the same batch shape."""
        return self._derive(self.mu.reshape(*kappa.shape, self.dim), kappa)

    def _mu_dim(self, dim: int) -> int:
        """The dimension of mu that is the batch dimension `dim` of kappa."""
        return dim if dim >= 0 else dim - 1
