"""Downloads of data sets from their official sites. A file appears whole or not at all."""

import hashlib
import http.client
import io
import tarfile
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from aleator.foundation import progress_bar, replace_file, require_one_of

_PAPER = "https://raw.githubusercontent.com/mkirchhof/Probabilistic_Contrastive_Learning/main/data"


DataSet = Literal["cifar10", "cifar10h", "cifar10n"]


@dataclass(frozen=True)
class RemoteFile:
    """A file to download.

    Args:
        url: Where it is.
        file: Name in the data folder; for an archive, the folder for its members.
        md5: Checksum of the download. Default: not checked.
        members: Files to unpack if it is an archive.
    """

    url: str
    file: str
    md5: str | None = None
    members: tuple[str, ...] = ()


DATA_SETS: dict[DataSet, tuple[RemoteFile, ...]] = {
    "cifar10": (
        RemoteFile(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "cifar-10-batches-bin",
            "c32a1d4ab5d03f1284b67883e8d87530",
            ("test_batch.bin", *(f"data_batch_{i}.bin" for i in range(1, 6))),
        ),
    ),
    "cifar10h": (
        RemoteFile(
            "https://raw.githubusercontent.com/jcpeterson/cifar-10h/master/data/cifar10h-counts.npy",
            "cifar10h-counts.npy",
        ),
        *(RemoteFile(f"{_PAPER}/idx_set_{i}.csv", f"idx_set_{i}.csv") for i in range(5)),
        RemoteFile(f"{_PAPER}/randomcrops_2000_0.25_1.0.csv", "randomcrops_2000_0.25_1.0.csv"),
    ),
    "cifar10n": (
        RemoteFile(
            "https://raw.githubusercontent.com/UCSC-REAL/cifar-10-100n/main/data/CIFAR-10_human.pt",
            "CIFAR-10_human.pt",
        ),
    ),
}


def download(
    folder: str | Path,
    names: Iterable[DataSet] = ("cifar10", "cifar10h", "cifar10n"),
    progress: bool | None = None,
) -> list[Path]:
    """Download data sets into a folder. Files that are there already stay.

    Mind the licences: CIFAR-10H is CC BY-NC-SA 4.0, CIFAR-10N is CC BY-NC 4.0.

    Args:
        folder: The data folder. It is made if it is missing.
        names: Data sets: "cifar10", "cifar10h" (with the paper's folds and crop sizes), "cifar10n".
        progress: Whether to show a progress bar. Default: in a terminal.

    Returns:
        The files that were added.

    Raises:
        ConnectionError: If a file cannot be fetched.
        ValueError: If a name is not known, or a download is damaged.

    Examples:
        >>> from aleator.data import download
        >>> files = download("data")  # doctest: +SKIP
    """
    folder = Path(folder).expanduser()
    names = list(names)
    for name in names:
        require_one_of("names", name, get_args(DataSet))
    added: list[Path] = []
    for remote in (remote for name in names for remote in DATA_SETS[name]):
        wanted = [folder / remote.file / member for member in remote.members] or [folder / remote.file]
        if all(path.is_file() for path in wanted):
            continue
        data = _fetch(remote, folder, progress)
        md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
        if remote.md5 is not None and md5 != remote.md5:
            raise ValueError(f"{remote.url} gave {len(data)} bytes with MD5 {md5}, not {remote.md5}; try again")
        contents = _members(data, remote.members) if remote.members else [data]
        for path, content in zip(wanted, contents, strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)
            added.append(path)
    return added


def _fetch(remote: RemoteFile, folder: Path, progress: bool | None) -> bytes:
    """The content of a remote file; an error that names its URL."""
    content = io.BytesIO()
    try:
        with (
            urllib.request.urlopen(remote.url, timeout=30) as response,
            progress_bar(progress, bytes=True) as bar,
        ):
            size = response.headers.get("Content-Length")
            task = bar.add_task(remote.file, total=int(size) if size else None)
            while chunk := response.read(2**18):
                content.write(chunk)
                bar.update(task, advance=len(chunk))
            received = content.tell()
            if size and received < int(size):  # the end of a connection alone is no error of `read`
                raise OSError(f"cut off after {received} of {size} bytes")
    # No network, no such host, refused, timed out, cut off; HTTPException where the end of a part is missing.
    except (OSError, http.client.HTTPException) as problem:
        raise ConnectionError(
            f"{remote.url} could not be fetched ({problem}); without a network, put the file into {folder} yourself"
        ) from None
    return content.getvalue()


def _members(archive: bytes, names: Iterable[str]) -> list[bytes]:
    """Content of the named members of a tar archive, in whatever folder. The archive's own paths are not used."""
    contents = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isfile() else None
            if file is not None:
                contents[Path(member.name).name] = file.read()
    return [contents[name] for name in names]
