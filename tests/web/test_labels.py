"""Label probabilities and novelty in the API."""

from dataclasses import replace

import pytest
import torch
from fastapi.testclient import TestClient

import aleator as al
from aleator.evaluation import LabelModel, fit_novelty
from aleator.own_data import Answers
from aleator.retrieval import certainty_in_words
from aleator.web import create_app
from tests.web.shapes import feature_run

NAMES = ("ant", "bee")
CLASSES = al.VonMisesFisher(torch.eye(2, 4), 30.0)
MODEL = LabelModel(CLASSES, torch.eye(2), NAMES, al.VMFKernel(20.0), beta=0.8, floor=0.01)


def answer(client, mu, kappa=10.0):
    response = client.post("/api/query/posterior", json={"mu": mu, "kappa": kappa})
    assert response.status_code == 200, response.text
    return response.json()


@pytest.fixture(scope="module")
def index():
    """Items from one class over the middle to the other, all with the same kappa."""
    share = torch.linspace(0, 1, 21)
    mu = torch.nn.functional.normalize(torch.stack([1 - share, share, 0 * share, 0 * share], 1), dim=1)
    metadata = [{"label": NAMES[int(s > 0.5)]} for s in share]
    return al.CredibleIndex.build(al.VonMisesFisher(mu, 30.0), metadata=metadata, label_model=MODEL)


def test_a_question_could_be(index):
    client = TestClient(create_app(index))
    labels = answer(client, [0.6, 0.8, 0.0, 0.0])["query"]["labels"]
    expected = index.label_probabilities(al.VonMisesFisher(torch.tensor([[0.6, 0.8, 0.0, 0.0]]), 10.0))[0]
    assert {one["label"]: one["probability"] for one in labels} == pytest.approx(expected, abs=1e-4)
    assert labels[0]["probability"] >= labels[1]["probability"]


def test_certainty_sees_where_mu_lies(index):
    """All items have the same kappa. Those between the classes are the least certain."""
    client = TestClient(create_app(index))
    items = client.get("/api/items", params={"order": "least-sure", "limit": 21}).json()["items"]
    assert {item["id"] for item in items[:3]} == {9, 10, 11}
    assert [item["surer_than"] for item in items] == sorted(item["surer_than"] for item in items)
    clear, between = (answer(client, mu)["query"]["surer_than"] for mu in ([1.0, 0, 0, 0], [0.7071, 0.7071, 0, 0]))
    assert between < 0.2 < clear


def test_items_whose_labels_are_equally_sure_are_told_apart_by_kappa():
    """All labels are as sure as they can be. In words no item is uncertain, wherever it stands among the others."""
    kappa = torch.linspace(400, 800, 20)
    sure = al.VonMisesFisher(torch.eye(2, 4)[torch.arange(20) % 2], kappa)
    model = replace(MODEL, kernel=al.VMFKernel(500.0), beta=3.0)
    client = TestClient(
        create_app(al.CredibleIndex.build(sure, metadata=[{"label": "ant"}, {"label": "bee"}] * 10, label_model=model))
    )
    items = client.get("/api/items", params={"order": "least-sure", "limit": 20}).json()["items"]
    assert [item["id"] for item in items] == list(range(20))
    assert [item["surer_than"] for item in items] == [i / 20 for i in range(20)]
    assert {certainty_in_words(item["likeliest"], item["surer_than"]) for item in items} == {"very high"}
    assert answer(client, [1.0, 0, 0, 0], kappa=700.0)["query"]["surer_than"] == 0.75


def test_large_collections_go_by_kappa(index, monkeypatch):
    monkeypatch.setattr("aleator.web.collection._MOST_PAIRS", 10)
    client = TestClient(create_app(index))
    assert answer(client, [0.7071, 0.7071, 0, 0], kappa=100.0)["query"]["surer_than"] == 1.0


def test_the_model_of_the_run_is_used_where_the_index_has_none():
    run = replace(feature_run(), answers=Answers(MODEL))
    plain = al.CredibleIndex.build(al.VonMisesFisher(torch.eye(3, run.encoder.dim), 5.0))
    dim = run.encoder.dim
    model = replace(MODEL, gallery=al.VonMisesFisher(torch.eye(2, dim), 30.0))
    client = TestClient(create_app(plain, run=replace(run, answers=Answers(model))))
    assert answer(client, [1.0] + [0.0] * (dim - 1))["query"]["labels"][0]["label"] == "ant"
    assert answer(TestClient(create_app(plain)), [1.0] + [0.0] * (dim - 1))["query"]["labels"] == []


def test_what_is_unlike_is_flagged():
    torch.manual_seed(0)
    run = feature_run()
    from aleator.own_data.measuring.views import posteriors_and_views

    views = posteriors_and_views(run.encoder, torch.randn(400, 5))[1]
    novelty = fit_novelty({"features": views["features"][:200]}, {"features": views["features"][200:]})
    index = al.CredibleIndex.build(al.VonMisesFisher(torch.eye(3, run.encoder.dim), 5.0))
    client = TestClient(create_app(index, run=replace(run, answers=Answers(None, novelty))))
    asked = [client.post("/api/query/features", json={"features": [x] * 5}).json()["query"] for x in (0.1, 1e4)]
    assert [query["unlike"] for query in asked] == [False, True]
    plain = TestClient(create_app(index, run=run))
    assert plain.post("/api/query/features", json={"features": [0.1] * 5}).json()["query"]["unlike"] is None


def test_numbers_as_labels_are_told_apart_and_read_alike_everywhere():
    numbers = [1234567, 1234568, 1234567.25, 1, 1.0, 0.1, 1e20]
    index = al.CredibleIndex.build(
        al.VonMisesFisher(torch.eye(9)[:7], 30.0), metadata=[{"label": number} for number in numbers]
    )
    client = TestClient(create_app(index))
    counted = {one["label"]: one["count"] for one in client.get("/api/collection").json()["labels"]}
    assert counted == {"1234567": 1, "1234568": 1, "1234567.25": 1, "1": 2, "0.1": 1, "1e+20": 1}
    assert set(index.label_model().names) == set(counted)
    for label, count in counted.items():
        assert client.get("/api/items", params={"label": label}).json()["total"] == count
