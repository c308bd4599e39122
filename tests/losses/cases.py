"""The table of losses that all tests share: each loss beside a slow, literal twin of its formula."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aleator import (
    ELK,
    HIB,
    AcceptanceKernel,
    ExactInfoNCE,
    InfoNCE,
    MCInfoNCE,
    VMFKernel,
    VonMisesFisher,
    log_positivity,
)

SAMPLES = 5


def posteriors(*shape: int, dim: int = 4, low: float = 2.0, high: float = 50.0, dtype=torch.float64) -> VonMisesFisher:
    mu = F.normalize(torch.randn(*shape, dim, dtype=dtype), dim=-1).requires_grad_()
    kappa = torch.exp(torch.empty(shape, dtype=dtype).uniform_(math.log(low), math.log(high))).requires_grad_()
    return VonMisesFisher(mu, kappa, validate_args=False)


def triple(negatives: int | None, batch: int = 6, **options):
    return (
        posteriors(batch, **options),
        posteriors(batch, **options),
        None if negatives is None else posteriors(batch, negatives, **options),
    )


def noise_for(anchor, positive, negative, samples: int = SAMPLES):
    shapes = [None if q is None else (samples, *q.batch_shape, q.dim) for q in (anchor, positive, negative)]
    return tuple(None if shape is None else torch.randn(shape, dtype=anchor.mu.dtype) for shape in shapes)


def others_of(i: int, anchor, negative) -> list[VonMisesFisher]:
    """The negatives of anchor i: its own, or the other anchors."""
    if negative is not None:
        return [negative[i, m] for m in range(negative.batch_shape[1])]
    return [anchor[j] for j in range(len(anchor)) if j != i]


# The literal twins: one anchor, one sample, one negative at a time.


def twin_of_similarity(similarity, per_negative: bool):
    def twin(loss, anchor, positive, negative, noise) -> Tensor:
        total = torch.zeros((), dtype=anchor.mu.dtype)
        for i in range(len(anchor)):
            own = torch.exp(similarity(anchor[i], positive[i]))
            others = [torch.exp(similarity(anchor[i], q)) for q in others_of(i, anchor, negative)]
            denominator = own + sum(others)
            total = total - torch.log(own / (denominator / len(others) if per_negative else denominator))
        return total / len(anchor)

    return twin


def samples_of(anchor, positive, negative, noise):
    z = anchor.rsample((SAMPLES,), noise=noise[0])
    z_positive = positive.rsample((SAMPLES,), noise=noise[1])
    z_negative = None if negative is None else negative.rsample((SAMPLES,), noise=noise[2])
    return z, z_positive, z_negative


def cosines_of(i: int, k: int, z: Tensor, z_negative: Tensor | None) -> list[Tensor]:
    if z_negative is not None:
        return [z[k, i] @ z_negative[k, i, m] for m in range(z_negative.shape[2])]
    return [z[k, i] @ z[k, j] for j in range(z.shape[1]) if j != i]


def twin_of_mcinfonce(loss, anchor, positive, negative, noise) -> Tensor:
    z, z_positive, z_negative = samples_of(anchor, positive, negative, noise)
    total = torch.zeros((), dtype=z.dtype)
    for i in range(len(anchor)):
        mean = 0.0
        for k in range(SAMPLES):
            own = torch.exp(20.0 * z[k, i] @ z_positive[k, i])
            others = [torch.exp(20.0 * c) for c in cosines_of(i, k, z, z_negative)]
            count = len(others)
            mean = mean + own / (own / count + sum(others) / count) / SAMPLES
        total = total - torch.log(mean)
    return total / len(anchor)


def twin_of_hib(loss, anchor, positive, negative, noise) -> Tensor:
    z, z_positive, z_negative = samples_of(anchor, positive, negative, noise)
    total = torch.zeros((), dtype=z.dtype)
    for i in range(len(anchor)):
        match = sum(torch.sigmoid(2.0 * z[k, i] @ z_positive[k, i] - 0.5) for k in range(SAMPLES)) / SAMPLES
        count = len(cosines_of(i, 0, z, z_negative))
        mismatches = [
            sum(1 - torch.sigmoid(2.0 * cosines_of(i, k, z, z_negative)[m] - 0.5) for k in range(SAMPLES)) / SAMPLES
            for m in range(count)
        ]
        total = total - torch.log(match) - sum(torch.log(m) for m in mismatches) / count
    return total / len(anchor)


def expected_likelihood(q1: VonMisesFisher, q2: VonMisesFisher) -> Tensor:
    """3 log int q1 q2 dz = 3 log C(k1) C(k2) / C(|k1 mu1 + k2 mu2|) (Kirchhof et al. 2022)."""
    resultant = (q1.kappa[..., None] * q1.mu + q2.kappa[..., None] * q2.mu).norm(dim=-1)
    both = VonMisesFisher(q1.mu, resultant, validate_args=False)
    return 3.0 * (q1.log_normaliser + q2.log_normaliser - both.log_normaliser)


CASES = {
    "InfoNCE": (lambda: InfoNCE(20.0), twin_of_similarity(lambda p, q: 20.0 * (p.mu * q.mu).sum(-1), False)),
    "ExactInfoNCE": (
        lambda: ExactInfoNCE(VMFKernel(20.0)),
        twin_of_similarity(lambda p, q: log_positivity(p, q, VMFKernel(20.0)), False),
    ),
    "ExactInfoNCE, acceptance": (
        lambda: ExactInfoNCE(AcceptanceKernel(20.0)),
        twin_of_similarity(lambda p, q: log_positivity(p, q, AcceptanceKernel(20.0)), False),
    ),
    "ELK": (lambda: ELK(3.0), twin_of_similarity(expected_likelihood, True)),
    "MCInfoNCE": (lambda: MCInfoNCE(VMFKernel(20.0), SAMPLES), twin_of_mcinfonce),
    "HIB": (lambda: HIB(2.0, -0.5, SAMPLES), twin_of_hib),
}
SAMPLED = (MCInfoNCE, HIB)


def call(loss: nn.Module, anchor, positive, negative, noise=None) -> Tensor:
    options = {"noise": noise} if isinstance(loss, SAMPLED) else {}
    return loss(anchor, positive, negative, **options)


def tangent_gradients(value: Tensor, q) -> list[Tensor]:
    """Gradients in every mu and kappa; of mu the part along the sphere, since a loss is a function on it alone."""
    gradients = []
    for p in (p for p in q if p is not None):
        for leaf in (p.mu, p.kappa):
            (grad,) = torch.autograd.grad(value, leaf, retain_graph=True, allow_unused=True)
            grad = torch.zeros_like(leaf) if grad is None else grad
            gradients.append(grad - (grad * leaf).sum(-1, keepdim=True) * leaf if leaf is p.mu else grad)
    return gradients
