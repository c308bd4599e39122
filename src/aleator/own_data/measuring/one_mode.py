"""One direction and one number for a posterior of several modes, for tables, figures and neighbours."""

from torch import Tensor

from aleator.posteriors import PosteriorBatch, VonMisesFisher

_SHOWN = 0.01  # least weight that is shown


def one_mode(q: PosteriorBatch) -> VonMisesFisher:
    """Each posterior as one vMF, to show it or to look for neighbours.

    Args:
        q: Posteriors, batch shape (N,).

    Returns:
        The same posteriors if they have one mode. Otherwise their likeliest direction, with the kappa of the closest
        vMF: small if the modes are far apart.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.own_data import one_mode
        >>> q = al.VMFMixture(torch.tensor([[0.75, 0.25]]).log(), al.VonMisesFisher(torch.eye(2, 3)[None], 50.0))
        >>> one_mode(q).mu.round(decimals=2), one_mode(q).kappa.round()
        (tensor([[1., 0., 0.]]), tensor([4.]))
    """
    if isinstance(q, VonMisesFisher):
        return q
    return VonMisesFisher(q.mode, q.closest_vmf().kappa, validate_args=False)  # type: ignore[attr-defined]


def certainty_score(q: PosteriorBatch) -> Tensor:
    """One number that orders posteriors by how certain they are.

    Args:
        q: Posteriors, batch shape (N,).

    Returns:
        kappa, or `PosteriorBatch.certainty` of posteriors with several modes, shape (N,).

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.own_data import certainty_score
        >>> certainty_score(al.VonMisesFisher(torch.eye(2), torch.tensor([5.0, 50.0])))
        tensor([ 5., 50.])
    """
    return q.kappa if isinstance(q, VonMisesFisher) else q.certainty


def mode_weights(q: PosteriorBatch) -> list[float]:
    """Weights of one posterior's modes, to show them.

    Args:
        q: One posterior, batch shape ().

    Returns:
        The weights of a hundredth or more, the largest first.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.own_data import mode_weights
        >>> q = al.VMFMixture(torch.tensor([0.25, 0.75]).log(), al.VonMisesFisher(torch.eye(2), 50.0))
        >>> mode_weights(q)
        [0.75, 0.25]
    """
    weights = sorted(q.log_weights.exp().tolist(), reverse=True)
    return [round(weight, 4) for weight in weights if weight >= _SHOWN]
