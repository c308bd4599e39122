"""Questions and items of several modes, in the API and on the page: either this, or that."""

import pytest
import torch
from fastapi.testclient import TestClient

from aleator import CredibleIndex, VMFMixture, VonMisesFisher
from aleator.web import create_app
from aleator.web.collection import CollectionView
from tests.web.browser import Visit, browsing, serving


@pytest.fixture(scope="module")
def index():
    """Twenty items around each of two directions, ten between, and one item ("either") that is at both ends."""
    g = torch.Generator().manual_seed(0)
    ends = torch.eye(4)[:2]
    between = torch.nn.functional.normalize(ends.sum(0), dim=0)
    mu = torch.cat([ends[0].expand(20, 4), ends[1].expand(20, 4), between.expand(10, 4)])
    mu = torch.nn.functional.normalize(mu + 0.05 * torch.randn(50, 4, generator=g), dim=-1)
    parts = VonMisesFisher(torch.stack([mu, mu], 1), 200.0)
    items = VMFMixture(torch.tensor([0.0, -torch.inf]).expand(50, 2), parts)
    either = VMFMixture(torch.tensor([[0.3, 0.7]]).log(), VonMisesFisher(ends[None], 100.0))
    ids = [f"{'a' if i < 20 else 'b' if i < 40 else 'between'} {i}" for i in range(50)]
    with CredibleIndex.build(VMFMixture.cat([items, either]), ids=[*ids, "either"]) as index:
        yield index


def test_an_answer_tells_the_modes(index):
    client = TestClient(create_app(index))
    answer = client.get("/api/query/item", params={"id": "either"}).json()
    assert answer["query"]["modes"] == pytest.approx([0.7, 0.3], abs=1e-5)  # as stored: the heaviest first
    found = {(hit["id"].split()[0], hit["mode"]) for hit in answer["hits"]}
    assert found == {("b", 0), ("a", 1)}
    assert answer["hits"][0]["mode"] == 0
    assert answer["size"] == len(answer["hits"])


def test_levels_are_the_sizes_of_the_sets(index):
    view = CollectionView(index)
    query = view.posterior(50)
    size, levels = view.credible_sets(query, 0.8, leave_out=1)
    for level in levels[::20]:
        hits = index.search(query, p=level.p)[0]
        assert level.size == sum(hit.id != "either" for hit in hits)
        assert level.cosine is None
    assert size == sum(hit.id != "either" for hit in index.search(query, p=0.8)[0])


def test_the_page_shows_groups(index):
    with browsing() as browser, serving(create_app(index)) as address:
        visit = Visit(browser, address)
        page = visit.open()
        page.click("[data-key='\"either\"'] .open")
        page.wait_for_selector(".either")
        lines = [text.replace("\u00a0", " ") for text in page.locator("#grid > li:visible").all_inner_texts()]
        split = lines.index("or this: 30 %")
        assert lines[0] == "Either this: 70 %"
        assert {line.split()[1 if line[0] in "☆★" else 0] for line in lines[1:split]} == {"b"}
        assert {line.split()[1 if line[0] in "☆★" else 0] for line in lines[split + 1 :]} == {"a"}
        assert visit.findings == []
