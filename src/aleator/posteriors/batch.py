"""Batches of posteriors: move, cast, reshape, pick and join them as one would a tensor.

Each operation acts on mu (..., D) and kappa (...) alike. Shapes and dimensions are those of the batch; the last
dimension of mu stays as it is. A result is not checked again, since its source was: nothing waits for the device, so
that all of this can be part of a CUDA graph.
"""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Distribution

from aleator.foundation import require, require_float

Scale = Tensor | float  # named here: inside the class, `float` is the method


class PosteriorBatch(Distribution):
    """Posteriors that are described by a direction mu and a concentration kappa each.

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
        """Posteriors on another device or in another dtype, with the arguments of `torch.Tensor.to`.

        Returns:
            Posteriors with the same batch shape.

        Raises:
            ValueError: If the dtype is neither float32 nor float64.
        """
        mu = self.mu.to(*args, **kwargs)
        require_float("mu", mu)
        return self._derive(mu, self.kappa.to(*args, **kwargs))

    def cpu(self) -> Self:
        """Posteriors in main memory.

        Returns:
            Posteriors with the same batch shape.
        """
        return self.to("cpu")

    def float(self) -> Self:
        """Posteriors in float32.

        Returns:
            Posteriors with the same batch shape.
        """
        return self.to(torch.float32)

    def double(self) -> Self:
        """Posteriors in float64.

        Returns:
            Posteriors with the same batch shape.
        """
        return self.to(torch.float64)

    def detach(self) -> Self:
        """Posteriors through which no gradient flows.

        Returns:
            Posteriors with the same batch shape, which share memory with these.
        """
        return self._derive(self.mu.detach(), self.kappa.detach())

    def reshape(self, *shape: Any) -> Self:
        """Posteriors in another batch shape.

        Args:
            *shape: The new batch shape, as numbers or as one sequence. One entry may be -1.

        Returns:
            Posteriors with that batch shape.
        """
        return self._reshaped(self.kappa.reshape(*shape))

    def unsqueeze(self, dim: int) -> Self:
        """Posteriors with a new batch dimension of size 1.

        Args:
            dim: Place of the new dimension. Negative numbers count from the end of the new batch shape.

        Returns:
            Posteriors with one batch dimension more.
        """
        return self._reshaped(self.kappa.unsqueeze(dim))

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Posteriors with several batch dimensions made one.

        Args:
            start_dim: First batch dimension to join.
            end_dim: Last batch dimension to join.

        Returns:
            Posteriors; by default with batch shape (N,).
        """
        return self._reshaped(self.kappa.flatten(start_dim, end_dim))

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """Posteriors with one batch dimension made several.

        Args:
            dim: The batch dimension to divide.
            sizes: Sizes of the new dimensions. One may be -1.

        Returns:
            Posteriors with `len(sizes) - 1` batch dimensions more.
        """
        return self._reshaped(self.kappa.unflatten(dim, sizes))

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        """Posteriors repeated along new batch dimensions and those of size 1, without a copy.

        Args:
            batch_shape: The new batch shape. -1 keeps a size.

        Returns:
            Posteriors with that batch shape.
        """
        return self._derive(self.mu.expand(*batch_shape, self.dim), self.kappa.expand(tuple(batch_shape)))

    def split(self, sizes: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Posteriors in several parts, as `torch.Tensor.split` makes them.

        Args:
            sizes: Size of each part, or one number for all but the last.
            dim: The batch dimension to divide.

        Returns:
            The parts, in order.
        """
        mu, kappa = self.mu.split(sizes, self._mu_dim(dim)), self.kappa.split(sizes, dim)
        return tuple(self._derive(*part) for part in zip(mu, kappa, strict=True))

    def index_select(self, dim: int, index: Tensor) -> Self:
        """Posteriors picked along one batch dimension.

        Args:
            dim: The batch dimension.
            index: Which ones to pick, int64, shape (N,). Repetitions are allowed.

        Returns:
            Posteriors with N in place of the size of that dimension.
        """
        return self._derive(self.mu.index_select(self._mu_dim(dim), index), self.kappa.index_select(dim, index))

    def roll(self, shift: int, dim: int) -> Self:
        """Posteriors shifted along one batch dimension; the last ones come first.

        Args:
            shift: By how many places.
            dim: The batch dimension.

        Returns:
            Posteriors with the same batch shape.
        """
        return self._derive(self.mu.roll(shift, self._mu_dim(dim)), self.kappa.roll(shift, dim))

    def scale_kappa(self, factor: Scale) -> Self:
        """Posteriors with the same directions and every kappa multiplied by one factor.

        Args:
            factor: A number >= 0, or a tensor of such numbers that broadcasts with kappa.

        Returns:
            Posteriors with the same batch shape.
        """
        if self._validate_args:
            require(torch.as_tensor(factor) >= 0, "factor", factor, "negative or NaN", "pass a number >= 0")
        return self._derive(self.mu, self.kappa * factor)

    def rotate(self, rotation: Tensor) -> Self:
        """Posteriors with every direction turned: mu @ rotation.

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
        """Posteriors joined along a batch dimension.

        Args:
            posteriors: Posteriors of one dimension D. Their batch shapes agree but for `dim`.
            dim: The batch dimension. Negative numbers count from the end.

        Returns:
            All posteriors in one batch, which checks its inputs if one of them does.

        Raises:
            ValueError: If there are none, if D differs, or if they have no batch dimension.
        """
        posteriors = tuple(posteriors)
        require(len(posteriors) > 0, "posteriors", posteriors, "nothing to join", "pass at least one")
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
        """Posteriors joined along a new batch dimension.

        Args:
            posteriors: Posteriors of one dimension D and one batch shape.
            dim: Place of the new dimension. Negative numbers count from the end of the new batch shape.

        Returns:
            All posteriors in one batch, which checks its inputs if one of them does.

        Raises:
            ValueError: If there are none, or if D differs.
        """
        return cls.cat([q.unsqueeze(dim) for q in posteriors], dim)

    def __getitem__(self, index: Any) -> Self:
        """Posteriors picked from the batch: `q[3]`, `q[mask]`, `q[:, None]`."""
        index = index if isinstance(index, tuple) else (index,)
        ellipsis = any(i is Ellipsis for i in index)
        return self._derive(self.mu[(*index, slice(None)) if ellipsis else (*index, Ellipsis)], self.kappa[index])

    def __len__(self) -> int:
        require(len(self.batch_shape) > 0, "posterior", self, "has no batch", "use mu and kappa directly")
        return self.batch_shape[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)}, dim={self.dim}, dtype={self.mu.dtype})"

    def _derive(self, mu: Tensor, kappa: Tensor) -> Self:
        """Posteriors from valid mu (..., D) and kappa (...): no checks, and later checks as in the source."""
        new = object.__new__(type(self))
        new.mu, new.kappa = mu, kappa
        Distribution.__init__(new, kappa.shape, mu.shape[-1:], validate_args=False)
        new._validate_args = self._validate_args
        return new

    def _reshaped(self, kappa: Tensor) -> Self:
        """Posteriors whose mu takes the shape of a reshaped kappa."""
        return self._derive(self.mu.reshape(*kappa.shape, self.dim), kappa)

    def _mu_dim(self, dim: int) -> int:
        """The dimension of mu that is the batch dimension `dim` of kappa."""
        return dim if dim >= 0 else dim - 1
