"""An index on a server with many clients."""

import threading

import numpy as np
import psycopg
import pytest
import torch
from torch.nn import functional as F

from aleator import VMFMixture, VonMisesFisher
from aleator.retrieval import CredibleIndex
from aleator.retrieval.stores import postgres
from tests.retrieval.worker import metadata_of, posterior_of


def test_readers_and_writers_at_once_see_whole_additions(url):
    """Four writers add pairs, and two readers never see half of one."""
    CredibleIndex.build(posterior_of([]), location=url).close()
    problems: list[object] = []
    stop = threading.Event()

    def write(name):
        try:
            with CredibleIndex.open(url) as index:
                for i in range(8):
                    ids = [f"{name}-{i}-left", f"{name}-{i}-right"]
                    index.add(posterior_of(ids), ids, metadata_of(ids))
                    if i % 2:
                        index.remove(ids)
        except Exception as error:
            problems.append(error)

    def look():
        try:
            with CredibleIndex.open(url) as index:
                while not stop.is_set():
                    ids = {hit.id for hit in index.search(VonMisesFisher.uniform(8, (1,)))[0]}
                    # A search takes its candidates in one statement, but looks up names in a second one: an item
                    # removed between the two is missing. Only complete pairs may be new.
                    added = {id for id in ids if int(id.split("-")[1]) % 2 == 0}
                    halves = {id.rsplit("-", 1)[0] for id in added}
                    if len(added) != 2 * len(halves):
                        problems.append(added)
        except Exception as error:
            problems.append(error)

    writers = [threading.Thread(target=write, args=(c,)) for c in "abcd"]
    readers = [threading.Thread(target=look) for _ in range(2)]
    for thread in (*readers, *writers):
        thread.start()
    for writer in writers:
        writer.join(60)
    stop.set()
    for reader in readers:
        reader.join(60)
    assert problems == []
    with CredibleIndex.open(url) as index:
        assert len(index) == 4 * 4 * 2


def test_of_two_clients_that_add_one_id_one_succeeds(url):
    CredibleIndex.build(posterior_of([]), location=url).close()
    outcomes: list[str] = []

    def add():
        with CredibleIndex.open(url) as index:
            for i in range(10):
                try:
                    index.add(posterior_of([i]), [i])
                    outcomes.append("added")
                except ValueError:
                    outcomes.append("refused")

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outcomes.count("added") == 10
    assert outcomes.count("refused") == 20


def test_two_clients_that_build_one_index_queue(url):
    outcomes: list[str] = []

    def build():
        try:
            CredibleIndex.build(posterior_of(["a"]), ["a"], location=url).close()
            outcomes.append("built")
        except ValueError as error:
            outcomes.append("refused" if "already holds an index" in str(error) else str(error))

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == ["built", "refused", "refused", "refused"]


def test_a_client_connects_again_after_its_connection_was_cut(url, server_url):
    index = CredibleIndex.build(posterior_of(["a"]), ["a"], location=url)
    with psycopg.connect(server_url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    with pytest.raises(ConnectionError, match="went away"):
        index.add(posterior_of(["b"]), ["b"])
    assert "a" in index
    index.add(posterior_of(["b"]), ["b"])
    assert len(index) == 2
    index.close()


def test_statements_are_prepared(url):
    index = CredibleIndex.build(posterior_of(["a"]), ["a"], location=url)
    for _ in range(2):
        index.search(posterior_of(["a"]))
    prepared = index._store._connection.execute("SELECT statement FROM pg_prepared_statements").fetchall()
    assert any("unnest" in statement for (statement,) in prepared)
    index.close()


def posteriors(count: int, modes: int) -> VonMisesFisher | VMFMixture:
    torch.manual_seed(0)
    shape = (count,) if modes == 1 else (count, modes)
    parts = VonMisesFisher(F.normalize(torch.randn(*shape, 5), dim=-1), torch.empty(shape).uniform_(5, 50))
    return parts if modes == 1 else VMFMixture(torch.randn(shape), parts)


@pytest.mark.parametrize("modes", [1, 2])
@pytest.mark.parametrize(("count", "k"), [(300, 7), (40, 100), (300, 250)])
def test_neighbours_by_reading_all_rows_are_those_of_the_server(url, monkeypatch, count, k, modes):
    monkeypatch.setattr(postgres, "_BLOCK", 2000)  # several blocks, and rows across their ends
    index = CredibleIndex.build(posteriors(count, modes), location=url)
    queries = F.normalize(torch.randn(40, 5), dim=-1).numpy()
    read, reach = index._store.closest(queries, k, None)
    monkeypatch.setattr(postgres, "_LEAST_QUERIES", 10**9)
    asked, reach_of_server = index._store.closest(queries, k, None)
    np.testing.assert_array_equal(read.query, asked.query)
    np.testing.assert_array_equal(read.row, asked.row)
    np.testing.assert_array_equal(read.mu, asked.mu)
    np.testing.assert_array_equal(read.kappa, asked.kappa)
    if modes == 1:
        assert read.weight is None
    else:
        np.testing.assert_array_equal(read.weight, asked.weight)
    np.testing.assert_allclose(reach, reach_of_server, rtol=1e-6)
    assert np.isinf(reach).all() == (k > count * modes)
    index.close()
