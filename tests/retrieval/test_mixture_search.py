"""Searches of posteriors with several modes give what a loop over all items gives, in every store."""

import numpy as np
import pytest
import torch

from aleator import CredibleIndex, VMFKernel, VMFMixture, VonMisesFisher, match_probability
from aleator.matching import LogOddsMap, MatchMaps
from aleator.retrieval.items import NumberKeys, directions, make_items
from aleator.retrieval.mixture_search import MAIN_WEIGHT, REGION_SAMPLES
from tests.retrieval.stores.list_store import ListStore


def mixtures(n: int, modes: int, dim: int, seed: int, near: VMFMixture | None = None) -> VMFMixture:
    """n posteriors of K modes; half of their directions are near those of `near`. Some weights are 0 or tiny."""
    g = torch.Generator().manual_seed(seed)
    mu = torch.randn(n, modes, dim, generator=g)
    if near is not None:
        close = near.components.mu.flatten(0, 1)[torch.randint(near.components.mu.shape[0], (n, modes), generator=g)]
        mu = torch.where(torch.rand(n, modes, 1, generator=g) < 0.5, close + 0.2 * mu / dim**0.5, mu)
    kappa = torch.tensor([0.5, 5.0, 40.0, 300.0, 5000.0])[torch.randint(5, (n, modes), generator=g)]
    log_weights = 2 * torch.randn(n, modes, generator=g)
    if modes > 1:
        log_weights[::7, 0], log_weights[::5, 0] = -9.0, -torch.inf
    return VMFMixture(log_weights, VonMisesFisher(torch.nn.functional.normalize(mu, dim=-1), kappa))


def stored(q: VMFMixture) -> VMFMixture:
    """What an index keeps: small weights dropped, vectors rounded to float32."""
    return q.prune(1e-3).float().double()


def at_main_directions(items: VMFMixture, score) -> torch.Tensor:
    """The largest score of each item (Q, N) over its main directions; `score` maps directions (m, D) to (Q, m)."""
    item, component = torch.nonzero(items.weights >= min(MAIN_WEIGHT, 1 / items.modes) - 1e-6, as_tuple=True)
    table = score(items.components.mu[item, component])
    out = torch.full((len(table), len(items)), -torch.inf, dtype=torch.float64)
    return out.scatter_reduce(1, item.expand(len(table), -1), table, "amax")


def credible(queries, items, p: float) -> list[list[int]]:
    """Items with a main direction in the region, by the density there."""
    queries = queries.double()
    density = at_main_directions(items, queries.unsqueeze(-1).log_prob)
    order = torch.argsort(-density, stable=True)
    inside = density >= queries.region(p, REGION_SAMPLES).log_threshold[:, None]
    return [[j for j in row if inside[i, j]] for i, row in enumerate(order.tolist())]


def match_table(queries, items) -> np.ndarray:
    """Match probabilities (Q, N), each query by itself."""
    return np.stack([match_probability(q, items, VMFKernel(20.0)).numpy() for q in queries.double().split(1)])


def ids(answers) -> list[list[int]]:
    return [[hit.id for hit in hits] for hits in answers]


CASES = [(2, 2, 3), (3, 2, 8), (1, 2, 5), (2, 1, 5), (4, 3, 2)]


@pytest.fixture(params=["memory", "folder", "postgres", "lance", "list"])
def build(request, tmp_path):
    """Builds an index in each store."""
    made = []

    def built(posteriors, **options) -> CredibleIndex:
        location = None
        if request.param in ("folder", "postgres"):
            location = tmp_path / "index" if request.param == "folder" else request.getfixturevalue("url")
        elif request.param == "lance":
            location = f"lance:{tmp_path / str(len(made))}"
        index = CredibleIndex.build(posteriors, location=location, **options)
        if request.param == "list":
            mu = directions(posteriors, "posteriors")
            items = make_items(posteriors, mu, NumberKeys(range(len(mu))), None, mixtures=posteriors.modes > 1)
            index = CredibleIndex(ListStore(items, index.store.config))
        made.append(index)
        return index

    yield built
    for index in made:
        index.close()


