"""Are match probabilities right? Pairs of items, reliability diagrams, calibration error, and calibration.

Contrastive training leaves two things open. An encoder is often too sure (kappa too large), above all of the items that
it was trained on. And r, the ratio that `log_positivity` computes, is only learned up to a constant factor, because
every negative shares it. `calibrate_matches` fits both on held-out pairs. Neither changes the order of certainties.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aleator.evaluation.agreement import as_vectors
from aleator.foundation import require, require_at_least, require_type
from aleator.matching import VMFKernel, ZonalKernel, log_positivity, match_probability
from aleator.posteriors import PosteriorBatch

Bounds = Sequence[tuple[float, float]]

# Of the search in two dimensions: about a hundredth in each logarithm is enough.
_SEARCH = {"maxfev": 80, "xatol": 1e-2, "fatol": 1e-6}
# |log kappa_scale| and |log factor| count as at most this, so that exp stays finite without bounds.
_LARGEST_LOG = 7.0
# The search for kappa_pos stays within a factor of e^2 of the kernel that the encoder was trained with.
_KERNEL_REACH = 2.0


@dataclass(frozen=True)
class MatchPairs:
    """Pairs of items, and which of them match.

    If half of the pairs were drawn as positives and half independently, then by Bayes' rule a pair was drawn as a
    positive with probability r / (r + 1). That is `match_probability` at the prior 1/2.

    Args:
        first: Item numbers, shape (P,).
        second: Item numbers, shape (P,).
        match: Whether each pair matches, shape (P,): booleans, or 1 and 0.

    Examples:
        >>> import torch
        >>> from aleator.evaluation import MatchPairs
        >>> pairs = MatchPairs(torch.tensor([0, 0]), torch.tensor([1, 2]), torch.tensor([True, False]))
        >>> len(pairs)
        2
    """

    first: Tensor
    second: Tensor
    match: Tensor

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class MatchCalibration:
    """The numbers that make match probabilities right on held-out pairs.

    Args:
        kernel: Kernel to compute match probabilities with.
        kappa_scale: Factor for the kappa of every posterior.
        factor: Divisor of r. It is 1 if the latents are uniform on the sphere.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.evaluation import MatchCalibration, MatchPairs
        >>> q = al.VonMisesFisher(torch.eye(2), torch.tensor([50.0, 50.0]))
        >>> pairs = MatchPairs(torch.tensor([0, 0]), torch.tensor([0, 1]), torch.tensor([True, False]))
        >>> MatchCalibration(al.VMFKernel(20.0), kappa_scale=0.5).probability(q, pairs).round(decimals=2)
        tensor([0.8700, 0.0000])
    """

    kernel: ZonalKernel
    kappa_scale: float = 1.0
    factor: float = 1.0

    @property
    def prior(self) -> float:
        """Prior to pass to `match_probability` in place of 1/2, so that r is divided by `factor`."""
        return 1 / (1 + self.factor)

    @property
    def kappa_pos(self) -> float:
        """Concentration of the kernel, which is a `VMFKernel` or an `AcceptanceKernel`."""
        return float(self.kernel.kappa_pos)  # type: ignore[arg-type]

    def probability(self, q: PosteriorBatch, pairs: MatchPairs) -> Tensor:
        """Calibrated match probability of each pair.

        Args:
            q: Posteriors of the items, batch shape (N,), with kappa as the encoder gave it.
            pairs: Pairs of these items.

        Returns:
            Probabilities, shape (P,).
        """
        first, second = _members(q, pairs, self.kappa_scale)
        odds = 1 / self.factor
        # self.prior would differ in the last bit from the numbers in results/.
        return match_probability(first, second, self.kernel, odds / (1 + odds))


def match_log_likelihood(log_odds: Tensor, match: Tensor, limit: float = math.inf) -> float:
    """Mean log-likelihood of the outcomes of pairs.

    Args:
        log_odds: Predicted log odds of a match, shape (P,).
        match: Whether each pair matches, shape (P,).
        limit: Log odds are clamped to [-limit, limit]. A finite limit bounds what one confident mistake can cost.

    Returns:
        The mean over pairs of log P(outcome), at most 0.

    Examples:
        >>> import torch
        >>> from aleator.evaluation import match_log_likelihood
        >>> round(match_log_likelihood(torch.zeros(3), torch.tensor([1, 0, 0])), 4)  # log(1/2)
        -0.6931
    """
    log_odds = log_odds.double()
    if math.isfinite(limit):
        log_odds = log_odds.clamp(-limit, limit)
    return -torch.nn.functional.binary_cross_entropy_with_logits(log_odds, match.double()).item()


@torch.no_grad()
def calibrate_matches(
    q: PosteriorBatch,
    pairs: MatchPairs,
    kernel: ZonalKernel,
    *,
    fit_kernel: bool = False,
    first_steps: tuple[float, float] = (-0.5, 1.0),
    bounds: Bounds | None = None,
    log_odds_limit: float = math.inf,
) -> MatchCalibration:
    """Fit the numbers under which held-out pairs are most likely.

    First a scale of all kappas and a factor of r, by maximum likelihood. Then, if `fit_kernel`, the concentration of
    the kernel and the factor once more. Both searches are Nelder-Mead, over logarithms.

    Args:
        q: Posteriors of held-out items, batch shape (N,).
        pairs: Pairs of these items. Half of them should be drawn as positives.
        kernel: Kernel that the encoder was trained with.
        fit_kernel: Whether to fit `kappa_pos` too. The kernel must be a `VMFKernel`. No credible set depends on it.
        first_steps: First steps of log kappa_scale and of log factor. The search starts at 0.
        bounds: Bounds (lowest, highest) of log kappa_scale and of log factor. Default: none, but values beyond 7 count
            as 7.
        log_odds_limit: See `match_log_likelihood`.

    Returns:
        The calibration.

    Raises:
        ValueError: If `fit_kernel` is set and the kernel is not a `VMFKernel`.

    Examples:
        Posteriors whose kappa is ten times too large:

        >>> import torch, aleator as al
        >>> from aleator.evaluation import MatchPairs, calibrate_matches
        >>> _ = torch.manual_seed(0)
        >>> z = al.VonMisesFisher.uniform(4, (300,)).sample()
        >>> partner = al.VonMisesFisher(z, 20.0).sample()  # latents that match
        >>> seen = al.VonMisesFisher(torch.cat([z, partner]), 30.0).sample()  # modes of posteriors with kappa = 30
        >>> first = torch.arange(300).repeat(2)
        >>> second = torch.cat([torch.arange(300, 600), torch.randint(300, 600, (300,))])
        >>> pairs = MatchPairs(first, second, torch.arange(600) < 300)
        >>> calibration = calibrate_matches(al.VonMisesFisher(seen, 300.0), pairs, al.VMFKernel(20.0))
        >>> 0.05 < calibration.kappa_scale < 0.2
        True
    """
    if fit_kernel:
        require_type("kernel", kernel, VMFKernel, "leave out fit_kernel, or train with VMFKernel")

    def cost(log_scale: float, log_factor: float, kernel: ZonalKernel) -> float:
        first, second = _members(q, pairs, _limited_exp(log_scale))
        log_odds = log_positivity(first, second, kernel).double() - _limited(log_factor)
        return -match_log_likelihood(log_odds, pairs.match, log_odds_limit)

    if not fit_kernel:
        log_scale, log_factor = _minimise(lambda x: cost(x[0], x[1], kernel), (0.0, 0.0), first_steps, bounds)
        return MatchCalibration(kernel, _limited_exp(log_scale), _limited_exp(log_factor))

    trained = math.log(float(kernel.kappa_pos))  # type: ignore[arg-type]
    start_kernel = VMFKernel(math.exp(trained))
    log_scale, log_factor = _minimise(lambda x: cost(x[0], x[1], start_kernel), (0.0, 0.0), first_steps, bounds)
    near = (trained - _KERNEL_REACH, trained + _KERNEL_REACH)
    log_kappa_pos, log_factor = _minimise(
        lambda x: cost(log_scale, x[1], VMFKernel(math.exp(x[0]))),
        (trained, log_factor),
        first_steps,
        None if bounds is None else (near, bounds[1]),
    )
    return MatchCalibration(VMFKernel(math.exp(log_kappa_pos)), _limited_exp(log_scale), _limited_exp(log_factor))


def _members(q: PosteriorBatch, pairs: MatchPairs, kappa_scale: float) -> tuple[PosteriorBatch, PosteriorBatch]:
    """Posteriors of the first and of the second items, (P,) each, with scaled kappa."""
    scaled = q.scale_kappa(kappa_scale)
    return scaled[pairs.first], scaled[pairs.second]


def _limited(log: float) -> float:
    return min(max(log, -_LARGEST_LOG), _LARGEST_LOG)


def _limited_exp(log: float) -> float:
    return math.exp(_limited(log))


def _minimise(
    cost: Callable[[np.ndarray], float],
    start: tuple[float, float],
    first_steps: tuple[float, float],
    bounds: Bounds | None,
) -> np.ndarray:
    """Where a function of two numbers is least, to about a hundredth in each; shape (2,)."""
    from scipy.optimize import minimize

    simplex = np.array(start) + np.array([[0, 0], [first_steps[0], 0], [0, first_steps[1]]])
    options = {**_SEARCH, "initial_simplex": simplex}
    return minimize(cost, start, method="Nelder-Mead", bounds=bounds, options=options).x


@dataclass(frozen=True)
class ReliabilityDiagram:
    """Observed share of matches against the predicted probability, in bins of equal width; empty bins are left out.

    Args:
        predicted: Mean predicted probability in each bin, shape (bins,).
        observed: Share of outcomes in each bin, shape (bins,).
        count: Number of pairs in each bin, shape (bins,).

    Examples:
        >>> import torch
        >>> from aleator.evaluation import ReliabilityDiagram
        >>> diagram = ReliabilityDiagram(torch.tensor([0.25]), torch.tensor([0.5]), torch.tensor([2.0]))
        >>> diagram.observed
        tensor([0.5000])
    """

    predicted: Tensor
    observed: Tensor
    count: Tensor


def reliability_diagram(probability: Any, outcome: Any, bins: int = 15) -> ReliabilityDiagram:
    """Reliability diagram: observed share of outcomes against the predicted probability.

    Args:
        probability: Predicted probabilities, shape (N,).
        outcome: What happened, 0 or 1, shape (N,).
        bins: Number of bins of equal width.

    Returns:
        Means of each bin that is not empty, in float64.

    Raises:
        ValueError: If a probability is not in [0, 1].

    Examples:
        >>> from aleator.evaluation import reliability_diagram
        >>> diagram = reliability_diagram([0.05, 0.07, 0.95, 1.0], [0, 1, 1, 1], bins=10)
        >>> diagram.predicted, diagram.observed
        (tensor([0.0600, 0.9750], dtype=torch.float64), tensor([0.5000, 1.0000], dtype=torch.float64))
    """
    probability, outcome, cell = _binned(probability, outcome, bins)
    count = torch.bincount(cell, minlength=bins).double()
    predicted, observed = (torch.bincount(cell, weights=x, minlength=bins) for x in (probability, outcome))
    filled = count > 0
    return ReliabilityDiagram((predicted / count)[filled], (observed / count)[filled], count[filled])


def expected_calibration_error(probability: Any, outcome: Any, bins: int = 15) -> float:
    """Mean gap between predicted probability and observed frequency, over bins of equal width.

    Each bin counts with its share of the items (Naeini, Cooper, Hauskrecht, AAAI 2015).

    Args:
        probability: Predicted probabilities, shape (N,).
        outcome: What happened, 0 or 1, shape (N,).
        bins: Number of bins of equal width.

    Returns:
        The error, in [0, 1]. It is 0 if the predictions are right in every bin.

    Raises:
        ValueError: If a probability is not in [0, 1].

    Examples:
        >>> from aleator.evaluation import expected_calibration_error
        >>> round(expected_calibration_error([0.2, 0.4, 0.6, 1.0], [0, 0, 1, 0], bins=2), 3)
        0.3
    """
    probability, outcome, cell = _binned(probability, outcome, bins)
    gap = torch.zeros(bins, dtype=torch.float64, device=probability.device)
    gap.index_add_(0, cell, probability - outcome)
    return (gap.abs().sum() / len(probability)).item()


def _binned(probability: Any, outcome: Any, bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities and outcomes in float64, and the bin of each; (N,) each."""
    probability, outcome = as_vectors(probability=probability, outcome=outcome)
    inside = (probability >= 0) & (probability <= 1)
    require(inside, "probability", probability, "not in [0, 1]", "pass probabilities, not logits")
    require_at_least("bins", bins, 1, "pass for example 15")
    return probability, outcome, (probability * bins).long().clamp_max(bins - 1)
