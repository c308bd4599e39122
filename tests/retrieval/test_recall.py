"""Approximate indexes: the recall they promise, and when they do not approximate."""

import pytest
import torch

from aleator import VonMisesFisher
from aleator.retrieval import CredibleIndex


def clustered(n: int, seed: int = 0, dim: int = 24) -> VonMisesFisher:
    """Directions on a curved sheet, as an encoder's are; kappas for caps of a few items."""
    generator = torch.Generator().manual_seed(7)
    first, second = torch.randn(4, 64, generator=generator), torch.randn(64, dim, generator=generator)
    z = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    mu = torch.nn.functional.normalize(torch.tanh(z @ first / 2) @ second, dim=-1)
    return VonMisesFisher(mu, torch.full((n,), 2000.0))


def found_share(index, queries, **options) -> float:
    exact = index.search(queries, exact=True, **options)
    found = index.search(queries, **options)
    shares = [
        len({h.id for h in some} & {h.id for h in all_}) / len(all_)
        for some, all_ in zip(found, exact, strict=True)
        if all_
    ]
    assert len(shares) >= 20
    return sum(shares) / len(shares)


@pytest.fixture(scope="module")
def gallery():
    return CredibleIndex.build(clustered(12_000), exact_below=5000)


def test_the_index_reports_a_recall_and_keeps_it_on_new_queries(gallery):
    report = gallery.recall_report
    assert report.target == 0.99
    assert [rung.size for rung in report.rungs] == [16, 128]
    assert all(rung.recall >= 0.99 for rung in report.rungs)
    assert report.rungs[0].effort < 64
    queries = clustered(200, seed=1)
    assert found_share(gallery, queries) > 0.98
    assert found_share(gallery, queries, by="nearest", limit=10) > 0.98
    assert found_share(gallery, queries[:60], by="match", threshold=0.99, limit=50) > 0.98


def test_large_answers_are_exact(gallery):
    queries = clustered(300, seed=1)
    wide = VonMisesFisher(queries.mu, torch.full((300,), 30.0))
    assert found_share(gallery, wide[:20], p=0.9) > 0.99
    assert len(gallery.search(VonMisesFisher.uniform(24, (1,)))[0]) == len(gallery)


def test_a_rare_filter_is_still_answered_in_full():
    index = CredibleIndex.build(
        clustered(6000), metadata=[{"rare": i % 1000 == 0} for i in range(6000)], exact_below=100
    )
    hits = index.search(clustered(1, seed=1), by="nearest", limit=6, filter={"rare": True})[0]
    assert sorted(hit.id for hit in hits) == [0, 1000, 2000, 3000, 4000, 5000]


def test_an_index_that_outgrows_exact_search_becomes_approximate_when_saved(tmp_path):
    index = CredibleIndex.build(clustered(900), location=tmp_path / "index", exact_below=2000)
    assert index.recall_report is None
    index.add(clustered(3000, seed=1), range(900, 3900))
    assert index.recall_report is None
    index.save()
    assert index.recall_report is not None
    index.remove(range(2500))
    index.save()
    assert index.recall_report is None
    assert len(index) == 1400
    index.close()


def test_removed_items_stay_away_from_an_approximate_index(tmp_path):
    index = CredibleIndex.build(clustered(4000), location=tmp_path / "index", exact_below=1000)
    gone = list(range(0, 4000, 20))  # too few to rebuild
    index.remove(gone)
    index.save()
    index.close()
    with CredibleIndex.open(tmp_path / "index") as index:
        assert index.recall_report is not None
        hits = index.search(clustered(4000)[gone], by="nearest", limit=5)
        assert not {hit.id for row in hits for hit in row} & set(gone)
        assert len(index) == 3800


def test_hnsw_on_the_server_keeps_its_recall(url):
    index = CredibleIndex.build(clustered(3000), location=url, exact_below=2000)
    report = index.recall_report
    assert report is not None
    assert report.rungs[0].recall >= 0.99
    assert found_share(index, clustered(100, seed=1)) > 0.97
    index.add(clustered(5, seed=2), [f"late{i}" for i in range(5)])
    hits = index.search(clustered(5, seed=2), by="nearest", limit=1)
    assert [row[0].id for row in hits] == [f"late{i}" for i in range(5)]
    index.close()
    with CredibleIndex.open(url) as again:
        assert again.recall_report == report
