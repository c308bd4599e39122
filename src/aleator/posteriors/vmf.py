r"""The von Mises-Fisher distribution on the unit sphere, exact in any dimension D >= 2 and for any kappa in [0, inf].

    vMF(z; mu, kappa) = C(kappa) exp(kappa mu.z),    log C(kappa) = -log S - log_growth(D/2 - 1, kappa)

with S the area of the sphere. kappa = 0 is the uniform distribution, kappa = inf a point mass at mu.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Size, Tensor
from torch.distributions import Distribution, constraints, register_kl
from torch.distributions.constraints import Constraint

from aleator.foundation import require, require_float
from aleator.fused import fused_kernels
from aleator.posteriors.batch import PosteriorBatch
from aleator.special import AngleTable, angle_masses, angle_quantile, angle_table, bessel_ratio, log_growth

# Unit length is checked to what a normalised float32 vector of a few thousand entries reaches.
_UNIT_TOLERANCE = 1e-3
# Floats of noise per block on a CPU: a block passes through the sampler while it is in the cache.
_BLOCK = 2**19
# Posteriors whose rows of the sampler's table, some 640 numbers each, are held at once.
_MOST_ROWS = 2**14
# Angles per block of the quadrature, each of which takes 64 nodes.
_QUADRATURE_BLOCK = 2**14
# A vMF this concentrated is a point in float64: all its mass lies within 1e-12 of mu.
_POINT_MASS = 1e25


class _UnitVector(Constraint):
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value.norm(dim=-1) - 1).abs() <= _UNIT_TOLERANCE


unit_vector = _UnitVector()


def log_sphere_area(dim: int) -> float:
    """log of the area 2 pi^(D/2) / Gamma(D/2) of the unit sphere in D dimensions."""
    return math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)


class VonMisesFisher(PosteriorBatch):
    """Directions around `mu` with concentration `kappa`.

    Args:
        mu: unit vectors (..., D), float32 or float64, D >= 2.
        kappa: concentrations (...) in [0, inf], without a trailing dimension; a number, or a tensor like mu. Batch
            shapes broadcast.
        validate_args: check the arguments (the default, unless Python runs with -O); False skips every check, and with
            them the synchronisation that a check costs on a GPU.
    """

    arg_constraints = {"mu": unit_vector, "kappa": constraints.nonnegative}  # noqa: RUF012 (torch's own convention)
    support = unit_vector
    has_rsample = True

    def __init__(self, mu: Tensor, kappa: Tensor | float, validate_args: bool | None = None):
        validate = Distribution._validate_args if validate_args is None else validate_args
        require_float("mu", mu)
        kappa = torch.as_tensor(kappa, dtype=None if isinstance(kappa, Tensor) else mu.dtype, device=mu.device)
        if validate:
            _validate(mu, kappa)
        batch = kappa.shape
        if mu.shape[:-1] != batch:
            batch = torch.broadcast_shapes(mu.shape[:-1], batch)
            mu, kappa = mu.expand(*batch, mu.shape[-1]), kappa.expand(batch)
        self.mu, self.kappa = mu, kappa
        # The base class would check each argument again, by constraints that cannot say what is wrong with it.
        super().__init__(batch, mu.shape[-1:], validate_args=False)
        self._validate_args = validate

    @classmethod
    def uniform(cls, dim: int, batch_shape: Sequence[int] = (), **options: Any) -> "VonMisesFisher":
        """The uniform distribution on the sphere in D dimensions: kappa = 0."""
        mu = torch.zeros(*batch_shape, dim, **options)
        mu[..., 0] = 1
        return cls(mu, torch.zeros(tuple(batch_shape), **options))

    @property
    def mean(self) -> Tensor:
        """E z = A_1(kappa) mu, inside the sphere; (..., D)."""
        return self.mean_resultant_length.unsqueeze(-1) * self.mu

    @property
    def mode(self) -> Tensor:
        return self.mu

    @property
    def mean_resultant_length(self) -> Tensor:
        """A_1(kappa) = E mu.z; (...)."""
        return bessel_ratio(self.dim / 2 - 1, self.kappa)

    @property
    def log_normaliser(self) -> Tensor:
        """log C(kappa); (...)."""
        return (-log_sphere_area(self.dim) - self._growth()).to(self.kappa.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """log density at unit vectors (..., D) with respect to the area of the sphere.

        Written with kappa (mu.z - 1) = -kappa |z - mu|^2 / 2, so that a large kappa costs no digits.
        """
        if self._validate_args:
            _require_unit("value", value, self.dim)
        kappa = self.kappa.double()
        point = torch.isinf(kappa)
        finite = torch.where(point, 1.0, kappa)  # the branch not taken must not send 0 * inf backwards
        distance2 = (value - self.mu).double().square().sum(-1)
        peak = finite - log_growth(self.dim / 2 - 1, finite) - log_sphere_area(self.dim)
        at_point = torch.where(distance2 > 0, -math.inf, math.inf)
        return torch.where(point, at_point, peak - finite * distance2 / 2).to(self.kappa.dtype)

    def entropy(self) -> Tensor:
        """-E log vMF(z); log S for kappa = 0, -inf for a point mass."""
        kappa = self.kappa.double()
        ratio = bessel_ratio(self.dim / 2 - 1, kappa)
        finite = torch.where(torch.isinf(kappa), 0.0, kappa)
        value = log_sphere_area(self.dim) + log_growth(self.dim / 2 - 1, finite) - finite * ratio
        return torch.where(torch.isinf(kappa), -math.inf, value).to(self.kappa.dtype)

    def sample(self, sample_shape: Sequence[int] = Size(), generator: Generator | None = None) -> Tensor:
        with torch.no_grad():
            return self.rsample(sample_shape, generator)

    def rsample(
        self,
        sample_shape: Sequence[int] = Size(),
        generator: Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Samples (*sample_shape, ..., D) with unbiased gradients in mu and kappa.

        A normal vector's part orthogonal to mu gives the direction; its length, sent through the tabulated quantile,
        the angle to mu. Give `noise`, standard normal and of the shape of the result, to choose the randomness.
        """
        shape = self._extended_shape(Size(sample_shape))
        batch = self.batch_shape.numel()
        count = Size(sample_shape).numel()
        if noise is None:
            noise = torch.empty(count, batch, self.dim, dtype=self.mu.dtype, device=self.mu.device)
            blocks = (
                noise.view(-1, self.dim).split(max(1, _BLOCK // self.dim)) if noise.device.type == "cpu" else (noise,)
            )
            fresh = True
        else:
            require(
                noise.shape == shape,
                "noise",
                tuple(noise.shape),
                f"expected shape {tuple(shape)}",
                "match the result",
            )
            noise, blocks, fresh = noise.reshape(count, batch, self.dim), (), False
        for block in blocks:
            block.normal_(generator=generator)
        mu, kappa = self.mu.reshape(batch, self.dim), self.kappa.reshape(batch)
        return _Sample.apply(mu, kappa, noise, fresh).view(shape)

    def cap(self, p: Tensor | float) -> Tensor:
        """The cosine t with P(mu.z >= t) = p: the credible cap of level p, the paper's credible interval; (...).

        Near 1 a cosine is a coarse scale: for a very concentrated vMF `cap_angle` says the same without rounding.
        """
        return torch.cos(self._cap_angle(p)).to(self.kappa.dtype)

    def cap_angle(self, p: Tensor | float) -> Tensor:
        """The angle of the cap of level p, in [0, pi]; (...)."""
        return self._cap_angle(p).to(self.kappa.dtype)

    def cap_probability(self, t: Tensor | float) -> Tensor:
        """P(mu.z >= t), the inverse of `cap`; differentiable in t and kappa; (...)."""
        cosine = torch.as_tensor(t, dtype=torch.float64, device=self.kappa.device)
        if self._validate_args:
            inside = (cosine >= -1 - _UNIT_TOLERANCE) & (cosine <= 1 + _UNIT_TOLERANCE)
            require(inside, "t", cosine, "not a cosine", "pass a number from -1 to 1")
        # acos has an infinite slope at its ends, where the density of the cosine may be infinite too.
        return self._cap_mass(torch.acos(cosine.clamp(-1, 1)))

    def cap_angle_probability(self, angle: Tensor | float) -> Tensor:
        """P(the angle between mu and z is at most `angle`), the inverse of `cap_angle`; (...)."""
        return self._cap_mass(torch.as_tensor(angle, dtype=torch.float64, device=self.kappa.device))

    @classmethod
    def fit(cls, samples: Tensor, weights: Tensor | None = None) -> "VonMisesFisher":
        """Maximum likelihood from unit vectors (..., N, D), optionally with weights (..., N); batch shape (...).

        mu is the direction of the mean; kappa solves A_1(kappa) = its length (Sra, Computational Statistics 2012).
        """
        require_float("samples", samples)
        require(
            samples.dim() >= 2,
            "samples",
            tuple(samples.shape),
            "expected shape (..., N, D)",
            "stack the vectors",
        )
        require(samples.shape[-2] >= 1, "samples", tuple(samples.shape), "no samples", "pass at least one")
        _require_unit("samples", samples, samples.shape[-1])
        values = samples.double()
        if weights is None:
            mean = values.mean(-2)
        else:
            require(
                (weights >= 0) & torch.isfinite(weights),
                "weights",
                weights,
                "negative or not finite",
                "clip them",
            )
            total = weights.sum(-1, keepdim=True)
            require(total > 0, "weights", total, "the weights sum to zero", "give some sample a positive weight")
            mean = ((weights / total).double().unsqueeze(-1) * values).sum(-2)
        length = mean.norm(dim=-1)
        mu = torch.nn.functional.normalize(mean, dim=-1, eps=1e-300)
        # A mean of exactly zero has no direction; any will do, since kappa is then 0.
        mu = torch.where(
            (length > 0).unsqueeze(-1),
            mu,
            torch.eye(1, samples.shape[-1], dtype=mu.dtype, device=mu.device)[0],
        )
        kappa = kappa_from_mean_resultant_length(length, samples.shape[-1])
        return cls(mu.to(samples.dtype), kappa.to(samples.dtype))

    def _growth(self) -> Tensor:
        return log_growth(self.dim / 2 - 1, self.kappa.double())

    def _cap_angle(self, p: Tensor | float) -> Tensor:
        level = torch.as_tensor(p, dtype=torch.float64, device=self.kappa.device)
        if self._validate_args:
            require(
                (level > 0) & (level < 1),
                "p",
                level,
                "not a probability inside (0, 1)",
                "pass for example 0.95",
            )
        kappa, level = torch.broadcast_tensors(self.kappa.detach().double(), level)
        angle = _blockwise(lambda k, q: angle_quantile(self.dim, k, q, 1 - q), kappa.clamp_max(_POINT_MASS), level)
        return torch.where(kappa >= _POINT_MASS, 0.0, angle)

    def _cap_mass(self, angle: Tensor) -> Tensor:
        kappa, angle = torch.broadcast_tensors(self.kappa.double(), angle)
        mass = _CapMass.apply(kappa, angle, self.dim)
        return mass.to(self.kappa.dtype)


def kappa_from_mean_resultant_length(length: Tensor, dim: int) -> Tensor:
    """The kappa with A_1(kappa) = length, elementwise: 0 for 0, inf for 1. Float64, without a graph."""
    length = length.detach().double()
    inside = length.clamp(1e-150, 1 - 1e-15)
    kappa = inside * (dim - inside.square()) / (1 - inside.square())  # Banerjee et al., JMLR 2005
    for _ in range(8):  # Newton; A_1 is concave and the start is within a few per cent
        with torch.enable_grad():
            point = kappa.requires_grad_()
            ratio = bessel_ratio(dim / 2 - 1, point)
            (slope,) = torch.autograd.grad(ratio.sum(), point)
        kappa = (kappa.detach() - (ratio.detach() - inside) / slope).clamp_min(1e-150)
    return torch.where(length <= 1e-150, 0.0, torch.where(length >= 1 - 1e-15, math.inf, kappa))


@register_kl(VonMisesFisher, VonMisesFisher)
def _kl(q: VonMisesFisher, p: VonMisesFisher) -> Tensor:
    """E_q log q/p = kappa_q A_1 - g(kappa_q) - kappa_p A_1 mu_q.mu_p + g(kappa_p), with g = log_growth."""
    require(
        q.dim == p.dim,
        "p",
        f"dimension {p.dim}",
        f"the other posterior has dimension {q.dim}",
        "compare like with like",
    )
    order = q.dim / 2 - 1
    point_q, point_p = torch.isinf(q.kappa), torch.isinf(p.kappa)
    kappa_q, kappa_p = (torch.where(torch.isinf(k), 1.0, k.double()) for k in (q.kappa, p.kappa))
    ratio = bessel_ratio(order, kappa_q)
    cosine_gap = (q.mu - p.mu).double().square().sum(-1) / 2  # 1 - mu_q.mu_p
    own = kappa_q * ratio - log_growth(order, kappa_q)
    cross = log_growth(order, kappa_p) - kappa_p * ratio * (1 - cosine_gap)
    return torch.where(point_q | point_p, math.inf, own + cross).to(q.kappa.dtype)


class _Sample(torch.autograd.Function):
    """z = cos(theta) mu + sin(theta) g/|g|: g is the noise's part orthogonal to mu, theta a function of |g| and kappa.

    Gradients. In kappa: theta moves, dz/dtheta = (cos(theta) z - mu)/sin(theta). In mu: z turns rigidly with mu, by the
    rotation in the plane of mu and dmu, dz = (mu.z) dmu - (dmu.z) mu; a rotated vMF is the vMF around the rotated mu.
    """

    @staticmethod
    def forward(ctx, mu: Tensor, kappa: Tensor, noise: Tensor, fresh: bool) -> Tensor:
        """mu (B, D), kappa (B,), noise (K, B, D), which is overwritten if it is fresh -> (K, B, D)."""
        table = angle_table(mu.shape[-1], mu.dtype, mu.device)
        slopes = ctx.needs_input_grad[1]
        z = noise if fresh else noise.clone()
        fused = fused_kernels(z)
        if fused:
            kept = fused.fused_sample(z, mu, *table.rows(kappa, slopes), table.first, table.spacing)
        else:
            kept = plain_sample(z, mu, kappa, table, slopes)
        ctx.save_for_backward(mu, z, kept)
        return z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        mu, z, slope = ctx.saved_tensors
        fused = fused_kernels(z)
        grad_mu, grad_kappa = (fused.fused_sample_backward if fused else plain_sample_backward)(grad, z, mu, slope)
        return grad_mu if ctx.needs_input_grad[0] else None, grad_kappa if slope is not None else None, None, None


def plain_sample(z: Tensor, mu: Tensor, kappa: Tensor, table: AngleTable, slopes: bool) -> Tensor | None:
    """Turns the noise z (K, B, D) into samples, in place; with slopes, returns d(theta)/dkappa / sin(theta), (K, B)."""
    kept = z.new_empty(z.shape[:2]) if slopes else None
    # z = a noise + b mu. Only where the orthogonal part may be much shorter than the noise must it be formed by itself.
    project = mu.shape[-1] < 8
    for first in range(0, len(kappa), _MOST_ROWS):
        part = slice(first, first + _MOST_ROWS)
        rows = table.rows(kappa[part], slopes)
        count = max(1, _BLOCK // mu[part].numel()) if z.device.type == "cpu" else len(z)
        for start in range(0, len(z), count):
            block = z[start : start + count, part]
            along = torch.linalg.vecdot(block, mu[part])
            if project:
                block.addcmul_(along.unsqueeze(-1), mu[part], value=-1)
                along.zero_()
            sigma = torch.linalg.vecdot(block, block).addcmul_(along, along, value=-1).clamp_(min=0.0).sqrt_()
            scale, slope = table.angle(sigma, *rows)  # theta / sigma
            theta = sigma.mul_(scale)
            sine = torch.sinc(theta / math.pi).mul_(scale)  # sin(theta) / sigma
            if kept is not None and slope is not None:
                kept[start : start + count, part] = slope / sine.clamp_min(1e-30)
            block.mul_(sine.unsqueeze(-1))
            block.addcmul_(theta.cos_().addcmul_(along, sine, value=-1).unsqueeze_(-1), mu[part])
    return kept


def plain_sample_backward(grad: Tensor, z: Tensor, mu: Tensor, slope: Tensor | None) -> tuple[Tensor, Tensor | None]:
    cosine, grad_along = torch.linalg.vecdot(z, mu), torch.linalg.vecdot(grad, mu)
    grad_mu = (cosine.unsqueeze(-1) * grad - grad_along.unsqueeze(-1) * z).sum(0)
    if slope is None:
        return grad_mu, None
    return grad_mu, (slope * (cosine * torch.linalg.vecdot(grad, z) - grad_along)).sum(0)


class _CapMass(torch.autograd.Function):
    """P(theta <= angle). Slopes: the density in the angle, and cov(cos theta, 1[theta <= angle]) in kappa."""

    @staticmethod
    def forward(ctx, kappa: Tensor, angle: Tensor, dim: int) -> Tensor:
        inner = kappa.detach().clamp_max(_POINT_MASS)
        below, density = _blockwise(lambda k, a: angle_masses(dim, k, a)[::2], inner, angle.detach())
        ctx.save_for_backward(kappa, angle, density)
        ctx.dim = dim
        return torch.where(kappa >= _POINT_MASS, 1.0, below)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        kappa, angle, density = ctx.saved_tensors
        point = kappa >= _POINT_MASS
        grad_kappa = None
        if ctx.needs_input_grad[0]:
            # int_0^angle (cos - A_1) f has no closed form; the mass is exact to 1e-15, so a central difference will do.
            step = 1e-5 * (1 + kappa)
            above, below = (kappa + step).clamp_max(_POINT_MASS), (kappa - step).clamp_min(0.0)
            masses = [_blockwise(lambda k, a: angle_masses(ctx.dim, k, a)[0], k, angle) for k in (above, below)]
            grad_kappa = torch.where(point, 0.0, grad * (masses[0] - masses[1]) / (above - below))
        grad_angle = torch.where(point, 0.0, grad * density) if ctx.needs_input_grad[1] else None
        return grad_kappa, grad_angle, None


def _blockwise(function: Any, *tensors: Tensor) -> Any:
    """Apply an elementwise function of equally shaped tensors in blocks, so that its inner dimension fits in memory."""
    shape = tensors[0].shape
    blocks = zip(*(t.flatten().split(_QUADRATURE_BLOCK) for t in tensors), strict=True)
    results = [function(*block) for block in blocks]
    if isinstance(results[0], Tensor):
        return torch.cat(results).view(shape)
    return tuple(torch.cat(part).view(shape) for part in zip(*results, strict=True))


def _validate(mu: Tensor, kappa: Tensor) -> None:
    require(
        mu.dim() >= 1 and mu.shape[-1] >= 2,
        "mu",
        tuple(mu.shape),
        "a sphere needs D >= 2",
        "pass shape (..., D)",
    )
    require(kappa.dtype == mu.dtype, "kappa", kappa.dtype, f"mu has dtype {mu.dtype}", "cast one to the other")
    require(kappa.device == mu.device, "kappa", kappa.device, f"mu is on {mu.device}", "move one to the other")
    # A trailing 1 may broadcast, but to every mu with every kappa, which nobody means.
    require(
        mu.dim() == 1 or kappa.shape != (*mu.shape[:-1], 1),
        "kappa",
        tuple(kappa.shape),
        f"has a trailing 1 that mu of shape {tuple(mu.shape)} has not",
        "pass kappa.squeeze(-1)",
    )
    try:
        torch.broadcast_shapes(mu.shape[:-1], kappa.shape)
    except RuntimeError:
        problem = f"does not broadcast with mu of shape {tuple(mu.shape)}"
        require(False, "kappa", tuple(kappa.shape), problem, "kappa needs the shape of mu without its last dimension")
    _require_unit("mu", mu, mu.shape[-1])
    require(
        kappa >= 0,
        "kappa",
        kappa,
        "negative or NaN",
        "a concentration lies in [0, inf]; for example softplus(x)",
    )


def _require_unit(argument: str, value: Tensor, dim: int) -> None:
    require_float(argument, value)
    require(
        value.dim() >= 1 and value.shape[-1] == dim,
        argument,
        tuple(value.shape),
        f"expected a last dimension of {dim}",
        "pass one vector per row",
    )
    length = value.detach().norm(dim=-1)
    unit = (length - 1).abs() <= _UNIT_TOLERANCE
    require(
        unit,
        argument,
        length,
        "the length of a vector is not 1",
        f"pass torch.nn.functional.normalize({argument}, dim=-1)",
    )
