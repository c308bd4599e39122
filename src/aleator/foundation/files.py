"""Atomic file writing: a reader sees the old file or the new one, never a part of it.

Files that grow and are resumed under their own name (the rows of an embedding in progress, for example) are not
written this way.
"""

import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def naming_file(path: str | Path) -> Iterator[None]:
    """Have errors of the operating system name a file. Python names it where a file is opened, not where it is written.

    Args:
        path: The file that is written.

    Examples:
        >>> import errno, os
        >>> try:
        ...     with naming_file("rows.bin"):
        ...         raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        ... except OSError as error:
        ...     print(error.filename)
        rows.bin
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


@contextmanager
def writing_atomically(path: Path) -> Iterator[Path]:
    """Write a file under a temporary name in the same folder, then move it to `path`.

    The file is on the disk before it is moved, so a loss of power cannot leave an empty or partial file at `path`.
    If the block raises, the temporary file is removed and `path` stays as it was. If the process is killed, the
    temporary file `.NAME.PID.partial` stays behind, and `path` stays as it was.

    Args:
        path: Where the file belongs. Its folder must exist.

    Yields:
        The temporary path. The block must create this file, and close it.

    Examples:
        >>> from pathlib import Path
        >>> with writing_atomically(Path("numbers.txt")) as temporary:
        ...     _ = temporary.write_text("1 2 3")
        >>> Path("numbers.txt").read_text()
        '1 2 3'
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")  # `holds_nothing` knows such names
    try:
        with naming_file(path):
            yield temporary
            _flush_to_disk(temporary)
            os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (temporary, str(temporary)):
            error.filename = str(path)  # the name that the user knows
        raise
    if os.name == "posix":  # the new name is an entry of the folder; Windows cannot open folders
        _flush_to_disk(path.parent)


def replace_file(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically.

    Args:
        path: Where the file belongs. Its folder must exist.
        data: The whole content.
    """
    with writing_atomically(path) as temporary:
        temporary.write_bytes(data)


def create_file(path: Path, data: bytes) -> bool:
    """Write `data` to `path`, unless there is such a file. Of several processes who do this, one succeeds.

    The file is written under a temporary name, and then gets its name as a second link. So it is there whole, or not at
    all. A file system without links raises an OSError.

    Args:
        path: Where the file belongs. Its folder must exist.
        data: The whole content.

    Returns:
        Whether it was written.

    Examples:
        >>> from pathlib import Path
        >>> create_file(Path("winner.txt"), b"me"), create_file(Path("winner.txt"), b"you")
        (True, False)
    """
    # Threads of one process may do this at the same time, too.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.{os.getpid()}.partial")
    try:
        with naming_file(path):
            temporary.write_bytes(data)
            _flush_to_disk(temporary)
            os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    if os.name == "posix":
        _flush_to_disk(path.parent)
    return True


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON to `path` atomically. Missing folders are created.

    Args:
        path: Where the file belongs.
        value: Anything that `json.dumps` accepts.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def save_figure(figure: Any, path: Path) -> None:
    """Save a figure of matplotlib to `path` atomically. The ending says which kind of file it becomes.

    Args:
        figure: The figure.
        path: Where the file belongs. Its folder must exist.
    """
    with writing_atomically(path) as temporary:  # whose ending is another
        figure.savefig(temporary, format=path.suffix[1:].lower())


def holds_nothing(folder: Path) -> bool:
    """Whether a folder is missing, or has nothing but empty folders and what killed processes had not finished.

    Args:
        folder: The folder. A file in its place is something.

    Returns:
        Whether new work may begin there.

    Examples:
        >>> from pathlib import Path
        >>> Path("new").mkdir()
        >>> _ = Path("new/.config.json.4711.partial").write_text("{")
        >>> holds_nothing(Path("new"))
        True
    """
    if not folder.exists():
        return True
    return folder.is_dir() and all(
        holds_nothing(entry) if entry.is_dir() else re.fullmatch(r"\..+\.\d+\.partial", entry.name) is not None
        for entry in folder.iterdir()
    )


def _flush_to_disk(path: Path) -> None:
    """Ask the operating system to write a file, or the entries of a folder, to the disk now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
