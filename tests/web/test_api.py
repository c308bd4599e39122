"""The API gives what the index, the encoder and the metrics give, and says clearly what it cannot give."""

import io
import json
import math
import os

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image

from aleator import CredibleIndex, VonMisesFisher
from aleator.evaluation import neighbour_hits, reject_curve
from aleator.retrieval import take_snapshot
from aleator.web import create_app
from aleator.web.collection import CollectionView
from aleator.web.credible_levels import LEVELS, cap_cosines
from aleator.web.pictures import Pictures
from tests.web.shapes import COLOURS, SHAPES, draw, feature_run, png, shape_index


def ok(response):
    assert response.status_code == 200, response.text
    return response.json()


def refused(response, status: int, *words: str) -> None:
    assert response.status_code == status, response.text
    detail = response.json()["detail"]
    for word in words:
        assert word in detail


# ---- the collection


def test_a_snapshot_holds_all_items_in_order(index):
    snapshot = take_snapshot(index)
    assert len(snapshot) == len(index) == 90
    assert [json.loads(key) for key in snapshot.keys] == [f"{SHAPES[i % 3]}-{i}" for i in range(90)]
    # Every item is its own nearest neighbour: direction and certainty belong to the id.
    queries = VonMisesFisher(torch.from_numpy(snapshot.mu), torch.from_numpy(snapshot.kappa))
    for key, kappa, hits in zip(
        snapshot.keys, snapshot.kappa, index.search(queries, limit=1, by="nearest"), strict=True
    ):
        assert (hits[0].id, hits[0].kappa) == (json.loads(key), pytest.approx(float(kappa)))


def test_info_describes_the_collection(client, index):
    info = ok(client.get("/api/collection"))
    assert (info["items"], info["dim"], info["model"], info["images"]) == (90, 8, "images", True)
    assert info["labels"] == [{"label": shape, "count": 30} for shape in SHAPES]
    kappa = take_snapshot(index).kappa
    counts, edges = np.array(info["certainty"]["counts"]), np.array(info["certainty"]["edges"])
    assert counts.sum() == 90
    assert len(edges) == len(counts) + 1
    assert edges[0] == pytest.approx(kappa.min())
    assert edges[-1] == pytest.approx(kappa.max())
    assert np.allclose(edges[1:] / edges[:-1], edges[1] / edges[0])
    inner = slice(1, -1)  # the ends of the range are subject to rounding
    assert np.array_equal(counts[inner], np.histogram(kappa, edges)[0][inner])
    assert info["certainty"]["quantiles"]["0.5"] == pytest.approx(np.sort(kappa)[44])


def test_items_come_by_certainty_page_by_page(client):
    surest = ok(client.get("/api/items", params={"order": "surest", "limit": 90}))["items"]
    kappas = [item["kappa"] for item in surest]
    assert kappas == sorted(kappas, reverse=True)
    assert [item["surer_than"] for item in surest] == pytest.approx([(89 - i) / 90 for i in range(90)])
    pages = [
        ok(client.get("/api/items", params={"order": "least-sure", "offset": o, "limit": 40})) for o in (0, 40, 80)
    ]
    together = [item["key"] for page in pages for item in page["items"]]
    assert together == [item["key"] for item in reversed(surest)]
    assert [page["total"] for page in pages] == [90] * 3
    squares = ok(client.get("/api/items", params={"label": "square", "limit": 200}))
    assert squares["total"] == len(squares["items"]) == 30
    assert {item["label"] for item in squares["items"]} == {"square"}
    assert ok(client.get("/api/items", params={"label": "no such"}))["items"] == []
    assert ok(client.get("/api/items", params={"offset": 2**53}))["items"] == []


def test_ids_are_found_as_text_and_as_json():
    mu = torch.eye(4)
    index = CredibleIndex.build(VonMisesFisher(mu, torch.arange(1.0, 5.0)), [7, "7", "a/../b c", "x"])
    client = TestClient(create_app(index))

    def find(id):
        item = ok(client.get("/api/item", params={"id": id}))
        return item["id"], item["kappa"]

    assert find("7") == (7, 1.0)
    assert find('"7"') == ("7", 2.0)
    assert find("a/../b c") == find('"a/../b c"') == ("a/../b c", 3.0)
    assert find("x") == ("x", 4.0)
    refused(client.get("/api/item", params={"id": "y"}), 404, "no item")
    refused(client.get("/api/query/item", params={"id": "y"}), 404, "no item")


