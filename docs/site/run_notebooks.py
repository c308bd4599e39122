"""Run the tutorials and store their outputs: `make notebooks`. Tests run them with short trainings, without storing.

The first figure of each tutorial is also stored as docs/figures/gallery/NAME.png, for the gallery.
"""

import base64
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

TUTORIALS = Path(__file__).parents[1] / "tutorials"
GALLERY = Path(__file__).parents[1] / "figures" / "gallery"
STEPS = re.compile(r"(\bsteps=|\bfor step in range\()(\d+)")  # how the tutorials write the length of a training


def run(path: Path, short: bool = False) -> nbformat.NotebookNode:
    """Execute a notebook in an empty folder and return it with its outputs; a cell that fails raises.

    `short` makes every training a tenth as long: all cells run, but their figures say little.
    """
    notebook = nbformat.read(path, as_version=4)
    if short:
        for cell in notebook.cells:
            cell.source = STEPS.sub(lambda found: f"{found[1]}{int(found[2]) // 10}", cell.source)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:  # times and folders differ from run to run
        cell.metadata.pop("execution", None)
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return notebook


def first_figure(notebook: nbformat.NotebookNode) -> bytes:
    """The first figure among the stored outputs, as a PNG file."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    figures = (output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {}))
    return base64.b64decode(next(figures))


def main(names: list[str]) -> None:
    GALLERY.mkdir(parents=True, exist_ok=True)
    for path in sorted(TUTORIALS.glob("*.ipynb")):
        if not names or path.stem in names:
            print(path.stem, flush=True)
            notebook = run(path)
            nbformat.write(notebook, path)
            (GALLERY / f"{path.stem}.png").write_bytes(first_figure(notebook))


if __name__ == "__main__":
    main(sys.argv[1:])
