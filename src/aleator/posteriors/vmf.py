r"""The von Mises-Fisher distribution on the unit sphere, exact for any dimension D >= 2 and any kappa in [0, inf].

    vMF(z; mu, kappa) = C(kappa) exp(kappa mu.z),    log C(kappa) = -log S - log_growth(D/2 - 1, kappa)

S is the area of the sphere. kappa = 0 is the uniform distribution, kappa = inf a point mass at mu.
batch.py has the operations on batches, sampling.py the sampler, caps.py the probabilities of caps, moments.py the fit
to a mean, checks.py the checks of parameters.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Size, Tensor
from torch.distributions import Distribution, constraints, register_kl

from aleator.foundation import require, require_float, require_probability, without_autocast
from aleator.posteriors.batch import PosteriorBatch
from aleator.posteriors.caps import cap_angle, cap_mass
from aleator.posteriors.checks import UNIT_TOLERANCE, refuse_transforms, require_parameters, require_unit, unit_vector
from aleator.posteriors.moments import closest_parameters
from aleator.posteriors.overlap import log_overlap
from aleator.posteriors.pooling import pooled_parameters
from aleator.posteriors.sampling import draw_noise, sample_from_noise
from aleator.special import bessel_ratio, kappa_minus_log_growth, log_growth, log_sphere_area, one_minus_bessel_ratio

# Share of D below which `certainty` is a series in kappa; its next term is then 1e-12 of it.
_SMALL_SHARE = 1e-3


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
