"""The reference is complete: every public name is in it, with arguments, returns and an example that runs."""

import doctest
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch

import aleator
from tests.test_layers import modules

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
# What the reference documents: `::: aleator.package.name`, a line each.
PUBLIC = {
    name for page in REFERENCE.glob("*.md") for name in re.findall(r"^::: aleator\.(\S+)$", page.read_text(), re.M)
}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def resolve(name: str):
    package, _, attribute = name.rpartition(".")
    return getattr(import_module(f"aleator.{package}"), attribute)


def own_methods(cls: type) -> dict[str, object]:
    """Public methods and properties that the package itself defines for a class."""
    return {
        name: member
        for base in reversed(cls.__mro__)
        if base.__module__.startswith("aleator")
        for name, member in vars(base).items()
        if not name.startswith("_") and isinstance(member, property | classmethod | staticmethod | type(resolve))
    }


def parameters(function) -> list[str]:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = inspect.signature(function).parameters.values()
    return [p.name for p in found if p.kind not in kinds and p.name not in ("self", "cls") and p.name[0] != "_"]


def missing(name: str, item) -> list[str]:
    """What a docstring lacks."""
    text = inspect.getdoc(item) or ""
    if not text:
        return [f"{name} has no docstring"]
    if isinstance(item, property):
        return []
    lacks = []
    if inspect.isclass(item) and "__init__" in vars(item):
        text += "\n" + (item.__init__.__doc__ or "")
    function = item.__func__ if isinstance(item, classmethod | staticmethod) else item
    if not (inspect.isclass(item) and not hasattr(item, "__dataclass_fields__") and "__init__" not in vars(item)):
        arguments = re.split(r"^\s*(?:Args|Attributes):\s*$", text, maxsplit=1, flags=re.M)
        described = arguments[1] if len(arguments) == 2 else ""
        lacks += [f"{name}: argument {p}" for p in parameters(function) if not re.search(rf"^\s+{p}:", described, re.M)]
    returns = not inspect.isclass(item) and inspect.signature(function).return_annotation not in (None, "None")
    if returns and not re.search(r"^\s*(Returns|Yields):\s*$", text, re.M):
        lacks.append(f"{name}: Returns")
    return lacks


def test_the_public_names_are_in_the_reference():
    documented = {name.rpartition(".")[2] for name in PUBLIC}
    assert set(aleator.__all__) <= documented


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_name_is_documented(name):
    item = resolve(name)
    lacks = missing(name, item)
    if inspect.isclass(item):
        for method, member in own_methods(item).items():
            lacks += missing(f"{name}.{method}", member)
    if ">>>" not in (inspect.getdoc(item) or ""):
        lacks.append(f"{name}: an example")
    assert not lacks, "\n".join(lacks)


@pytest.mark.parametrize("name", sorted(modules()))
def test_the_examples_of_docstrings_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    module = import_module(f"aleator.{name}") if name != "__main__" else None
    if module is None:
        return
    outcome = doctest.testmod(module, optionflags=OPTIONS, extraglobs={"torch": torch, "al": aleator})
    assert outcome.failed == 0, f"{outcome.failed} examples of aleator.{name} fail; their output is above"
