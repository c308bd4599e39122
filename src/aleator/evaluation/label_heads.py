"""Small classifiers on features, for labels that are judged out of sample: a linear head and one hidden layer.

Both learn from label distributions, take seconds, and prefer a smooth answer to a perfect fit: some of the labels that
they learn from are wrong.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aleator.evaluation.cross_fitting import Predictor

PENALTIES = (1e-3, 1e-2, 1e-1)  # of the linear head; the best is chosen on held-out items
_CHOICE_ITEMS = 8000
_ITERATIONS = 60
_MOST_WORK = 1e12  # multiplications for one linear head; with many classes it stops early
_WIDTH, _DROPOUT, _RATE, _BATCH = 256, 0.5, 3e-3, 256
_ROWS_IN_ALL, _PASSES = 400_000, (4, 25)  # training rows that the hidden layer sees, and bounds on passes


@dataclass(frozen=True)
class LinearHead:
    """P(class | features) = softmax(features weights + bias).

    Args:
        weights: Shape (F, C).
        bias: Shape (C,).

    Examples:
        >>> import torch
        >>> from aleator.evaluation import LinearHead
        >>> LinearHead(torch.eye(2), torch.zeros(2))(torch.tensor([[0.0, 0.0]]))
        tensor([[0.5000, 0.5000]])
    """

    weights: Tensor
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Probabilities (m, C) of features (m, F)."""
        return (features.to(self.weights.dtype) @ self.weights + self.bias).softmax(1)


def linear_head(features: Tensor, targets: Tensor, penalty: float = 1e-2, iterations: int | None = None) -> LinearHead:
    """Multinomial logistic regression: cross-entropy with the targets + penalty / 2 |weights|^2.

    Args:
        features: Standardised features, shape (n, F).
        targets: Label distributions, shape (n, C).
        penalty: Weight of the squared weights.
        iterations: Most iterations of L-BFGS. Default: 60, and fewer where each is much work.

    Returns:
        The head.

    Examples:
        >>> import torch
        >>> from aleator.evaluation import linear_head
        >>> predict = linear_head(torch.tensor([[-1.0], [1.0]]), torch.eye(2))
        >>> predict(torch.tensor([[2.0]])).argmax().item()
        1
    """
    weights = torch.zeros(features.shape[1], targets.shape[1], requires_grad=True, device=features.device)
    bias = torch.zeros(targets.shape[1], requires_grad=True, device=features.device)
    if iterations is None:
        work = 4.0 * features.numel() * targets.shape[1]
        iterations = int(min(_ITERATIONS, max(10.0, _MOST_WORK / work)))
    optimiser = torch.optim.LBFGS(
        [weights, bias], max_iter=iterations, history_size=10, line_search_fn="strong_wolfe", tolerance_change=1e-7
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(features @ weights + bias, targets) + penalty / 2 * weights.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return LinearHead(weights.detach(), bias.detach())


def hidden_layer_head(features: Tensor, targets: Tensor, seed: int = 0) -> Predictor:
    """A classifier with one hidden layer and dropout, trained by AdamW in a few passes.

    Args:
        features: Standardised features, shape (n, F).
        targets: Label distributions, shape (n, C).
        seed: Seed of weights, batches and dropout.

    Returns:
        Function from features (m, F) to probabilities (m, C).

    Examples:
        >>> import torch
        >>> from aleator.evaluation import hidden_layer_head
        >>> predict = hidden_layer_head(torch.tensor([[-1.0], [1.0]]).repeat(20, 1), torch.eye(2).repeat(20, 1))
        >>> predict(torch.tensor([[2.0]])).argmax().item()
        1
    """
    count, batch = len(features), min(_BATCH, max(16, len(features) // 8))
    passes = min(max(_ROWS_IN_ALL // count, _PASSES[0]), _PASSES[1])
    steps = passes * max(1, count // batch)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Linear(features.shape[1], _WIDTH), nn.GELU(), nn.Dropout(_DROPOUT), nn.Linear(_WIDTH, targets.shape[1])
        ).to(features.device)
        optimiser = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=1e-2, fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, total_steps=steps)
        order = torch.empty(0, dtype=torch.long)
        for _ in range(steps):
            if len(order) < batch:
                order = torch.randperm(count)
            rows, order = order[:batch].to(features.device), order[batch:]
            optimiser.zero_grad()
            F.cross_entropy(network(features[rows]), targets[rows]).backward()
            optimiser.step()
            schedule.step()
    network.eval()

    @torch.inference_mode()
    def predict(new: Tensor) -> Tensor:
        return network(new).softmax(1)

    return predict


@dataclass(frozen=True)
class HeadSettings:
    """What suits the features of a collection.

    Args:
        each: Whether every feature is divided by its own standard deviation; otherwise one number divides all.
        penalty: Penalty of the linear head.

    Examples:
        >>> from aleator.evaluation import HeadSettings
        >>> HeadSettings(each=True, penalty=0.01)
        HeadSettings(each=True, penalty=0.01)
    """

    each: bool
    penalty: float


def standardise(features: Tensor, each: bool) -> Tensor:
    """Centre and scale features. No label is used, so nothing leaks into folds.

    Args:
        features: Features, shape (N, F).
        each: Whether every feature is divided by its own standard deviation; otherwise one number divides all.

    Returns:
        Features of mean 0, shape (N, F), float32.

    Examples:
        >>> import torch
        >>> from aleator.evaluation import standardise
        >>> standardise(torch.tensor([[0.0, 10.0], [2.0, 30.0]]), each=True)
        tensor([[-1., -1.],
                [ 1.,  1.]])
    """
    features = features.float()
    centred = features - features.mean(0)
    variance = centred.square().mean(0)
    return centred / (variance if each else variance.mean()).sqrt().clamp_min(1e-12)


def choose_head_settings(features: Tensor, targets: Tensor, seed: int = 0) -> HeadSettings:
    """Choose how features are scaled and the linear head's penalty: what predicts held-out labels best.

    Args:
        features: Features, shape (N, F). Of more than 8,000 items a random sample is used.
        targets: Label distributions, shape (N, C).
        seed: Seed of the sample, a fifth of which is held out.

    Returns:
        The settings with the largest held-out log-likelihood of a linear head.

    Examples:
        >>> import torch
        >>> from aleator.evaluation import choose_head_settings
        >>> classes = torch.arange(40) % 2
        >>> choose_head_settings(torch.eye(2)[classes], torch.eye(2)[classes]).penalty
        0.001
    """
    chosen = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))[:_CHOICE_ITEMS]
    train, held_out = chosen[len(chosen) // 5 :], chosen[: len(chosen) // 5]
    best, most = HeadSettings(True, PENALTIES[1]), -torch.inf
    for each in (True, False):
        scaled = standardise(features, each)
        for penalty in PENALTIES:
            predict = linear_head(scaled[train], targets[train], penalty)
            likelihood = float((targets[held_out] * predict(scaled[held_out]).clamp_min(1e-12).log()).sum())
            if likelihood > most:
                best, most = HeadSettings(each, penalty), likelihood
    return best
