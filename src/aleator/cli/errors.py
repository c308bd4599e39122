"""How the command line reports errors and interruptions."""

import contextlib
import errno
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import typer

from aleator.cli.terminal import say

# What the errors of the operating system mean, and the way out.
_REASONS = {
    errno.EEXIST: "a file is in the way; name another folder",
    errno.ENOTDIR: "a file is in the way; name another folder",
    errno.EISDIR: "is a folder; name a file",
    errno.ENOENT: "there is no such file or folder; check the path",
    errno.EACCES: "permission is missing; name another place, or ask for it",
    errno.EPERM: "permission is missing; name another place, or ask for it",
    errno.EROFS: "nothing can be written there; name another place",
    errno.ENOSPC: "the disk is full; make room, then repeat the command",
    errno.EDQUOT: "your share of the disk is used up; make room, then repeat the command",
    errno.EFBIG: "may not grow that large; raise the limit (ulimit -f), or name another disk, then repeat the command",
}


@contextlib.contextmanager
def plain_errors(kept: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Print errors about arguments and files on standard error, without a traceback; exit with code 2.

    Errors name options as they are typed: --batch-size, not batch_size. After Ctrl-C, say what is kept and how to go
    on, and exit with code 130.

    Args:
        kept: Called after Ctrl-C. It says what is kept.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        said = in_words_of_the_command(error)
    except MemoryError:
        said = "there is not enough memory; use fewer or smaller items, or a smaller --batch-size"
    except RuntimeError as error:  # torch has no other class for these
        if "out of memory" not in str(error) and "can't allocate memory" not in str(error):
            raise
        said = "there is not enough memory on the device; pass a smaller --batch-size, or --device cpu"
    except KeyboardInterrupt:
        say(f"Stopped. {kept()}".strip())
        raise typer.Exit(130) from None
    else:
        return
    from aleator.foundation import redacted  # --help need not load it

    say(redacted(said), style="red")
    raise typer.Exit(2) from None


@contextlib.contextmanager
def plain_output() -> Iterator[None]:
    """Print an error about standard output, such as a file on a full disk, without a traceback; exit with code 2.

    Commands print their results outside of `plain_errors`, and Python prints some of them only at the end. A reader who
    has enough, such as `head`, is no error to tell of: the exit has code 1 and is silent.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or error.errno is None:  # it is about something else
            raise
        # What was not written stays in the buffer. Python would try again at the end, and print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            sys.exit(1)
        error.filename = "standard output"
        say(in_words_of_the_command(error), style="red")
        sys.exit(2)


def kept_in(folder: Path, what: str) -> str:
    """What stopped work keeps in a folder, in a sentence."""
    if not folder.is_dir():
        return "Nothing was written. The same command starts again."
    return f"{folder} keeps {what}. The same command goes on from there."


def in_words_of_the_command(error: Exception) -> str:
    """The message of an error, with the options of the command in place of the arguments of a Python function.

    Args:
        error: The error.

    Returns:
        "--batch-size 0: must be at least 1; leave it out", for example.
    """
    from aleator.foundation import BadArgumentError

    if isinstance(error, OSError) and error.errno in _REASONS:
        place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return f"{place}{_REASONS[error.errno]} ({error.strerror})"
    if isinstance(error, UnicodeEncodeError):  # Python has read bytes of another encoding as halves of letters
        return f"{error.object!a} is not UTF-8; rename the file, or write the text again"
    names = _names_of_parameters()
    if isinstance(error, BadArgumentError):
        argument, bracket, part = error.argument.partition("[")  # filter['label'] is a part of --filter
        shown = names.get(argument)
        start = f"{error.argument} = {error.value}" if shown is None else f"{shown}{bracket}{part} {error.value}"
        return f"{start}: {_translated(error.problem, names)}; {_translated(error.way_out, names)}"
    return _translated(str(error), names)


def _names_of_parameters() -> dict[str, str]:
    """For each parameter of the command that runs, how it is typed: --batch-size, or DATA."""
    try:
        from typer.main import get_current_context  # typer has its own click
    except ImportError:
        from click import get_current_context  # type: ignore[no-redef]

    context = get_current_context(silent=True)
    if context is None:
        return {}
    names = {}
    for parameter in context.command.params:
        options = [option for option in parameter.opts if option.startswith("--")]
        names[str(parameter.name)] = options[0] if options else str(parameter.name).upper()
    if "posteriors" in names:
        names.setdefault("ids", names["posteriors"])  # which come with them
    return names


def _translated(text: str, names: dict[str, str]) -> str:
    """A text with options in place of names that only Python has: replace=True, batch_size."""
    for name, shown in names.items():
        if shown.startswith("--"):
            text = re.sub(rf"(?<![\w-]){name}=True\b", shown, text)
            text = re.sub(rf"(?<![\w-]){name}=(?=\S)", f"{shown} ", text)
            if "_" in name:
                text = re.sub(rf"(?<![\w/.-]){name}\b(?!/)", shown, text)
    return text
