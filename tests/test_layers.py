"""Imports point to lower layers only, nothing imports in a circle, and `import aleator` stays light."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import aleator

PACKAGE = Path(aleator.__file__).parent

# The layer of every module, or of every package as a whole. A module may import from its own layer and those below it.
LAYERS = {
    0: [
        "checks",
        "bessel",
        "extended",
        "harmonics",
        "quantile",
        "kernels",
        "bundle",
        "gathering",
        "capture",
        "provenance",
        "progress",
        "precision",
        "devices",
        "soap",
    ],
    1: ["vmf", "series", "backbones", "hub", "checkpoints", "logbook", "metrics", "labels", "augmentation", "cifar"],
    2: [
        "positivity",
        "encounters",
        "shares",
        "encoders",
        "batches",
        "inputs",
        "data",
        "plots",
        "recipe",
        "downloads",
        "pretraining",
    ],
    3: ["losses", "generative", "retrieval", "objective", "optimisers"],
    4: ["training"],
    5: ["own_data", "experiments", "web", "quickstart"],
    6: ["cli", "__main__"],
}
LAYER = {module: layer for layer, modules in LAYERS.items() for module in modules}
# What `import aleator` alone must not load: each is imported where it is used.
HEAVY = ("lightning_fabric", "faiss", "matplotlib", "rich", "psycopg", "transformers", "fastapi", "kornia")


def modules() -> dict[str, Path]:
    """Dotted names below the package, `retrieval.index` for example; a package's __init__ has the package's name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            found[name] = path
    return found


def imports(name: str, path: Path) -> set[str]:
    """The modules of the package that a module imports, wherever in the file; type-checking imports are not run."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    known, found = modules(), set()
    tree = ast.parse(path.read_text())
    skipped = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - (node.level - 1)]
            origin = [*base, *(node.module or "").split(".")] if node.module else base
            candidates = [".".join(origin), *(".".join([*origin, alias.name]) for alias in node.names)]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "aleator":
            origin = (node.module or "").split(".")[1:]
            candidates = [".".join(origin), *(".".join([*origin, alias.name]) for alias in node.names)]
        elif isinstance(node, ast.Import):
            candidates = [a.name.removeprefix("aleator.") for a in node.names if a.name.startswith("aleator.")]
        else:
            continue
        found |= {candidate for candidate in candidates if candidate in known}
    return found - {name}


def layer(name: str) -> int:
    top = name.split(".")[0]
    if top not in LAYER:
        pytest.fail(f"{top} has no layer: add it to LAYERS in {Path(__file__).name}, as low as its imports allow")
    return LAYER[top]


@pytest.mark.parametrize("name", sorted(modules()))
def test_imports_point_downwards(name):
    for imported in imports(name, modules()[name]):
        assert layer(imported) <= layer(name), f"{name} (layer {layer(name)}) imports {imported} ({layer(imported)})"


def test_nothing_imports_in_a_circle():
    graph = {name: imports(name, path) for name, path in modules().items()}
    for name, found in graph.items():  # a package's __init__ collects its modules, which may name the package again
        graph[name] = {other for other in found if not name.startswith(f"{other}.")}
    TopologicalSorter(graph).prepare()


def test_the_table_names_no_module_twice():
    assert len(LAYER) == sum(len(names) for names in LAYERS.values())


def test_the_reader_of_imports_sees_them(tmp_path):
    """The test itself can fail: an import upwards is found, however it is written."""
    for line in (
        "from .training import fit",
        "from . import training",
        "import aleator.training",
        "from aleator.training import x",
    ):
        path = tmp_path / "vmf.py"
        path.write_text(f"def f():\n    {line}\n")
        assert imports("vmf", path) == {"training"}, line


def test_importing_the_package_is_light():
    code = f"import sys, aleator; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_benchmarks_name_what_exists():
    """They run by hand, some on a GPU alone, so that nothing else notices a name that has changed."""
    root = PACKAGE.parents[1]
    names = [path.stem for path in (root / "benchmarks").glob("*.py") if not path.stem.startswith("_")]
    assert "training" in names
    imports = "; ".join(f"import benchmarks.{name}" for name in sorted(names))
    done = subprocess.run([sys.executable, "-c", imports], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
