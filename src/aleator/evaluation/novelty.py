"""Is an input unlike anything seen? Distances to the nearest training items, in the features of a network.

A posterior cannot say so: a blank image also gets some mu, and may get a large kappa. So the detector looks at features
from before the posterior, in one or more views of an input. In each view the score is the log distance to the nearest
training items (Sun et al., Out-of-distribution detection with deep nearest neighbors, ICML 2022), in units in which the
median of held-out items is 0 and their 95 % quantile is 1. The score of an input is the largest over the views. The
threshold is a conformal quantile of held-out items, so it keeps its rate of false alarms for any features.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from aleator.evaluation.conformal import conformal_quantile
from aleator.foundation import require, require_probability

_MOST_ITEMS = 5_000  # of the training items, these many are kept for each view
_MOST_DIRECTIONS = 64  # principal directions that are kept; the length of the rest is one more coordinate
_NEIGHBOURS = 5
_SMOOTHING = 0.5  # added to the count of each pair of letters
_TAIL = 0.2  # share of the held-out items from which the tail is estimated, if there are few
_USUAL_PAIRS = 10
_BLOCK = 1_024  # inputs that are compared at a time


@dataclass(frozen=True)
class FeatureView:
    """One view of the training items: a sample of their features, and the distances of held-out items to them.

    Args:
        centre: Mean of the features, shape (F,).
        scale: Divisor of each feature, shape (F,).
        directions: Principal directions, shape (F, d).
        sample: Coordinates of training items, shape (n, d + 1), float16.
        median: Median log distance of held-out items.
        spread: 95 % quantile of their log distances, minus the median.

    Examples:
        >>> import torch
        >>> from aleator.evaluation import FeatureView
        >>> view = FeatureView(torch.zeros(2), torch.ones(2), torch.eye(2), torch.zeros(1, 3).half())
        >>> view.log_distances(torch.tensor([[3.0, 4.0]])).exp()
        tensor([5.])
    """

    centre: Tensor
    scale: Tensor
    directions: Tensor
    sample: Tensor
    median: float = 0.0
    spread: float = 1.0

    def log_distances(self, features: Tensor) -> Tensor:
        """Log of the mean distance to the five nearest training items.

        Args:
            features: Features of N inputs, shape (N, F).

        Returns:
            Log distances, shape (N,).

        Raises:
            ValueError: If there is another number of features.
        """
        problem = f"expected rows of {len(self.centre)}"
        require(features.shape[1:] == self.centre.shape, "features", tuple(features.shape), problem, "use this network")
        sample = self.sample.float()
        nearest = min(_NEIGHBOURS, len(sample))
        blocks = [
            torch.cdist(self.coordinates(block), sample).topk(nearest, largest=False).values.mean(1)
            for block in features.float().split(_BLOCK)
        ]
        return torch.cat(blocks).clamp_min(1e-6).log()

    def coordinates(self, features: Tensor) -> Tensor:
        """Principal coordinates, and the length of what they leave out.

        Args:
            features: Features of N inputs, shape (N, F).

        Returns:
            Coordinates, shape (N, d + 1).
        """
        scaled = (features.float() - self.centre) / self.scale
        along = scaled @ self.directions
        # The length of the rest, without forming it.
        rest = (scaled.square().sum(1) - along.square().sum(1)).clamp_min(0).sqrt()
        return torch.cat([along, rest[:, None]], 1).clamp(-1e4, 1e4)  # float16 ends at 65504

    def scores(self, features: Tensor) -> Tensor:
        """Log distances in the units of held-out items.

        Args:
            features: Features of N inputs, shape (N, F).

        Returns:
            Scores, shape (N,).
        """
        return (self.log_distances(features) - self.median) / self.spread


@dataclass(frozen=True)
class LetterPairView:
    """One view of the training texts: how often each letter follows each other one.

    Random letters have features like those of some texts, but their pairs of letters are improbable. The score is minus
    the mean log probability of a pair, drawn towards the median for short texts.

    Args:
        log_probabilities: log P(letter | letter before), shape (L, L).
        median: Median score of held-out texts.
        spread: 95 % quantile of their scores, minus the median.

    Examples:
        >>> import torch
        >>> from aleator.evaluation import LetterPairView
        >>> view = LetterPairView(torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log())
        >>> view.scores(torch.tensor([[90.0, 0.0, 0.0, 0.0], [0.0, 90.0, 0.0, 0.0]])).round(decimals=2)
        tensor([0.0900, 2.0700])
    """

    log_probabilities: Tensor
    median: float = 0.0
    spread: float = 1.0

    def scores(self, counts: Tensor) -> Tensor:
        """How improbable the pairs of letters are, in the units of held-out texts.

        Args:
            counts: Number of each pair of letters in N texts, shape (N, L * L).

        Returns:
            Scores, shape (N,).

        Raises:
            ValueError: If there is another number of pairs.
        """
        pairs = self.log_probabilities.numel()
        problem = f"expected rows of {pairs}"
        require(counts.shape[1:] == (pairs,), "counts", tuple(counts.shape), problem, "count the same letters")
        counts = counts.float()
        total = counts.sum(1)
        cost = -(counts @ self.log_probabilities.flatten()) / total.clamp_min(1)
        # A few pairs say little: they count like their number among ten more usual ones.
        return total / (total + _USUAL_PAIRS) * (cost - self.median) / self.spread


@dataclass(frozen=True)
class NoveltyDetector:
    """Tells inputs that are unlike all training items.

    Make one with `fit_novelty`.

    Args:
        views: The views, by name.
        threshold: Inputs with a larger score are unlike anything seen.

    Examples:
        >>> import torch
        >>> from aleator.evaluation import fit_novelty
        >>> _ = torch.manual_seed(0)
        >>> detector = fit_novelty({"features": torch.randn(500, 8)}, {"features": torch.randn(300, 8)})
        >>> detector.unlike({"features": torch.tensor([[0.5] * 8, [9.0] * 8])})
        tensor([False,  True])
    """

    views: dict[str, FeatureView | LetterPairView]
    threshold: float

    def excess(self, features: Mapping[str, Tensor]) -> Tensor:
        """How far the score of each input lies above the threshold.

        Args:
            features: Features of N inputs in each view, shape (N, F); in the view "letters" counts of letter pairs.

        Returns:
            Scores minus the threshold, shape (N,). Positive for inputs that are unlike anything seen.

        Raises:
            ValueError: If a view is missing or has another number of features.
        """
        for name in self.views:
            require(
                name in features, "features", sorted(features), f"has no view {name!r}", "pass the views of the fit"
            )
        scores = torch.stack([view.scores(features[name]) for name, view in self.views.items()])
        # Features that are not finite are unlike anything.
        return scores.amax(0).nan_to_num(math.inf, math.inf) - self.threshold

    def unlike(self, features: Mapping[str, Tensor]) -> Tensor:
        """Which inputs are unlike anything seen.

        Args:
            features: Features of N inputs in each view, shape (N, F).

        Returns:
            Flags, shape (N,).
        """
        return self.excess(features) > 0


@torch.no_grad()
def fit_novelty(
    training: Mapping[str, Tensor], held_out: Mapping[str, Tensor], false_alarms: float = 0.005
) -> NoveltyDetector:
    """Fit a detector of inputs that are unlike anything seen.

    Args:
        training: Features of training items in each view, shape (N, F). Of more than 5,000 items, 5,000 are kept. The
            view "letters" holds counts of letter pairs, shape (N, L * L); see `LetterPairView`.
        held_out: Features of held-out items in each view, shape (H, F), H >= 1.
        false_alarms: Share of ordinary inputs that may be flagged.

    Returns:
        The detector. An ordinary input is flagged with a probability of at most `false_alarms`, whatever the features
        are, if it comes from the same source as the held-out items. With fewer than 1 / false_alarms held-out items
        the probability is about `false_alarms` if the scores have an exponential tail.

    Raises:
        ValueError: If there are no items, or if the views differ.

    Examples:
        >>> import torch
        >>> from aleator.evaluation import fit_novelty
        >>> _ = torch.manual_seed(1)
        >>> detector = fit_novelty({"x": torch.randn(400, 5)}, {"x": torch.randn(400, 5)}, false_alarms=0.05)
        >>> fresh = torch.randn(2000, 5)
        >>> bool(detector.unlike({"x": fresh}).double().mean() < 0.08)
        True
    """
    require_probability("false_alarms", false_alarms, "pass for example 0.005")
    same = bool(training) and training.keys() == held_out.keys()
    require(same, "held_out", sorted(held_out), f"the views are {sorted(training)}", "pass the same views")
    count = len(next(iter(held_out.values())))
    require(count >= 1, "held_out", count, "there are none", "hold out some items")
    views = {name: _FITS.get(name, _fit_view)(training[name], held_out[name]) for name in training}
    scores = torch.stack([view.scores(held_out[name]) for name, view in views.items()]).amax(0)
    return NoveltyDetector(views, _threshold(scores.double(), false_alarms))


def _threshold(scores: Tensor, false_alarms: float) -> float:
    """The conformal quantile. For few scores there is none: then the end of an exponential tail, if it is larger.

    The k largest of H scores exceed the next one by e_1 to e_k. A new score exceeds that one with the probability
    (k + 1) / (H + 1), and then, if the tail is exponential, by more than x with the probability
    (1 + x / (e_1 + ... + e_k))^-k. This counts in that the mean of a few e is itself uncertain.
    """
    count = len(scores)
    level = conformal_quantile(scores.numpy(), min(1 - false_alarms, count / (count + 1)))
    if count + 1 >= 1 / false_alarms or count == 1:
        return level
    k = max(1, round(_TAIL * count))
    largest = scores.topk(k + 1).values
    share = (k + 1) / (count + 1)
    excess = (largest[:k] - largest[k]).sum() * math.expm1(math.log(share / false_alarms) / k)
    return max(level, float(largest[k] + excess))


def _fit_view(training: Tensor, held_out: Tensor) -> FeatureView:
    require(len(training) >= 1, "training", len(training), "there are none", "pass training items")
    rows = training.float()[:: len(training) // _MOST_ITEMS + 1]
    centre = rows.mean(0)
    variance = rows.var(0, correction=0)
    # Features with little variance count for less: their distances are mostly noise.
    scale = (variance + variance.mean()).clamp_min(1e-12).sqrt()
    _, _, directions = torch.linalg.svd((rows - centre) / scale, full_matrices=False)
    view = FeatureView(centre, scale, directions[:_MOST_DIRECTIONS].T.contiguous(), rows[:0])
    view = FeatureView(view.centre, view.scale, view.directions, view.coordinates(rows).half())
    logs = view.log_distances(held_out).double()
    median = logs.quantile(0.5).item()
    spread = max(logs.quantile(0.95).item() - median, 1e-3)
    return FeatureView(view.centre, view.scale, view.directions, view.sample, median, spread)


def _fit_letter_pairs(training: Tensor, held_out: Tensor) -> LetterPairView:
    letters = math.isqrt(training.shape[1])
    counts = training.double().sum(0).view(letters, letters) + _SMOOTHING
    view = LetterPairView((counts / counts.sum(1, keepdim=True)).log().float())
    total = held_out.double().sum(1)
    costs = -(held_out.double() @ view.log_probabilities.double().flatten()) / total.clamp_min(1)
    median = costs.quantile(0.5).item()
    spread = max(costs.quantile(0.95).item() - median, 1e-3)
    return LetterPairView(view.log_probabilities, median, spread)


_FITS: dict[str, Callable[[Tensor, Tensor], FeatureView | LetterPairView]] = {"letters": _fit_letter_pairs}
