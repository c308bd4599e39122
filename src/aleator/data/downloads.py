"""Data sets from their official homes, on request: checked, whole or not at all, with a progress bar."""

import hashlib
import io
import tarfile
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from aleator.foundation import progress_bar, replace_file, require_one_of

_PAPER = "https://raw.githubusercontent.com/mkirchhof/Probabilistic_Contrastive_Learning/main/data"


@dataclass(frozen=True)
class Source:
    """Where one file comes from. An archive is unpacked, `members` of it alone; md5 is of the download."""

    url: str
    file: str
    md5: str | None = None
    members: tuple[str, ...] = ()


SOURCES: dict[str, tuple[Source, ...]] = {
    "cifar10": (
        Source(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "cifar-10-batches-bin",
            "c32a1d4ab5d03f1284b67883e8d87530",
            ("test_batch.bin", *(f"data_batch_{i}.bin" for i in range(1, 6))),
        ),
    ),
    "cifar10h": (
        Source(
            "https://raw.githubusercontent.com/jcpeterson/cifar-10h/master/data/cifar10h-counts.npy",
            "cifar10h-counts.npy",
        ),
        *(Source(f"{_PAPER}/idx_set_{i}.csv", f"idx_set_{i}.csv") for i in range(5)),
        Source(f"{_PAPER}/randomcrops_2000_0.25_1.0.csv", "randomcrops_2000_0.25_1.0.csv"),
    ),
    "cifar10n": (
        Source(
            "https://raw.githubusercontent.com/UCSC-REAL/cifar-10-100n/main/data/CIFAR-10_human.pt",
            "CIFAR-10_human.pt",
        ),
    ),
}


def download(
    folder: str | Path, names: Iterable[str] = ("cifar10", "cifar10h", "cifar10n"), progress: bool | None = None
) -> list[Path]:
    """Fetch the named data sets into `folder`; what is there already stays. Returns what was added.

    Mind their terms: CIFAR-10H is CC BY-NC-SA 4.0, CIFAR-10N CC BY-NC 4.0.
    """
    folder = Path(folder).expanduser()
    names = list(names)
    for name in names:
        require_one_of("names", name, SOURCES)
    added: list[Path] = []
    for source in (source for name in names for source in SOURCES[name]):
        wanted = [folder / source.file / member for member in source.members] or [folder / source.file]
        if all(path.is_file() for path in wanted):
            continue
        data = _fetch(source, folder, progress)
        found = hashlib.md5(data, usedforsecurity=False).hexdigest()
        if source.md5 is not None and found != source.md5:
            raise ValueError(f"{source.url} gave {len(data)} bytes with MD5 {found}, not {source.md5}; try again")
        contents = _members(data, source.members) if source.members else [data]
        for path, content in zip(wanted, contents, strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)
            added.append(path)
    return added


def _fetch(source: Source, folder: Path, progress: bool | None) -> bytes:
    content = io.BytesIO()
    try:
        with (
            urllib.request.urlopen(source.url, timeout=30) as response,
            progress_bar(progress, bytes=True) as bar,
        ):
            size = response.headers.get("Content-Length")
            task = bar.add_task(source.file, total=int(size) if size else None)
            while chunk := response.read(2**18):
                content.write(chunk)
                bar.update(task, advance=len(chunk))
    except OSError as problem:  # no network, no such host, refused, timed out, cut off
        raise ConnectionError(
            f"{source.url} could not be fetched ({problem}); without a network, put the file into {folder} yourself"
        ) from None
    return content.getvalue()


def _members(archive: bytes, names: Iterable[str]) -> list[bytes]:
    """The named members' bytes, wherever in the archive they lie; nothing is written by the archive's own paths."""
    contents = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isfile() else None
            if file is not None:
                contents[Path(member.name).name] = file.read()
    return [contents[name] for name in names]
