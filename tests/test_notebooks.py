"""The tutorials run, and the outputs that are stored in them are those of a whole run."""

import importlib.util
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


@pytest.fixture(scope="module")
def run():
    spec = importlib.util.spec_from_file_location("run_notebooks", ROOT / "docs" / "site" / "run_notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.run


@pytest.mark.tutorial
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, run, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run(path)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_outputs_are_stored(path):
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "run `make notebooks`"
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs), "shows no figure"