def test_reject_curve_is_that_of_the_metrics(client, index):
    curve = ok(client.get("/api/reject-curve"))
    snapshot = take_snapshot(index)
    labels = np.array([SHAPES.index(json.loads(note)["label"]) for note in snapshot.metadata_json])
    hits = neighbour_hits(snapshot.mu, labels)
    assert curve["hits"] == pytest.approx(reject_curve(snapshot.kappa, hits, curve["kept"]))
    assert curve["items"] == curve["labelled"] == 90


@pytest.mark.parametrize(("new", "asked"), [(30, 30), (5, 90)])
def test_the_reject_curve_is_not_about_items_that_were_trained_on(new, asked):
    """Trained items have the label of their neighbours, new ones have not."""
    mu = torch.nn.functional.normalize(torch.randn(90, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    labels = [0] * (90 - new) + [1] * new
    notes = [{"label": label} | ({} if label else {"used": "training"}) for label in labels]
    index = CredibleIndex.build(VonMisesFisher(mu, torch.arange(1.0, 91.0)), metadata=notes)
    curve = ok(TestClient(create_app(index)).get("/api/reject-curve"))
    hits = neighbour_hits(mu, labels)[90 - asked :]
    assert curve["hits"][-1] == pytest.approx(float(hits.float().mean()))
    assert (curve["items"], curve["labelled"]) == (asked, 90)


def test_no_reject_curve_without_labels():
    index = CredibleIndex.build(VonMisesFisher(torch.eye(3), 5.0), metadata=[{"label": "a"}, {"label": "b"}, {}])
    refused(TestClient(create_app(index)).get("/api/reject-curve"), 404, "no two items share a label")


# ---- questions


def test_an_item_is_answered_as_the_index_answers(client, index):
    snapshot = take_snapshot(index)
    query = VonMisesFisher(torch.from_numpy(snapshot.mu[4:5]), torch.from_numpy(snapshot.kappa[4:5]))
    expected = [hit for hit in index.search(query, p=0.9)[0] if hit.id != "square-4"]
    answer = ok(client.get("/api/query/item", params={"id": "square-4", "p": 0.9, "limit": 500}))
    assert [hit["id"] for hit in answer["hits"]] == [hit.id for hit in expected]
    assert [hit["cosine"] for hit in answer["hits"]] == pytest.approx([hit.cosine for hit in expected])
    assert [hit["match_probability"] for hit in answer["hits"]] == pytest.approx(
        [hit.match_probability for hit in expected]
    )
    assert answer["size"] == len(expected) > 0
    assert answer["query"]["item"]["id"] == "square-4"


@pytest.mark.parametrize("kappa", [0.0, 5e-324, 0.5, 20.0, 300.0, 1e9, 1e308, math.inf])
def test_levels_are_the_sizes_of_the_credible_sets(client, index, kappa):
    mu = torch.nn.functional.normalize(torch.randn(8, dtype=torch.float64), dim=0)
    body = {"mu": mu.tolist(), "kappa": "Infinity" if math.isinf(kappa) else kappa}
    answer = ok(client.post("/api/query/posterior", params={"p": 0.37, "limit": 1}, json=body))
    query = VonMisesFisher(mu[None], torch.tensor([kappa], dtype=torch.float64))
    assert [level["p"] for level in answer["levels"]] == [percent / 100 for percent in range(1, 100)]
    for level in answer["levels"][::14]:
        assert level["size"] == len(index.search(query, p=level["p"])[0])
    assert answer["size"] == len(index.search(query, p=0.37)[0])
    assert answer["query"]["kappa"] == body["kappa"]


@pytest.mark.parametrize("dim", [2, 3, 8, 64, 512])
def test_cosines_of_all_levels_are_those_of_the_caps(dim):
    for kappa in (1e-3, 0.7, 30.0, 2000.0, 1e7):
        posterior = VonMisesFisher(torch.eye(1, dim, dtype=torch.float64), torch.tensor([kappa], dtype=torch.float64))
        angle = posterior.cap_angle(torch.tensor(LEVELS, dtype=torch.float64)).numpy()
        assert cap_cosines(dim, kappa) == pytest.approx(np.cos(angle), abs=1e-9)


def test_sizes_are_counted_as_the_search_decides():
    """Items on the edge of the cap, within the rounding of float32, count if and only if they are found."""
    dim, query = 64, torch.nn.functional.normalize(torch.randn(1, 64, dtype=torch.float64), dim=-1)
    posterior = VonMisesFisher(1.0008 * query, torch.tensor([50.0], dtype=torch.float64))  # a little off unit length
    side = torch.randn(2000, dim, dtype=torch.float64)
    side = torch.nn.functional.normalize(side - (side @ query.T) * query, dim=-1)
    edge = float(posterior.cap(0.5)) + torch.linspace(-2e-7, 2e-7, 2000, dtype=torch.float64)[:, None]
    mu = (edge * query + (1 - edge**2).sqrt() * side).float()
    index = CredibleIndex.build(VonMisesFisher(mu, 10.0))
    size, levels = CollectionView(index).credible_sets(posterior, 0.5)
    assert size == levels[49].size == len(index.search(posterior, p=0.5)[0])
    assert 500 < size < 1500


def test_match_and_nearest(client):
    near = ok(client.get("/api/query/item", params={"id": "circle-0", "by": "nearest", "limit": 7}))
    assert len(near["hits"]) == 7
    assert near["size"] is None
    assert near["levels"] == []
    likely = ok(client.get("/api/query/item", params={"id": "circle-0", "by": "match", "threshold": 0.6, "limit": 500}))
    chances = [hit["match_probability"] for hit in likely["hits"]]
    assert chances == sorted(chances, reverse=True)
    assert min(chances) >= 0.6
    assert likely["size"] == len(chances)
    cut = ok(client.get("/api/query/item", params={"id": "circle-0", "by": "match", "threshold": 0.6, "limit": 2}))
    assert [hit["key"] for hit in cut["hits"]] == [hit["key"] for hit in likely["hits"][:2]]
    assert cut["size"] is None


def test_an_uploaded_image_is_embedded_as_the_model_does(client, run):
    image = draw("triangle", (52, 110, 160), 0.4)
    answer = ok(client.post("/api/query/image", content=png(image)))
    with torch.inference_mode():
        expected = run.encoder(run.inputs.prepare([image]))
    assert answer["query"]["kappa"] == pytest.approx(expected.kappa.item(), rel=1e-6)
    assert answer["query"]["mu"] == pytest.approx(expected.mu[0].tolist(), abs=1e-6)
    assert answer["query"]["item"] is None


def test_a_stored_image_finds_its_own_item_first(client, root):
    data = (root / "circle" / "0.png").read_bytes()
    answer = ok(client.post("/api/query/image", params={"by": "nearest", "limit": 1}, content=data))
    assert answer["hits"][0]["id"] == "circle-0"
    assert answer["hits"][0]["cosine"] == pytest.approx(1)


def test_texts_and_features(text_client, feature_client):
    info = ok(text_client.get("/api/collection"))
    assert (info["texts"], info["images"], info["model"]) == (True, False, "text")
    assert info["labels"] == [{"label": "0", "count": 3}, {"label": "1", "count": 2}]
    text = "The bank raised its interest rates again."
    answer = ok(text_client.post("/api/query/text", json={"text": text}))
    assert answer["hits"][0]["text"] == text
    assert answer["hits"][0]["cosine"] == pytest.approx(1)
    features = ok(feature_client.post("/api/query/features", json={"features": [1.0, 0, -2, 3, 0.5]}))
    with torch.inference_mode():
        expected = feature_run().encoder(torch.tensor([[1.0, 0, -2, 3, 0.5]]))
    assert features["query"]["kappa"] == pytest.approx(expected.kappa.item(), rel=1e-5)
    refused(feature_client.post("/api/query/features", json={"features": [1.0]}), 422, "takes 5 for an item")
    refused(text_client.post("/api/query/text", json={"text": "  "}), 422, "empty")
    refused(text_client.post("/api/query/image", content=b"x"), 409, "takes text")


def test_without_a_model_only_items_and_posteriors(index):
    client = TestClient(create_app(index))
    for path, body in (("text", {"text": "a"}), ("features", {"features": [1]})):
        refused(client.post(f"/api/query/{path}", json=body), 409, "--model")
    refused(client.post("/api/query/image", content=b"x"), 409, "--model")
    assert ok(client.get("/api/query/item", params={"id": "circle-0"}))["query"]["item"]["image"] is False
    refused(client.get("/api/image", params={"id": "circle-0"}), 404, "no image")


def test_an_empty_collection_and_extreme_certainties():
    empty = CredibleIndex.build(VonMisesFisher(torch.empty(0, 3), torch.empty(0)))
    client = TestClient(create_app(empty))
    assert sum(ok(client.get("/api/collection"))["certainty"]["counts"]) == 0
    assert ok(client.get("/api/items", params={"label": "a"}))["items"] == []
    body = {"mu": [1, 0, 0], "kappa": 3}
    assert ok(client.post("/api/query/posterior", json=body))["size"] == 0

    extremes = CredibleIndex.build(VonMisesFisher(torch.eye(3), torch.tensor([0.0, 7.0, math.inf])))
    client = TestClient(create_app(extremes))
    info = ok(client.get("/api/collection"))["certainty"]
    assert sum(info["counts"]) == 3
    assert info["quantiles"]["1"] == "Infinity"
    assert [item["kappa"] for item in ok(client.get("/api/items"))["items"]] == ["Infinity", 7.0, 0.0]
    assert [ok(client.get("/api/query/item", params={"id": i}))["size"] for i in "012"] == [2, 0, 0]


# ---- mistakes


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"p": 1}, "p = '1': "),
        ({"p": "nan"}, "p = 'nan': "),
        ({"by": "magic"}, "by = 'magic': Input should be 'credible', 'match', 'nearest' or 'promised'"),
        ({"limit": 0}, "limit = '0': "),
        ({"limit": 10**9}, "limit = '1000000000': "),
        ({"threshold": 1}, "threshold = '1': "),
        ({"colour": COLOURS[0]}, "colour: "),
    ],
)
def test_bad_parameters_are_named(client, params, words):
    refused(client.get("/api/query/item", params={"id": "circle-0", **params}), 422, words)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"mu": [1, 0], "kappa": 1}, 422, "8 dimensions"),
        ({"mu": [1] * 8, "kappa": 1}, 422, "length 1"),
        ({"mu": [0] * 8, "kappa": 1}, 422, "length 1"),
        ({"mu": [1] + [0] * 7, "kappa": -1}, 422, "kappa = -1: Input should be greater than"),
        ({"mu": [1] + [0] * 7}, 422, "kappa"),
        ({"mu": "north", "kappa": 1}, 422, "mu"),
        ({"mu": [1] + [0] * 7, "kappa": 1, "more": 1}, 422, "more"),
    ],
)
def test_bad_posteriors_are_explained(client, body, status, words):
    refused(client.post("/api/query/posterior", json=body), status, words)


