"""The tree: imports point to lower packages, through their faces; nothing imports in a circle; importing is light."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import aleator

PACKAGE = Path(aleator.__file__).parent
TESTS = Path(__file__).parent

# The packages from the bottom to the top. A package imports from those that stand before it, and from itself.
ORDER = (
    "foundation",
    "stored",
    "fused",
    "special",
    "posteriors",
    "matching",
    "losses",
    "encoders",
    "data",
    "training",
    "evaluation",
    "retrieval",
    "own_data",
    "experiments",
    "quickstart",
    "web",
    "cli",
)
# The same for the parts of the largest package.
OWN_DATA = ("collection", "measuring", "runs", "embedding", "learning", "auditing")
# Files beside the packages. __init__ names what users import and loads it on demand; __main__ is `python -m aleator`.
BESIDE = {"__init__.py", "__main__.py", "py.typed"}
# What `import aleator` alone must not load: each is imported where it is used.
HEAVY = (
    "torch",
    "numpy",
    "scipy",
    "lightning_fabric",
    "faiss",
    "matplotlib",
    "rich",
    "psycopg",
    "transformers",
    "fastapi",
)
# What loading every public name must not load.
OPTIONAL = tuple(name for name in HEAVY if name not in ("torch", "numpy", "scipy"))


@cache
def modules() -> dict[str, Path]:
    """Dotted names below the package, `retrieval.index` for example; a package's __init__ has the package's name."""
    names = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            names[name] = path
    return names


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> set[str]:
    """The modules of the package that a file imports, wherever in the file; type-checking imports are not run."""
    known, imported = modules(), set()
    tree = parsed(path)
    skipped = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "aleator":
            origin = (node.module or "").split(".")[1:]
            inner = {".".join([*origin, alias.name]) for alias in node.names} & set(known)
            imported |= inner
            if len(inner) < len(node.names):  # some name is the origin's own
                imported.add(".".join(origin))
        elif isinstance(node, ast.Import):
            imported |= {alias.name.removeprefix("aleator.") for alias in node.names} & set(known)
    return imported - {""}


def package(name: str) -> str:
    return name.split(".")[0]


def test_the_tree_is_the_picture():
    """Seventeen packages, three files, and nothing else at the top."""
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(ORDER)
    assert {path.name for path in PACKAGE.iterdir() if path.is_file()} == BESIDE


def test_imports_are_absolute():
    """One style: a reader sees from the line alone where a name comes from."""
    for path in PACKAGE.rglob("*.py"):
        relative = [n for n in ast.walk(parsed(path)) if isinstance(n, ast.ImportFrom) and n.level]
        assert not relative, f"{path} has a relative import in line {relative[0].lineno}"


@pytest.mark.parametrize("name", sorted(set(modules()) - {"__main__"}))
def test_imports_point_downwards(name):
    for imported in imports(modules()[name]):
        above = ORDER.index(package(imported)) > ORDER.index(package(name))
        assert not above, f"{name} imports {imported}, which stands above it"


@pytest.mark.parametrize("name", sorted(name for name in modules() if name.startswith("own_data.")))
def test_imports_within_own_data_point_downwards(name):
    part = name.split(".")[1]
    for imported in imports(modules()[name]):
        if imported.startswith("own_data."):
            above = OWN_DATA.index(imported.split(".")[1]) > OWN_DATA.index(part)
            assert not above, f"{name} imports {imported}, which stands above it"


@pytest.mark.parametrize("name", sorted(modules()))
def test_other_packages_are_entered_by_their_face(name):
    """From another package: names of its __init__, or a module as a whole (`from aleator.evaluation import plots`)."""
    for node in ast.walk(parsed(modules()[name])):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aleator."):
            origin = node.module.split(".")[1:]
            if origin[0] == package(name):
                continue
            assert len(origin) == 1, f"{name}, line {node.lineno}: import from aleator.{origin[0]}, not {node.module}"


def test_nothing_imports_in_a_circle():
    graph = {name: imports(path) for name, path in modules().items()}
    for name, imported in graph.items():  # a package's __init__ collects its modules, which may name the package again
        graph[name] = {other for other in imported if not name.startswith(f"{other}.")}
    TopologicalSorter(graph).prepare()


def test_the_reader_of_imports_sees_them(tmp_path):
    """The test itself can fail: an import is found, however it is written."""
    cases = (
        ("from aleator.training import fit", {"training"}),
        ("from aleator.training import loop", {"training.loop"}),
        ("import aleator.training.loop", {"training.loop"}),
        ("from aleator.training.loop import x", {"training.loop"}),
    )
    for number, (line, seen) in enumerate(cases):
        path = tmp_path / f"{number}.py"
        path.write_text(f"def f():\n    {line}\n")
        assert imports(path) == seen, line


def loaded(code: str, names: tuple[str, ...]) -> str:
    code = f"import sys, aleator; {code}; print([m for m in {names!r} if m in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_is_light():
    assert loaded("pass", HEAVY) == "[]"
    assert loaded("[getattr(aleator, name) for name in aleator.__all__]", OPTIONAL) == "[]"


def test_benchmarks_name_what_exists():
    """They run by hand, some on a GPU alone, so that nothing else notices a name that has changed."""
    names = [path.stem for path in (TESTS.parent / "benchmarks").glob("*.py") if not path.stem.startswith("_")]
    assert "training" in names
    for name in names:
        import_module(f"benchmarks.{name}")
