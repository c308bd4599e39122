"""Readers of array files from the network, which run no code, and checks of what they hold."""

import io
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def read_array_file(path: Path, reader: Callable[[bytes], Any]) -> Any:
    """The content of a file. Whatever goes wrong in `reader` becomes one ValueError that names the file."""
    require_file(path, path.is_file(), "is missing")
    try:
        return reader(path.read_bytes())
    except Exception as problem:
        raise ValueError(f"{path} is damaged or in another format ({problem}); fetch it again") from None


def read_npz(data: bytes) -> dict[str, np.ndarray]:
    """Arrays by name from the content of an .npz file."""
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def read_npy(data: bytes) -> np.ndarray:
    """The array of an .npy file."""
    return np.load(io.BytesIO(data), allow_pickle=False)


def read_csv(data: bytes) -> np.ndarray:
    """The numbers of a file with comma-separated values."""
    return np.loadtxt(io.BytesIO(data), delimiter=",")


def read_torch_archive(data: bytes) -> dict[str, np.ndarray]:
    """Arrays by name from an archive of `torch.save`: a zip file with a pickle in it."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        content = unpickle_arrays(archive.read(name))
    return {key: np.asarray(value) for key, value in content.items()}


def unpickle_arrays(data: bytes) -> Any:
    """Unpickle numpy arrays and plain containers. A pickle that asks for anything else is refused and not run."""
    return _ArraysOnly(io.BytesIO(data), encoding="latin1").load()


class _ArraysOnly(pickle.Unpickler):
    """Looks up nothing but what numpy arrays are made of."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np.empty(0).__reduce__()[0]  # its place differs between versions of numpy
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):
            return _latin1
        raise pickle.UnpicklingError(f"asks for {module}.{name}, which is not an array")


def _latin1(text: str, encoding: str) -> bytes:
    return text.encode("latin1")


def require_file(path: Path, ok: bool, problem: str) -> None:
    """Raise an error that names the file unless `ok`."""
    if not ok:
        raise ValueError(f"{path} {problem}; fetch it again, or name another data folder")


def require_names(path: Path, arrays: Mapping[str, np.ndarray], names: Any) -> None:
    """Raise unless all named arrays are there."""
    missing = [name for name in names if name not in arrays]
    require_file(path, not missing, f"holds no {', '.join(missing)} but {', '.join(arrays) or 'nothing'}")


def require_table(path: Path, array: np.ndarray, shape: tuple[int | None, ...]) -> None:
    """Raise unless an array has the shape; None stands for any size."""
    fits = array.ndim == len(shape) and all(b in (None, a) for a, b in zip(array.shape, shape, strict=True))
    wanted = " x ".join("N" if size is None else str(size) for size in shape)
    require_file(path, fits, f"holds an array of shape {array.shape}, not {wanted}")


def require_good_rows(path: Path, array: np.ndarray, bad: Any, problem: str) -> None:
    """Raise an error that names the first row for which `bad` (N,) is true."""
    if bad.any():
        row = int(bad.argmax())
        require_file(path, False, f"row {row}: {array[row].tolist()} {problem}")
