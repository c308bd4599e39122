"""What the page claims, for a person who has never heard of kappa: in words, above the answer, for every reader.

axe-core looks for what keeps people with disabilities out: contrast, names, roles, order.
"""

import csv
import io
import os
from pathlib import Path

import pytest

from aleator.foundation import percent
from aleator.retrieval import certainty_in_words
from aleator.web import create_app
from tests.web.browser import Visit, serving
from tests.web.shapes import draw, png, shape_index

DESK, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
BLURRED = png(draw("circle", (52, 110, 160), 3.0))


@pytest.fixture(scope="module")
def address(run, audit_folder, tmp_path_factory):
    """A collection with pictures, label probabilities, a model and an audit."""
    root = tmp_path_factory.mktemp("pictures")
    with shape_index(root, run) as index:
        index.store.configure(labels={"kappa_pos": "20.0", "beta": 0.7, "floor": 0.01})
        with serving(create_app(index, run=run, root=root, audit=audit_folder)) as address:
            yield address


@pytest.fixture
def visit(browser, address):
    made = []

    def make(**options):
        made.append(Visit(browser, address, **options))
        return made[-1].open()

    yield make
    findings = [one for each in made for one in each.findings]
    for each in made:
        each.context.close()
    assert findings == []


def ask(page, data: bytes = BLURRED, name: str = "mine.png"):
    page.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": data})
    page.locator("#query-title", has_text=name).wait_for()


def seen(page):
    return page.locator("#grid .tile:not([hidden])")


def top(page, selector: str) -> float:
    return page.locator(selector).first.bounding_box()["y"]


def test_the_words_are_explained_on_arrival(visit):
    page = visit()
    page.locator("#intro").wait_for()
    assert page.locator("#intro dt").all_inner_texts() == ["Certainty", "Credible level", "Match"]
    assert "its wide beam reaches items of three kinds" in page.locator("#intro-picture svg").get_attribute(
        "aria-label"
    )
    page.get_by_role("button", name="Got it").click()
    page.locator("#intro").wait_for(state="hidden")
    page.reload()
    seen(page).first.wait_for()
    assert page.locator("#intro").is_hidden()  # it was read
    page.get_by_role("button", name="What do these words mean?").press("Enter")
    page.locator("#intro").wait_for()
    assert page.evaluate("document.activeElement.id") == "intro-close"


def test_page_and_commands_use_the_same_words(visit):
    shares = [0, 0.01, 0.05, 0.2, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1]
    asked = [(likeliest, 0.02) for likeliest in shares] + [(None, share) for share in shares]
    script = "(asked) => import('/static/words.js').then((words) => asked.map((one) => words.certaintyWords(...one)))"
    page = visit()
    said = [text.replace("\N{NO-BREAK SPACE}", " ") for text in page.evaluate(script, asked)]
    assert said == [certainty_in_words(*one) for one in asked]
    ends = [0, 0.0001, 0.004, 0.005, 0.006, 0.5, 0.994, 0.995, 0.996, 0.9999, 1]
    script = "(shares) => import('/static/words.js').then((words) => shares.map(words.percent))"
    shown = [text.replace("\N{NO-BREAK SPACE}", " ") for text in page.evaluate(script, ends)]
    assert shown == [percent(share) for share in ends]


def test_the_claim_stands_above_the_hits(visit):
    page = visit()
    ask(page)
    assert page.locator("#query-could-be").inner_text().startswith("Could be ")
    assert top(page, "#query-could-be") < top(page, "#shares") < top(page, "#grid .tile")
    assert page.locator("#certainty-sentence").inner_text().startswith("Certainty of the label: ")
    assert page.locator("#certainty-of-labels").is_visible()
    assert "that it could be, at a credible level of 95 %" in page.locator("#status").inner_text()
    labels = seen(page).locator(".who > span").all_inner_texts()
    shares = page.locator("#shares .share").all_inner_texts()
    for text in shares:
        label, number = text.split(": ")
        assert labels.count(label) == int(number)
    assert "%" not in "".join(shares)  # next to the probabilities of the labels these would be two answers
    assert {text.split(":")[0] for text in shares} == set(labels)


