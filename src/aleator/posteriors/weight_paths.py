r"""How samples of a mixture of vMFs move with its weights: implicit reparameterisation on the sphere.

If the weight w_k grows, the density changes by vMF_k dw_k. Samples follow this change if they move with a velocity v_k
whose flow q v_k satisfies the continuity equation, div(q v_k) = -(vMF_k - 1/S). S is the area of the sphere. The
constant makes the flow vanish at the antipode of mu_k; it cancels, because the changes of all weights sum to zero. The
right side depends only on the angle theta from mu_k, so the flow points along theta, and the divergence theorem on a
cap gives it in closed form:

    v_k(z) = - (P_k(theta) - P_0(theta)) / (S' sin(theta)^(D-2) q(z)) e_theta.

P_k is the probability of the cap of angle theta under component k, P_0 its share of the sphere, S' the area of the
sphere in D-1 dimensions. Implicit reparameterisation: Figurnov, Mohamed, Mnih, NeurIPS 2018.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from aleator.posteriors.caps import cap_mass
from aleator.special import log_sphere_area

if TYPE_CHECKING:
    from aleator.posteriors.mixtures import VMFMixture


def move_with_weights(q: "VMFMixture", z: Tensor) -> Tensor:
    """The samples z (..., D) of q, unchanged, with gradients in the weights."""
    with torch.no_grad():
        velocity = weight_velocities(q, z.detach())
    weights = q.weights
    return z + ((weights - weights.detach()).unsqueeze(-1) * velocity).sum(-2)


def weight_velocities(q: "VMFMixture", z: Tensor) -> Tensor:
    """v_k at z (..., D), which broadcasts with the batch of q: (..., K, D)."""
    mu, kappa = q.components.mu.double(), q.components.kappa.double()
    at = z.double().unsqueeze(-2)
    angle = 2 * torch.asin(((at - mu).norm(dim=-1) / 2).clamp_max(1.0))  # (..., K)
    sine = torch.sin(angle).clamp_min(1e-30)
    wide = kappa.expand(angle.shape)
    excess = cap_mass(q.dim, wide, angle) - cap_mass(q.dim, torch.zeros_like(wide), angle)
    log_q = q.log_prob(z).double().unsqueeze(-1)
    speed = -excess * torch.exp(-log_sphere_area(q.dim - 1) - (q.dim - 2) * sine.log() - log_q)
    outwards = (torch.cos(angle).unsqueeze(-1) * at - mu) / sine.unsqueeze(-1)
    return (speed.unsqueeze(-1) * outwards).to(z.dtype)