@pytest.mark.parametrize(("query_modes", "item_modes", "dim"), CASES)
def test_every_search_equals_brute_force(build, query_modes, item_modes, dim):
    items = mixtures(60, item_modes, dim, seed=1)
    queries = mixtures(12, query_modes, dim, seed=2, near=items)
    given = items if item_modes > 1 else items.components[:, 0]
    index = build(given)
    items = stored(items) if item_modes > 1 else stored(VMFMixture(given.log_weights, given.components))
    asked = queries if query_modes > 1 else queries.components[:, 0]
    queries = VMFMixture(asked.log_weights, asked.components)
    assert len(index) == 60
    for p in (0.5, 0.95):
        expected = credible(queries, items, p)
        assert ids(index.search(asked, p=p)) == expected
        assert ids(index.search(asked, p=p, limit=3)) == [row[:3] for row in expected]
    table = match_table(queries, items)
    answers = index.search(asked, by="match", threshold=0.4)
    for hits, row in zip(answers, table, strict=True):
        assert [hit.id for hit in hits] == [j for j in np.argsort(-row, kind="stable") if row[j] >= 0.4]
        np.testing.assert_allclose([hit.match_probability for hit in hits], row[[hit.id for hit in hits]], atol=1e-6)
    mode = queries.double().mode
    log_share = queries.log_weights.double() + queries.components.double().log_prob(mode.unsqueeze(1))
    cosine = at_main_directions(items, lambda places: mode @ places.T)
    for i, hits in enumerate(index.search(asked, by="nearest", limit=5)):
        assert [hit.id for hit in hits] == torch.argsort(-cosine[i], stable=True)[:5].tolist()
        assert {hit.mode for hit in hits} == {int(log_share[i].argmax())}


def test_hits_know_the_mode_they_belong_to():
    ends = VonMisesFisher(torch.eye(4)[:2].expand(1, 2, 4), 60.0)
    query = VMFMixture(torch.tensor([[0.55, 0.45]]).log(), ends)
    items = VonMisesFisher(torch.nn.functional.normalize(torch.eye(4) + 0.05, dim=-1), 100.0)
    between = torch.nn.functional.normalize(torch.tensor([[1.0, 1.0, 0.0, 0.0]]), dim=-1)
    index = CredibleIndex.build(
        VonMisesFisher.cat([items, VonMisesFisher(between, 100.0)]), ids=["a", "b", "c", "d", "ab"]
    )
    hits = index.search(query)[0]
    assert [(hit.id, hit.mode) for hit in hits] == [("a", 0), ("b", 1)]  # and nothing between
    assert index.search(query.closest_vmf(), p=0.95)[0][0].id == "ab"
    assert [(hit.id, hit.mode) for hit in index.search(query, by="match")[0]][:2] == [("a", 0), ("b", 1)]


def test_the_nearest_item_is_at_the_mode_also_between_components():
    mu = torch.nn.functional.normalize(torch.tensor([[1.0, 0.5, 0.0], [1.0, -0.5, 0.0]]), dim=-1)
    query = VMFMixture(torch.tensor([[0.5, 0.5]]).log(), VonMisesFisher(mu[None], 3.0))
    assert torch.allclose(query.mode, torch.eye(1, 3), atol=1e-5)  # the components overlap, and neither is the mode
    index = CredibleIndex.build(VonMisesFisher(torch.cat([mu, torch.eye(1, 3)]), 100.0), ids=["a", "b", "between"])
    hits = index.search(query, by="nearest")[0]
    assert hits[0].id == index.search(query)[0][0].id == "between"
    assert hits[0].cosine == pytest.approx(1.0)
    assert hits[0].mode in (0, 1)


@pytest.mark.parametrize("by", ["credible", "match", "nearest"])
def test_approximate_searches_find_the_promised_share(by):
    items = mixtures(3000, 2, 8, seed=3)
    queries = mixtures(24, 2, 8, seed=4, near=items)
    index = CredibleIndex.build(items, exact_below=2500, recall=0.95)
    level = {"p": 0.5} if by == "credible" else {}
    found, exact = (ids(index.search(queries, by=by, limit=20, exact=e, **level)) for e in (False, True))
    wanted = sum(map(len, exact))
    assert wanted > 200
    assert sum(len(set(a) & set(b)) for a, b in zip(found, exact, strict=True)) >= 0.9 * wanted


def test_the_bound_of_match_search_leaves_out_nothing():
    items, queries = mixtures(5000, 2, 4, seed=5), mixtures(6, 2, 4, seed=6)
    maps = MatchMaps(LogOddsMap((-5.0, 0.0, 5.0), (-3.0, 0.2, 2.0)), LogOddsMap((-5.0, 5.0), (-4.0, 3.0)))
    for given in (None, maps):
        index = CredibleIndex.build(items, maps=given)  # large enough for the bound
        for threshold in (0.9, 0.6):
            bounded = index.search(queries, by="match", threshold=threshold)
            every = [
                [hit for hit in hits if hit.match_probability >= threshold]
                for hits in index.search(queries, by="match", threshold=0.0)
            ]
            assert ids(bounded) == ids(every)
            assert sum(map(len, bounded)) > 10


