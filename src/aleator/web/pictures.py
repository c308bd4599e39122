"""Images that the server reads and sends: only files in the root folder, only images, only up to a size."""

import contextlib
import hashlib
import io
import json
import os
import stat
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from aleator.data import as_rgb, open_image, readable_formats
from aleator.web.metrics import Metrics
from aleator.web.problems import ProblemError

if TYPE_CHECKING:
    from PIL import Image

# Formats that browsers show. Other formats are converted to PNG.
_TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif", "BMP": "image/bmp"}
_LARGEST_SMALL = 2**20  # bytes of a small image that is sent as it is
_ENTRY = 300  # bytes of an entry of the cache without its data


class Picture(NamedTuple):
    """An image: bytes if it is small, otherwise an open file; None if the client has it already, as `etag` names it."""

    data: bytes | BinaryIO | None
    media_type: str
    etag: str = ""


class Pictures:
    """The images of a collection, which are in one folder. A cache keeps the latest small versions.

    Args:
        root: The folder.
        most_bytes: Largest file.
        most_pixels: Most pixels of an image.
        cache_bytes: Size of the cache.
        metrics: Where to count what the cache had.
    """

    def __init__(
        self,
        root: Path,
        most_bytes: int,
        most_pixels: int,
        cache_bytes: int = 32 * 2**20,
        metrics: Metrics | None = None,
    ):
        self._root = root
        self._most_bytes, self._most_pixels = most_bytes, most_pixels
        self._cache: OrderedDict[str, tuple[bytes, str]] = OrderedDict()  # data and media type by etag
        self._cache_room = cache_bytes
        self._lock = threading.Lock()
        self._metrics = metrics or Metrics()

    def show(self, path: str, size: int | None, known: str | None = None) -> Picture:
        """Read the image at a path below the root; with `size`, scaled so that its longer side is at most `size`.

        The etag changes with the file. A picture that the client has (`known`, as in If-None-Match) is not read.

        Raises:
            ValueError: If there is no such image.
        """
        with open_inside(self._root, path, self._most_bytes) as file:
            status = os.fstat(file)
            # Nobody sets the time of the last change (ctime), which a copy may do to the time of writing.
            facts = [status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino]
            version = json.dumps([path, size, *facts])
            etag = f'"{hashlib.blake2b(version.encode("utf-8", "replace"), digest_size=12).hexdigest()}"'
            if known is not None and etag in known:
                return Picture(None, "", etag)
            with self._lock:
                cached = self._cache.get(etag)
                if cached is not None:
                    self._cache.move_to_end(etag)
            if size is None:
                return Picture(*self._whole(file, etag, cached), etag)
            self._metrics.count("aleator_pictures_total", cache="missed" if cached is None else "hit")
            if cached is not None:
                return Picture(*cached, etag)
            made = self._small(file, size)
        self._keep(etag, made)
        return Picture(*made, etag)

    def _keep(self, etag: str, made: tuple[bytes, str]) -> None:
        with self._lock:
            replaced = self._cache.pop(etag, None)  # another thread may have been faster
            self._cache[etag] = made
            self._cache_room += (len(replaced[0]) + _ENTRY if replaced else 0) - len(made[0]) - _ENTRY
            while self._cache_room < 0:
                self._cache_room += len(self._cache.popitem(last=False)[1][0]) + _ENTRY

    def _whole(self, file: int, etag: str, cached: tuple[bytes, str] | None) -> tuple[BinaryIO, str]:
        """The image in an open file, in a file of its own: a client that does not read it holds no memory.

        Of an image that is sent as it is, the cache keeps only that it could be decoded.
        """
        if cached is None:
            format, image = self._decode(file, None)
            if format not in _TYPES:
                data, media_type = _encoded(image)
                converted = tempfile.TemporaryFile()  # noqa: SIM115 (who sends it closes it)
                converted.write(data)
                return converted, media_type
            self._keep(etag, cached := (b"", _TYPES[format]))
        return open(os.dup(file), "rb"), cached[1]

    def _small(self, file: int, size: int) -> tuple[bytes, str]:
        """The image in an open file, with sides of at most `size`."""
        format, image = self._decode(file, size)
        if format in _TYPES and max(image.size) <= size and (length := os.fstat(file).st_size) <= _LARGEST_SMALL:
            return os.pread(file, length, 0), _TYPES[format]
        image.thumbnail((size, size))
        return _encoded(image)

    def _decode(self, file: int, size: int | None) -> tuple[str | None, "Image.Image"]:
        """The format and the pixels of an image. A file that cannot be decoded is not sent."""
        with open(file, "rb", closefd=False) as content:
            data = content.read(self._most_bytes)
        return image_format(data), open_image(data, self._most_pixels, size)[0]


def _encoded(image: "Image.Image") -> tuple[bytes, str]:
    """An image as a browser can show it, and its media type."""
    if image.mode == "F" or image.mode.startswith("I"):
        image = as_rgb(image)
    opaque = image.mode in ("RGB", "L", "CMYK", "YCbCr") and "transparency" not in image.info
    out = io.BytesIO()
    if opaque and max(image.size) > 64:
        image.convert("RGB").save(out, "JPEG", quality=88)
        return out.getvalue(), "image/jpeg"
    image.convert("RGB" if opaque else "RGBA").save(out, "PNG")
    return out.getvalue(), "image/png"


@contextlib.contextmanager
def open_inside(root: Path, path: str, most_bytes: int) -> Iterator[int]:
    """Open a regular file below `root`, and give its descriptor.

    The path is opened step by step, and no step may lead up or be a link. So the check also holds if somebody changes
    the folder meanwhile.
    """
    steps = PurePosixPath(path).parts
    forbidden = "\0\\" if os.sep == "\\" else "\0"  # elsewhere a name may hold a backslash
    if not steps or path.startswith("/") or ".." in steps or any(character in path for character in forbidden):
        raise ValueError("the path leads out of the root folder")
    with contextlib.ExitStack() as opened:

        def descend(step: str | Path, flags: int, folder: int | None) -> int:
            inner = os.open(step, os.O_RDONLY | flags, dir_fd=folder)
            opened.callback(os.close, inner)
            return inner

        try:
            folder = descend(root, os.O_DIRECTORY, None)
            for step in steps[:-1]:
                folder = descend(step, os.O_DIRECTORY | os.O_NOFOLLOW, folder)
            # Without O_NONBLOCK, opening a named pipe would wait forever.
            file = descend(steps[-1], os.O_NOFOLLOW | os.O_NONBLOCK, folder)
        except (OSError, ValueError):  # a name may have characters that file systems do not allow
            raise ValueError("there is no such file in the root folder, or it is a link") from None
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
            raise ValueError(f"it is not a file of at most {most_bytes} bytes")
        yield file


def image_format(data: bytes) -> str | None:
    """The format of an image from its content, whatever its name is; None if it is not an image."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=readable_formats()) as image:
            return image.format
    except Exception:  # decoders raise many kinds of errors for damaged files
        return None


def check_upload(data: bytes, most_pixels: int) -> None:
    """Refuse a file that is not an image (415) or has too many pixels (413), from its header alone."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=readable_formats()) as image:
            width, height = image.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        width = height = most_pixels
    except Image.UnidentifiedImageError:
        formats = ", ".join(readable_formats())
        raise ProblemError(415, f"this file is not an image that the server can read; send one of {formats}") from None
    except Exception as damage:
        raise ProblemError(422, f"the image is damaged ({damage}); convert it to PNG or JPEG again") from None
    if width * height > most_pixels:
        raise ProblemError(413, f"the image has more than {most_pixels} pixels; make it smaller")
