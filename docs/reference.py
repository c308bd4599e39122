"""Writes reference.md from docstrings and from the command line's own help: `make docs`."""

import importlib
import inspect
import re
from pathlib import Path

SECTIONS = {
    "Posteriors": {"aleator.vmf": ["VonMisesFisher"]},
    "What counts as a match": {
        "aleator.harmonics": ["VMFKernel", "AcceptanceKernel", "ZonalKernel"],
        "aleator.positivity": ["log_positivity", "pairwise_log_positivity", "match_probability"],
    },
    "Losses": {"aleator.losses": ["ExactInfoNCE", "MCInfoNCE", "InfoNCE", "ELK", "HIB"]},
    "Encoders": {"aleator.encoders": ["Encoder", "load_encoder", "controlled_encoder"]},
    "Data": {
        "aleator.data": ["LabelledBatches", "PairBatches"],
        "aleator.generative": ["GenerativeProcess"],
    },
    "Training": {
        "aleator.training": ["fit", "FitResult"],
        "aleator.recipe": ["Recipe"],
        "aleator.soap": ["SOAP"],
    },
    "Retrieval": {"aleator.retrieval": ["CredibleIndex"]},
    "Metrics": {"aleator.metrics": None},
    "Your own data": {"aleator.own_data": ["read_collection", "train", "load_run", "embed", "evaluate"]},
    "Experiments": {"aleator.experiments": ["reproduce"]},
    "Serving": {"aleator.web": ["create_app"]},
}


def render() -> str:
    parts = ["# Reference\n\nMade from the docstrings by `make docs`; a test keeps it true."]
    for title, modules in SECTIONS.items():
        parts.append(f"## {title}")
        for name, wanted in modules.items():
            module = importlib.import_module(name)
            public = wanted or [key for key, value in vars(module).items() if _own_function(module, key, value)]
            parts += [entry(getattr(module, key), key) for key in public]
    return "\n\n".join([*parts, "## Commands", *commands()]) + "\n"


def entry(thing: object, name: str, level: int = 3) -> str:
    """A heading with the signature, the docstring, and a class's public methods."""
    lines = [f"{'#' * level} `{name}{signature(thing)}`", "", text(thing)]
    if inspect.isclass(thing):
        for key, member in vars(thing).items():
            function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if key.startswith("_") or not (inspect.isfunction(function) and function.__doc__):
                continue
            lines += ["", f"- `{key}{signature(function)}`: {' '.join(text(function).split())}"]
    return "\n".join(lines).rstrip()


def signature(thing: object) -> str:
    try:
        made = str(inspect.signature(thing))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    made = re.sub(r"\b(?:self|cls)(?:, )?", "", made, count=1)
    made = re.sub(r"<(?:function|object)[^=]*? at 0x[0-9a-f]+>", "...", made)
    return made.replace("'", "").replace('"', "").replace("torch.Tensor", "Tensor")


def text(thing: object) -> str:
    """The docstring; a list of arguments becomes a list."""
    doc = inspect.getdoc(thing) or ""
    head, found, arguments = doc.partition("\nArgs:\n")
    if not found:
        return doc
    arguments, _, rest = arguments.partition("\n\n")
    items = re.sub(r"\n {8,}", " ", arguments)
    items = re.sub(r"(?m)^ {4}([^:]+):", lambda m: f"- **{m.group(1)}**:", items)
    return "\n".join([head.rstrip(), "", items, "", inspect.cleandoc(rest)]).rstrip()


def commands() -> list[str]:
    import typer

    from aleator.cli import app

    def walk(command, path: str):
        children = getattr(command, "commands", None)
        if children:
            for name in children:
                yield from walk(children[name], f"{path} {name}")
        else:
            yield path, command

    parts = []
    for path, command in walk(typer.main.get_command(app), "aleator"):
        lines = [f"### `{path}`", "", inspect.cleandoc(command.help or ""), ""]
        for parameter in command.params:
            shown = " / ".join(parameter.opts) if parameter.param_type_name == "option" else parameter.name.upper()
            if shown not in ("--help", "--install-completion", "--show-completion"):
                lines.append(f"- `{shown}`: {getattr(parameter, 'help', None) or ''}".rstrip(": "))
        parts.append("\n".join(lines).rstrip())
    return parts


def _own_function(module: object, key: str, value: object) -> bool:
    return not key.startswith("_") and inspect.isfunction(value) and value.__module__ == module.__name__  # type: ignore[attr-defined]


if __name__ == "__main__":
    Path(__file__).with_suffix(".md").write_text(render())
