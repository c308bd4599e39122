"""The page in a real Chromium: what a person does with it, by mouse, by keyboard, at a desk and on a phone."""

import csv
import io
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from aleator import CredibleIndex, VonMisesFisher
from aleator.evaluation import fit_novelty
from aleator.own_data import Answers
from aleator.own_data.measuring.views import posteriors_and_views
from aleator.retrieval import certainty_in_words
from aleator.web import Limits, create_app
from tests.web.browser import Visit, serving
from tests.web.shapes import COLOURS, SHAPES, draw, feature_run, png, shape_index, text_index, text_run

DESK = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}
BLURRED = png(draw("circle", (52, 110, 160), 3.0))
SHAPES_SEEN = [
    draw(shape, (52, 110, 160), blur, shift)
    for shape in ("circle", "square", "triangle")
    for blur in (0.5, 2.0, 3.5)
    for shift in range(-2, 3)
]


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory) -> Path:
    """Where screenshots are kept: the folder that ALEATOR_ARTEFACTS names, or a temporary one."""
    folder = os.environ.get("ALEATOR_ARTEFACTS")
    path = Path(folder) if folder else tmp_path_factory.mktemp("screenshots")
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture(scope="module")
def address(app):
    with serving(app) as address:
        yield address


@pytest.fixture
def visit(browser, address):
    """Makes visits; at the end, none of them may have had an error or left the server."""
    made = []

    def make(to=address, **options):
        made.append(Visit(browser, to, **options))
        return made[-1]

    yield make
    findings = [one for each in made for one in each.findings]
    for each in made:
        each.context.close()
    assert findings == []


def tiles(page):
    return page.locator("#grid .tile:not([hidden])")


def has_count(found, number: int):
    """The page asks the server: what it shows may come a moment later."""
    from playwright.sync_api import expect

    expect(found).to_have_count(number)


def is_loaded(image):
    """Waits without `wait_for_function`, whose second look is a string evaluated in the page, as its policy forbids."""
    from playwright.sync_api import expect

    expect(image).not_to_have_js_property("naturalWidth", 0)


def upload(page, data: bytes, name: str = "mine.png", kind: str = "image/png"):
    page.set_input_files("#file", {"name": name, "mimeType": kind, "buffer": data})


def ask_about_upload(page):
    upload(page, BLURRED)
    page.locator("#query-title", has_text="mine.png").wait_for()


def set_slider(page, value: int):
    page.locator("#slider").evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')) }", value
    )


@pytest.mark.parametrize(
    ("name", "viewport", "scheme"),
    [
        ("desk", DESK, "light"),
        ("phone", PHONE, "dark"),
        pytest.param("desk", DESK, "dark", marks=pytest.mark.slow),
        pytest.param("phone", PHONE, "light", marks=pytest.mark.slow),
    ],
)
def test_the_page_at_first_sight_and_with_an_answer(visit, artefacts, name, viewport, scheme):
    page = visit(viewport=viewport, color_scheme=scheme).open()
    assert page.locator("h1").inner_text().strip() == "What could it be?"
    assert page.locator("#facts").inner_text() == "90 items · in memory"
    tiles(page).first.wait_for()
    has_count(tiles(page), 48)
    kappas = [float(text.replace(",", "")) for text in page.locator(".tile .number dd").all_inner_texts()]
    assert kappas == sorted(kappas)  # the least sure first
    has_count(page.locator("#histogram svg .bar"), 40)
    has_count(page.locator("#histogram .marker"), 0)
    for image in page.locator("#grid img").all()[:6]:
        is_loaded(image)
    page.screenshot(path=artefacts / f"first-{name}-{scheme}.png")
    ask_about_upload(page)
    has_count(page.locator("#histogram .marker"), 1)
    assert page.locator("#certainty-sentence").inner_text().startswith("Certainty: above ")
    assert page.locator("#certainty-of-labels").is_hidden()
    is_loaded(page.locator("#query-face img"))
    page.screenshot(path=artefacts / f"answer-{name}-{scheme}.png", full_page=True)
    boxes = [one.bounding_box() for one in page.locator(".tile .face").all()[:6]]
    assert max(abs(box["width"] - box["height"]) for box in boxes) < 2  # pictures are square, whatever is below them
    # Nothing is wider than the screen, and text stands out from what it lies on.
    assert page.evaluate("document.scrollingElement.scrollWidth <= window.innerWidth")
    for ink in ("--ink", "--soft", "--accent", "--alarm"):
        for paper in ("--paper", "--card", "--well"):
            assert contrast(page, ink, paper) >= 4.5, (ink, paper)


