"""One training step the way the published code does it, for comparison; from the paper and its settings.

What it does: latents are drawn by Ulrich's rejection sampler in a loop that runs until every sample is accepted, with a
Beta variable per proposal; a positive is searched for each anchor's fixed latent, again in a loop that asks the device
after every round; encoders and samplers are called once for the anchors, the positives and the negatives; and the loss
is a chain of elementwise operations.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def rejection_sample(mu: Tensor, kappa: Tensor, samples: int) -> Tensor:
    """(samples, B, D) from vMFs with mu (B, D) and kappa (B,): Ulrich (1984), Wood (1994), Householder at the end."""
    batch, dim = mu.shape
    kappa = kappa.expand(samples, batch)
    b = (dim - 1) / (2 * kappa + torch.sqrt(4 * kappa**2 + (dim - 1) ** 2))
    a = (dim - 1 + 2 * kappa + torch.sqrt(4 * kappa**2 + (dim - 1) ** 2)) / 4
    d = 4 * a * b / (1 + b) - (dim - 1) * math.log(dim - 1)
    w = torch.zeros_like(b)
    open_ = torch.ones_like(b, dtype=torch.bool)
    half = torch.tensor((dim - 1) / 2, device=mu.device)
    beta = torch.distributions.Beta(half, half)
    while open_.any():
        epsilon = beta.sample(b.shape)
        proposal = (1 - (1 + b) * epsilon) / (1 - (1 - b) * epsilon)
        t = 2 * a * b / (1 - (1 - b) * epsilon)
        accept = (dim - 1) * torch.log(t) - t + d >= torch.log(torch.rand_like(b))
        w = torch.where(open_ & accept, proposal, w)
        open_ = open_ & ~accept
    tangent = F.normalize(torch.randn(samples, batch, dim - 1, device=mu.device), dim=-1)
    x = torch.cat([w.unsqueeze(-1), torch.sqrt((1 - w**2).clamp_min(1e-9)).unsqueeze(-1) * tangent], -1)
    axis = torch.zeros(dim, device=mu.device)
    axis[0] = 1
    u = F.normalize(axis - mu, dim=-1)
    return x - 2 * (x * u).sum(-1, keepdim=True) * u


def draw_pairs(process, batch: int, proposals: int = 32) -> tuple[Tensor, Tensor]:
    """Anchors, a latent for each, and partners for those latents: rounds of proposals until all have one."""
    x = process.inputs(batch)
    q = process.posterior(x)
    z = rejection_sample(q.mu, q.kappa, 1)[0]
    positive = torch.zeros_like(x)
    open_ = torch.ones(batch, dtype=torch.bool, device=x.device)
    while open_.any():
        candidate = process.inputs(proposals * batch)
        q = process.posterior(candidate)
        z_candidate = rejection_sample(q.mu, q.kappa, 1)[0].view(proposals, batch, -1)
        rate = process.kernel.log_values(process.dim, (z * z_candidate).sum(-1)).exp()
        accept = torch.rand_like(rate) < rate
        found, first = accept.any(0), accept.int().argmax(0)
        partner = candidate.view(proposals, batch, -1)[first, torch.arange(batch, device=x.device)]
        positive[open_ & found] = partner[open_ & found]
        open_ = open_ & ~found
    return x, positive


def loss(
    encoder: nn.Module, x: Tensor, positive: Tensor, negative: Tensor | None, samples: int, kappa_pos: float
) -> Tensor:
    """MCInfoNCE; without negatives the positives of the batch's previous pair serve."""
    q, q_positive = encoder(x), encoder(positive)
    z = rejection_sample(q.mu, q.kappa, samples)
    z_positive = rejection_sample(q_positive.mu, q_positive.kappa, samples)
    own = kappa_pos * (z * z_positive).sum(-1)
    if negative is None:
        others = kappa_pos * (z * z_positive.roll(1, 1)).sum(-1).unsqueeze(-1)
    else:
        batch, count = negative.shape[:2]
        q_negative = encoder(negative.flatten(0, 1))
        z_negative = rejection_sample(q_negative.mu, q_negative.kappa, samples).view(samples, batch, count, -1)
        others = kappa_pos * (z.unsqueeze(2) * z_negative).sum(-1)
    log_mean = torch.logsumexp(torch.cat([own.unsqueeze(-1), others], -1), -1) - math.log(others.shape[-1])
    return -(torch.logsumexp(own - log_mean, 0) - math.log(samples)).mean()
