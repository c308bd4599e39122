"""Every Python block of the README and the guides runs, in order, in one namespace per file; links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TIMINGS = ROOT / "results" / "benchmarks"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]


def python_blocks(page: Path) -> list[tuple[int, str]]:
    text = page.read_text()
    return [(text.count("\n", 0, m.start(1)), m.group(1)) for m in re.finditer(r"```python\n(.*?)```", text, re.S)]


@pytest.mark.parametrize(
    "page",
    [*PAGES, pytest.param(ROOT / "docs" / "tutorial.md", marks=pytest.mark.tutorial)],
    ids=lambda page: page.stem,
)
def test_code_runs(page, tmp_path, monkeypatch):
    blocks = python_blocks(page)
    assert blocks, f"{page.name} shows no code"
    monkeypatch.chdir(tmp_path)
    namespace: dict = {"__name__": page.stem}
    for line, block in blocks:
        exec(compile("\n" * line + block, str(page), "exec"), namespace)


def test_links_lead_somewhere():
    for page in [*PAGES, *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), TIMINGS / "README.md"]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith(("http://", "https://")):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    """Anchors of the headings of a page, as GitHub and the site make them."""
    outside_code = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", outside_code, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_links_lead_to_headings():
    for page in [*PAGES, *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text()):
            if not target.startswith(("http://", "https://")):
                there = page.parent / target if target else page
                assert anchor in anchors(there), f"{page.name} links to {target}#{anchor}"


def test_the_list_of_timings_is_complete():
    listed = re.findall(r"`([\w-]+\.json)`", (TIMINGS / "README.md").read_text())
    assert sorted(listed) == sorted(path.name for path in TIMINGS.glob("*.json"))
