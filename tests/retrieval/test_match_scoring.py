"""Match probabilities, and the bound that spares most of them."""

import numpy as np
import pytest
import torch

from aleator import VMFKernel, VMFMixture, VonMisesFisher, match_probability
from aleator.matching import LogOddsMap, MatchMaps
from aleator.retrieval import CredibleIndex, match_scoring, mixture_search, search
from aleator.retrieval.match_scoring import match_log_ratios

MAPS = MatchMaps(
    pair=LogOddsMap((-1.0, 2.5, 3.0), (-3.0, 1.0, 2.5)),
    hit=LogOddsMap((-1.0, 2.0, 3.0), (-2.0, -1.5, 2.0), rank_slope=0.1),
    likeliest=LogOddsMap((-1.0, 2.0, 3.0), (-2.5, -1.0, 2.0), rank_slope=0.4),
)


def test_a_search_with_the_bound_finds_what_scoring_all_items_finds(monkeypatch):
    """The bound holds for every dimension and kappa: no item that reaches the threshold is left out."""
    for dim, maps in ((2, None), (8, MAPS), (32, None), (128, MAPS)):
        generator = torch.Generator().manual_seed(dim)
        mu = torch.nn.functional.normalize(torch.randn(1500, dim, generator=generator), dim=-1)
        near = mu[:1000] + torch.rand(1000, 1, generator=generator) * torch.randn(1000, dim, generator=generator)
        mu[:1000] = torch.nn.functional.normalize(near / dim**0.5 + mu[:1], dim=-1)
        kappa = torch.exp(torch.randn(1500, generator=generator) * 2 + 3)
        kappa[::50], kappa[1::50] = 0, torch.inf
        items = VonMisesFisher(mu, kappa)
        queries = items[torch.tensor([0, 1, 2, 3, 1200])]
        index = CredibleIndex.build(items, maps=maps)
        for threshold in (0.2, 0.9, 0.999):
            monkeypatch.setattr(search, "SMALL_COLLECTION", 10**9)
            everything = index.search(queries, by="match", threshold=threshold)
            monkeypatch.setattr(search, "SMALL_COLLECTION", 0)
            assert index.search(queries, by="match", threshold=threshold) == everything


@pytest.mark.parametrize(
    "kernel", [VMFKernel(20.0), VMFKernel(3000.0)]
)  # probabilities of 1, which tie, for the second
@pytest.mark.parametrize("modes", [1, 2])
def test_the_likeliest_items_are_those_of_scoring_each_pair(monkeypatch, kernel, modes):
    """With any threshold, limit and filter. A table of pairs is cut into blocks of few queries here."""
    generator = torch.Generator().manual_seed(modes)
    near = torch.randn(10, modes, 12, generator=generator).repeat(13, 1, 1)
    mu = torch.nn.functional.normalize(near + 0.1 * torch.randn(130, modes, 12, generator=generator), dim=-1)
    parts = VonMisesFisher(mu, torch.exp(2 * torch.randn(130, modes, generator=generator) + 7))
    parts.kappa[0], parts.kappa[1], parts.mu[3], parts.kappa[3] = 0, torch.inf, parts.mu[2], parts.kappa[2]
    weights = torch.rand(130, modes, generator=generator).clamp(min=0.01).log().log_softmax(-1)
    q = parts[:, 0] if modes == 1 else VMFMixture(weights, parts)
    index = CredibleIndex.build(q[:120], metadata=[{"odd": bool(i % 2)} for i in range(120)], prior=0.1)
    table = match_probability(q[120:, None].double(), q[:120].double(), kernel, 0.1).float()
    monkeypatch.setattr(match_scoring, "_TABLE", 300)
    for threshold, limit, filter in ((0.0, 1, None), (0.0, 7, {"odd": True}), (0.3, None, None), (0.3, 3, None)):
        options = {"threshold": threshold, "limit": limit, "filter": filter, "kernel": kernel}
        found = index.search(q[120:], by="match", **options)
        for hits, probability in zip(found, table, strict=True):
            allowed = [i for i in range(120) if probability[i] >= threshold and (filter is None or i % 2)]
            best = sorted((probability[allowed]).tolist(), reverse=True)[:limit]
            assert [hit.match_probability for hit in hits] == pytest.approx(best, abs=1e-4)
            assert [probability[hit.id].item() for hit in hits] == pytest.approx(best, abs=1e-4)
        if kernel.kappa_pos > 20 and limit == 3:
            assert any(hits[-1].match_probability == 1 for hits in found)
        assert found == _scored_pair_by_pair(monkeypatch, index, q[120:], options)