def contrast(page, ink: str, paper: str) -> float:
    """WCAG's ratio of two colours of the style sheet."""

    def luminance(name):
        text = page.evaluate("(name) => getComputedStyle(document.documentElement).getPropertyValue(name)", name)
        channels = [int(text.strip()[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(ink), luminance(paper)))
    return (high + 0.05) / (low + 0.05)


def test_the_slider_shows_each_credible_set(visit, client):
    page = visit().open()
    ask_about_upload(page)
    answer = client.post("/api/query/image", params={"limit": 200, "p": 0.99}, content=BLURRED).json()
    sizes = [level["size"] for level in answer["levels"]]
    assert len(set(sizes)) > 5, "the collection is to show something"
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    for percent in (1, 30, 50, 80, 95, 99):
        set_slider(page, percent)
        size = sizes[percent - 1]
        assert page.locator("#slider-label").inner_text() == f"Credible level {percent} %"
        assert page.locator("#size").inner_text() == f"{size} item{'' if size == 1 else 's'}"
        assert page.locator("#tab-size").inner_text() == str(size)
        has_count(tiles(page), min(size, 200))
    page.locator("#slider").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#size").inner_text().split()[0] == str(sizes[97])
    assert [url for url in requests if "/api/query" in url] == []  # live: no request was needed


def test_why_a_hit_is_there(visit, client):
    page = visit().open()
    ask_about_upload(page)
    set_slider(page, 95)
    hit = client.post("/api/query/image", params={"limit": 1}, content=BLURRED).json()["hits"][0]
    first = tiles(page).first
    assert first.locator(".who b").inner_text() == hit["id"]
    match, certainty, cosine, kappa = first.locator("dd").all_inner_texts()
    assert certainty.replace("\N{NO-BREAK SPACE}", " ") == certainty_in_words(hit["likeliest"], hit["surer_than"])
    assert cosine == f"{hit['cosine']:.3f}"
    assert float(kappa.replace(",", "")) == pytest.approx(hit["kappa"], rel=0.01)
    chance = ">99" if hit["match_probability"] > 0.995 else round(100 * hit["match_probability"])
    assert match == f"{chance}\N{NO-BREAK SPACE}%"
    assert re.search(r"within \d+\.\d° of the query", page.locator("#rule").inner_text())


@pytest.mark.slow
def test_other_ways_to_search(visit):
    page = visit().open("/#item=" + "circle-0")
    page.locator("#query-title", has_text="circle-0").wait_for()
    page.get_by_text("Likely matches").click()
    page.locator("#rule", has_text="with a probability of at least").wait_for()
    for percent in (10, 60, 90):
        set_slider(page, percent)
        chances = [
            int(text.split()[0].strip("<>"))
            for text in page.locator(".tile:not([hidden]) dd:last-child").all_inner_texts()
            if "%" in text
        ]
        assert all(chance >= percent for chance in chances)
    page.get_by_text("Nearest", exact=True).click()
    page.locator("#rule", has_text="nearest in direction").wait_for()
    page.locator("#slider").wait_for(state="hidden")
    has_count(tiles(page), 89)


def test_a_promised_set_and_its_promise(visit, run, root, artefacts):
    """The radio button is there for new questions of a calibrated index, and says what is promised."""
    shapes = [SHAPES[i % 3] for i in range(60)]
    images = [draw(shape, COLOURS[0], blur=0.2 + i % 10, shift=i % 5 - 2) for i, shape in enumerate(shapes)]
    with shape_index(root, run) as index:
        index.calibrate(run.posteriors(images), shapes, 0.9, error=0.5, assurance=0.6)
        stored = index.promise.to_dict()
        stored["rejection"]["threshold"] = 2.0  # above any confidence, so that nothing is sure enough
        index.store.configure(promise=stored)
        with serving(create_app(index, run=run, root=root)) as address:
            page = visit(address).open()
            ask_about_upload(page)
            page.get_by_text("Promised set", exact=True).first.click()
            page.locator("#rule", has_text="right answer for 90").wait_for()
            page.locator("#unsure", has_text="Not sure enough to answer").wait_for()
            page.locator("#slider").wait_for(state="hidden")
            labels = page.locator("#grid .tile:not([hidden]) .who > span").all_inner_texts()
            assert len(labels) == len(set(labels)) >= 1
            page.screenshot(path=artefacts / "promised-set.png")
            page.locator("#grid .tile .open").first.click()
            page.locator("#query-title", has_text="-").wait_for()
            page.locator("#by-promised").wait_for(state="hidden")
            assert page.locator("#unsure").is_hidden()
            assert page.locator('input[name="by"]:checked').input_value() == "credible"
            index.remove(["circle-0"])
            page = visit(address).open()
            ask_about_upload(page)
            page.locator("#promise-void", has_text="items have changed since").wait_for()
            assert page.locator("#by-promised").is_hidden()


def test_click_through_to_a_hit_and_back(visit):
    page = visit().open()
    ask_about_upload(page)
    set_slider(page, 99)
    name = tiles(page).nth(1).locator(".who b").inner_text()
    tiles(page).nth(1).locator(".open").click()
    page.locator("#query-title", has_text=name).wait_for()
    assert f"#item=%22{name}%22" in page.url
    assert "label: " in page.locator("#query-label").inner_text()
    assert name not in tiles(page).locator(".who b").all_inner_texts()  # not its own hit
    page.go_back()
    page.locator("#query-title", has_text="mine.png").wait_for()
    page.get_by_role("button", name="Clear").click()
    page.locator("#query").wait_for(state="hidden")
    has_count(tiles(page), 48)


@pytest.mark.slow
def test_an_image_can_be_dropped_anywhere(visit):
    page = visit().open()
    tiles(page).first.wait_for()
    page.evaluate(
        """(bytes) => {
            const held = new DataTransfer();
            held.items.add(new File([new Uint8Array(bytes)], "dropped.png", { type: "image/png" }));
            for (const kind of ["dragenter", "dragover", "drop"])
                document.querySelector("#panel").dispatchEvent(
                    new DragEvent(kind, { bubbles: true, cancelable: true, dataTransfer: held })
                );
        }""",
        list(BLURRED),
    )
    page.locator("#query-title", has_text="dropped.png").wait_for()


def test_marking_and_downloading(visit, artefacts):
    page = visit().open()
    tiles(page).first.wait_for()
    names = tiles(page).locator(".who b").all_inner_texts()
    tiles(page).nth(0).hover()
    tiles(page).nth(0).locator(".mark").click()
    tiles(page).nth(1).locator(".open").focus()
    page.keyboard.press("m")
    tiles(page).nth(2).locator(".open").focus()
    page.keyboard.press("m")
    page.keyboard.press("m")  # and off again
    assert page.locator("#marked-count").inner_text() == "2"
    page.reload()  # marks stay
    page.locator("#marked-count.some").wait_for()
    page.locator("#show-marked").click()
    page.get_by_label(f"New label of {names[1]}").fill('=a "blurred", one')
    page.screenshot(path=artefacts / "marked.png")
    with page.expect_download() as table:
        page.locator("#download-csv").click()
    rows = list(csv.DictReader(io.StringIO(Path(table.value.path()).read_text())))
    assert [row["id"] for row in rows] == names[:2]
    assert rows[1]["new_label"] == '\'=a "blurred", one'  # which a spreadsheet would run without the apostrophe
    assert all(row["path"].endswith(".png") and float(row["kappa"]) > 0 and row["label"] for row in rows)
    with page.expect_download() as listing:
        page.locator("#download-json").click()
    assert [row["id"] for row in json.loads(Path(listing.value.path()).read_text())] == names[:2]
    page.get_by_role("button", name="Unmark all").click()
    page.keyboard.press("Escape")
    assert page.locator("#marked").is_hidden()
    assert page.locator("#marked-count").inner_text() == "0"
    has_count(page.locator('.mark[aria-pressed="true"]'), 0)


def test_errors_are_said_and_the_page_goes_on(visit, artefacts):
    visitor = visit()
    visitor.expected = ["Failed to load resource"]  # what the browser says of any 4xx
    page = visitor.open()
    tiles(page).first.wait_for()
    upload(page, b"this is a text", "notes.png")
    alert = page.get_by_role("alert")
    alert.get_by_text("This file is not an image that the server can read").wait_for()
    page.screenshot(path=artefacts / "error.png")
    has_count(tiles(page), 48)
    page.get_by_role("button", name="Dismiss").click()
    assert alert.is_hidden()
    page.locator("#id").fill("no such item")
    page.locator("#id").press("Enter")
    page.locator("#alert", has_text="No item has the id").wait_for()
    ask_about_upload(page)
    assert alert.is_hidden()


def test_everything_by_keyboard(visit):
    page = visit().open()
    tiles(page).first.wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = []
    for _ in range(16):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
    for id in ("show-marked", "file", "id", "tab-least-sure", "label", "open", "more"):
        assert id in reached, reached
    assert reached.count("open") == 1  # the grid is one stop; arrows walk it

    def here():
        return page.evaluate("[...document.querySelectorAll('#grid .open')].indexOf(document.activeElement)")

    tiles(page).first.locator(".open").focus()
    columns = page.evaluate("getComputedStyle(document.querySelector('#grid')).gridTemplateColumns.split(' ').length")
    steps = []
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "ArrowUp", "End", "Home"):
        page.keyboard.press(key)
        steps.append(here())
    assert steps == [1, 1 + columns, columns, 0, 0, 47, 0]
    name = tiles(page).first.locator(".who b").inner_text()
    page.keyboard.press("Enter")
    page.locator("#query-title", has_text=name).wait_for()
    assert here() == 0  # on the first hit
    page.locator("#tab-answer").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#tab-least-sure").get_attribute("aria-selected") == "true"
    page.keyboard.press("ArrowRight")
    page.locator("#status", has_text="the most certain first").wait_for()


