r"""The von Mises-Fisher distribution on the unit sphere, exact for any dimension D >= 2 and any kappa in [0, inf].

    vMF(z; mu, kappa) = C(kappa) exp(kappa mu.z),    log C(kappa) = -log S - log_growth(D/2 - 1, kappa)

S is the area of the sphere. kappa = 0 is the uniform distribution, kappa = inf a point mass at mu. sampling.py has the
sampler, caps.py the probabilities of caps, moments.py the fit to a mean, checks.py the checks of parameters.

**Batches** of posteriors are moved, cast, reshaped, indexed and joined like tensors. A posterior is a few tensors that
begin with the dimensions of the batch: mu (..., D) and kappa (...) of one vMF, log weights (..., K), mu (..., K, D) and
kappa (..., K) of a mixture (mixtures.py). Each operation acts on all of them. Shapes and dimensions in the arguments
are those of the batch; the trailing dimensions never change. The result is not validated, because its source is valid.
So no operation waits for a GPU, and all of them can be recorded in a CUDA graph.

**Credible regions** of highest density are the smallest regions that hold a given probability. The region of level p is
{z: q(z) >= threshold}. For one vMF it is the credible cap, and everything is exact. For a mixture it is a union of
shapes around the modes. Its threshold is the density that a sample exceeds with probability p, found from stratified
samples of every component (stratified_sampling.py).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Generator, Size, Tensor
from torch.distributions import Distribution, constraints, register_kl

from aleator.foundation import (
    reject,
    require,
    require_count,
    require_float,
    require_probability,
    without_autocast,
)
from aleator.posteriors.caps import cap_angle, cap_mass, log_cap_share
from aleator.posteriors.checks import UNIT_TOLERANCE, refuse_transforms, require_parameters, require_unit, unit_vector
from aleator.posteriors.moments import closest_parameters
from aleator.posteriors.overlap import log_overlap
from aleator.posteriors.pooling import pooled_parameters
from aleator.posteriors.sampling import draw_noise, sample_from_noise
from aleator.posteriors.stratified_sampling import stratified_angles
from aleator.special import bessel_ratio, kappa_minus_log_growth, log_growth, log_sphere_area, one_minus_bessel_ratio

Scale = Tensor | float  # named here: inside the class, `float` is the method

# Share of D below which `certainty` is a series in kappa; its next term is then 1e-12 of it.
_SMALL_SHARE = 1e-3
_JITTER = 1e-13  # of squared cosines
_ROUNDING = 1e-9  # nats of log density
_ANGLE_ROUNDING = 1e-7  # of an angle that comes from a cosine
_BLOCK = 2**21  # numbers of samples at a time
_LOG_NEGLIGIBLE = math.log(1e-4)  # of density that counts in no region, against that at its edge
_HALVINGS = 44  # of an interval of log densities
# Of the samples, if no generator is given: the same posterior always has the same region. Not a number that people
# choose, because noise that made the posteriors must not come back as noise of their samples.
_SEED = 7_204_981_553


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

    def region(self, p: Tensor | float, samples: int = 1024, generator: Generator | None = None) -> "CredibleRegion":
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


class VonMisesFisher(PosteriorBatch):
    """Von Mises-Fisher distributions: directions around `mu` with concentration `kappa`.

    A `torch.distributions.Distribution` with event shape (D,). All methods are differentiable in mu and kappa unless
    they say otherwise, and follow the dtype and device of mu.

    Args:
        mu: Unit vectors, shape (..., D) with D >= 2, float32 or float64.
        kappa: Concentrations in [0, inf], shape (...) without a trailing 1: a number, or a tensor like mu. Batch shapes
            of mu and kappa broadcast.
        validate_args: Check the arguments here and in the methods. Default: yes, unless Python runs with -O. False
            skips all checks of values; a check makes the CPU wait for a GPU.

    Raises:
        ValueError: If mu or kappa are invalid.

    Examples:
        >>> import torch, aleator as al
        >>> q = al.VonMisesFisher(torch.eye(3), torch.tensor([1.0, 10.0, 100.0]))
        >>> q
        VonMisesFisher(batch_shape=(3,), dim=3, dtype=torch.float32)
        >>> q.log_prob(q.mode)
        tensor([-1.6925,  0.4647,  2.7673])
        >>> q.rsample((5,)).shape
        torch.Size([5, 3, 3])
        >>> q[1:].cap(0.95)  # cosine of the cap that holds 95 % of the probability
        tensor([0.7004, 0.9700])
    """

    arg_constraints = {"mu": unit_vector, "kappa": constraints.nonnegative}  # noqa: RUF012 (torch's own convention)
    support = unit_vector
    has_rsample = True
    _trailing = (1, 0)
    mu: Tensor
    kappa: Tensor

    def __init__(self, mu: Tensor, kappa: Tensor | float, validate_args: bool | None = None):
        validate = Distribution._validate_args if validate_args is None else validate_args
        require_float("mu", mu)
        refuse_transforms(mu, kappa)
        kappa = torch.as_tensor(kappa, dtype=None if isinstance(kappa, Tensor) else mu.dtype, device=mu.device)
        if validate:
            require_parameters(mu, kappa)
        batch = kappa.shape
        if mu.shape[:-1] != batch:
            batch = torch.broadcast_shapes(mu.shape[:-1], batch)
            mu, kappa = mu.expand(*batch, mu.shape[-1]), kappa.expand(batch)
        self.mu, self.kappa = mu, kappa
        # The base class would check the arguments again, and its errors would not say what is wrong.
        super().__init__(batch, mu.shape[-1:], validate_args=False)
        self._validate_args = validate

    @classmethod
    def uniform(cls, dim: int, batch_shape: Sequence[int] = (), **options: Any) -> "VonMisesFisher":
        """Uniform distributions on the sphere: kappa = 0.

        Args:
            dim: Dimension D of the space around the sphere.
            batch_shape: Batch shape.
            **options: `dtype` and `device` of mu and kappa.

        Returns:
            Posteriors with that batch shape. Their mu is the first axis, which has no meaning for kappa = 0.
        """
        mu = torch.zeros(*batch_shape, dim, **options)
        mu[..., 0] = 1
        return cls(mu, torch.zeros(tuple(batch_shape), **options))

    @classmethod
    def fit(cls, samples: Tensor, weights: Tensor | None = None) -> "VonMisesFisher":
        """Maximum likelihood estimate from unit vectors. Not differentiable in kappa.

        mu is the direction of the mean vector. kappa solves A_1(kappa) = length of the mean vector (Sra, Computational
        Statistics 2012).

        Args:
            samples: Unit vectors, shape (..., N, D).
            weights: Weights of the samples, shape (..., N). Default: equal weights.

        Returns:
            Posteriors with batch shape (...). kappa is inf if all samples are equal.

        Raises:
            ValueError: If there are no samples, if they are not unit vectors, or if no weight is positive.
        """
        require_float("samples", samples)
        shape = tuple(samples.shape)
        require(samples.dim() >= 2, "samples", shape, "expected shape (..., N, D)", "stack the vectors")
        require(samples.shape[-2] >= 1, "samples", shape, "no samples", "pass at least one")
        require_unit("samples", samples, samples.shape[-1])
        if weights is None:
            weights = samples.new_ones(samples.shape[:-1])
        else:
            way_out = "pass one for each sample"
            require(
                weights.shape == shape[:-1], "weights", tuple(weights.shape), f"expected shape {shape[:-1]}", way_out
            )
            valid = (weights >= 0) & torch.isfinite(weights)
            require(valid, "weights", weights, "negative or not finite", "clip them")
            total = weights.sum(-1, keepdim=True)
            require(total > 0, "weights", total, "the weights sum to zero", "give some sample a positive weight")
        mu, kappa = closest_parameters(samples, torch.zeros_like(weights), weights)  # samples are point masses
        return cls(mu.to(samples.dtype), kappa.to(samples.dtype))

    @property
    def modes(self) -> int:
        """K, the number of components: 1."""
        return 1

    @property
    def log_weights(self) -> Tensor:
        """Log weights of the one component: zeros, shape (..., 1)."""
        return torch.zeros_like(self.kappa).unsqueeze(-1)

    @property
    def components(self) -> "VonMisesFisher":
        """The posterior as the one component of a mixture, batch shape (..., 1)."""
        return self[..., None]

    @property
    def certainty(self) -> Tensor:
        """One number that orders posteriors: log(S int vMF^2 dz), shape (...). It increases with kappa.

        0 for kappa = 0, inf for a point mass. S is the area of the sphere. `VMFMixture.certainty` is its counterpart
        for several modes.
        """
        kappa, D = self.kappa.double(), self.dim
        small = kappa < _SMALL_SHARE * D
        part = torch.where(small, kappa, 0.0).square()
        series = part / D * (1 - 3.5 * part / (D * (D + 2)))  # the closed form is a difference, which loses its digits
        value = log_overlap(D, torch.zeros_like(kappa), kappa, kappa)
        return torch.where(small, series, value).to(self.kappa.dtype)

    @property
    def mean(self) -> Tensor:
        """E z = A_1(kappa) mu, shape (..., D). It lies inside the sphere."""
        return self.mean_resultant_length.unsqueeze(-1) * self.mu

    @property
    def mode(self) -> Tensor:
        """The most likely direction: mu, shape (..., D)."""
        return self.mu

    @property
    def mean_resultant_length(self) -> Tensor:
        """A_1(kappa) = E mu.z, shape (...). 0 for kappa = 0, 1 for kappa = inf."""
        return bessel_ratio(self.dim / 2 - 1, self.kappa)

    @property
    def log_normaliser(self) -> Tensor:
        """log C(kappa), shape (...)."""
        growth = log_growth(self.dim / 2 - 1, self.kappa.double())
        return (-log_sphere_area(self.dim) - growth).to(self.kappa.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density with respect to the area of the sphere.

        Args:
            value: Unit vectors, shape (..., D). They broadcast with mu.

        Returns:
            Log density, shape (...). For a point mass: inf at mu, -inf elsewhere.
        """
        if self._validate_args:
            require_unit("value", value, self.dim)
        kappa = self.kappa.double()
        point = torch.isinf(kappa)
        finite = torch.where(point, 1.0, kappa)  # without it, the branch not taken would have the gradient 0 * inf
        # kappa (mu.z - 1) = -kappa |z - mu|^2 / 2. The right side keeps its digits where kappa is large.
        distance2 = (value - self.mu).double().square().sum(-1)
        peak = kappa_minus_log_growth(self.dim / 2 - 1, finite) - log_sphere_area(self.dim)
        at_point = torch.where(distance2 > 0, -math.inf, math.inf)
        return torch.where(point, at_point, peak - finite * distance2 / 2).to(self.kappa.dtype)

    def entropy(self) -> Tensor:
        """Differential entropy, -E log vMF(z).

        Returns:
            Entropy, shape (...). It is log S for kappa = 0 and -inf for a point mass.
        """
        order, kappa = self.dim / 2 - 1, self.kappa.double()
        finite = torch.where(torch.isinf(kappa), 0.0, kappa)
        # log_growth - kappa A_1, as the difference of two small numbers where kappa is large.
        value = (
            log_sphere_area(self.dim)
            - kappa_minus_log_growth(order, finite)
            + finite * one_minus_bessel_ratio(order, finite)
        )
        return torch.where(torch.isinf(kappa), -math.inf, value).to(self.kappa.dtype)

    def rsample(
        self,
        sample_shape: Sequence[int] = Size(),
        generator: Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Samples with unbiased gradients in mu and kappa (see sampling.py).

        Args:
            sample_shape: How many samples of each posterior.
            generator: Source of randomness. Default: torch's global generator.
            noise: Standard normal numbers of the shape of the result, instead of random ones. With the same noise the
                result is a smooth function of mu and kappa. Its gradient in mu is not that of this function, but that
                of a sample which turns with mu: both are unbiased for expectations, and this one varies less.

        Returns:
            Unit vectors, shape (*sample_shape, ..., D).

        Raises:
            ValueError: If the noise has another shape or dtype.
        """
        shape = self._extended_shape(Size(sample_shape))
        batch, count = self.batch_shape.numel(), Size(sample_shape).numel()
        mu, kappa = self.mu.reshape(batch, self.dim), self.kappa.reshape(batch)
        if noise is None:
            return sample_from_noise(mu, kappa, draw_noise(count, mu, generator), overwrite=True).view(shape)
        problem = f"expected shape {tuple(shape)}"
        require(noise.shape == shape, "noise", tuple(noise.shape), problem, "pass noise of the shape of the result")
        require(noise.dtype == mu.dtype, "noise", noise.dtype, f"mu has dtype {mu.dtype}", "cast one to the other")
        return sample_from_noise(mu, kappa, noise.reshape(count, batch, self.dim), overwrite=False).view(shape)

    def cap(self, p: Tensor | float) -> Tensor:
        """Credible cap of probability p: the cosine t with P(mu.z >= t) = p. No gradients.

        This is the credible interval of the paper's appendix. Cosines near 1 are rounded: for a very large kappa use
        `cap_angle`.

        Args:
            p: Probabilities inside (0, 1), which broadcast with kappa.

        Returns:
            Cosines, shape (...).
        """
        return torch.cos(self._cap_angle(p)).to(self.kappa.dtype)

    def cap_angle(self, p: Tensor | float) -> Tensor:
        """Credible cap of probability p: the angle between mu and its edge. No gradients.

        Args:
            p: Probabilities inside (0, 1), which broadcast with kappa.

        Returns:
            Angles in [0, pi], shape (...).
        """
        return self._cap_angle(p).to(self.kappa.dtype)

    def cap_probability(self, t: Tensor | float) -> Tensor:
        """P(mu.z >= t), the inverse of `cap`. Differentiable in t and kappa.

        Args:
            t: Cosines in [-1, 1], which broadcast with kappa.

        Returns:
            Probabilities, shape (...).
        """
        cosine = torch.as_tensor(t, dtype=torch.float64, device=self.kappa.device)
        if self._validate_args:
            inside = (cosine >= -1 - UNIT_TOLERANCE) & (cosine <= 1 + UNIT_TOLERANCE)
            require(inside, "t", cosine, "not a cosine", "pass a number from -1 to 1")
        return self._cap_mass(torch.acos(cosine.clamp(-1, 1)))

    def cap_angle_probability(self, angle: Tensor | float) -> Tensor:
        """P(angle between mu and z <= `angle`), the inverse of `cap_angle`. Differentiable in the angle and kappa.

        Args:
            angle: Angles in [0, pi], which broadcast with kappa.

        Returns:
            Probabilities, shape (...).
        """
        angle = torch.as_tensor(angle, dtype=torch.float64, device=self.kappa.device)
        if self._validate_args:
            inside = (angle >= 0) & (angle <= math.pi + UNIT_TOLERANCE)
            require(inside, "angle", angle, "not an angle on the sphere", "pass radians from 0 to pi")
        return self._cap_mass(angle.clamp(max=math.pi))

    def pool(self, dim: int = 0, weights: Tensor | None = None) -> "VonMisesFisher":
        """One posterior from several independent looks at one thing, such as photos of one animal.

        It is the normalised product of the posteriors: kappa mu add up (see pooling.py). This is Bayes' rule if, given
        the thing, the looks are independent, and if every direction is as likely beforehand. Looks that agree make it
        sharper, looks that contradict each other make it wider. Near copies of one photo are not independent: give
        them weights that sum to 1.

        Args:
            dim: The batch dimension of the looks. Negative numbers count from the end of the batch shape.
            weights: How many independent looks each counts for, numbers >= 0 that broadcast with the batch. Default: 1.

        Returns:
            Posteriors without that batch dimension.

        Raises:
            ValueError: If there is no batch dimension, a weight is negative, or two looks are point masses (kappa =
                inf) in different directions.

        Examples:
            >>> import torch, aleator as al
            >>> looks = al.VonMisesFisher(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([3.0, 4.0]))
            >>> looks.pool().kappa
            tensor(5.)
        """
        problem = f"the batch shape is {tuple(self.batch_shape)}"
        there = -len(self.batch_shape) <= dim < len(self.batch_shape)
        require(there, "dim", dim, problem, "pass the batch dimension of the looks")
        if weights is not None:
            require((weights >= 0) & weights.isfinite(), "weights", weights, "negative or not finite", "clip them")
            weights = weights.expand(self.batch_shape).movedim(dim, -1)
        mu = self.mu.movedim(dim if dim >= 0 else dim - 1, -2)
        return self._derive(*pooled_parameters(mu, self.kappa.movedim(dim, -1), weights))

    def detach_kappa(self) -> "VonMisesFisher":
        return self._derive(self.mu, self.kappa.detach())

    def scale_kappa(self, factor: Tensor | float) -> "VonMisesFisher":
        if self._validate_args:
            require(torch.as_tensor(factor) >= 0, "factor", factor, "negative or NaN", "pass a number >= 0")
        q = self._fitting("factor", factor)
        kappa = (q.kappa * factor).to(q.dtype)
        if self._validate_args:
            way_out = "pass a finite number > 0, or leave out posteriors with kappa = 0 or inf"
            require(~kappa.isnan(), "factor", factor, "0 times inf is no concentration", way_out)
        return self._derive(q.mu, kappa)

    @without_autocast
    def rotate(self, rotation: Tensor) -> "VonMisesFisher":
        if self._validate_args:
            product = rotation @ rotation.mT
            straight = (product - torch.eye(len(product), dtype=product.dtype, device=product.device)).abs() <= 1e-3
            require(straight.all(), "rotation", rotation, "not orthogonal", "pass for example aligning_rotation(a, b)")
        return self._derive(self.mu @ rotation, self.kappa)

    def _cap_angle(self, p: Tensor | float) -> Tensor:
        """`cap_angle` in float64."""
        level = torch.as_tensor(p, dtype=torch.float64, device=self.kappa.device)
        if self._validate_args:
            require_probability("p", level, "pass for example 0.95")
        return cap_angle(self.dim, *torch.broadcast_tensors(self.kappa.double(), level))

    def _cap_mass(self, angle: Tensor) -> Tensor:
        """`cap_angle_probability` of a float64 angle."""
        return cap_mass(self.dim, *torch.broadcast_tensors(self.kappa.double(), angle)).to(self.kappa.dtype)

    def _tensors(self) -> tuple[Tensor, Tensor]:
        return self.mu, self.kappa

    def _places(self) -> Tensor:
        return self.kappa

    def _derive(self, *tensors: Tensor) -> "VonMisesFisher":
        new = object.__new__(type(self))
        new.mu, new.kappa = tensors
        Distribution.__init__(new, new.kappa.shape, new.mu.shape[-1:], validate_args=False)
        new._validate_args = self._validate_args
        return new


@register_kl(VonMisesFisher, VonMisesFisher)
def _kl(q: VonMisesFisher, p: VonMisesFisher) -> Tensor:
    """E_q log q/p = s(kappa_q) - s(kappa_p) + (kappa_p - kappa_q) (1 - A_1) + kappa_p A_1 (1 - mu_q.mu_p); (...).

    A_1 is that of q, and s(kappa) = kappa - log_growth(kappa). No term is large unless the divergence is. A point mass
    is infinitely far from all but the same point mass.
    """
    require(q.dim == p.dim, "p", f"dimension {p.dim}", f"q has dimension {q.dim}", "pass posteriors of one dimension")
    order = q.dim / 2 - 1
    point_q, point_p = torch.isinf(q.kappa), torch.isinf(p.kappa)
    kappa_q, kappa_p = (torch.where(torch.isinf(k), 1.0, k.double()) for k in (q.kappa, p.kappa))
    shortfall = one_minus_bessel_ratio(order, kappa_q)  # 1 - A_1
    cosine_gap = (q.mu - p.mu).double().square().sum(-1) / 2  # 1 - mu_q.mu_p
    value = kappa_minus_log_growth(order, kappa_q) - kappa_minus_log_growth(order, kappa_p)
    value = value + (kappa_p - kappa_q) * shortfall + kappa_p * (1 - shortfall) * cosine_gap
    value = torch.where(point_q | point_p, math.inf, value)
    return torch.where(point_q & point_p & (cosine_gap == 0), 0.0, value).to(q.kappa.dtype)


@dataclass(frozen=True)
class CredibleRegion:
    """Regions of highest density of a batch of posteriors. `PosteriorBatch.region` makes them.

    Args:
        posterior: The posteriors, batch shape (...).
        log_threshold: Log density at the edge of each region, shape (...).

    Examples:
        >>> import torch, aleator as al
        >>> q = al.VonMisesFisher(torch.tensor([1.0, 0.0, 0.0]), 10.0)
        >>> region = q.region(0.95)
        >>> region.contains(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
        tensor([ True, False])
        >>> region.caps()  # that of q.cap(0.95)
        tensor([0.7004])
        >>> region.log_area().exp()  # of an area of 4 pi
        tensor(1.8823)
    """

    posterior: PosteriorBatch
    log_threshold: Tensor

    def contains(self, value: Tensor) -> Tensor:
        """Whether directions lie in the regions.

        Args:
            value: Unit vectors, shape (..., D). They broadcast with the batch.

        Returns:
            Booleans, shape (...).
        """
        return self.posterior.log_prob(value) >= self.log_threshold

    def caps(self) -> Tensor:
        """Caps around the components' directions that together cover the region, as cosines.

        Inside the region some w_k vMF_k(z) is at least threshold / K, which is a cap around mu_k. For one component the
        cap is the region itself. In such a cap the other components have at most some density, each by the angle
        between its direction and the cap. What is left of the threshold is up to component k, and gives a smaller cap.

        Returns:
            Cosines, shape (..., K). 2 for a component whose cap is empty, -1 for the whole sphere.
        """
        return (1 - self._cap_gaps()).to(self.posterior.dtype)

    def log_area(self, samples: int = 1024, generator: Generator | None = None) -> Tensor:
        """Log of the area of the regions. Exact for one component. No gradients.

        The area is the mean of 1/q over samples of q that lie in the region.

        Args:
            samples: Number of samples of each component.
            generator: Source of randomness. Default: a generator of its own, so that results repeat.

        Returns:
            Logarithms, shape (...). The area of the sphere is exp(`log_sphere_area(D)`).
        """
        q = self.posterior
        if q.modes == 1:
            angle = _angle(self._cap_gaps().squeeze(-1))
            return (log_cap_share(q.dim, angle) + log_sphere_area(q.dim)).to(q.dtype)
        log_q, log_weights = _densities(q, samples, generator)
        inside = log_q >= self.log_threshold.double().unsqueeze(-1)
        return torch.logsumexp(torch.where(inside, log_weights - log_q, -math.inf), -1).to(q.dtype)

    def probability(self, samples: int = 1024, generator: Generator | None = None) -> Tensor:
        """Probability that the regions hold, estimated from samples. No gradients.

        Args:
            samples: Number of samples of each component.
            generator: Source of randomness. Default: a generator of its own, so that results repeat.

        Returns:
            Probabilities, shape (...).
        """
        log_q, log_weights = _densities(self.posterior, samples, generator)
        inside = log_q >= self.log_threshold.double().unsqueeze(-1)
        return (log_weights.exp() * inside).sum(-1).to(self.posterior.dtype)

    def _cap_gaps(self) -> Tensor:
        """1 - cosine of `caps`, float64, since the cosine of a tiny cap has no digits of it. -1 for an empty cap."""
        q = self.posterior
        parts, log_weights = q.components.detach().double(), q.log_weights.detach().double()
        threshold = self.log_threshold.double().unsqueeze(-1)
        height = parts.log_prob(parts.mu)  # at mu_k
        gap = _cap_gaps(parts.kappa, height, log_weights, threshold - math.log(q.modes))
        if q.modes > 1:
            others = _log_density_of_others(parts, log_weights + height, gap)
            left = threshold + torch.log1p(-torch.exp(others - threshold).clamp(max=1.0)) - _ROUNDING
            smaller = _cap_gaps(parts.kappa, height, log_weights, left)
            gap = torch.where(smaller < gap, smaller, gap)  # also where a point mass makes NaN of it
        return gap


def _cap_gaps(kappa: Tensor, height: Tensor, log_weights: Tensor, needed: Tensor) -> Tensor:
    """1 - cosine up to which log of weight times density, `height` at cosine 1, is at least `needed`; (..., K)."""
    gap = (height - (needed - log_weights)) / kappa
    gap = torch.where(torch.isinf(kappa), torch.where(log_weights > -math.inf, 0.0, -math.inf), gap)
    gap = torch.where(torch.isnan(gap), 2.0, gap)  # 0/0: kappa = 0 at its threshold
    return torch.where(gap < 0, -1.0, gap.clamp_max(2.0))


def _angle(gap: Tensor) -> Tensor:
    """Angle of 1 - cosine; 0 for an empty cap."""
    return 2 * torch.asin((gap.clamp(0, 2) / 2).sqrt())


def _log_density_of_others(parts: VonMisesFisher, height: Tensor, gap: Tensor) -> Tensor:
    """Log of the sum over j != k of the most that component j can have in the cap around mu_k, (..., K)."""
    angle = torch.acos((parts.mu @ parts.mu.mT).clamp(-1, 1)) - _angle(gap).unsqueeze(-1)
    nearest = (angle - _ANGLE_ROUNDING).clamp_min(0.0).cos() - 1  # [k, j]: from mu_j to the cap
    point = torch.isinf(parts.kappa).unsqueeze(-2)
    drop = torch.where(point, torch.where(nearest < -_ROUNDING, -math.inf, 0.0), parts.kappa.unsqueeze(-2) * nearest)
    most = torch.where(height.unsqueeze(-2) == -math.inf, -math.inf, height.unsqueeze(-2) + drop)
    itself = torch.eye(most.shape[-1], dtype=torch.bool, device=most.device)
    return most.masked_fill(itself, -math.inf).logsumexp(-1)


@torch.no_grad()
def credible_region(q: PosteriorBatch, p: Tensor | float, samples: int, generator: Generator | None) -> CredibleRegion:
    """The regions of level p, which broadcasts with the batch of q."""
    level = torch.as_tensor(p, dtype=torch.float64, device=q.device)
    require_probability("p", level, "pass for example 0.95")
    shape = torch.broadcast_shapes(q.batch_shape, level.shape)
    q, level = q.expand(shape), level.expand(shape)
    if q.modes == 1:
        parts = q.components
        angle = parts.cap_angle(level.unsqueeze(-1)).double()
        kappa = parts.kappa.double()
        drop = torch.where(torch.isinf(kappa), 0.0, kappa * 2 * torch.sin(angle / 2).square())
        return CredibleRegion(q, (parts.double().log_prob(parts.mu.double()) - drop).squeeze(-1).to(q.dtype))
    flat, levels, edges = q.flatten(), level.flatten().unsqueeze(-1), []
    for part, part_level in _blocks(flat, levels, samples):
        edge = torch.empty(len(part), dtype=torch.float64, device=q.device)
        apart = _are_apart(part, part_level)
        if apart.any():
            edge[apart] = _edges_apart(part[apart].double(), part_level[apart], samples)
        if not apart.all():
            log_q, reached = _sorted_densities(part[~apart], samples, generator)
            at = (reached < part_level[~apart]).sum(-1, keepdim=True).clamp_max(log_q.shape[-1] - 1)
            edge[~apart] = log_q.gather(-1, at).squeeze(-1)
        edges.append(edge)
    return CredibleRegion(q, torch.cat(edges).view(shape).to(q.dtype))


def _are_apart(q: PosteriorBatch, level: Tensor) -> Tensor:
    """Whether, of posteriors (B,), no component counts in the part of another in the region of level (B, 1).

    The caps of all components that hold the level hold it together, so the lowest density in them is at most that at
    the edge of the region. It is known from a bound: kappa (1 - cosine) is never more than a gamma variable.
    """
    from scipy import special

    parts, log_weights = q.components.double(), q.log_weights.double()
    height = parts.log_prob(parts.mu)
    used = log_weights > -math.inf
    drop = torch.as_tensor(special.gammaincinv((q.dim - 1) / 2, level.cpu().numpy()), device=q.device)
    lowest = torch.where(used, log_weights + height - drop, math.inf).amin(-1, keepdim=True)
    gap = _cap_gaps(parts.kappa, height, log_weights, lowest - math.log(q.modes))
    others = _log_density_of_others(parts, log_weights + height, gap)
    negligible = ((others < lowest + _LOG_NEGLIGIBLE) | (gap < 0)).all(-1)
    return negligible & torch.isfinite(parts.kappa).all(-1)


def _edges_apart(q: PosteriorBatch, level: Tensor, samples: int) -> Tensor:
    """Log density (B,) at the edges of the regions of level (B, 1) of posteriors whose components are apart.

    Only the angle with the own direction matters, so nothing is random: the edge is between densities at angles that
    split each component into `samples` parts of equal probability.
    """
    parts, weight = q.components, q.log_weights.exp()
    height = q.log_weights + parts.log_prob(parts.mu)
    drop = parts.kappa.unsqueeze(-1) * 2 * (stratified_angles(parts.dim, parts.kappa, samples) / 2).sin().square()
    log_q = height.unsqueeze(-1) - drop  # (B, K, N), descending
    rising = (-log_q).contiguous()

    def count(edge: Tensor) -> Tensor:
        """How many samples of each component are above the edge (B, 1), as a tensor (B, K)."""
        edges = (-edge).unsqueeze(-1).expand(*weight.shape, 1).contiguous()
        return torch.searchsorted(rising, edges, right=True).squeeze(-1)

    low = torch.where(weight > 0, log_q[..., -1], math.inf).amin(-1, keepdim=True)
    high = log_q[..., 0].amax(-1, keepdim=True)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = (weight * count(middle)).sum(-1, keepdim=True) >= level * samples
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    inside = count(low)
    last = log_q.gather(-1, (inside - 1).clamp_min(0).unsqueeze(-1)).squeeze(-1)
    return torch.where(inside > 0, last, math.inf).amin(-1)


@torch.no_grad()
def region_level(q: PosteriorBatch, value: Tensor, samples: int, generator: Generator | None) -> Tensor:
    """Level of the smallest region that holds each value (..., D), which broadcasts with the batch of q."""
    if q.modes == 1:
        parts = q.components
        angle = 2 * torch.asin(((value.unsqueeze(-2) - parts.mu).double().norm(dim=-1) / 2).clamp_max(1.0))
        return parts.double().cap_angle_probability(angle).squeeze(-1).to(q.dtype)
    log_prob = q.log_prob(value).double()
    if not log_prob.numel():
        return log_prob.to(q.dtype)
    batch = log_prob.shape[log_prob.dim() - len(q.batch_shape) :]
    flat = q.expand(batch).flatten()
    values, levels = log_prob.reshape(-1, len(flat)).mT.contiguous(), []  # (B, number of values of each posterior)
    for part, part_values in _blocks(flat, values, samples):
        log_q, reached = _sorted_densities(part, samples, generator)
        above = torch.searchsorted(-log_q, -part_values)  # how many samples have a higher density
        levels.append(torch.nn.functional.pad(reached, (1, 0)).gather(-1, above))
    return torch.cat(levels).mT.reshape(log_prob.shape).to(q.dtype)


def _blocks(q: PosteriorBatch, beside: Tensor, samples: int) -> Iterator[tuple[PosteriorBatch, Tensor]]:
    """Posteriors (B,) and a tensor (B, ...) in blocks whose samples fit into memory."""
    require_count("samples", samples, "pass 1024")
    size = max(1, _BLOCK // (samples * q.modes**2))
    return zip(q.split(size), beside.split(size), strict=True)


def _sorted_densities(q: PosteriorBatch, samples: int, generator: Generator | None) -> tuple[Tensor, Tensor]:
    """Log densities at samples in descending order, and the probability of the samples up to each; (B, N K) each."""
    log_q, log_weights = _densities(q, samples, generator)
    log_q, order = log_q.sort(-1, descending=True)
    return log_q, log_weights.exp().gather(-1, order).cumsum(-1)


@torch.no_grad()
def _densities(q: PosteriorBatch, samples: int, generator: Generator | None) -> tuple[Tensor, Tensor]:
    """Log density at `samples` samples of every component, and their log weights: (..., N K) each, float64.

    The density depends on the cosines with the K directions alone, so only these are drawn: of a sample of component k
    the angle with mu_k, stratified, and the part of its direction around mu_k that lies in the span of the others.
    """
    if generator is None:
        generator = torch.Generator(q.device).manual_seed(_SEED)
    flat = q.flatten().double() if q.batch_shape else q.unsqueeze(0).double()
    parts, log_weights = flat.components, flat.log_weights
    K = q.modes
    angle = stratified_angles(parts.dim, parts.kappa, samples)  # (B, K, N) with its own mu
    cosine, sine = angle.cos(), angle.sin()
    own = torch.eye(K, dtype=torch.bool, device=q.device)
    gram = torch.where(own, 1.0, parts.mu @ parts.mu.mT)
    coordinates, around = _around(parts.mu, gram, own, samples, generator)
    # Log of weight times density of all components j at samples of every k, (B, K, N, K): that at mu_j, and kappa_j
    # times the cosine less 1. A point mass has no density but at its own samples, where it is infinite.
    point = torch.isinf(parts.kappa)
    kappa = torch.where(point, 0.0, parts.kappa).unsqueeze(1)
    height = torch.where(point | (log_weights == -math.inf), -math.inf, log_weights + parts.log_prob(parts.mu))
    logs = (around @ (coordinates * kappa.unsqueeze(-1)).mT).mul_(sine.unsqueeze(-1))
    logs.addcmul_(cosine.unsqueeze(-1), (gram * kappa).unsqueeze(-2)).add_((height.unsqueeze(1) - kappa).unsqueeze(-2))
    # Of two numbers, `logsumexp` takes several times as long as `logaddexp`.
    log_sum = torch.logaddexp(logs[..., 0], logs[..., 1]) if K == 2 else torch.logsumexp(logs, -1)
    log_q = torch.where(point.unsqueeze(-1), math.inf, log_sum)
    each = (log_weights - math.log(samples)).unsqueeze(-1).expand(log_q.shape)
    shape = (*q.batch_shape, K * samples)
    return log_q.reshape(shape), each.reshape(shape)


def _around(mu: Tensor, gram: Tensor, own: Tensor, samples: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Parts of all mu that are orthogonal to mu_k, (B, K, K, d), and uniform unit vectors orthogonal to it, (K, N, d).

    In coordinates of a subspace with all mu: the uniform vectors have lost the coordinates outside of it.
    """
    K, D = mu.shape[-2:]
    noise = torch.randn(K, samples, D - 1 if D > K else D, dtype=mu.dtype, device=mu.device, generator=generator)
    if D <= K:
        noise = noise - (noise @ mu.unsqueeze(-1)) * mu.unsqueeze(-2)  # (B, K, N, D)
        parts = mu.unsqueeze(1) - gram.unsqueeze(-1) * mu.unsqueeze(-2)
        return parts, torch.nn.functional.normalize(noise, dim=-1)
    orthogonal = gram.unsqueeze(1) - gram.unsqueeze(-1) * gram.unsqueeze(-2)  # inner products, (B, K, K, K)
    # Directions may be parallel, and then the matrix has no factor but for a little more on its diagonal.
    parts = torch.linalg.cholesky(orthogonal + _JITTER * torch.eye(K, dtype=mu.dtype, device=mu.device))
    return torch.where(own.unsqueeze(-1), 0.0, parts), torch.nn.functional.normalize(noise, dim=-1)[..., :K]
