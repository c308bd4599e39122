"""The tutorials run, and the outputs that are stored in them are those of a whole run.

`make check` runs every cell with trainings of a tenth of the steps, `make test-all` runs the whole tutorials too.
"""

import importlib.util
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
TEXT = ("own-text",)  # needs a text model


@pytest.fixture(scope="module")
def tutorials():
    spec = importlib.util.spec_from_file_location("run_notebooks", ROOT / "docs" / "site" / "run_notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.tutorial
@pytest.mark.parametrize("short", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["short", "whole"])
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.hub if path.stem in TEXT else ()) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs(path, short, tutorials, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if path.stem in TEXT:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # the model comes from a package
    tutorials.run(path, short)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_trains_so_that_it_can_be_shortened(path, tutorials):
    code = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
    assert tutorials.STEPS.search(code)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_outputs_are_stored(path):
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "run `make notebooks`"
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs), "shows no figure"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_gallery_shows_its_first_figure(path, tutorials):
    figure = f"figures/gallery/{path.stem}.png"
    stored = tutorials.first_figure(nbformat.read(path, as_version=4))
    assert (ROOT / "docs" / figure).read_bytes() == stored, "run `make notebooks`"
    page = (ROOT / "docs" / "gallery.md").read_text()
    assert f"({figure})" in page
    assert f"(tutorials/{path.name})" in page
