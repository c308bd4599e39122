"""Arrays from a user's .npy files: checked, never unpickled, and read a slice at a time where they are large."""

from pathlib import Path
from typing import Any

import numpy as np

from aleator.foundation import reject, require


def read_array(path: Path, argument: str) -> np.ndarray:
    """A whole .npy file; one that is damaged or holds Python objects is refused."""
    require(path.is_file(), argument, str(path), "there is no such file", "check the path")
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as damage:
        reject(argument, str(path), f"cannot be read ({damage})", "write it with numpy.save, numbers only")


class FeatureFile:
    """The rows (N, F) of a .npy file, read when they are asked for; nothing stays in memory."""

    def __init__(self, path: Path):
        self.path = path
        try:
            mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError) as damage:
            reject("data", str(path), f"cannot be read ({damage})", "write it with numpy.save, numbers only")
        require(
            mapped.ndim == 2 and mapped.dtype.kind in "fiu" and mapped.size > 0,
            "data",
            str(path),
            f"{mapped.dtype} of shape {mapped.shape} is not a matrix of features",
            "store numbers of shape (N, F)",
        )
        way_out = "store numpy.ascontiguousarray(features)"
        require(mapped.flags["C_CONTIGUOUS"], "data", str(path), "is stored column by column", way_out)
        self.shape: tuple[int, int] = mapped.shape
        self.dtype, self.offset = mapped.dtype, mapped.offset
        self.row_bytes = self.dtype.itemsize * self.shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """A slice of rows, float32."""
        start, stop, step = rows.indices(len(self))
        assert step == 1
        # Read, not mapped: pages of a mapping would count as this process's memory.
        with open(self.path, "rb") as file:
            file.seek(self.offset + start * self.row_bytes)
            values = np.fromfile(file, self.dtype, max(stop - start, 0) * self.shape[1])
        found = values.reshape(-1, self.shape[1]).astype(np.float32, copy=False)
        finite = np.isfinite(found).all(1)
        if not finite.all():
            row = start + int(np.flatnonzero(~finite)[0])
            reject("features", f"row {row} of {self.path}", "has a number that is not finite", "leave it out")
        return found
