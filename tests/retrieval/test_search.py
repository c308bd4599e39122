"""Every store gives exactly the answers of a loop over all items."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aleator.retrieval import CredibleIndex
from tests.retrieval import brute_force
from tests.retrieval.random_collections import collections, posteriors

EASY = {
    "deadline": None,
    "database": None,
    "derandomize": True,
    "suppress_health_check": list(HealthCheck),
}


def ids_of(answers):
    return [[hit.id for hit in hits] for hits in answers]


@pytest.fixture(scope="module")
def fill(server_url, tmp_path_factory, request):
    """An index that holds given items, quickly: the tables of a server are made once for each dimension."""
    kept: dict[tuple[str, int], CredibleIndex] = {}

    def filled(backend, items, metadata=None):
        if backend == "folder":
            return CredibleIndex.build(items, metadata=metadata)
        if (backend, items.dim) not in kept:
            location = f"{server_url}#sets{items.dim}"
            if backend == "lance":
                location = f"lance:{tmp_path_factory.mktemp('lance')}"
            elif backend == "s3":
                location = f"s3://{request.getfixturevalue('object_store').bucket}/sets{items.dim}"
            kept[backend, items.dim] = CredibleIndex.build(items[:0], location=location, replace=True)
        index = kept[backend, items.dim]
        index.remove([id for id in range(64) if id in index] if len(index) else [])
        index.add(items, range(len(items)), metadata)
        return index

    yield filled
    for index in kept.values():
        index.close()


def check_credible(index, items, queries, p):
    assert len(index) == len(items)
    answers = index.search(queries, p=p)
    assert ids_of(answers) == brute_force.credible(queries, items, p)
    for query, hits in enumerate(answers):
        if queries.kappa[query] == 0:
            assert len(hits) == len(items)
        for hit in hits:
            assert hit.kappa == items.kappa[hit.id].item()
            assert 0 <= hit.match_probability <= 1
            assert hit.metadata == {}


@pytest.mark.parametrize(("backend", "examples"), [("folder", 60), ("postgres", 60), ("lance", 20), ("s3", 5)])
def test_credible_sets_are_those_of_brute_force(backend, examples, fill):
    @settings(max_examples=examples, **EASY)
    @given(collections())
    def holds(drawn):
        items, queries, p = drawn
        check_credible(fill(backend, items), items, queries, p)

    holds()


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "examples"), [("folder", 5000), ("postgres", 5000), ("lance", 1000), ("s3", 200)])
def test_credible_sets_are_those_of_brute_force_many_times(backend, examples, fill):
    @settings(max_examples=examples, **{**EASY, "derandomize": False})
    @given(collections(most=48))
    def holds(drawn):
        items, queries, p = drawn
        check_credible(fill(backend, items), items, queries, p)

    holds()


@pytest.mark.parametrize(("backend", "examples"), [("folder", 25), ("postgres", 25), ("lance", 12), ("s3", 4)])
def test_every_way_to_search_agrees_with_brute_force(backend, examples, fill):
    @settings(max_examples=examples, **EASY)
    @given(collections(), st.integers(1, 12), st.sampled_from([0.0, 0.2, 0.5, 0.9]))
    def holds(drawn, limit, threshold):
        items, queries, p = drawn
        metadata = [{"third": i % 3} for i in range(len(items))]
        index = fill(backend, items, metadata)
        some = {"third": {"in": [0, 2]}}
        credible = brute_force.credible(queries, items, p)
        nearest = brute_force.nearest(queries, items, len(items))
        match = brute_force.match(queries, items, threshold)
        for filter, kept in ((None, lambda j: True), (some, lambda j: j % 3 != 1)):
            ask = {"filter": filter}
            wanted = [[j for j in row if kept(j)][:limit] for row in credible]
            assert ids_of(index.search(queries, p=p, limit=limit, **ask)) == wanted
            wanted = [[j for j in row if kept(j)][:limit] for row in nearest]
            assert ids_of(index.search(queries, by="nearest", limit=limit, **ask)) == wanted
            wanted = [[j for j in row if kept(j)][:limit] for row in match]
            assert ids_of(index.search(queries, by="match", threshold=threshold, limit=limit, **ask)) == wanted

    holds()


def test_answers_do_not_depend_on_how_queries_are_batched(location):
    generator = torch.Generator().manual_seed(3)
    items = posteriors(200, 16, generator)
    queries = posteriors(40, 16, generator, near=items.mu)
    index = CredibleIndex.build(items, location=location)
    for by in ("credible", "match", "nearest"):
        together = index.search(queries, by=by)
        assert together == [index.search(queries[i : i + 1], by=by)[0] for i in range(len(queries))]
    assert index.search(queries[:0]) == []
    index.close()