@pytest.mark.parametrize(
    "body",
    [b"{", b"\xff\xfe", b"[" * 100_000, b'{"mu": [1e999], "kappa": NaN}', b'{"a\\ud800": 1}', b"1" * 5000, b""],
)
def test_bodies_that_are_no_question(client, body):
    response = client.post("/api/query/posterior", content=body, headers={"content-type": "application/json"})
    assert response.status_code in (400, 422)
    assert response.json()["detail"]


def test_a_body_that_is_not_sent_as_json_says_how(client):
    headers = {"content-type": "application/x-www-form-urlencoded"}  # what curl -d sends
    response = client.post("/api/query/posterior", content=b'{"mu": [1, 0], "kappa": 3}', headers=headers)
    refused(response, 422, "send it with the header Content-Type: application/json")


def test_halves_of_characters_do_no_harm():
    index = CredibleIndex.build(
        VonMisesFisher(torch.eye(3), 5.0),
        ["a\ud800", "b", "c"],
        [{"text": "\udfff", "label": "\ud800", "x": "\ud800"}] * 3,
    )
    client = TestClient(create_app(index))
    items = ok(client.get("/api/items"))["items"]
    assert [item["id"] for item in items] == ["a?", "b", "c"]
    assert ok(client.get("/api/query/item", params={"id": items[0]["key"]}))["query"]["item"]["key"] == '"a\\ud800"'
    assert len(ok(client.get("/api/reject-curve"))["kept"]) == 20


