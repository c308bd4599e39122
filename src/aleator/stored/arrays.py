"""Arrays and header of a posteriors file, in numpy. The format is described in `aleator.retrieval.posteriors_file`."""

from pathlib import Path
from typing import NoReturn

import numpy as np

from aleator.foundation import DamagedFileError, reject, require, require_file
from aleator.stored.checksums import WAY_OUT, verify_posteriors

# What `aleator embed` stores of the label probabilities of each item, for runs that have them: how sure the label is,
# shape (N,), and the likeliest labels, (N, T): their numbers, and their probabilities.
ANSWERS = ("answers.certainty", "answers.labels", "answers.probabilities")

_ENDINGS = (".npz", ".safetensors")
_FROM_NPZ = ("mu", "kappa", "log_weights")


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a posteriors file, whose checksum is verified. Neither mu nor kappa are checked.

    Args:
        path: An .npz or .safetensors file.

    Returns:
        Arrays by name: at least mu (N, D) and kappa (N,); for posteriors of K modes mu (N, K, D), kappa (N, K) and
        log_weights (N, K).

    Raises:
        ValueError: If the file is missing, damaged or has no such arrays.

    Examples:
        >>> import numpy as np
        >>> from pathlib import Path
        >>> from aleator.stored import read_arrays
        >>> np.savez("two.npz", mu=np.eye(2, 3), kappa=np.array([5.0, 50.0]))
        >>> read_arrays(Path("two.npz"))["kappa"]
        array([ 5., 50.])
    """
    require_file("posteriors", path, "name an .npz or .safetensors file")
    way_out = "use .npz or .safetensors" + ("; .parquet is for other programs" if path.suffix == ".parquet" else "")
    require(path.suffix in _ENDINGS, "posteriors", str(path), "has an unknown ending", way_out)
    try:
        arrays = _from_npz(path) if path.suffix == ".npz" else _from_safetensors(path)
    except Exception as damage:  # zip and safetensors each have their own errors
        if isinstance(damage, TypeError) and "not understood" in str(damage):
            reject_numbers(path, one_line(damage))
        raise DamagedFileError(path, f"it cannot be read ({one_line(damage)})", WAY_OUT) from damage
    read_header(path)  # verifies the file
    for name in ("mu", "kappa"):
        require(name in arrays, "posteriors", str(path), f"has no array {name!r}", "store mu (N, D) and kappa (N,)")
        # Other packages may teach numpy more types, such as bfloat16. Their kind is V.
        if arrays[name].dtype.kind == "V":
            reject_numbers(path, f"{name} is {arrays[name].dtype}")
    mu, kappa = arrays["mu"], arrays["kappa"]
    problem = f"has mu of shape {mu.shape} and kappa of shape {kappa.shape}"
    fits = mu.ndim in (2, 3) and mu.shape[:-1] == kappa.shape
    require(fits, "posteriors", str(path), problem, "store mu (N, D) and kappa (N,)")
    has_weights = mu.ndim < 3 or "log_weights" in arrays
    way_out = "store log_weights (N, K) too"
    require(has_weights, "posteriors", str(path), "has several modes and no weights", way_out)
    return arrays


def read_header(path: Path) -> dict[str, str]:
    """Read the header that `aleator embed` wrote into a posteriors file.

    Args:
        path: A posteriors file.

    Returns:
        The header: fingerprint (of the encoder), kappa_pos, prior and maps (of match probabilities), items (a digest).
        It is empty for an .npz file, and for a file that is no safetensors file.

    Raises:
        DamagedFileError: If the file does not match the checksum in its header.
    """
    from safetensors import SafetensorError, safe_open

    if path.suffix != ".safetensors":
        return {}
    try:
        with safe_open(path, "np") as file:
            header = file.metadata() or {}
    except (SafetensorError, OSError):
        return {}
    verify_posteriors(path, header)
    return header


def reject_numbers(path: Path, problem: str) -> NoReturn:
    """Raise, because the arrays of a posteriors file are no posteriors."""
    way_out = "store mu of length 1 and kappa >= 0, in float32 or float64"
    reject("posteriors", str(path), f"holds no posteriors ({problem})", way_out)


def one_line(error: Exception) -> str:
    """The message of another library's error, in one line of at most 200 characters."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def _from_npz(path: Path) -> dict[str, np.ndarray]:
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in _FROM_NPZ if name in arrays}


def _from_safetensors(path: Path) -> dict[str, np.ndarray]:
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
