"""The public API is recorded in public_api.txt, so that a change of it is seen.

If a change is meant, record it: `python -m tests.test_public_api`.
"""

import inspect
from pathlib import Path

import aleator
from tests.test_docstrings import PUBLIC, own_methods, resolve

RECORD = Path(__file__).with_name("public_api.txt")


def signature(item) -> str:
    """Names, kinds and defaults of the parameters, without types."""
    function = item.__func__ if isinstance(item, classmethod | staticmethod) else item
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    plain = [
        p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else _Shown(p.default))
        for p in found.parameters.values()
    ]
    return str(found.replace(parameters=plain, return_annotation=found.empty))


class _Shown:
    """A default as it reads in the record; objects go by their class."""

    def __init__(self, value: object):
        simple = isinstance(value, bool | int | float | str | tuple | None)
        self.text = repr(value) if simple else type(value).__name__

    def __repr__(self) -> str:
        return self.text


def describe() -> str:
    lines = [f"aleator.{name}" for name in aleator.__all__]
    for name in sorted(PUBLIC):
        item = resolve(name)
        lines.append(f"aleator.{name}{signature(item)}")
        if inspect.isclass(item):
            for method, member in sorted(own_methods(item).items()):
                lines.append(f"aleator.{name}.{method}" + ("" if isinstance(member, property) else signature(member)))
    return "\n".join(lines) + "\n"


def test_the_public_api_is_the_recorded_one():
    assert describe() == RECORD.read_text(), "the public API changed; if that is meant: python -m tests.test_public_api"


def test_the_lists_of_public_names_agree():
    """What type checkers read, what is loaded on demand and what `import *` gives."""
    import ast

    tree = ast.parse(Path(aleator.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed == set(aleator._PACKAGE_OF) == set(aleator.__all__)


if __name__ == "__main__":
    RECORD.write_text(describe())