def test_a_server_of_an_index_that_went_away_says_so(index):
    def gone(*_, **__):
        raise ConnectionError("postgresql://db/items: the server cannot be reached")

    client = TestClient(create_app(index))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "search", gone)
        response = client.get("/api/query/item", params={"id": "circle-0"})
    refused(response, 503, "cannot be reached")
    assert response.headers["retry-after"] == "1"


def test_the_description_lists_every_route_and_its_errors(client):
    paths = ok(client.get("/api/openapi.json"))["paths"]
    assert set(paths) == {
        "/api/health", "/api/collection", "/api/items", "/api/item", "/api/image", "/api/reject-curve", "/api/findings",
        "/api/query/item", "/api/query/posterior", "/api/query/text", "/api/query/features", "/api/query/image",
    }  # fmt: skip
    for path, methods in paths.items():
        for operation in methods.values():
            assert operation["description"]
            assert path == "/api/health" or {"422", "503"} <= set(operation["responses"])


# ---- sets with a promise


@pytest.fixture
def calibrated(run, root):
    """A client of an index that is calibrated with shapes like its own, and questions with their right answers."""
    shapes = [SHAPES[i % 3] for i in range(60)]
    images = [draw(shape, COLOURS[0], blur=0.2 + i % 10, shift=i % 5 - 2) for i, shape in enumerate(shapes)]
    questions = run.posteriors(images)
    with shape_index(root, run) as index:
        index.calibrate(questions, shapes, 0.9, error=0.5, assurance=0.6)
        yield TestClient(create_app(index, run=run, root=root)), index, questions, images


