"""What the published code takes for the normalising constants C(kappa) of vMFs: polynomials, which are off.

Its process and its ELK use them, and both decide its figures. So the preset `paper` can use them too.
"""

from typing import Any

import torch
from torch import Tensor

from aleator.foundation import require
from aleator.losses import ELK
from aleator.matching import ZonalKernel
from aleator.posteriors import PosteriorBatch, VonMisesFisher

# What it takes for log(C(0)/C(20)) in each dimension, the offset of the rule that accepts pairs. The right
# values are 17.59, 11.15, 8.75, 5.44, 4.53, 3.88, 3.38 and 2.99. So it accepts pairs that are farther apart. From 40
# dimensions on it accepts most pairs of independent latents.
PUBLISHED_OFFSETS = {
    2: 17.392,
    10: 9.501,
    16: 6.182,
    32: 1.043,
    40: -0.473,
    48: -1.591,
    56: -2.424,
    64: -3.032,
}


class ShiftedRule(ZonalKernel):
    """The paper's acceptance rule with an offset of its own: g(t) = sigmoid(slope t - offset)."""

    def __init__(self, slope: float, offset: float):
        super().__init__()
        self.slope, self.offset = slope, offset

    def log_values(self, dim: int, t: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid(self.slope * t - self.offset)

    def cache_key(self) -> tuple[Any, ...]:
        return type(self), self.slope, self.offset


class FittedELK(ELK):
    """ELK with what the published code takes for log C(kappa) in ten dimensions, a fit to kappas of 10 to 50.

    ELK makes kappas smaller than that. There the slope of the fit is wrong: -0.48 instead of -0.17 at kappa 1.75.
    """

    def similarity(self, q1: PosteriorBatch, q2: PosteriorBatch) -> Tensor:
        require(q1.dim == 10, "dim", q1.dim, "the published fit is of ten dimensions", "use ELK")
        assert isinstance(q1, VonMisesFisher)
        assert isinstance(q2, VonMisesFisher)
        joint = (q1.kappa.unsqueeze(-1) * q1.mu + q2.kappa.unsqueeze(-1) * q2.mu).norm(dim=-1)
        likelihood = _fitted_log_constant(q1.kappa) + _fitted_log_constant(q2.kappa) - _fitted_log_constant(joint)
        return self.scale.concentration(likelihood) * likelihood


def _fitted_log_constant(kappa: Tensor) -> Tensor:
    return -1.27184 + 0.67365 * kappa - 0.98726 * kappa**1.1
