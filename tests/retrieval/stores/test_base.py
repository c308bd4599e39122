"""What every store must do. A new store belongs into the list of `make`."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from aleator import VonMisesFisher
from aleator.retrieval import Candidates, CredibleIndex, Items, Store, cosines, slack
from aleator.retrieval.stores.folder import FolderStore
from tests.retrieval import brute_force
from tests.retrieval.random_collections import posteriors
from tests.retrieval.stores.list_store import ListStore

DIM = 5
CONFIG = {
    "dim": DIM,
    "kernel": {"name": "VMFKernel", "kappa_pos": 20.0},
    "prior": 0.5,
    "fingerprint": None,
    "recall": 0.99,
    "exact_below": 100_000,
    "report": None,
}


def items_of(*numbers: int) -> Items:
    """Items whose direction and certainty anybody can compute from their number."""
    mu = [np.random.default_rng(number).standard_normal(DIM) for number in numbers]
    mu = [vector / np.linalg.norm(vector) for vector in mu]
    kappa = np.array([1.0 + number for number in numbers], np.float32)
    notes = [f'{{"number": {number}}}' for number in numbers]
    return Items([f'"i{number}"' for number in numbers], np.array(mu, np.float32).reshape(-1, DIM), kappa, notes)


@pytest.fixture(params=["list", "memory", "folder", "postgres", "lance", "s3"])
def make(request, tmp_path):
    """Makes a store that holds given items."""
    opened = []

    def made(items: Items) -> Store:
        if request.param == "list":
            store = ListStore(items, CONFIG)
        elif request.param == "postgres":
            from aleator.retrieval.stores.postgres import PostgresStore

            store = PostgresStore.create(request.getfixturevalue("url"), items, CONFIG)
        elif request.param in ("lance", "s3"):
            from aleator.retrieval.stores.lance.store import LanceStore

            where = f"lance:{tmp_path}/index" if request.param == "lance" else request.getfixturevalue("bucket_url")
            store = LanceStore.create(where, items, CONFIG)
        else:
            store = FolderStore.create(items, CONFIG)
            if request.param == "folder":
                store.save(str(tmp_path / "index"))
        opened.append(store)
        return store

    yield made
    for store in opened:
        store.close()


def everything(store: Store) -> Candidates:
    """All items, in the order of their rows."""
    candidates = store.within(np.eye(1, DIM, dtype=np.float32), np.array([-np.inf]), None)
    return candidates.take(np.argsort(candidates.row))


def held(store: Store) -> list[tuple[str, str]]:
    """Keys and metadata, in the order of their rows."""
    rows = everything(store).row
    described = store.describe(rows)
    return [described[row] for row in rows.tolist()]


def test_items_come_back_as_they_were_inserted(make):
    items = items_of(*range(12))
    store = make(items)
    assert len(store) == 12
    assert held(store) == list(zip(items.keys, items.metadata_json, strict=True))
    stored = everything(store)
    assert np.array_equal(stored.mu, items.mu)
    assert np.array_equal(stored.kappa, items.kappa)
    assert stored.mu.dtype == stored.kappa.dtype == np.float32
    assert store.config["dim"] == DIM


def test_within_returns_at_least_the_items_in_the_radius_in_order_of_the_query(make):
    items, queries = items_of(*range(40)), items_of(*range(100, 107))
    store = make(items)
    for radius in (-np.inf, -0.5, 0.0, 0.6, 0.99, 2.0):
        candidates = store.within(queries.mu, np.full(7, radius), None)
        assert (np.diff(candidates.query) >= 0).all()
        pairs = set(zip(candidates.query.tolist(), candidates.row.tolist(), strict=True))
        assert len(pairs) == len(candidates)
        rows = everything(store).row
        for query in range(7):
            cosine = cosines(np.repeat(queries.mu[query : query + 1], 40, axis=0), items.mu)
            assert {(query, row) for row in rows[cosine >= radius].tolist()} <= pairs


def test_an_item_lies_within_radius_one_of_itself(make):
    items = items_of(*range(20))
    candidates = make(items).within(items.mu, np.ones(20), None)
    assert set(zip(candidates.query.tolist(), candidates.row.tolist(), strict=True)) >= {(i, i) for i in range(20)}


def test_closest_leaves_out_only_items_beyond_its_reach(make):
    items, queries = items_of(*range(40)), items_of(*range(100, 107))
    store = make(items)
    rows = everything(store).row
    for k in (1, 5, 39, 40, 100):
        candidates, reach = store.closest(queries.mu, k, None)
        assert reach.shape == (7,)
        for query in range(7):
            returned = candidates.row[candidates.query == query]
            left_out = ~np.isin(rows, returned)
            assert len(returned) >= min(k, 40)
            cosine = cosines(np.repeat(queries.mu[query : query + 1], 40, axis=0), items.mu)
            assert (cosine[left_out] <= reach[query] + slack(DIM)).all()


def test_insertions_and_deletions_happen_completely_or_not_at_all(make):
    store = make(items_of(0, 1, 2))
    before = held(store)
    with pytest.raises(ValueError, match="'i1': already in the index"):
        store.insert(items_of(7, 1, 8))
    assert held(store) == before
    with pytest.raises(ValueError, match="'i9': not in the index"):
        store.delete(['"i0"', '"i9"'])
    assert held(store) == before
    assert store.existing(['"i0"', '"i9"']) == {'"i0"'}


def test_rows_and_reserved_ids_are_never_used_again(make):
    store = make(items_of(0, 1, 2))
    first = everything(store).row
    store.delete(['"i2"'])
    store.insert(items_of(3, 2))
    rows = everything(store).row
    assert [key for key, _ in held(store)] == ['"i0"', '"i1"', '"i3"', '"i2"']
    assert rows[2:].min() > first.max()
    assert 2 not in store.describe(np.array([2]))
    ids = store.reserve_ids(3)
    assert len(set(ids)) == 3
    assert min(ids) > first.max()


def test_the_state_tells_of_changes_and_only_of_these(make):
    store = make(items_of(1, 2, 3))
    seen = [store.state()]
    assert store.state() == seen[0]
    everything(store)
    assert store.state() == seen[0]
    store.insert(items_of(4))
    seen.append(store.state())
    store.delete(items_of(1, 2).keys)
    seen.append(store.state())
    assert store.state() == seen[-1]
    assert all(one != other for i, one in enumerate(seen) for other in seen[:i])
    store.insert(items_of(2, 1))
    store.delete(items_of(4).keys)
    assert store.state() == seen[0]  # the items of the beginning, in another order


@pytest.mark.parametrize("changed", ["keys", "mu", "kappa", "metadata_json"])
def test_the_state_is_what_the_items_are(make, changed):
    """As many items of the same ids are another collection if one of them has another vector, kappa or metadata."""
    items, others = items_of(1, 2, 3), items_of(4, 5, 6)
    store = make(items)
    assert store.state() == Store.state(store)  # which reads them all
    before = store.state()
    store.delete(items.keys)
    store.insert(replace(items, **{changed: getattr(others, changed)}))
    assert store.state() == Store.state(store) != before


def test_kappa_range_is_that_of_finite_kappas(make):
    items = items_of(0, 4, 9)
    items.kappa[1] = np.inf
    store = make(items)
    assert store.kappa_range() == (1.0, 10.0)
    store.delete(['"i0"', '"i9"'])
    assert store.kappa_range() == (0.0, 0.0)


def test_a_sample_is_of_the_items(make):
    items = items_of(*range(30))
    sample = make(items).sample_directions(8)
    assert sample.shape[1] == DIM
    assert 1 <= len(sample) <= 8
    assert all((items.mu == direction).all(axis=1).any() for direction in sample)


def test_an_empty_store(make):
    store = make(items_of())
    assert len(store) == 0
    assert len(everything(store)) == 0
    candidates, reach = store.closest(np.eye(2, DIM, dtype=np.float32), 3, None)
    assert len(candidates) == 0
    assert np.isneginf(reach).all()
    assert store.describe(np.array([], np.int64)) == {}
    assert store.kappa_range() == (0.0, 0.0)


def test_an_index_gives_the_answers_of_brute_force(make):
    generator = torch.Generator().manual_seed(0)
    queries = posteriors(6, DIM, generator)
    items = items_of(*range(50))
    index = CredibleIndex(make(items))
    plain = VonMisesFisher(torch.from_numpy(items.mu), torch.from_numpy(items.kappa))

    def numbers(answers):
        return [[hit.metadata["number"] for hit in hits] for hits in answers]

    assert numbers(index.search(queries, p=0.9)) == brute_force.credible(queries, plain, 0.9)
    assert numbers(index.search(queries, by="nearest", limit=7)) == brute_force.nearest(queries, plain, 7)
    assert numbers(index.search(queries, by="match", threshold=0.4)) == brute_force.match(queries, plain, 0.4)


def test_threads_may_share_a_store(make):
    store = make(items_of(0))
    problems = []

    def work(start):
        try:
            for number in range(start, start + 5):
                store.insert(items_of(number))
                store.within(items_of(number).mu, np.array([0.5]), None)
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(start,)) for start in (100, 200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    assert len(store) == 16