def test_everything_has_a_name(visit):
    """Whatever takes the focus says what it is."""
    page = visit().open("/#item=circle-0")
    page.locator("#query-title", has_text="circle-0").wait_for()
    nameless = page.evaluate(
        """[...document.querySelectorAll("button, input, select, textarea, a[href], [role=img], [role=tabpanel]")]
            .filter((one) => !(one.getAttribute("aria-label") || one.labels?.[0]?.textContent.trim()
                || one.textContent.trim() || document.getElementById(one.getAttribute("aria-labelledby"))))
            .map((one) => one.outerHTML)"""
    )
    assert nameless == []


def test_surest_items_labels_and_the_reject_curve(visit, artefacts):
    page = visit().open()
    tiles(page).first.wait_for()
    page.get_by_role("tab", name="Most certain").click()
    page.locator("#status", has_text="the most certain first").wait_for()
    page.locator("#label").select_option("square")
    page.locator("#status", has_text="30 items of 30").wait_for()
    assert set(page.locator(".who > span").all_inner_texts()) == {"square"}
    page.locator("#label").select_option("")
    page.locator("#status", has_text="48 items of 90").wait_for()
    page.get_by_role("button", name="Show more").click()
    page.locator("#status", has_text="90 items of 90").wait_for()
    assert page.get_by_role("button", name="Show more").is_hidden()
    page.get_by_role("tab", name="Reject curve").click()
    page.locator("#curve svg").wait_for()
    has_count(page.locator("#curve .point"), 20)
    has_count(page.locator("#curve tr"), 21)
    assert page.locator("#curve .area").bounding_box()["height"] > 5  # a band says how far chance reaches
    assert "Measured on 90 labelled items" in page.locator("#curve").inner_text()
    page.screenshot(path=artefacts / "reject-curve.png")


