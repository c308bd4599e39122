"""Batches of posteriors: move, cast, reshape, index and join them like tensors.

A posterior is a few tensors that begin with the dimensions of the batch: mu (..., D) and kappa (...) of one vMF, log
weights (..., K), mu (..., K, D) and kappa (..., K) of a mixture. Each operation acts on all of them. Shapes and
dimensions in the arguments are those of the batch; the trailing dimensions never change. The result is not validated,
because its source is valid. So no operation waits for a GPU, and all of them can be recorded in a CUDA graph.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Generator, Size, Tensor
from torch.distributions import Distribution

from aleator.foundation import reject, require, require_float
from aleator.posteriors.regions import CredibleRegion, credible_region, region_level

if TYPE_CHECKING:
    from aleator.posteriors.vmf import VonMisesFisher

Scale = Tensor | float  # named here: inside the class, `float` is the method


class PosteriorBatch(Distribution):
    """Base class of posteriors: `VonMisesFisher`, and `VMFMixture` of several modes.

    The methods work like those of `torch.Tensor`. They return new posteriors, through which gradients flow.

    Examples:
        >>> import torch, aleator as al
        >>> q = al.VonMisesFisher.uniform(3, (4, 5))
        >>> q[0], q.flatten().batch_shape, q.to(torch.float64).mu.dtype
        (VonMisesFisher(batch_shape=(5,), dim=3, dtype=torch.float32), torch.Size([20]), torch.float64)
    """

    # How many dimensions each of the tensors has after those of the batch.
    _trailing: ClassVar[tuple[int, ...]]

    @property
    def dim(self) -> int:
        """The dimension D of the space around the sphere."""
        return self._event_shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of all tensors: float32 or float64."""
        return self._tensors()[0].dtype

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        return self._tensors()[0].device

    @property
    def modes(self) -> int:
        """K, the number of components of each posterior."""
        raise NotImplementedError

    @property
    def log_weights(self) -> Tensor:
        """Log weights of the components, shape (..., K)."""
        raise NotImplementedError

    @property
    def components(self) -> "VonMisesFisher":
        """The components, batch shape (..., K)."""
        raise NotImplementedError

    @property
    def certainty(self) -> Tensor:
        """One number that orders posteriors: log(S int q^2 dz), shape (...). 0 for the uniform distribution.

        S is the area of the sphere. This is log r(q, q) for a kernel under which only equal latents match: how likely
        two inputs with this posterior are to match, beside random inputs. For one vMF it increases with kappa.
        """
        raise NotImplementedError

    def sample(self, sample_shape: Sequence[int] = Size(), generator: Generator | None = None) -> Tensor:
        """Samples without gradients.

        Args:
            sample_shape: How many samples of each posterior.
            generator: Source of randomness. Default: torch's global generator.

        Returns:
            Unit vectors, shape (*sample_shape, ..., D).
        """
        with torch.no_grad():
            return self.rsample(sample_shape, generator)

    def rsample(self, sample_shape: Sequence[int] = Size(), generator: Generator | None = None) -> Tensor:
        """Samples with gradients.

        Args:
            sample_shape: How many samples of each posterior.
            generator: Source of randomness. Default: torch's global generator.

        Returns:
            Unit vectors, shape (*sample_shape, ..., D).
        """
        raise NotImplementedError

    def region(self, p: Tensor | float, samples: int = 1024, generator: Generator | None = None) -> CredibleRegion:
        """Credible regions of probability p: the smallest ones, where the density is highest. No gradients.

        For one vMF this is the cap of `VonMisesFisher.cap`, exact. For a mixture the density at its edge is estimated.

        Args:
            p: Probabilities inside (0, 1), which broadcast with the batch.
            samples: Number of samples of each component that the estimate takes.
            generator: Source of randomness. Default: a generator of its own, so that the same posterior always has
                the same region.

        Returns:
            The regions: their thresholds, whether points lie inside, their area.
        """
        return credible_region(self, p, samples, generator)

    def region_level(self, value: Tensor, samples: int = 1024, generator: Generator | None = None) -> Tensor:
        """Level of the smallest credible region that holds a direction: P(q(z) > q(value)). No gradients.

        It is small for the most likely directions. For latents that follow the posterior it is uniform on (0, 1). Exact
        for one vMF, estimated for a mixture.

        Args:
            value: Unit vectors, shape (..., D). They broadcast with the batch.
            samples: Number of samples of each component that the estimate takes.
            generator: Source of randomness. Default: a generator of its own, so that results repeat.

        Returns:
            Probabilities, shape (...).
        """
        return region_level(self, value, samples, generator)

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
        moved = self.map_tensors(lambda tensor: tensor.to(*args, **kwargs))
        require_float("mu", moved._tensors()[0])
        return moved

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
        return self.map_tensors(torch.Tensor.detach)

    def detach_kappa(self) -> Self:
        """Cut kappa off from the graph of gradients, and nothing else.

        Returns:
            Posteriors with the same batch shape and the same memory.
        """
        raise NotImplementedError

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Apply a function to every tensor of the posteriors.

        Args:
            function: Maps a tensor that begins with the batch dimensions to another. It must change the batch
                dimensions of all tensors in the same way, and leave unit vectors and concentrations valid.

        Returns:
            Posteriors of the results.
        """
        return self._derive(*map(function, self._tensors()))

    def reshape(self, *shape: Any) -> Self:
        """Change the batch shape.

        Args:
            *shape: The new batch shape, as numbers or as one sequence. One entry may be -1.

        Returns:
            Posteriors with that batch shape.
        """
        return self._reshaped(self._places().reshape(*shape))

    def unsqueeze(self, dim: int) -> Self:
        """Insert a batch dimension of size 1.

        Args:
            dim: Place of the new dimension. Negative numbers count from the end of the new batch shape.

        Returns:
            Posteriors with one batch dimension more.
        """
        return self._reshaped(self._places().unsqueeze(dim))

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Join several batch dimensions into one.

        Args:
            start_dim: First batch dimension to join.
            end_dim: Last batch dimension to join.

        Returns:
            Posteriors; by default with batch shape (N,).
        """
        return self._reshaped(self._places().flatten(start_dim, end_dim))

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """Divide one batch dimension into several.

        Args:
            dim: The batch dimension to divide.
            sizes: Sizes of the new dimensions. One may be -1.

        Returns:
            Posteriors with `len(sizes) - 1` batch dimensions more.
        """
        return self._reshaped(self._places().unflatten(dim, sizes))

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        """Repeat along new batch dimensions and those of size 1, without a copy.

        Args:
            batch_shape: The new batch shape. -1 keeps a size.

        Returns:
            Posteriors with that batch shape.
        """
        return self._map(lambda tensor, trailing: tensor.expand((*batch_shape, *_end(tensor, trailing))))

    def split(self, sizes: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Split into parts along a batch dimension.

        Args:
            sizes: Sizes of the parts, or one size for all parts but the last.
            dim: The batch dimension to divide.

        Returns:
            The parts, in order.
        """
        tensors = zip(self._tensors(), self._trailing, strict=True)
        parts = (tensor.split(sizes, _place(dim, trailing)) for tensor, trailing in tensors)
        return tuple(self._derive(*part) for part in zip(*parts, strict=True))

    def index_select(self, dim: int, index: Tensor) -> Self:
        """Pick posteriors along one batch dimension.

        Args:
            dim: The batch dimension.
            index: Positions to pick, int64, shape (N,). They may repeat.

        Returns:
            Posteriors with N in place of the size of that dimension.
        """
        return self._map(lambda tensor, trailing: tensor.index_select(_place(dim, trailing), index))

    def roll(self, shift: int, dim: int) -> Self:
        """Shift along one batch dimension. Posteriors that leave at the end come back at the start.

        Args:
            shift: Number of places.
            dim: The batch dimension.

        Returns:
            Posteriors with the same batch shape.
        """
        return self._map(lambda tensor, trailing: tensor.roll(shift, _place(dim, trailing)))

    def scale_kappa(self, factor: Scale) -> Self:
        """Multiply every kappa by a factor.

        Args:
            factor: A number >= 0, or a tensor of such numbers that broadcasts with the batch.

        Returns:
            Posteriors with the same batch shape, or with the larger one of the factor.

        Raises:
            ValueError: If the factor has another shape, is negative or NaN, or makes 0 times inf.
        """
        raise NotImplementedError

    def rotate(self, rotation: Tensor) -> Self:
        """Rotate every direction: mu @ rotation.

        Args:
            rotation: An orthogonal matrix, shape (D, D), in the dtype of mu.

        Returns:
            Posteriors with the same batch shape.
        """
        raise NotImplementedError

    @classmethod
    def cat(cls, posteriors: Sequence[Self], dim: int = 0) -> Self:
        """Join posteriors along a batch dimension.

        Args:
            posteriors: Posteriors of one dimension D and one number of modes. Their batch shapes may differ in `dim`
                only.
            dim: The batch dimension. Negative numbers count from the end.

        Returns:
            One batch. Its methods validate their arguments if those of some part do.

        Raises:
            ValueError: If the sequence is empty, if D or the number of modes differs, or if a part has no batch
                dimension.
        """
        posteriors = tuple(posteriors)
        require(len(posteriors) > 0, "posteriors", posteriors, "empty", "pass at least one")
        first = posteriors[0]
        for q in posteriors:
            require(q.dim == first.dim, "posteriors", f"dimension {q.dim}", f"the first has {first.dim}", "use one D")
            require(len(q.batch_shape) > 0, "posteriors", q, "no batch dimension", f"use {cls.__name__}.stack")
            same = type(q) is type(first) and q.modes == first.modes
            require(same, "posteriors", q, f"the first is {first}", "use posteriors of one kind and number of modes")
        columns = zip(*(q._tensors() for q in posteriors), strict=True)
        joined = first._derive(
            *(torch.cat(column, _place(dim, n)) for column, n in zip(columns, first._trailing, strict=True))
        )
        joined._validate_args = any(q._validate_args for q in posteriors)
        return joined

    @classmethod
    def stack(cls, posteriors: Sequence[Self], dim: int = 0) -> Self:
        """Join posteriors along a new batch dimension.

        Args:
            posteriors: Posteriors of one dimension D, one number of modes and one batch shape.
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
        end = (slice(None),) if ellipsis else (Ellipsis,)
        return self._map(lambda tensor, trailing: tensor[(*index, *(end * trailing if ellipsis else end))])

    def __len__(self) -> int:
        require(len(self.batch_shape) > 0, "posterior", self, "has no batch", "use its tensors directly")
        return self.batch_shape[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)}, dim={self.dim}, dtype={self.dtype})"

    def _tensors(self) -> tuple[Tensor, ...]:
        """The tensors that make up the posteriors, with `_trailing` dimensions after those of the batch."""
        raise NotImplementedError

    def _derive(self, *tensors: Tensor) -> Self:
        """Posteriors with valid `tensors`, not validated; methods validate if the source's do."""
        raise NotImplementedError

    def _places(self) -> Tensor:
        """A tensor of the batch shape."""
        raise NotImplementedError

    def _map(self, function: Callable[[Tensor, int], Tensor]) -> Self:
        """Posteriors whose tensors are function(tensor, number of its trailing dimensions)."""
        return self._derive(*map(function, self._tensors(), self._trailing))

    def _fitting(self, argument: str, value: Scale) -> Self:
        """The posteriors in the batch shape that they have together with `value`, without a copy."""
        if not isinstance(value, Tensor) or value.dim() == 0 or value.shape == self.batch_shape:
            return self
        try:
            shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        except RuntimeError:
            problem = f"does not broadcast with the batch shape {tuple(self.batch_shape)}"
            reject(argument, tuple(value.shape), problem, "pass one number, or one for each posterior")
        return self if shape == self.batch_shape else self.expand(shape)

    def _reshaped(self, places: Tensor) -> Self:
        """Posteriors in the batch shape of `places`, which is `_places()` reshaped."""
        return self._map(lambda tensor, trailing: tensor.reshape((*places.shape, *_end(tensor, trailing))))


def _end(tensor: Tensor, trailing: int) -> torch.Size:
    """Sizes of the trailing dimensions."""
    return tensor.shape[tensor.dim() - trailing :]


def _place(dim: int, trailing: int) -> int:
    """The dimension of a tensor that is the batch dimension `dim`."""
    return dim if dim >= 0 else dim - trailing
