"""Where an index on Lance lies, how to reach it, and what its errors mean."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from aleator.foundation import DamagedFileError, redacted, require
from aleator.retrieval.stores.base import IndexGoneError

SCHEMES = ("s3://", "gs://", "az://", "abfss://")  # object stores
_PREFIX = "lance:"
# A store that does not answer is given up after about this long. Lance itself waits for three minutes.
_PATIENCE = {"client_max_retries": "8", "client_retry_timeout": "30", "connect_timeout": "5 seconds"}


def is_lance(location: object) -> bool:
    """Whether a location is an index on Lance: lance:folder/ or an object store."""
    return isinstance(location, str) and location.startswith((_PREFIX, *SCHEMES))


@dataclass(frozen=True)
class Place:
    """A location, taken apart.

    Args:
        uri: The folder or the URL of the object store.
        version: Number of an older version of the index; None for the newest.
        options: Options of the object store, such as credentials. They are never shown.
    """

    uri: str
    version: int | None
    options: Mapping[str, str]

    @classmethod
    def parse(cls, location: str, options: Mapping[str, str] | None = None) -> "Place":
        """Take a location apart: [lance:]uri[#version]."""
        uri, hash_mark, version = location.removeprefix(_PREFIX).partition("#")
        way_out = "write lance:folder/, s3://bucket/name, or s3://bucket/name#12 for version 12"
        require(uri not in ("", "/"), "location", location, "names no place", way_out)
        require(
            "@" not in uri.partition("/")[2] or "://" not in uri, "location", "...@...", "holds a user", _CREDENTIALS
        )
        require(not hash_mark or version.isdecimal(), "location", location, "has no number after the #", way_out)
        on_store = uri.startswith(SCHEMES)
        if on_store:
            named = re.fullmatch(r"\w+://[^/?]+/[^?]*[^/?][^?]*", uri) is not None
            require(named, "location", uri.partition("?")[0], "names no index in a bucket", way_out)
        else:
            require("://" not in uri, "location", uri.partition("://")[0], "is not a store that Lance knows", way_out)
            uri = str(Path(uri).expanduser())
        given = {str(key): str(value) for key, value in (options or {}).items()}
        return cls(
            uri.rstrip("/"), int(version) if hash_mark else None, {**_defaults(), **given} if on_store else given
        )

    def __str__(self) -> str:
        return f"{self.uri}{'' if self.version is None else f'#{self.version}'}"

    @property
    def location(self) -> str:
        """The location, as `CredibleIndex.open` takes it."""
        return str(self) if self.uri.startswith(SCHEMES) else f"{_PREFIX}{self}"

    @property
    def folder(self) -> Path | None:
        """The folder; None on an object store."""
        return None if self.uri.startswith(SCHEMES) else Path(self.uri)

    def damaged(self, problem: str) -> DamagedFileError:
        """The error for damage of this index."""
        return DamagedFileError(str(self), problem, "open an older version, restore it, or build it again")

    @contextlib.contextmanager
    def calls(self, writing: bool = False) -> Iterator[None]:
        """Errors of Lance as errors about this index. Only calls of Lance belong inside.

        Lance has no types of errors, so what was being done and where decides what the error means.
        """
        try:
            yield
        except (IndexGoneError, DamagedFileError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # damage may make Lance panic, which is no Exception
            # Not chained: the text of the library is long, and may hold credentials.
            raise self._failure(" ".join(str(error).split()) or type(error).__name__, writing) from None

    def _failure(self, said: str, writing: bool) -> Exception:
        # Long enough to recognise the cause, without the source code lines that Lance adds.
        short = redacted(re.sub(r",? *(location: Location|/\S+\.rs:).*", "", said)[:300], *self._secrets())
        if self.folder is None:
            cause = f"the object store does not answer, or refuses ({short})"
            way_out = f"check the bucket, the network and the endpoint; {_CREDENTIALS}"
            return ConnectionError(f"{self}: {cause}; {way_out}; a change may or may not have happened")
        if writing:
            return OSError(f"{self}: Lance cannot write it ({short}); {_FULL}")
        if not self.folder.is_dir():
            return IndexGoneError(f"{self}: the folder is not there any more")
        return self.damaged(f"Lance cannot read it ({short})")

    def _secrets(self) -> list[str]:
        known = [value for key, value in os.environ.items() if key.startswith(_SECRET_NAMES)]
        return [value for value in (*self.options.values(), *known) if len(value) >= 8]


_FULL = "free some space, check its permissions and the limit of files (ulimit -f), and repeat it"
_CREDENTIALS = "set the credentials in the environment (AWS_ACCESS_KEY_ID, ...) or pass storage_options"
_SECRET_NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET", "AWS_SESSION_TOKEN", "AZURE_STORAGE", "GOOGLE_")


def _defaults() -> dict[str, str]:
    """Options for all object stores. An endpoint without TLS must be allowed; naming it in the environment does so."""
    named = (os.environ.get(name, "") for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"))
    endpoint = next(filter(None, named), "")
    return {**_PATIENCE, **({"allow_http": "true"} if endpoint.startswith("http://") else {})}