def test_filters_of_an_answer(visit):
    page = visit()
    ask(page)
    page.locator("#slider").fill("99")
    labels = seen(page).locator(".who > span").all_inner_texts()
    assert len(set(labels)) > 1
    button = page.locator("#shares .share").first
    label = button.inner_text().split(":")[0]
    button.click()
    assert set(seen(page).locator(".who > span").all_inner_texts()) == {label}
    assert page.locator("#shares .share").first.get_attribute("aria-pressed") == "true"
    assert f"{labels.count(label)} of them pass the filter" in page.locator("#status").inner_text()
    page.locator("#shares .share").first.click()  # and off again
    assert seen(page).count() == len(labels)
    page.locator("#find").fill("SQUARE-1")
    names = seen(page).locator(".who b").all_inner_texts()
    assert all("square-1" in name for name in names)
    page.locator("#find").fill("no such thing")
    page.locator("#empty", has_text="No item of the answer passes the filter").wait_for()


def test_items_are_found_by_a_part_of_their_id(visit):
    page = visit()
    page.locator("#find").fill("angle-4")
    page.locator("#status", has_text="items of 4").or_(page.locator("#status", has_text="of 3,")).first.wait_for()
    names = seen(page).locator(".who b").all_inner_texts()
    assert names
    assert all("triangle-4" in name for name in names)


def test_a_long_id_is_cut_in_the_middle(visit):
    """Ids of one folder begin alike. Their ends must be seen."""
    page = visit()
    seen(page).first.wait_for()
    tail = page.evaluate(
        """(id) => import("/static/tiles.js").then(({ tile }) => {
          const item = { id, key: id, kappa: 5, surer_than: 0.5, likeliest: null, label: "x", text: "x", image: false };
          const box = tile(item, { has: () => false }, () => {});
          document.getElementById("grid").prepend(box);
          const [range, name] = [document.createRange(), box.querySelector(".who b")];
          range.selectNodeContents(name);
          range.setStart(name.lastChild, Math.max(0, name.lastChild.length - 6));
          return [range.toString(), name.getBoundingClientRect().right - range.getBoundingClientRect().right];
        })""",
        "n03599486/a-very-long-name-of-a-picture-that-fits-no-tile-00042.JPEG",
    )
    assert tail[0] == "2.JPEG"
    assert tail[1] >= 0


def test_numbers_are_there_on_request(visit):
    page = visit()
    seen(page).first.wait_for()
    assert page.locator(".tile .number").first.is_hidden()
    page.get_by_role("checkbox", name="Numbers").check()
    assert page.locator(".tile .number").first.is_visible()


def test_a_question_of_ones_own_survives_a_reload(visit):
    page = visit()
    ask(page)
    hits = seen(page).locator(".who b").all_inner_texts()
    page.reload()
    page.locator("#query-title", has_text="mine.png").wait_for()
    assert seen(page).locator(".who b").all_inner_texts() == hits
    assert page.locator("#query-face img").evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 32


@pytest.mark.parametrize("damaged", ["#item=50%", "#text=%E4%", "#item=50%25%"])
def test_a_damaged_address_is_told_of_and_the_collection_is_shown(damaged, browser, address):
    visit = Visit(browser, address)
    page = visit.open("/" + damaged)
    page.locator("#alert", has_text="The address of this page is cut off or damaged").wait_for()
    seen(page).first.wait_for()
    page.goto(address + "/#item")  # no question at all
    assert page.locator("#query").is_hidden()
    visit.context.close()
    assert visit.findings == []


def test_a_file_that_is_no_image_leaves_the_image_before_it(browser, address):
    visit = Visit(browser, address)
    visit.expected = ["status of 415", "status of 422", "status of 400"]
    page = visit.open()
    ask(page)
    page.set_input_files("#file", {"name": "no.png", "mimeType": "image/png", "buffer": b"no image"})
    page.get_by_role("alert").get_by_text("not an image").wait_for()
    page.reload()
    page.locator("#query-title", has_text="mine.png").wait_for()
    visit.context.close()
    assert visit.findings == []


def test_on_a_phone_the_answer_comes_before_the_controls(visit):
    page = visit(viewport=PHONE)
    seen(page).first.wait_for()
    assert top(page, "#ask") < top(page, "#intro") < top(page, "#grid") < top(page, "#certainty")
    ask(page)
    assert (
        top(page, "#certainty")
        < top(page, "#query-could-be")
        < top(page, "#grid")
        < top(page, "#level")
        < top(page, "#ask")
    )
    assert top(page, "#grid") < PHONE["height"]  # some of the answer is on the first screen
    page.get_by_role("button", name="Change the search").click()
    assert page.evaluate("document.activeElement.id") == "slider"
    assert abs(top(page, "#level")) < PHONE["height"] / 2


