"""Images in and out of the server: nothing outside the root folder, nothing that is not an image, nothing huge."""

import contextlib
import io
import os
import stat
import threading
from collections import OrderedDict
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from aleator.data import open_image
from aleator.web.problems import ProblemError

# What browsers show. Other formats that can be read are turned into PNG.
_TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif", "BMP": "image/bmp"}
_READABLE = (*_TYPES, "TIFF", "PPM")


class Picture(NamedTuple):
    data: bytes
    media_type: str


class Pictures:
    """The images of a collection, which lie in one folder. Small versions are kept, the latest of them."""

    def __init__(self, root: Path, most_bytes: int, most_pixels: int, cache_bytes: int = 32 * 2**20):
        self._root = root
        self._most_bytes, self._most_pixels = most_bytes, most_pixels
        self._cache: OrderedDict[tuple[str, int], Picture] = OrderedDict()
        self._cache_room = cache_bytes
        self._lock = threading.Lock()

    def show(self, path: str, size: int | None) -> Picture:
        """The image at a path below the root, its longer side at most `size`; ValueError where there is none."""
        if size is None:
            return self._read(path, None)
        with self._lock:
            kept = self._cache.get((path, size))
            if kept is not None:
                self._cache.move_to_end((path, size))
                return kept
        picture = self._read(path, size)
        with self._lock:
            replaced = self._cache.pop((path, size), None)  # another thread may have been faster
            self._cache[path, size] = picture
            self._cache_room += (len(replaced.data) if replaced else 0) - len(picture.data)
            while self._cache_room < 0:
                self._cache_room += len(self._cache.popitem(last=False)[1].data)
        return picture

    def _read(self, path: str, size: int | None) -> Picture:
        data = read_inside(self._root, path, self._most_bytes)
        kind = image_format(data)
        image, _ = open_image(data, self._most_pixels, size)  # decodes it: what cannot be decoded is not served
        with image:
            if kind in _TYPES and (size is None or max(image.size) <= size):
                return Picture(data, _TYPES[kind])
            if size is not None:
                image.thumbnail((size, size))
            opaque = image.mode in ("RGB", "L", "CMYK", "YCbCr") and "transparency" not in image.info
            out = io.BytesIO()
            if opaque and max(image.size) > 64:
                image.convert("RGB").save(out, "JPEG", quality=88)
                return Picture(out.getvalue(), "image/jpeg")
            image.convert("RGB" if opaque else "RGBA").save(out, "PNG")
            return Picture(out.getvalue(), "image/png")


def read_inside(root: Path, path: str, most_bytes: int) -> bytes:
    """A regular file below `root`, step by step: no step may lead up, or be a link, whoever changes the folder
    meanwhile."""
    steps = PurePosixPath(path).parts
    if not steps or path.startswith("/") or any(step == ".." or "\0" in step or "\\" in step for step in steps):
        raise ValueError("the path leads out of the root folder")
    with contextlib.ExitStack() as opened:

        def descend(step: str | Path, kind: int, folder: int | None) -> int:
            inner = os.open(step, os.O_RDONLY | kind, dir_fd=folder)
            opened.callback(os.close, inner)
            return inner

        try:
            folder = descend(root, os.O_DIRECTORY, None)
            for step in steps[:-1]:
                folder = descend(step, os.O_DIRECTORY | os.O_NOFOLLOW, folder)
            # Without O_NONBLOCK, opening a named pipe would wait for ever.
            file = descend(steps[-1], os.O_NOFOLLOW | os.O_NONBLOCK, folder)
        except (OSError, ValueError):  # a name may have characters that the file system cannot have
            raise ValueError("there is no such file in the root folder, or it is a link") from None
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_size > most_bytes:
            raise ValueError(f"it is not a file of at most {most_bytes} bytes")
        with open(file, "rb", closefd=False) as content:
            return content.read(most_bytes)


def image_format(data: bytes) -> str | None:
    """The format that the content has, whatever its name says; None where it is no image."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=_READABLE) as image:
            return image.format
    except Exception:  # decoders of damaged files raise whatever they stumble over
        return None


def check_upload(data: bytes, most_pixels: int) -> None:
    """Refuse what is no image (415) or has too many pixels (413), from its header alone."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=_READABLE) as image:
            width, height = image.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        width = height = most_pixels
    except Image.UnidentifiedImageError:
        known = ", ".join(_READABLE)
        raise ProblemError(415, f"this is no image that can be read here; send one of {known}") from None
    except Exception as damage:
        raise ProblemError(422, f"the image is damaged ({damage}); convert it to PNG or JPEG again") from None
    if width * height > most_pixels:
        raise ProblemError(413, f"the image has more than {most_pixels} pixels; make it smaller")
