"""Hostile input: the answer is a sentence in the 400s, or the documented 503; no file leaves but the collection's."""

import asyncio
import io
import json
import os
import struct
import threading
import time
import zlib

import httpx2
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image

from aleator import CredibleIndex, VonMisesFisher
from aleator.web import Limits, create_app
from aleator.web.pictures import open_inside
from tests.web.shapes import draw, png

GOOD = png(draw("circle", (52, 110, 160), 0.1))


def png_with(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG file that claims a size, and has these chunks between its header and almost no pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(b"\0" * 64)), (b"IEND", b"")]
    framed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


def saved(image: Image.Image, kind: str) -> bytes:
    out = io.BytesIO()
    image.save(out, kind)
    return out.getvalue()


# ---- uploads


@pytest.mark.parametrize(
    ("data", "statuses"),
    [
        (png_with(60_000, 60_000), {413}),
        (png_with(6_000, 5_000), {413}),
        (png_with(2**31 - 1, 2**31 - 1), {413, 415, 422}),
        (png_with(32, 32, (b"zTXt", b"bomb\0\0" + zlib.compress(b"0" * 2**23))), {422}),
        (png_with(32, 32, (b"iCCP", b"bomb\0\0" + zlib.compress(b"0" * 2**23))), {422}),
        (saved(Image.new("L", (5200, 5200)), "GIF"), {413}),
        (GOOD[: len(GOOD) // 2], {422}),
        (saved(Image.effect_noise((64, 64), 50), "JPEG")[:600], {422}),
        (GOOD[:8], {415, 422}),
        (b"", {415}),
        (b"<html><script>alert(1)</script></html>", {415}),
        (b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>", {415}),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", {415}),
        (b"P6 99999 99999 255\n", {413}),
        (b"P6 4 4 255\n1", {422}),
        (b"GIF89a" + b"\xff" * 100, {413, 415, 422}),
        (os.urandom(5000), {415}),
    ],
)
def test_uploads_that_are_no_good_image(client, data, statuses):
    response = client.post("/api/query/image", content=data, headers={"content-type": "image/png"})
    assert response.status_code in statuses, response.text
    assert response.json()["detail"]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_an_image_is_what_its_content_is(client, kind):
    """A wrong name does no harm to a good image."""
    data = saved(draw("square", (196, 78, 60), 0.1), kind)
    assert client.post("/api/query/image", content=data, headers={"content-type": "text/html"}).status_code == 200


def test_a_body_is_refused_by_its_announcement_and_by_its_length(index, run):
    limits = Limits(upload_bytes=100_000, body_bytes=1000)
    client = TestClient(create_app(index, run=run, limits=limits))
    assert client.post("/api/query/image", content=b"x" * 100_001).status_code == 413
    assert client.post("/api/query/posterior", content=b"x" * 1001).status_code == 413
    assert client.post("/api/query/image", content=(b"x" * 1000 for _ in range(101))).status_code == 413
    assert client.post("/api/query/image", content=GOOD).status_code == 200


def asgi(app, receive, path="/api/query/image", headers=()):
    """The status of a POST whose body `receive` gives, and how it was given."""
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http"}
    scope |= {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": list(headers)}
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(app({**scope, "client": None, "server": ("127.0.0.1", 80)}, receive, send))
    return sent[0]["status"]


def test_an_endless_body_is_not_read_to_its_end(app):
    chunks = 0

    async def endless():
        nonlocal chunks
        chunks += 1
        return {"type": "http.request", "body": b"x" * 2**20, "more_body": True}

    assert asgi(app, endless) == 413
    assert chunks == Limits().upload_bytes // 2**20 + 1


def test_a_body_that_never_comes_is_not_waited_for(index, run):
    async def never():
        await asyncio.get_running_loop().create_future()

    assert asgi(create_app(index, run=run, limits=Limits(patience=0.01)), never) == 408


# ---- files


@pytest.fixture
def paths(tmp_path, run):
    """A server whose items name whatever path they like, and the secret beside its root."""
    root = tmp_path / "root"
    (root / "in").mkdir(parents=True)
    (tmp_path / "secret.png").write_bytes(GOOD)
    (root / "in" / "good.png").write_bytes(GOOD)
    (root / "text.png").write_text("<script>alert(1)</script>")
    (root / "half.png").write_bytes(GOOD[: len(GOOD) // 2])
    (root / "link.png").symlink_to(tmp_path / "secret.png")
    (root / "inner-link.png").symlink_to(root / "in" / "good.png")
    (root / "folder-link").symlink_to(tmp_path)
    os.mkfifo(root / "pipe.png")

    def client(path):
        index = CredibleIndex.build(VonMisesFisher(torch.eye(2), 5.0), ["a", "b"], [{"path": path}, {}])
        return TestClient(create_app(index, root=root))

    client.root = root
    return client


@pytest.mark.parametrize(
    "path",
    [
        "../secret.png", "in/../../secret.png", "in/../in/good.png", "/etc/passwd", "{root}/in/good.png", "link.png",
        "inner-link.png", "folder-link/secret.png", "in", "", ".", "..", "in/good.png/", "in/good.png/x", "nothing.png",
        "text.png", "half.png", "pipe.png", "in\\good.png", "in/good.png\0", "\ud800.png", "x" * 300,
        "../" * 50 + "etc/passwd", "file:///etc/passwd", "~/.ssh/id_rsa", "/proc/self/environ", "/dev/zero",
    ],
)  # fmt: skip
def test_no_path_leads_out_or_to_anything_but_an_image(paths, path):
    client = paths(path.format(root=paths.root))
    response = client.get("/api/image", params={"id": "a"})
    if path == "in/good.png/":  # the same file, written strangely
        assert response.content == GOOD
        return
    assert response.status_code == 404
    assert GOOD[8:] not in response.content


@pytest.mark.parametrize(
    "id", ["../secret.png", "..%2f..%2fetc%2fpasswd", "/etc/passwd", "a\0", "in/good.png", '"a', "[]"]
)
def test_no_id_is_a_path(paths, id):
    for path in ("/api/item", "/api/image", "/api/query/item"):
        assert paths("in/good.png").get(path, params={"id": id}).status_code == 404


@pytest.mark.parametrize("name", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "", ".", "page.html/../x", "%00"])
def test_no_static_name_is_a_path(client, name):
    assert client.get(f"/static/{name}").status_code == 404


def test_a_folder_that_changes_meanwhile_leads_nowhere(tmp_path):
    """A step that was a folder when it was looked at, and is a link when it is opened, is refused at the opening."""
    (tmp_path / "root").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").write_text("secret")
    (tmp_path / "root" / "step").symlink_to("../out", target_is_directory=True)
    with pytest.raises(ValueError, match="no such file"):
        open_inside(tmp_path / "root", "step/x", 100).__enter__()


def test_pictures_have_the_type_of_their_content(paths):
    client = paths("in/good.png")
    full, small = (client.get("/api/image", params={"id": "a", **size}) for size in ({}, {"size": 16}))
    assert full.content == GOOD
    for response in (full, small):
        assert response.headers["content-type"] == "image/png"
        assert response.headers["x-content-type-options"] == "nosniff"
    assert Image.open(io.BytesIO(small.content)).size == (16, 16)
    (paths.root / "photo.png").write_bytes(saved(Image.effect_noise((300, 200), 50), "JPEG"))
    assert paths("photo.png").get("/api/image", params={"id": "a"}).headers["content-type"] == "image/jpeg"
    (paths.root / "scan.tif").write_bytes(saved(Image.effect_noise((300, 200), 50), "TIFF"))
    shown = paths("scan.tif").get("/api/image", params={"id": "a", "size": 100})
    assert shown.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(shown.content)).size == (100, 67)


# ---- who may ask

TOKEN = "a-token_of-24-characters"


def test_a_token_is_asked_for_everywhere_but_health(index):
    client = TestClient(create_app(index, token=TOKEN), follow_redirects=False)
    described = TestClient(create_app(index)).get("/api/openapi.json").json()["paths"]
    for path, methods in [
        *described.items(),
        ("/", {"get": 0}),
        ("/static/page.js", {"get": 0}),
        ("/api/openapi.json", {"get": 0}),
    ]:
        for method in methods:
            status = client.request(method, path).status_code
            assert status == (200 if path == "/api/health" else 401), path
    for header in (f"Bearer {TOKEN}x", TOKEN, f"Basic {TOKEN}", "Bearer", "Bearer \xff"):
        assert client.get("/api/items", headers={"authorization": header.encode("latin-1")}).status_code == 401
    assert client.get("/api/items", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert client.get("/api/items", params={"token": TOKEN}).status_code == 401
    assert client.get("/", headers={"cookie": 'aleator_token="\\'}).status_code == 401


def test_the_page_takes_the_token_from_its_address_once(index):
    client = TestClient(create_app(index, token=TOKEN), follow_redirects=False)
    assert client.get("/", params={"token": "wrong-" + TOKEN}).status_code == 401
    response = client.get("/", params={"token": TOKEN})
    assert (response.status_code, response.headers["location"]) == (303, "/")
    assert "HttpOnly" in response.headers["set-cookie"]
    assert "SameSite" in response.headers["set-cookie"]
    assert client.get("/").status_code == 200  # the client keeps cookies
    assert client.get("/api/items").status_code == 200


@pytest.mark.parametrize(
    "other", ['prefs={"a":1}', "a=ü b", "=", "", 'half="', f"x{TOKEN}=1", "my_aleator_token=wrong"]
)
def test_cookies_of_other_applications_do_not_hide_the_token(index, other):
    client = TestClient(create_app(index, token=TOKEN))
    for cookie in (f"{other}; aleator_token={TOKEN}", f'aleator_token="{TOKEN}"; {other}'):
        assert client.get("/api/items", headers={"cookie": cookie.encode("latin-1")}).status_code == 200
        wrong = cookie.replace(f"aleator_token={TOKEN}", "aleator_token=wrong").replace(f'"{TOKEN}"', '""')
        assert client.get("/api/items", headers={"cookie": wrong.encode("latin-1")}).status_code == 401


@pytest.mark.parametrize(
    "token", ["", "short", "x" * 15, "spaces are not for addresses", "ümlaut-ümlaut-ümlaut", "semi;colon;semi;colon"]
)
def test_tokens_that_are_none(index, token):
    with pytest.raises(ValueError, match="token"):
        create_app(index, token=token)


def test_only_its_own_names_are_answered(index):
    client = TestClient(create_app(index, hosts=["127.0.0.1", "localhost", "::1"]))
    for host in ("127.0.0.1:8000", "localhost", "[::1]:80", "LOCALHOST:1"):
        assert client.get("/api/health", headers={"host": host}).status_code == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "[::2]", ""):
        assert client.get("/api/health", headers={"host": host}).status_code == 421


def test_every_answer_tells_the_browser_what_is_allowed(client):
    for path in ("/", "/static/page.js", "/api/items", "/api/item?id=no", "/nothing", "/api/image?id=circle-0"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "unsafe" not in headers["content-security-policy"]


def test_the_page_names_no_other_host(client):
    page = client.get("/").text
    names = ["page.css", "page.js", "api.js", "charts.js", "marks.js", "tiles.js", "words.js", "icon.svg"]
    for content in [page, *(client.get(f"/static/{name}").text for name in names)]:
        assert "//" not in content.replace("http://www.w3.org/2000/svg", "").replace("// ", "").replace("//\n", "")
        assert "style=" not in content
        assert "innerHTML" not in content


# ---- overload


def test_too_much_at_once_is_503_and_nothing_is_lost(index):
    """Two questions fill the server; the third is sent away, health is not, and the two are answered."""
    app = create_app(index, limits=Limits(requests=2))
    release, asked = threading.Event(), threading.Semaphore(0)
    search = index.search

    def slow(*args, **kwargs):
        asked.release()
        assert release.wait(30)
        return search(*args, **kwargs)

    async def play():
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            ask = [asyncio.create_task(client.get("/api/query/item", params={"id": "circle-0"})) for _ in range(2)]
            assert await asyncio.to_thread(asked.acquire, timeout=30)  # one search may answer both
            deadline = time.monotonic() + 20
            while (third := await client.get("/api/items")).status_code == 200 and time.monotonic() < deadline:
                await asyncio.sleep(0)  # the second question is on its way
            health = await client.get("/api/health")
            release.set()
            first = [await task for task in ask]
            return first, third, health, await client.get("/api/items")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "search", slow)
        first, third, health, after = asyncio.run(play())
    assert [response.status_code for response in first] == [200, 200]
    assert third.status_code == 503
    assert third.headers["retry-after"] == "1"
    assert "try again" in third.json()["detail"]
    assert health.status_code == 200
    assert after.status_code == 200


def test_refused_uploads_give_their_place_back(index, run):
    client = TestClient(create_app(index, run=run, limits=Limits(uploads=1, requests=1, upload_bytes=10_000)))
    for data in (b"x" * 20_000, b"no image", GOOD[:100], GOOD) * 3:
        assert client.post("/api/query/image", content=data).status_code != 503


def test_small_pictures_are_kept_up_to_a_bound(tmp_path):
    from aleator.web.pictures import Pictures

    for i in range(20):
        Image.effect_noise((80, 80), 50 + i).save(tmp_path / f"{i}.png")
    pictures = Pictures(tmp_path, 10**6, 10**6, cache_bytes=20_000)
    first = [pictures.show(f"{i}.png", 40) for i in range(20)]
    assert [pictures.show(f"{i}.png", 40) for i in range(20)] == first
    assert 0 < sum(len(data) for data, _ in pictures._cache.values()) <= 20_000


def test_the_error_of_a_route_that_is_not_there(client):
    response = client.get("/api/nothing")
    assert response.status_code == 404
    assert json.loads(response.text)["detail"]
