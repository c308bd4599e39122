"""What the page shows when answers are late or missing, and when it is open twice."""

import csv
import io
from pathlib import Path

import pytest

from aleator.web import create_app
from tests.web.browser import Visit, serving
from tests.web.shapes import shape_index


@pytest.fixture(scope="module")
def address(run, audit_folder, tmp_path_factory):
    """A collection with pictures and an audit."""
    root = tmp_path_factory.mktemp("pictures")
    with shape_index(root, run) as index, serving(create_app(index, run=run, root=root, audit=audit_folder)) as address:
        yield address


@pytest.fixture
def visit(browser, address):
    visit = Visit(browser, address)
    yield visit
    visit.context.close()
    assert visit.findings == []


def seen(page):
    return page.locator("#grid .tile:not([hidden])")


def tab(page, name: str):
    return page.get_by_role("tab", name=name)


def status(page, text: str):
    page.locator("#status", has_text=text).wait_for()


def hold(page, address: str) -> list:
    """Requests to the address wait in the list, until the test lets them go on."""
    held = []
    page.route(address, lambda route: held.append(route))  # playwright marks its handlers
    return held


def open_item(page):
    seen(page).first.locator(".open").click()
    status(page, "that it could be")


def test_a_late_list_does_not_take_the_place_of_the_answer(visit):
    page = visit.open()
    open_item(page)
    answered = page.locator("#status").inner_text()
    held = hold(page, "**/api/items*")
    with page.expect_request("**/api/items*"):
        tab(page, "Least certain").click()
    tab(page, "Could be").click()
    status(page, answered)
    for request in held:
        request.continue_()
    page.wait_for_timeout(300)  # nothing may come
    assert page.locator("#status").inner_text() == answered
    assert page.locator("#more").is_hidden()
    page.locator("#slider").fill("99")
    assert seen(page).count() > 0


def test_a_late_list_does_not_take_the_place_of_the_curve(visit):
    page = visit.open()
    seen(page).first.wait_for()
    held = hold(page, "**/api/items*")
    with page.expect_request("**/api/items*"):
        tab(page, "Most certain").click()
    tab(page, "Reject curve").click()
    status(page, "How often the nearest neighbour")
    for request in held:
        request.continue_()
    page.wait_for_timeout(300)
    status(page, "How often the nearest neighbour")
    assert page.locator("#more").is_hidden()


def test_a_list_that_fails_leaves_no_items_of_another_list(visit):
    visit.expected = ["ERR_FAILED"]
    page = visit.open()
    seen(page).first.wait_for()
    page.route("**/api/items*", lambda route: route.abort())
    tab(page, "Most certain").click()
    page.locator("#alert", has_text="The server cannot be reached").wait_for()
    assert seen(page).count() == 0
    assert page.locator("#status").inner_text() == ""
    page.unroute("**/api/items*")
    tab(page, "Least certain").click()
    status(page, "the least certain first")
    assert page.locator("#alert").is_hidden()  # the error is over


def test_a_page_that_could_not_start_tries_again(visit):
    visit.expected = ["ERR_FAILED"]
    page = visit.page
    page.route("**/api/collection", lambda route: route.abort())
    page.goto(visit.address)
    page.locator("#alert", has_text="The page tries again until it gets an answer").wait_for()
    page.unroute("**/api/collection")
    seen(page).first.wait_for()
    assert page.locator("#alert").is_hidden()
    tab(page, "Most certain").click()
    status(page, "the most certain first")


def test_a_page_without_permission_does_not_try_again(visit):
    visit.expected = ["status of 401"]
    page, asked = visit.page, []

    def refuse(route):
        asked.append(route)
        route.fulfill(status=401, json={"detail": "the token is wrong"})

    page.route("**/api/collection", refuse)
    page.goto(visit.address)
    page.locator("#alert", has_text="The token is wrong").wait_for()
    page.wait_for_timeout(4000)
    assert len(asked) == 1
    assert "tries again" not in page.locator("#alert").inner_text()


def test_compared_questions_have_the_size_that_the_slider_chose(visit):
    page = visit.open()
    open_item(page)
    page.locator('input[name="by"][value="match"]').check()
    status(page, "with a match probability of 50 % or more")
    page.locator("#slider").fill("90")
    status(page, "with a match probability of 90 % or more")
    page.get_by_role("button", name="Compare").click()
    answer = page.locator("#beside dd").nth(2)
    assert answer.inner_text() == page.locator("#size").inner_text()
    assert int(answer.inner_text().split()[0]) == seen(page).count() < page.locator("#grid .tile").count()


def test_marks_of_two_tabs_come_together(visit):
    first = visit.open()
    seen(first).nth(3).wait_for()
    second = visit.context.new_page()
    second.goto(visit.address)
    seen(second).nth(3).wait_for()
    seen(first).nth(0).locator(".mark").click()
    second.locator("#marked-count", has_text="1").wait_for()  # it follows
    assert seen(second).nth(0).locator('.mark[aria-pressed="true"]').count() == 1
    # A tab that has missed a change, as if it had slept meanwhile.
    second.evaluate("window.addEventListener('storage', (event) => event.stopImmediatePropagation(), true)")
    seen(first).nth(1).locator(".mark").click()
    seen(second).nth(2).locator(".mark").click()
    assert second.locator("#marked-count").inner_text() == "3"
    first.locator("#marked-count", has_text="3").wait_for()
    first.reload()
    first.locator("#marked-count", has_text="3").wait_for()


def test_marking_all_findings_completes_the_marks_that_are_there(visit):
    page = visit.open()
    page.locator("#find").fill("square-4")
    page.locator("""#grid .tile[data-key='"square-4"'] .mark""").click()
    tab(page, "Audit").click()
    status(page, "another label is at least 10 times as probable")
    for _ in range(2):  # the second time changes nothing
        page.get_by_role("button", name="Mark all that are shown").click()
    page.locator("#show-marked").click()
    with page.expect_download() as table:
        page.locator("#download-csv").click()
    rows = list(csv.DictReader(io.StringIO(Path(table.value.path()).read_text())))
    assert [(row["id"], row["why"], row["new_label"]) for row in rows] == [
        ("square-4", "label error: square or circle", "circle"),
        ("circle-3", "label error: circle or triangle", "triangle"),
    ]


def test_findings_that_were_left_out_are_told_of(visit):
    page = visit.open()
    tab(page, "Audit").click()
    status(page, "Left out: 1 finding about items or labels that this collection does not have")
    page.locator("#finding").select_option("odd-ones")
    status(page, "twice as far from their neighbours")
    assert "Left out" not in page.locator("#status").inner_text()
