"""Checksums of files, and the one error for files that are damaged.

Everything that this package writes to disk has a format version and checksums. A reader verifies them before it uses
anything, and raises `DamagedFileError` where they do not match.
"""

import contextlib
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from aleator.foundation.checks import BadArgumentError, require
from aleator.foundation.files import write_json

_CHECKSUMS = "checksums.json"
_CHECKSUMS_VERSION = 1


class DamagedFileError(ValueError):
    """A file is not what was written: it was cut short, altered or lost.

    Args:
        path: The file, or the folder.
        problem: What is wrong with it.
        way_out: What the user can do.

    Examples:
        >>> print(DamagedFileError("run/config.json", "it does not match its checksum", "restore it from a copy"))
        run/config.json is damaged: it does not match its checksum; restore it from a copy
    """

    def __init__(self, path: str | Path, problem: str, way_out: str):
        super().__init__(f"{path} is damaged: {problem}; {way_out}")
        self.path = Path(path)


@contextlib.contextmanager
def using_contents(path: str | Path, way_out: str, arguments: Collection[str] = ()) -> Iterator[None]:
    """Use what a file holds. A value that is missing or of another kind is damage of the file, whoever notices it.

    Args:
        path: The file, or the folder.
        way_out: What the user can do.
        arguments: Errors about these arguments are not about the file, and stay as they are.

    Raises:
        DamagedFileError: In place of any other error of the block that does not name the file.

    Examples:
        >>> with using_contents("run/config.json", "restore it from a copy"):
        ...     {}["prior"]
        Traceback (most recent call last):
        aleator.foundation.integrity.DamagedFileError: run/config.json is damaged: a value is missing or of another kind
        (KeyError: 'prior'); restore it from a copy
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as problem:
        names_file = isinstance(problem, ValueError) and str(path) in str(problem)
        if names_file or (isinstance(problem, BadArgumentError) and problem.argument in arguments):
            raise
        said = " ".join(str(problem).split())[:200]
        problem_text = f"a value is missing or of another kind ({type(problem).__name__}: {said})"
        raise DamagedFileError(path, problem_text, way_out) from None


def read_json(path: Path, way_out: str, kind: type = dict) -> Any:
    """What a JSON file of ours holds.

    Args:
        path: The file.
        way_out: What the user can do about damage.
        kind: What the file must hold: dict or list.

    Returns:
        The object or the list.

    Raises:
        DamagedFileError: If the file is not JSON, or holds something else.
    """
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise DamagedFileError(path, "it is not the JSON that was written", way_out) from None
    if not isinstance(content, kind):
        raise DamagedFileError(path, f"it is not a JSON {'object' if kind is dict else 'list'}", way_out)
    return content


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits. The file is read in blocks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(folder: Path, names: Iterable[str]) -> None:
    """Write `checksums.json`: the SHA-256 of files of a folder. It is the last file to be written.

    Args:
        folder: The folder.
        names: The files, relative to the folder. Files that are not there are left out.
    """
    sums = {name: file_sha256(folder / name) for name in names if (folder / name).is_file()}
    write_json(folder / _CHECKSUMS, {"version": _CHECKSUMS_VERSION, "sha256": sums})


def verify_checksums(folder: Path, way_out: str) -> None:
    """Raise unless the files of a folder match its `checksums.json`. A folder whose writer was killed before has none.

    Args:
        folder: The folder.
        way_out: What the user can do about damage.

    Raises:
        DamagedFileError: If a file is missing or altered.
        ValueError: If they are in another format.
    """
    path = folder / _CHECKSUMS
    if not path.is_file():
        return
    with using_contents(path, way_out):
        document = read_json(path, way_out)
        version, sums = document["version"], dict(document["sha256"])
    known = version == _CHECKSUMS_VERSION
    problem = f"has checksums of version {version}, and this release reads version {_CHECKSUMS_VERSION}"
    require(known, "path", str(folder), problem, "open it with the release that wrote it")
    for name, expected in sums.items():
        file = folder / name
        if "\0" in name:
            raise DamagedFileError(path, f"it names a file {name!r}", way_out)
        if not file.is_file():
            raise DamagedFileError(file, "it is missing", way_out)
        if file_sha256(file) != expected:
            raise DamagedFileError(file, "its content does not match its checksum", way_out)