def test_items_of_several_modes_are_added_removed_and_saved(location):
    items, more = mixtures(20, 2, 5, seed=7), mixtures(6, 2, 5, seed=8)
    queries = mixtures(8, 2, 5, seed=9, near=items)
    with CredibleIndex.build(items, location=location) as index:
        index.add(more, ids=[f"m{i}" for i in range(6)], metadata=[{"new": i} for i in range(6)])
        index.remove([0, 5, "m3"])
        index.add(VonMisesFisher(torch.eye(1, 5), 9.0), ids=["one mode"])
        before = index.search(queries, p=0.99), index.search(queries, by="match", threshold=0.1)
        assert len(index) == 24
    with CredibleIndex.open(location) as index:
        assert index.modes == 2
        assert (index.search(queries, p=0.99), index.search(queries, by="match", threshold=0.1)) == before
        index.save()
    with CredibleIndex.open(location) as index:
        assert (index.search(queries, p=0.99), index.search(queries, by="match", threshold=0.1)) == before
        assert len(index) == 24
        kept = VMFMixture.cat([items, more])[[*range(1, 5), *range(6, 23), 24, 25]]
        only = CredibleIndex.build(kept, ids=[*range(1, 5), *range(6, 20), "m0", "m1", "m2", "m4", "m5"])
        only.add(VonMisesFisher(torch.eye(1, 5), 9.0), ids=["one mode"])
        assert ids(only.search(queries, p=0.99)) == ids(before[0])
        assert [h.id for h in index.search(queries[:1], by="match", threshold=0, filter={"new": {"gte": 4}})[0]] != []


def test_more_modes_than_the_index_was_built_for_are_refused():
    index = CredibleIndex.build(VonMisesFisher(torch.eye(3), 5.0))
    with pytest.raises(ValueError, match=r"2 modes.*at most 1.*build a new index"):
        index.add(mixtures(2, 2, 3, seed=0))
    assert len(index) == 3


def test_one_component_finds_what_one_mode_finds():
    items, queries = mixtures(50, 1, 6, seed=11), mixtures(10, 1, 6, seed=12)
    plain = CredibleIndex.build(items.components[:, 0])
    padded = CredibleIndex.build(
        VMFMixture(
            torch.tensor([0.0, -torch.inf]).expand(50, 2),
            VonMisesFisher(items.components.mu.expand(50, 2, 6), items.components.kappa.expand(50, 2)),
        )
    )
    for options in ({"p": 0.9}, {"by": "match", "threshold": 0.2}, {"by": "nearest"}):
        for a, b in zip(plain.search(queries, **options), padded.search(queries, **options), strict=True):
            assert [hit.id for hit in a] == [hit.id for hit in b]
            np.testing.assert_allclose([h.cosine for h in a], [h.cosine for h in b], atol=1e-12)
            np.testing.assert_allclose([h.match_probability for h in a], [h.match_probability for h in b], atol=1e-6)


def test_answer_sets_of_mixtures_keep_their_promise():
    g = torch.Generator().manual_seed(0)

    def seen(n):
        """Posteriors that know the label up to two: one mode on each, the first with the larger weight."""
        label = torch.randint(6, (n,), generator=g)
        other = (label + torch.randint(1, 6, (n,), generator=g)) % 6
        swap = torch.rand(n, generator=g) < 0.3
        first, second = torch.where(swap, other, label), torch.where(swap, label, other)
        parts = VonMisesFisher(torch.eye(6)[torch.stack([first, second], -1)], 80.0)
        return VMFMixture(torch.tensor([0.7, 0.3]).log().expand(n, 2), VonMisesFisher(parts.sample(), 80.0)), label

    gallery = VonMisesFisher(VonMisesFisher(torch.eye(6)[torch.arange(120) % 6], 80.0).sample(), 80.0)
    index = CredibleIndex.build(gallery, metadata=[{"label": i % 6} for i in range(120)])
    questions, right = seen(300)
    promise = index.calibrate(questions, right, coverage=0.95)
    new, labels = seen(400)
    sets = index.answer_sets(new)
    held = np.mean([any(hit.metadata["label"] == int(y) for hit in s.hits) for s, y in zip(sets, labels, strict=True)])
    assert held > 0.92
    assert promise.mean_size < 2.2  # the two labels, and not what lies between
