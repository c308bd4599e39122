"""Findings of an audit in the API and on the page."""

import os
import shutil

import pytest
import torch
from fastapi.testclient import TestClient

import aleator as al
from aleator.web import create_app
from tests.web.browser import Visit, browsing, serving


@pytest.fixture(scope="module")
def audited(index, root, audit_folder):
    return create_app(index, root=root, audit=audit_folder)


def test_suspicious_labels_come_in_the_order_of_the_audit(audited):
    client = TestClient(audited)
    page = client.get("/api/findings").json()
    assert page["total"] == 2  # those of the collection for which another label is at least 10 times as probable
    first, second = page["items"]
    assert (first["id"], first["given"], first["likelier"], first["p_likelier"]) == (
        "square-4",
        "square",
        "circle",
        0.95,
    )
    assert first["image"]
    assert first["group"] is None
    assert second["id"] == "circle-3"
    assert client.get("/api/findings", params={"offset": 1, "limit": 1}).json()["items"] == [second]


def test_other_findings(audited):
    client = TestClient(audited)
    pair = client.get("/api/findings", params={"kind": "near-duplicates"}).json()["items"]
    assert [(one["id"], one["group"], one["labels_differ"]) for one in pair] == [
        ("circle-0", 1, True),
        ("square-1", 1, True),
    ]
    (odd,) = client.get("/api/findings", params={"kind": "odd-ones"}).json()["items"]
    assert (odd["id"], odd["distance"], odd["likelier"]) == ("triangle-2", 3.25, None)
    found = client.get("/api/collection").json()["findings"]
    assert found == {"label-errors": 2, "near-duplicates": 2, "odd-ones": 1}


def test_findings_that_do_not_fit_the_collection_are_left_out_and_counted(index, root, audit_folder, tmp_path, caplog):
    audited = TestClient(create_app(index, root=root, audit=audit_folder))
    assert audited.get("/api/findings").json()["left_out"] == 1  # an item that the index does not have
    shutil.copytree(audit_folder, tmp_path / "other")
    table = tmp_path / "other" / "label_errors.csv"
    table.write_text(table.read_text().replace("circle-3,circle,triangle", "circle-3,square,triangle"))
    caplog.clear()
    other = TestClient(create_app(index, root=root, audit=tmp_path / "other"))
    page = other.get("/api/findings").json()
    assert ([one["id"] for one in page["items"]], page["left_out"]) == (["square-4"], 2)
    assert "2 of 6 findings of the audit" in caplog.text


def test_findings_about_items_that_have_changed_since_are_left_out(tmp_path, audit_folder):
    """The item of the index has another content than the one that was audited; its label is the same."""
    audit = shutil.copytree(audit_folder, tmp_path / "audit")
    table = audit / "label_errors.csv"
    table.write_text(table.read_text().replace("0.95,4.55,", "0.95,4.55,00aa").replace("0.6,0.69,", "0.6,0.69,00bb"))
    notes = [{"label": "square", "content": "00ff"}, {"label": "circle", "content": "00bb"}]
    q = al.VonMisesFisher(torch.eye(2), 5.0)
    with al.CredibleIndex.build(q, ids=["square-4", "circle-3"], metadata=notes) as index:
        page = TestClient(create_app(index, audit=audit)).get("/api/findings").json()
    assert ([one["id"] for one in page["items"]], page["left_out"]) == (["circle-3"], 2)


def test_without_an_audit(client):
    assert client.get("/api/collection").json()["findings"] == {}
    answer = client.get("/api/findings")
    assert answer.status_code == 404
    assert "start the server with --audit" in answer.json()["detail"]


def test_a_folder_that_is_no_audit(index, tmp_path):
    with pytest.raises(ValueError, match=r"has no summary.json; name a folder that `aleator audit` finished"):
        create_app(index, audit=tmp_path)


def test_a_damaged_table(index, tmp_path):
    (tmp_path / "summary.json").write_text("{}")
    (tmp_path / "label_errors.csv").write_text("rank,identity\n1,circle-0\n2,circle-3\n3,circle-6\n4,circle-9\n5,x\n")
    with pytest.raises(ValueError, match=r"label_errors.csv'?: has other columns; make the audit again"):
        create_app(index, audit=tmp_path)


def test_the_page_shows_findings(audited, tmp_path):
    with browsing() as browser, serving(audited) as address:
        visit = Visit(browser, address)
        page = visit.page
        page.goto(address)
        page.get_by_role("tab", name="Audit").click()
        page.locator(
            "#status", has_text="2 of 2: items for which another label is at least 10 times as probable"
        ).wait_for()
        assert "is it circle?" in page.locator("#grid .tile .why").first.inner_text()
        assert "95" in page.locator("#grid .tile .why").first.inner_text()
        page.locator("#finding").select_option("near-duplicates")
        page.locator("#status", has_text="group by group").wait_for()
        assert "labels differ" in page.locator("#grid .tile .why").first.inner_text()
        page.locator("#finding").select_option("odd-ones")
        page.locator(
            "#status", has_text="1 of 1: items more than twice as far from their neighbours as usual"
        ).wait_for()
        assert "3.25" in page.locator("#grid .tile .why").first.inner_text()
        page.screenshot(path=os.environ.get("ALEATOR_ARTEFACTS", str(tmp_path)) + "/findings.png")
        page.get_by_role("tab", name="Least certain").click()
        page.locator("#status", has_text="the least certain first").wait_for()
        assert page.locator("#finding-box").is_hidden()
        assert visit.findings == []
        visit.context.close()
