"""Match probabilities, and the bound that spares most of them."""

import torch

from aleator import VonMisesFisher
from aleator.retrieval import CredibleIndex, search


def test_a_search_with_the_bound_finds_what_scoring_all_items_finds(monkeypatch):
    """The bound holds for every dimension and kappa: no item that reaches the threshold is left out."""
    for dim in (2, 8, 32, 128):
        generator = torch.Generator().manual_seed(dim)
        mu = torch.nn.functional.normalize(torch.randn(1500, dim, generator=generator), dim=-1)
        near = mu[:1000] + torch.rand(1000, 1, generator=generator) * torch.randn(1000, dim, generator=generator)
        mu[:1000] = torch.nn.functional.normalize(near / dim**0.5 + mu[:1], dim=-1)
        kappa = torch.exp(torch.randn(1500, generator=generator) * 2 + 3)
        kappa[::50], kappa[1::50] = 0, torch.inf
        items = VonMisesFisher(mu, kappa)
        queries = items[torch.tensor([0, 1, 2, 3, 1200])]
        index = CredibleIndex.build(items)
        for threshold in (0.2, 0.9, 0.999):
            monkeypatch.setattr(search, "_SMALL_COLLECTION", 10**9)
            everything = index.search(queries, by="match", threshold=threshold)
            monkeypatch.setattr(search, "_SMALL_COLLECTION", 0)
            assert index.search(queries, by="match", threshold=threshold) == everything