@pytest.mark.slow
def test_a_collection_of_texts(visit, browser, artefacts):
    run = text_run()
    with serving(create_app(text_index(run), run=run)) as address:
        page = visit(address).open()
        tiles(page).first.wait_for()
        assert page.locator("#drop").is_hidden()
        page.get_by_label("A text of your own").fill("The bank raised its interest rates again.")
        page.locator("#text-form button").click()
        page.locator("#query-title", has_text="Your text").wait_for()
        page.get_by_text("Nearest", exact=True).click()
        page.locator("#rule", has_text="nearest in direction").wait_for()
        assert "interest rates" in tiles(page).first.inner_text()
        page.screenshot(path=artefacts / "texts.png")
        page.context.close()  # before its server goes


@pytest.mark.slow
def test_a_collection_of_features(visit, artefacts, index):
    bare = VonMisesFisher(torch.nn.functional.normalize(torch.randn(60, 8), dim=-1), torch.rand(60) * 100)
    with serving(create_app(CredibleIndex.build(bare), run=feature_run())) as address:
        page = visit(address).open()
        tiles(page).first.wait_for()
        has_count(page.locator(".tile .glyph"), 48)
        assert page.get_by_role("tab", name="Reject curve").is_hidden()
        page.get_by_label("5 features of your own").fill("1, 0.5 -2; 3 [4]")
        page.locator("#features-form button").click()
        page.locator("#query-title", has_text="Your features").wait_for()
        page.screenshot(path=artefacts / "features.png")
        page.get_by_label("5 features of your own").fill("1, two")
        page.locator("#features-form button").click()
        page.locator("#alert", has_text="Features are numbers").wait_for()
        page.context.close()


