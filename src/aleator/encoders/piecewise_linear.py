"""A backbone that writes each number as several: how much of each bin of its column lies below it.

A network sees a column of a table as one number, and learns steps in it slowly. Trees find steps at once. Written in
bins, a step is a weight (Gorishniy, Rubachev, Babenko, "On Embeddings for Numerical Features in Tabular Deep Learning",
NeurIPS 2022).
"""

import torch
from torch import Tensor, nn

from aleator.encoders.backbones import register_backbone
from aleator.foundation import even_sample, require, require_at_least

_FEW_VALUES = 4  # in units of the bins: of a column with so few, each value counts alike, however frequent it is
_MOST_ROWS = 2**20
_LARGEST = 1e38  # differences of such numbers fit into float32
_LEAST_DEVIATION = 0.3  # of what a bin gives, 0 to 1: one that is nearly always empty is not made large


@register_backbone("piecewise-linear")
class PiecewiseLinear(nn.Module):
    """Writes features (B, F) as the filled shares (B, F x bins) of bins of each feature, standardised.

    The bins of a feature have edges e_0 < e_1 < ..., quantiles of a sample. Bin t gives the share of it that lies below
    x, (x - e_t) / (e_(t + 1) - e_t), which is 0 for smaller x and 1 for larger. So a value far outside of the sample
    counts like the sample's smallest or largest. Where quantiles are equal there are fewer bins; the others give 0.

    Edges, means and deviations are buffers: they are saved with the weights and not learned. Before `fit` all is 0.

    Args:
        features: F.
        bins: Number of bins of a feature.

    Examples:
        >>> import torch
        >>> from aleator.encoders import PiecewiseLinear
        >>> layer = PiecewiseLinear(1, bins=2).fit(torch.tensor([[0.0], [1.0], [4.0]]))
        >>> layer.shares(torch.tensor([[-5.0], [0.5], [2.5], [9.0]]))
        tensor([[0.0000, 0.0000],
                [0.5000, 0.0000],
                [1.0000, 0.5000],
                [1.0000, 1.0000]])
    """

    low: Tensor
    width: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, features: int, bins: int = 8):
        super().__init__()
        require_at_least("features", features, 1, "pass the last dimension of the array")
        require_at_least("bins", bins, 1, "pass for example 8")
        self.arguments = {"features": features, "bins": bins}
        self.bins, self.out_features = bins, features * bins
        for name, value in (("low", 0.0), ("width", torch.inf), ("mean", 0.0), ("deviation", 1.0)):
            self.register_buffer(name, torch.full((features, bins), value))

    @torch.no_grad()
    def fit(self, sample: Tensor) -> "PiecewiseLinear":
        """Take the bins from a sample.

        Args:
            sample: Finite features (N, F). Of more than a million rows, some are looked at.

        Returns:
            The module itself.

        Raises:
            ValueError: If the sample is empty, has another shape, or holds a number that is not finite.
        """
        fits = sample.dim() == 2 and sample.shape[1] == len(self.low) and len(sample) > 0
        way_out = f"pass features (N, {len(self.low)})"
        require(fits, "sample", tuple(sample.shape), "is not the shape of features", way_out)
        sample = sample[even_sample(len(sample), _MOST_ROWS)]
        require(bool(sample.isfinite().all()), "sample", "NaN or inf", "not a finite number", "leave such rows out")
        self.low.zero_()
        self.width.fill_(torch.inf)  # a bin that is not used
        levels = torch.linspace(0, 1, self.bins + 1, dtype=torch.float64, device=sample.device)
        for j, column in enumerate(sample.double().T):
            values = column.unique()
            edges = torch.quantile(values if len(values) <= _FEW_VALUES * self.bins else column, levels)
            edges = edges.to(self.low).unique()  # rounded first: a bin must not be empty
            self.low[j, : len(edges) - 1] = edges[:-1]
            self.width[j, : len(edges) - 1] = edges.diff()
        deviation, mean = torch.std_mean(self._shares(sample), 0, correction=0)
        self.mean.copy_(mean)
        self.deviation.copy_(deviation.clamp_min(_LEAST_DEVIATION))
        return self

    def shares(self, x: Tensor) -> Tensor:
        """The share of each bin that lies below x.

        Args:
            x: Features (B, F).

        Returns:
            Numbers from 0 to 1, shape (B, F x bins). The bins of a feature are together, in ascending order.
        """
        return self._shares(x).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """The shares, standardised.

        Args:
            x: Features (B, F).

        Returns:
            Features (B, F x bins).
        """
        return ((self._shares(x) - self.mean) / self.deviation).flatten(1)

    def _shares(self, x: Tensor) -> Tensor:
        x = x.to(self.low).clamp(-_LARGEST, _LARGEST)  # inf / inf would be NaN where there is no bin
        return ((x.unsqueeze(-1) - self.low) / self.width).clamp(0, 1)
