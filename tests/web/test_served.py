"""A collection that changes while it is served: what is shown, asked about and found follows within seconds."""

import time

import pytest
import torch
from fastapi.testclient import TestClient

from aleator import CredibleIndex, VonMisesFisher
from aleator.web import Limits, create_app
from aleator.web.service import Service


def until(condition, seconds=30.0):
    """Wait for a condition, and return its value."""
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return value


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "index"
    q = VonMisesFisher(torch.eye(4), torch.tensor([5.0, 6.0, 7.0, 8.0]))
    CredibleIndex.build(q, ["a", "b", "c", "d"], [{"label": "old"}] * 4, location=place).close()
    return place


def change(folder):
    """What another process does."""
    with CredibleIndex.open(folder) as other:
        other.add(VonMisesFisher(torch.eye(1, 4), 9.0), ["new"], [{"label": "new"}])
        other.remove(["b"])


def test_added_items_are_shown_and_can_be_asked_about_and_removed_ones_are_gone(folder):
    with (
        CredibleIndex.open(folder) as index,
        TestClient(create_app(index, limits=Limits(refresh=0.05))) as client,
    ):
        assert client.get("/api/query/item", params={"id": "new"}).status_code == 404
        change(folder)
        assert until(lambda: client.get("/api/query/item", params={"id": "new"}).status_code == 200)
        assert until(lambda: client.get("/api/query/item", params={"id": "b"}).status_code == 404)  # a second change
        info = client.get("/api/collection").json()
        assert info["items"] == 4
        assert {one["label"] for one in info["labels"]} == {"old", "new"}
        page = client.get("/api/items", params={"order": "surest"}).json()
        assert [item["id"] for item in page["items"]] == ["new", "d", "c", "a"]
        hits = client.get("/api/query/item", params={"id": "new", "by": "nearest"}).json()["hits"]
        assert hits[0]["id"] == "a"
        assert "aleator_items 4" in client.get("/metrics").text


def test_collections_of_one_name_are_told_apart(tmp_path):
    """Marks and images that the browser keeps belong to one of them."""
    infos = []
    for place in ("one", "other", "one"):
        location = tmp_path / place / "index"
        if not location.exists():
            location.parent.mkdir()
            CredibleIndex.build(VonMisesFisher(torch.eye(4), 5.0), location=location).close()
        with CredibleIndex.open(location) as index, TestClient(create_app(index)) as client:
            infos.append(client.get("/api/collection").json())
    assert {info["name"] for info in infos} == {"index"}
    assert infos[0]["key"] == infos[2]["key"] != infos[1]["key"]


def test_it_is_read_only_if_it_has_changed(folder):
    with CredibleIndex.open(folder) as index:
        service = Service(index, None, None, Limits())
        before = service.served
        assert not service.refresh()
        assert service.served is before
        change(folder)
        assert service.refresh()
        assert not service.refresh()
        assert before.collection.find("b") is not None  # a request that began before goes on with what it had
        index.add(VonMisesFisher(torch.eye(1, 4), 9.0), ["of this process"])
        assert service.refresh()
        assert service.served.collection.find("of this process") is not None


def test_an_index_that_is_gone_leaves_the_last_collection_and_a_warning(folder, caplog):
    with (
        CredibleIndex.open(folder) as index,
        TestClient(create_app(index, limits=Limits(refresh=0.05))) as client,
    ):
        CredibleIndex.build(VonMisesFisher(torch.eye(6), 5.0), location=folder, replace=True).close()
        assert until(lambda: client.get("/api/query/item", params={"id": "a"}).status_code == 503)
        assert client.get("/api/health").status_code == 200


def test_an_index_of_another_dimension_is_not_read(folder):
    with CredibleIndex.open(folder) as index:
        service = Service(index, None, None, Limits())
        before = service.served
        CredibleIndex.build(VonMisesFisher(torch.eye(6), 5.0), location=folder, replace=True).close()
        refused = 0
        for _ in range(3):
            try:
                assert not service.refresh()
            except Exception:  # the store notices that it was replaced, or the service does
                refused += 1
        assert refused
        assert service.served is before


def test_an_index_of_another_model_is_503(tmp_path):
    from tests.web.shapes import DIM, feature_run

    q = VonMisesFisher(torch.eye(DIM), 5.0)
    run = feature_run()
    CredibleIndex.build(q, location=tmp_path / "index", fingerprint=run.fingerprint).close()
    with CredibleIndex.open(tmp_path / "index") as index:
        client = TestClient(create_app(index, run=run))
        ask = {"features": [1.0] * 5}
        assert client.post("/api/query/features", json=ask).status_code == 200
        CredibleIndex.build(q, location=tmp_path / "index", fingerprint="of another", replace=True).close()
        client.get("/api/query/item", params={"id": 0})  # the store notices
        answer = client.post("/api/query/features", json=ask)
        assert answer.status_code == 503
        assert "another model" in answer.json()["detail"]
