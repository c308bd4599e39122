"""Checks that the parts of an index fit together, also where they have right checksums and foreign contents."""

from typing import Any

import numpy as np

_NEEDED = ("dim", "kernel", "prior", "fingerprint", "recall", "exact_below", "report")


def config_problem(config: Any) -> str | None:
    """What is wrong with the settings of an index; None if nothing is."""
    if not isinstance(config, dict):
        return "the settings are not a JSON object"
    missing = [name for name in _NEEDED if name not in config]
    if missing:
        return f"the settings have no {missing[0]!r}"
    if not isinstance(config["dim"], int) or config["dim"] < 2:
        return f"dim = {config['dim']!r} is not a dimension"
    kernel, prior = config["kernel"], config["prior"]
    if not isinstance(kernel, dict) or "name" not in kernel or not isinstance(kernel.get("kappa_pos"), int | float):
        return f"kernel = {kernel!r} is not a kernel"
    if not isinstance(prior, int | float) or not 0 < prior < 1:
        return f"prior = {prior!r} is not a probability"
    return None


def arrays_problem(rows: np.ndarray, kappa: np.ndarray, weight: np.ndarray | None, vectors: int) -> str | None:
    """What is wrong with the rows, kappas and weights of a vector file; None if nothing is.

    Args:
        rows: Row of each position.
        kappa: Kappa of each position.
        weight: Weight of each position; None for items of one mode.
        vectors: Number of vectors in the file.
    """
    lengths = {len(rows), len(kappa), len(rows) if weight is None else len(weight), vectors}
    if len(lengths) > 1:
        return f"it has {vectors} vectors, {len(rows)} rows and {len(kappa)} kappas"
    if len(rows):
        step = np.diff(rows)
        if rows[0] < 0 or (step < (1 if weight is None else 0)).any():
            return "the rows of its items are not in order"
        if not (kappa >= 0).all():
            return "a kappa is negative or not a number"
        if weight is not None and not ((weight > 0) & (weight <= 1)).all():
            return "a weight is not in (0, 1]"
    return None


def directions_problem(mu: np.ndarray) -> str | None:
    """What is wrong with directions (n, D); None if nothing is."""
    norm = np.sqrt(np.einsum("nd,nd->n", mu, mu, dtype=np.float64))
    return None if (abs(norm - 1) < 1e-3).all() else "a direction is not a unit vector"