def test_what_a_question_could_be_and_what_is_unlike(visit, run, tmp_path):
    """A collection with label probabilities, and a model that flags what it has not seen."""
    views = posteriors_and_views(run.encoder, run.inputs.prepare(SHAPES_SEEN))[1]
    first, second = ({name: view[half::2] for name, view in views.items()} for half in (0, 1))
    with shape_index(tmp_path, run) as index:
        index.store.configure(labels={"kappa_pos": "20.0", "beta": 0.7, "floor": 0.01})
        known = replace(run, answers=Answers(None, fit_novelty(first, second)))
        with serving(create_app(index, run=known, root=tmp_path)) as address:
            page = visit(address).open()
            ask_about_upload(page)
            page.locator("#query-could-be", has_text=re.compile(r"^Could be \w+: [\d<>]+\s%")).wait_for()
            assert page.locator("#query-unlike").is_hidden()
            upload(page, png(Image.new("RGB", (32, 32), (0, 255, 0))), "green.png")
            page.locator("#query-title", has_text="green.png").wait_for()
            page.locator("#query-unlike", has_text="Unlike anything seen").wait_for(state="visible")


def test_what_a_collection_says_is_text(visit):
    """Ids, labels and texts that are HTML are shown, not run."""
    evil = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
    index = CredibleIndex.build(
        VonMisesFisher(torch.eye(3), 5.0),
        [evil, "b", "c"],
        [{"label": evil, "text": evil}, {"text": "b"}, {"text": "c"}],
    )
    with serving(create_app(index)) as address:
        page = visit(address).open()
        tiles(page).first.wait_for()
        assert evil in page.locator(".words").all_inner_texts()
        page.locator(".open", has_text=evil).first.click()
        page.locator("#query-title", has_text="onerror").wait_for()
        assert "run" not in page.title()
        page.context.close()


@pytest.mark.slow
def test_the_token_opens_the_page(visit, index):
    token = "a-token_of-24-characters"
    with serving(create_app(index, token=token)) as address:
        visitor = visit(address)
        page = visitor.open(f"/?token={token}")
        tiles(page).first.wait_for()
        assert page.url == address + "/"
        visitor.expected = ["Failed to load resource"]
        page.context.clear_cookies()
        page.reload()
        assert "token is missing" in page.locator("body").inner_text()
        page.context.close()


@pytest.mark.slow
def test_screenshots_of_a_larger_collection(visit, tmp_path, run, artefacts):
    with (
        shape_index(tmp_path, run, count=600, side=128) as index,
        serving(create_app(index, run=run, root=tmp_path)) as at,
    ):
        page = visit(at, viewport={"width": 1440, "height": 1000}).open()
        ask_about_upload(page)
        assert tiles(page).count() > 0
        page.screenshot(path=artefacts / "large.png")
        page.context.close()


def test_a_collection_that_changes_is_told_and_shown(browser, tmp_path):
    place = tmp_path / "index"
    CredibleIndex.build(VonMisesFisher(torch.eye(4), 50.0), ["a", "b", "c", "d"], location=place).close()
    with CredibleIndex.open(place) as index, serving(create_app(index, limits=Limits(refresh=0.1))) as address:
        visit = Visit(browser, address)
        page = visit.open()
        page.locator("#facts", has_text="4 items").wait_for()
        assert page.locator("#changed").is_hidden()
        with CredibleIndex.open(place) as other:
            other.add(VonMisesFisher(torch.eye(1, 4), 1.0), ["newcomer"])
        page.locator("#facts", has_text="5 items").wait_for()
        page.locator("#changed").click()
        page.locator("#grid", has_text="newcomer").wait_for()
        assert page.locator("#changed").is_hidden()
        page.locator("#grid .open").first.click()
        page.locator("#query-title", has_text="newcomer").wait_for()
        visit.context.close()
        assert visit.findings == []