def _scored_pair_by_pair(monkeypatch, index, queries, options) -> list:
    """The answers if no pair is left out before it is scored by itself."""

    def every_pair(queries, items, kernel, prior, least, limit):
        query, item = np.divmod(np.arange(len(queries) * len(items)), len(items))
        return query, item, match_log_ratios(queries, items, query, item, kernel)

    with monkeypatch.context() as slow:
        for module in (search, mixture_search):
            slow.setattr(module, "likely_pairs", every_pair)
        return index.search(queries, by="match", **options)


def collection(**options) -> tuple[CredibleIndex, VonMisesFisher]:
    """An index of 300 items, and ten queries."""
    generator = torch.Generator().manual_seed(3)
    mu = torch.nn.functional.normalize(torch.randn(310, 4, generator=generator), dim=-1)
    q = VonMisesFisher(mu, 5 + 60 * torch.rand(310, generator=generator))
    return CredibleIndex.build(q[:300], **options), q[300:]


def answers(index: CredibleIndex, queries: VonMisesFisher, **options) -> list[dict]:
    """Match probabilities by id, in the order of the hits."""
    hits = index.search(queries, by="match", threshold=0.0, **options)
    return [{hit.id: hit.match_probability for hit in found} for found in hits]


def test_maps_change_the_probabilities_and_keep_the_order():
    plain, queries = collection(prior=0.1)
    mapped, _ = collection(prior=0.1, maps=MAPS)
    logit_prior = torch.logit(torch.tensor(0.1, dtype=torch.float64))
    for before, after in zip(answers(plain, queries), answers(mapped, queries), strict=True):
        assert list(before) == list(after)
        log_r = torch.logit(torch.tensor(list(before.values()), dtype=torch.float64)) - logit_prior
        log_odds = MAPS.hit_log_odds(log_r, torch.arange(1, 301), matches=0.1 * 300, ordered_by="match")
        expected = torch.sigmoid(log_odds + logit_prior).cummin(0).values
        torch.testing.assert_close(torch.tensor(list(after.values()), dtype=torch.float64), expected, atol=1e-5, rtol=0)


def test_hits_of_a_search_by_cosine_are_calibrated_by_their_rank():
    index, queries = collection(prior=0.1, maps=MAPS)
    plain, _ = collection(prior=0.1)
    logit_prior = torch.logit(torch.tensor(0.1, dtype=torch.float64))
    for how in ({"by": "nearest", "limit": 60}, {"by": "credible", "p": 0.99}):
        for before, after in zip(plain.search(queries, **how), index.search(queries, **how), strict=True):
            assert [hit.id for hit in before] == [hit.id for hit in after]
            p, calibrated = (
                torch.tensor([hit.match_probability for hit in hits], dtype=torch.float64) for hits in (before, after)
            )
            rank = torch.arange(1, len(p) + 1)
            expected = MAPS.hit_log_odds(torch.logit(p) - logit_prior, rank, matches=0.1 * 300)
            torch.testing.assert_close(calibrated, torch.sigmoid(expected + logit_prior), atol=1e-5, rtol=0)


def test_a_threshold_cuts_off_the_end_of_an_answer():
    index, queries = collection(prior=0.1, maps=MAPS)
    for whole, cut in zip(
        index.search(queries, by="match", threshold=0.0), index.search(queries, by="match", threshold=0.2), strict=True
    ):
        assert cut == [hit for hit in whole if hit.match_probability >= 0.2] == whole[: len(cut)]


def test_a_prior_of_the_search_multiplies_the_calibrated_odds():
    index, queries = collection(prior=0.1, maps=MAPS)
    for usual, rare in zip(answers(index, queries), answers(index, queries, prior=0.01), strict=True):
        assert list(usual) == list(rare)
        p, p_rare = (torch.tensor(list(found.values())[:10], dtype=torch.float64) for found in (usual, rare))
        factor = torch.full((10,), (0.1 / 0.9) / (0.01 / 0.99), dtype=torch.float64)
        torch.testing.assert_close(p / (1 - p) / (p_rare / (1 - p_rare)), factor, atol=0, rtol=1e-4)


def test_another_kernel_is_used_without_the_maps():
    index, queries = collection(prior=0.1, maps=MAPS)
    plain, _ = collection(prior=0.1)
    other = VMFKernel(10.0)
    assert answers(index, queries, kernel=other) == answers(plain, queries, kernel=other)
    assert answers(index, queries, kernel=index.kernel) == answers(index, queries)
