"""The command line's reference, made from its own help: replaces `::: commands` on the page."""

import inspect


def on_page_markdown(markdown, page, config, files):
    """Fill in the commands where the page asks for them."""
    return markdown.replace("::: commands", _commands()) if "::: commands" in markdown else markdown


def _commands() -> str:
    from typer.main import get_command

    from aleator.cli import app

    return "\n\n".join(_section(name, command) for name, command in _walk("aleator", get_command(app)))


def _walk(name, command):
    """Every command with its full name; a group stands for the commands in it."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for inner, child in command.commands.items():
        yield from _walk(f"{name} {inner}", child)


def _section(name, command) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    usage = " ".join([name, *map(_spelling, arguments), "[OPTIONS]" if options else ""])
    parts = [f"## {name}", inspect.cleandoc(command.help or ""), f"```\n{usage.strip()}\n```"]
    rows = [f"| `{_spelling(p)}` | {_text(p)} | {_default(p)} |" for p in [*arguments, *options]]
    if rows:
        parts.append("\n".join(["| | | default |", "|---|---|---|", *rows]))
    return "\n\n".join(parts)


def _spelling(parameter) -> str:
    if parameter.param_type_name == "argument":
        return parameter.metavar or parameter.name.upper()
    return ", ".join([*parameter.opts, *parameter.secondary_opts])


def _text(parameter) -> str:
    return " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")


def _default(parameter) -> str:
    value = parameter.default
    return "" if value is None or value is ... or callable(value) or parameter.required else f"`{value}`"