def test_promised_sets_are_those_of_the_index(calibrated):
    client, index, questions, images = calibrated
    info = ok(client.get("/api/collection"))["promise"]
    assert (info["coverage"], info["questions"], info["error"], info["assurance"]) == (0.9, 60, 0.5, 0.6)
    assert info["sets"] == "labels"
    for image, expected in zip(images[:4], index.answer_sets(questions[:4]), strict=True):
        answer = ok(client.post("/api/query/image", params={"by": "promised"}, content=png(image)))
        assert [hit["id"] for hit in answer["hits"]] == [hit.id for hit in expected.hits]
        assert (answer["by"], answer["size"], answer["sure"]) == ("promised", len(expected.hits), expected.sure)
        assert len({hit["label"] for hit in answer["hits"]}) == len(answer["hits"])
    answer = ok(client.post("/api/query/image", params={"by": "nearest"}, content=png(images[0])))
    assert answer["sure"] is None


def test_a_promise_is_for_new_questions_and_calibrated_indexes(calibrated, client):
    refused(calibrated[0].get("/api/query/item", params={"id": "circle-0", "by": "promised"}), 422, "new questions")
    assert ok(client.get("/api/collection"))["promise"] is None
    refused(
        client.post("/api/query/image", params={"by": "promised"}, content=png(draw("circle", COLOURS[0], blur=1.0))),
        409,
        "the index makes no promise; run `aleator index calibrate`",
    )


def test_a_promise_is_void_once_items_have_changed(calibrated, run, root):
    """Also if there are as many items as before."""
    _, index, questions, images = calibrated
    index.remove(["circle-0"])
    index.add(questions[:1], ["circle-0"])
    client = TestClient(create_app(index, run=run, root=root))
    info = ok(client.get("/api/collection"))
    assert (info["promise"], info["promise_is_void"]) == (None, True)
    asked = client.post("/api/query/image", params={"by": "promised"}, content=png(images[0]))
    refused(asked, 409, "items have changed since the index was calibrated; run `aleator index calibrate`")


def test_items_by_a_part_of_their_id(client):
    whole = ok(client.get("/api/items", params={"limit": 200}))["items"]
    for part in ("angle-4", "ANGLE-4", "-1", "", "nowhere"):
        found = ok(client.get("/api/items", params={"limit": 200, "find": part}))
        expected = [item["id"] for item in whole if part.lower() in item["id"]]
        assert [item["id"] for item in found["items"]] == expected
        assert found["total"] == len(expected)
    both = ok(client.get("/api/items", params={"find": "4", "label": "square"}))["items"]
    assert {item["label"] for item in both} == {"square"}
    refused(client.get("/api/items", params={"find": "x" * 1001}), 422, "find")