def test_two_questions_side_by_side(visit):
    page = visit()
    ask(page)
    page.get_by_role("button", name="Compare").press("Enter")
    page.locator("#beside", has_text="Now ask a second question").wait_for()
    seen(page).nth(2).locator(".open").click()
    titles = page.locator("#beside article h2")
    titles.nth(1).wait_for()
    first, second = titles.all_inner_texts()
    assert (first, second) == ("mine.png", page.locator("#query-title").inner_text())
    facts = page.locator("#beside dd").all_inner_texts()
    assert facts[2] != facts[5] or facts[0] != facts[3]
    assert facts[5] == page.locator("#size").inner_text()
    assert "to both answers" in page.locator("#beside-both").inner_text()
    page.get_by_role("tab", name="Most certain").click()
    page.locator("#beside").wait_for(state="hidden")  # it belongs to the answers
    page.get_by_role("tab", name="Could be").click()
    page.get_by_role("button", name="Stop comparing").press("Enter")
    page.locator("#beside").wait_for(state="hidden")
    assert page.evaluate("document.activeElement.id") == "query-compare"


def test_findings_are_marked_with_the_likelier_label(visit):
    page = visit()
    page.get_by_role("tab", name="Audit").click()
    page.locator("#status", has_text="Mark those that are wrong, then download them").wait_for()
    page.get_by_role("button", name="Mark all that are shown").press("Enter")
    page.locator("#finding").select_option("odd-ones")
    page.locator("#status", has_text="twice as far from their neighbours").wait_for()
    seen(page).first.locator(".open").focus()
    page.keyboard.press("m")
    page.locator("#show-marked").click()
    with page.expect_download() as table:
        page.locator("#download-csv").click()
    rows = list(csv.DictReader(io.StringIO(Path(table.value.path()).read_text())))
    assert [(row["id"], row["why"], row["new_label"]) for row in rows] == [
        ("square-4", "label error: square or circle", "circle"),
        ("circle-3", "label error: circle or triangle", "triangle"),
        ("triangle-2", "odd one out", ""),
    ]


@pytest.fixture(scope="module")
def axe() -> str:
    package = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    return (Path(package.__file__).parent / "axe.min.js").read_text()


def serious_problems(page, axe: str, name: str) -> dict:
    """What axe finds that is serious or critical: the rule, and the elements."""
    if "ALEATOR_ARTEFACTS" in os.environ:
        page.wait_for_load_state("networkidle")
        page.screenshot(path=Path(os.environ["ALEATOR_ARTEFACTS"]) / f"{name}.png")
    page.evaluate(axe)
    result = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    assert len(result["passes"]) > 20  # it has looked
    serious = [one for one in result["violations"] if one["impact"] in ("serious", "critical")]
    return {(name, one["id"]): [node["html"] for node in one["nodes"]] for one in serious}


@pytest.mark.slow
def test_axe_finds_what_is_wrong(visit, axe):
    """A page with a faint text and a button without a name."""
    page = visit()
    seen(page).first.wait_for()
    page.evaluate("document.getElementById('facts').style.color = '#ddd'")
    page.evaluate("document.getElementById('show-intro').textContent = ''")
    assert {rule for _, rule in serious_problems(page, axe, "bad")} == {"color-contrast", "button-name"}


@pytest.mark.parametrize(("viewport", "scheme"), [(DESK, "light"), (PHONE, "dark")])
def test_nobody_is_kept_out(visit, axe, viewport, scheme):
    page = visit(viewport=viewport, color_scheme=scheme)
    page.locator("#find").fill("circle-1")  # fewer items, which axe looks at one by one
    page.locator("#status", has_text="3 items of 3").wait_for()
    assert serious_problems(page, axe, f"few-{scheme}") == {}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_nobody_is_kept_out_anywhere(visit, axe, viewport, scheme):
    page = visit(viewport=viewport, color_scheme=scheme)
    problems = {}

    def look(name: str) -> None:
        problems.update(serious_problems(page, axe, f"{name}-{viewport['width']}-{scheme}"))

    seen(page).first.wait_for()
    look("arrival")
    ask(page)
    look("answer")
    page.get_by_role("button", name="Compare").click()
    seen(page).nth(1).locator(".open").click()
    page.locator("#beside article h2").nth(1).wait_for()
    look("compare")
    page.get_by_role("tab", name="Audit").click()
    page.get_by_role("button", name="Mark all that are shown").click()
    look("audit")
    page.locator("#show-marked").click()
    look("marked")
    page.keyboard.press("Escape")
    page.get_by_role("tab", name="Reject curve").click()
    page.locator("#curve svg").wait_for()
    look("curve")
    assert problems == {}
