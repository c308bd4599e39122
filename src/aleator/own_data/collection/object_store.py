"""Files on an object store: s3://bucket/name, for reading collections and writing results.

Credentials and endpoint come from the usual environment variables, or from options like those of an index on an object
store: aws_access_key_id, aws_secret_access_key, aws_session_token, aws_region, aws_endpoint. An `ObjectPath` may be
sent to other processes, with its options. They are never shown.
"""

import contextlib
import io
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from aleator.foundation import redacted, reject, require

SCHEME = "s3://"
_OPTIONS = {
    "aws_access_key_id": "access_key",
    "aws_secret_access_key": "secret_key",
    "aws_session_token": "session_token",
    "aws_region": "region",
    "aws_endpoint": "endpoint_override",
    "aws_endpoint_url": "endpoint_override",
}
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_ATTEMPTS = 8
_CREDENTIALS = "set the credentials in the environment (AWS_ACCESS_KEY_ID, ...) or pass storage_options"


def is_object(source: object) -> bool:
    """Whether a source is on an object store."""
    return isinstance(source, ObjectPath) or (isinstance(source, str) and source.startswith(SCHEME))


@dataclass(frozen=True)
class ObjectPath:
    """A file or a folder on an object store.

    Args:
        uri: s3://bucket/name.
        options: Options of the store.
    """

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, uri: str, options: Mapping[str, str] | None = None) -> "ObjectPath":
        """Check a location on an object store."""
        way_out = "write s3://bucket/name"
        require("@" not in uri, "data", "s3://...@...", "holds a user", _CREDENTIALS)
        named = re.fullmatch(r"s3://[^/?#]+/[^?#]*[^/?#][^?#]*", uri) is not None
        require(named, "data", re.split("[?#]", uri)[0], "names nothing in a bucket", way_out)
        given = {str(key).lower(): str(value) for key, value in (options or {}).items()}
        unknown = sorted(given.keys() - _OPTIONS.keys() - {"allow_http"})
        require(not unknown, "storage_options", ", ".join(unknown), "not known here", f"use {', '.join(_OPTIONS)}")
        return cls(uri.rstrip("/"), given)

    def __str__(self) -> str:
        return self.uri

    def __truediv__(self, name: str) -> "ObjectPath":
        return ObjectPath(f"{self.uri}/{name}", self.options)

    @property
    def name(self) -> str:
        return PurePosixPath(self.uri).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.uri).suffix

    @property
    def parent(self) -> "ObjectPath":
        return ObjectPath(self.uri.rpartition("/")[0], self.options)

    def absolute(self) -> "ObjectPath":
        return self

    def files(self) -> list[str]:
        """Relative paths of all files below a folder, in a fixed order; hidden files are left out."""
        from pyarrow.fs import FileSelector, FileType

        with self._plain_errors():
            found = self._store.get_file_info(FileSelector(self._key, recursive=True))
        paths = [entry.path.removeprefix(self._key + "/") for entry in found if entry.type == FileType.File]
        return sorted(path for path in paths if not any(part[:1] == "." for part in path.split("/")))

    def is_file(self) -> bool:
        """Whether there is a file here."""
        from pyarrow.fs import FileType

        return self._info().type == FileType.File

    def is_folder(self) -> bool:
        """Whether there are files below this name."""
        from pyarrow.fs import FileType

        return self._info().type == FileType.Directory

    def open(self) -> io.BytesIO:
        """The contents as a file in memory."""
        with self.reading() as file, self._plain_errors():
            return io.BytesIO(file.readall())

    @contextlib.contextmanager
    def reading(self) -> Iterator[Any]:
        """A file of Arrow, of which parts can be read."""
        with self._plain_errors():
            file = self._store.open_input_file(self._key)
        with file:
            yield file

    def upload(self, path: Path) -> None:
        """Copy a file here. It appears when it is complete."""
        from pyarrow.fs import LocalFileSystem, copy_files

        with self._plain_errors():
            unfinished = f"{self._key}.partial"
            copy_files(str(path), unfinished, LocalFileSystem(), self._store)
            self._store.move(unfinished, self._key)

    @property
    def _key(self) -> str:
        return self.uri.removeprefix(SCHEME)

    @property
    def _store(self) -> Any:
        return _connect(tuple(sorted(self.options.items())), next(filter(None, map(os.environ.get, _ENDPOINTS)), None))

    def _info(self) -> Any:
        with self._plain_errors():
            return self._store.get_file_info(self._key)

    @contextlib.contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """Errors of Arrow as errors about this file. They are not chained: their text may hold credentials."""
        try:
            yield
        except FileNotFoundError:
            problem = True
        except OSError as error:
            said = redacted(" ".join(str(error).split())[:200], *(v for v in self.options.values() if len(v) >= 8))
            low = said.lower()
            if any(word in low for word in ("access_denied", "accessdenied", "forbidden", "credential", "signature")):
                raise ConnectionError(f"{self}: no permission; {_CREDENTIALS}") from None
            raise ConnectionError(f"{self}: the store does not answer, or answers with errors ({said})") from None
        else:
            problem = False
        if problem:
            reject("data", str(self), "there is no such file or folder", "check the name")


AnyPath = Path | ObjectPath


def open_file(place: str | ObjectPath) -> BinaryIO:
    """A file on disk, named by its path, or on an object store, to be read."""
    return open(place, "rb") if isinstance(place, str) else place.open()


@cache
def _connect(options: tuple[tuple[str, str], ...], endpoint: str | None) -> Any:
    """A connection; one for all files of a store in this process."""
    try:
        from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem
    except ImportError:
        reject("data", SCHEME, "an object store needs the package pyarrow", "pip install 'aleator[ray]'")
    arguments: dict[str, Any] = {_OPTIONS[key]: value for key, value in options if key in _OPTIONS}
    if endpoint is not None:
        arguments.setdefault("endpoint_override", endpoint)
    scheme, separator, _ = str(arguments.get("endpoint_override", "")).partition("://")
    if separator:
        arguments["scheme"] = scheme
    return S3FileSystem(
        **arguments, retry_strategy=AwsStandardS3RetryStrategy(_ATTEMPTS), connect_timeout=5, request_timeout=30
    )