@pytest.mark.parametrize("name", ["deep.tif", "float.tif", "picture.avif"])
def test_pictures_that_browsers_cannot_show_are_converted(tmp_path, name):
    """Deep images are not black, and formats of phones become those of the web."""
    ramp = np.arange(4096).reshape(64, 64)
    if name == "deep.tif":
        image = Image.fromarray(ramp.astype(np.uint16))
    else:
        image = Image.fromarray(
            (ramp / 4095).astype(np.float32) if name == "float.tif" else (ramp >> 4).astype(np.uint8)
        )
    image.save(tmp_path / name)
    shown = Pictures(tmp_path, 10**7, 10**6).show(name, 64)
    with Image.open(io.BytesIO(shown.data)) as picture:
        assert picture.format in ("PNG", "JPEG")
        assert abs(np.asarray(picture.convert("L")).astype(int) - (ramp >> 4)).max() <= 8


@pytest.mark.parametrize("size", [None, 16])
def test_a_picture_is_sent_once_and_again_when_its_file_changes(tmp_path, run, size):
    index = shape_index(tmp_path, run, count=3, side=40)
    client = TestClient(create_app(index, run=run, root=tmp_path))
    params = {"id": "circle-0"} | ({} if size is None else {"size": size})
    first = client.get("/api/image", params=params)
    assert first.headers["cache-control"] == "private, max-age=3600"
    etag = first.headers["etag"]
    known = client.get("/api/image", params=params, headers={"If-None-Match": f'"other", {etag}'})
    assert (known.status_code, known.content, known.headers["etag"]) == (304, b"", etag)
    assert client.get("/api/image", params=params).content == first.content
    draw("square", (52, 110, 160), 0.1, side=50).save(tmp_path / "circle" / "0.png")
    changed = client.get("/api/image", params=params, headers={"If-None-Match": etag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != etag
    assert changed.content != first.content
    counted = client.get("/metrics").text
    assert ('aleator_pictures_total{cache="hit"} 1' in counted) == (size is not None)


def test_addresses_and_methods_that_do_not_exist_are_answered_with_the_way_out(client):
    for method, path, status in (("GET", "/api/nosuch", 404), ("DELETE", "/api/items", 405)):
        answer = client.request(method, path)
        assert answer.status_code == status
        assert answer.json()["detail"].endswith("; /api/openapi.json lists the addresses and their methods")
    refused(client.get("/api/item", params={"id": "no such"}), 404, "'no such'")


@pytest.mark.parametrize("address", ["/", "/api/items", "/api/health", "/api/image?id=circle-0"])
def test_head_is_answered_as_get_without_the_body(client, address):
    whole, head = client.get(address), client.head(address)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(whole.content))
    assert head.headers["content-type"] == whole.headers["content-type"]


def test_numbers_of_a_question_are_numbers(client, feature_client):
    dim = ok(client.get("/api/collection"))["dim"]
    mu = [1.0] + [0.0] * (dim - 1)
    assert ok(client.post("/api/query/posterior", json={"mu": [1, *mu[1:]], "kappa": 3}))["size"] is not None
    refused(client.post("/api/query/posterior", json={"mu": ["1", *mu[1:]], "kappa": 3}), 422, "mu.0 = '1'")
    refused(client.post("/api/query/posterior", json={"mu": mu, "kappa": True}), 422, "kappa = True")
    refused(client.post("/api/query/posterior", json={"mu": mu, "kappa": "3"}), 422, "kappa = '3'")
    count = ok(feature_client.get("/api/collection"))["model_features"]
    row = [0.5] * count
    assert ok(feature_client.post("/api/query/features", json={"features": row}))["hits"]
    short = feature_client.post("/api/query/features", json={"features": row[1:]})
    refused(short, 422, f"features = '{count - 1} numbers': the model takes {count} for an item")
    for bad in (True, "0.5", 1e39):
        refused(feature_client.post("/api/query/features", json={"features": [bad, *row[1:]]}), 422, "features.0")


@pytest.mark.skipif(os.sep == "\\", reason="a backslash parts folders here")
def test_pictures_whose_names_have_a_backslash_are_shown(tmp_path):
    draw("circle", COLOURS[0], blur=1.0).save(tmp_path / "a\\b.png")
    assert Pictures(tmp_path, 10**7, 10**6).show("a\\b.png", 16).data
