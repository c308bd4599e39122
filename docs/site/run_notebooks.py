"""Run the tutorials and store their outputs: `make notebooks`. The tests run them too, without storing."""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

TUTORIALS = Path(__file__).parents[1] / "tutorials"


def run(path: Path) -> nbformat.NotebookNode:
    """Execute a notebook in an empty folder and return it with its outputs; a cell that fails raises."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:  # times and folders differ from run to run
        cell.metadata.pop("execution", None)
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return notebook


def main(names: list[str]) -> None:
    for path in sorted(TUTORIALS.glob("*.ipynb")):
        if not names or path.stem in names:
            print(path.stem, flush=True)
            nbformat.write(run(path), path)


if __name__ == "__main__":
    main(sys.argv[1:])
