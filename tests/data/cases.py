"""Labels, the laws they imply written out in full, and a goodness-of-fit test; for several test files."""

import torch
from scipy import stats

SEEDED = torch.Generator().manual_seed

SOFT = torch.tensor(
    [
        [1.0, 0.0, 0.0, 0.0],
        [0.5, 0.5, 0.0, 0.0],
        [0.0, 0.2, 0.8, 0.0],
        [0.0, 1.0, 0.0, 0.0],
        [0.1, 0.2, 0.3, 0.4],
        [0.0, 0.0, 0.0, 1.0],
        [0.9, 0.0, 0.0, 0.1],
    ],
    dtype=torch.float64,
)
HARD = torch.tensor([3, 3, 7, 7, 7, -1, -1, 7])


def probabilities(labels: torch.Tensor) -> torch.Tensor:
    """(N, C), whatever the labels were."""
    if labels.dim() == 2:
        return labels.double()
    class_ = labels.unique(return_inverse=True)[1]
    return torch.nn.functional.one_hot(class_).double()


def pair_law(p: torch.Tensor, with_itself: bool = True) -> torch.Tensor:
    """P(x, x+) straight from the definition: for each anchor and class, the members' shares."""
    n, classes = p.shape
    law = torch.zeros(n, n, dtype=torch.float64)
    for x in range(n):
        for c in range(classes):
            weight = p[:, c].clone()
            if not with_itself:
                weight[x] = 0
            if p[x, c] > 0:
                law[x] += p[x, c] / n * weight / weight.sum()
    return law


def contrast_law(p: torch.Tensor) -> torch.Tensor:
    """P(x, x-) of the paper's rule."""
    n, classes = p.shape
    law = torch.zeros(n, n, dtype=torch.float64)
    for x in range(n):
        for c in range(classes):
            law[x] += p[x, c] / n * (1 - p[:, c]) / (1 - p[:, c]).sum()
    return law


def counts(first: torch.Tensor, second: torch.Tensor, n: int) -> torch.Tensor:
    return torch.bincount(first * n + second, minlength=n * n).view(n, n)


def assert_follows(observed: torch.Tensor, law: torch.Tensor) -> None:
    """Nothing where the law has nothing, and a chi-square test elsewhere (one false alarm in 10,000)."""
    possible = law > 1e-15
    assert observed[~possible].sum() == 0
    expected = law[possible] * observed.sum()
    assert expected.min() > 5, "too few draws for the test"
    p_value = stats.chisquare(observed[possible].numpy(), (expected * observed.sum() / expected.sum()).numpy()).pvalue
    assert p_value > 1e-4


class Listed:
    """A map-style dataset over a tensor."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]
