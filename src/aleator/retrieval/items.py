"""What goes into an index: ids, directions, certainties and metadata, checked once and in one form.

Both backends keep an id and its metadata as ASCII JSON text. That keeps `7` and `"7"` apart, brings back what
was given, and lets no character of it mean anything to a database or a file system.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from aleator.foundation import reject, require
from aleator.posteriors import VonMisesFisher

Id = str | int
Metadata = dict[str, Any]

LONGEST_KEY = 1024  # bytes of JSON; a B-tree page of PostgreSQL holds no more than about 2,700
_NO_NOTE = "{}"
_BLOCK = 65_536  # rows in double precision at a time


@dataclass(frozen=True)
class Items:
    """n items, ready to be stored. Rows of `mu` are unit vectors rounded to float32."""

    keys: Sequence[str]  # (n,) ids as JSON
    mu: np.ndarray  # (n, D) float32
    kappa: np.ndarray  # (n,) float32, in [0, inf]
    notes: list[str]  # (n,) metadata as JSON

    def __len__(self) -> int:
        return len(self.keys)


class Numbered(Sequence[str]):
    """The keys of integer ids, made as they are read: a million strings are not kept for a million items."""

    def __init__(self, numbers: Sequence[int]):
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, choice: Any) -> Any:
        chosen = self._numbers[choice]
        return Numbered(chosen) if isinstance(choice, slice) else str(chosen)


def encode_id(value: Id) -> str:
    """An id as JSON text: `7` and `"7"` are two ids."""
    if isinstance(value, np.integer):
        value = int(value)
    require(
        isinstance(value, str | int) and not isinstance(value, bool),
        "ids",
        value,
        f"an id cannot be a {type(value).__name__}",
        "use strings or integers",
    )
    key = json.dumps(value)
    require(
        len(key) <= LONGEST_KEY,
        "ids",
        f"{key[:40]}...",
        f"takes {len(key)} bytes as JSON",
        f"keep ids to {LONGEST_KEY} bytes and put the rest into metadata",
    )
    return key


def decode_id(key: str) -> Id:
    return json.loads(key) if key[0] == '"' else int(key)


def encode_ids(ids: Iterable[Id]) -> list[str]:
    """The ids as JSON text, each of them once."""
    require(not isinstance(ids, str), "ids", ids, "is one string, not a sequence of ids", "pass [id]")
    keys = [encode_id(value) for value in (ids.tolist() if isinstance(ids, torch.Tensor) else ids)]
    if len(set(keys)) < len(keys):
        seen: set[str] = set()
        twice = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        reject("ids", decode_id(twice), "given twice in one call", "give each item an id of its own")
    return keys


def encode_metadata(metadata: Mapping[str, Any] | None) -> str:
    """Metadata as JSON text. Whatever would not come back equal is refused."""
    if not metadata and (metadata is None or isinstance(metadata, Mapping)):
        return _NO_NOTE
    try:
        note = json.dumps(metadata, allow_nan=False)
        intact = isinstance(metadata, Mapping) and json.loads(note) == metadata
    except (TypeError, ValueError, RecursionError):
        intact = False
    if not intact:
        reject(
            "metadata",
            metadata,
            "does not survive JSON",
            "use a dict from strings to finite numbers, strings, booleans, None, lists and dicts",
        )
    return note


def decode_metadata(note: str) -> Metadata:
    return {} if note == _NO_NOTE else json.loads(note)


def directions(posteriors: VonMisesFisher, argument: str, dim: int | None = None) -> np.ndarray:
    """The mu of N posteriors as (N, D) float32 unit vectors; the same rounding for items and queries."""
    require(
        isinstance(posteriors, VonMisesFisher),
        argument,
        type(posteriors).__name__,
        "expected posteriors",
        "pass a VonMisesFisher with batch shape (N,)",
    )
    mu, kappa = posteriors.mu, posteriors.kappa
    require(
        mu.ndim == 2 and kappa.ndim == 1,
        argument,
        f"batch shape {tuple(posteriors.batch_shape)}",
        "expected batch shape (N,)",
        "reshape mu to (N, D) and kappa to (N,)",
    )
    require(
        dim is None or mu.shape[1] == dim,
        argument,
        f"posteriors on {mu.shape[1]} dimensions",
        f"the index holds {dim} dimensions",
        "use the encoder that made the index",
    )
    rounded = np.empty(tuple(mu.shape), np.float32)
    for start in range(0, len(rounded), _BLOCK):
        exact = mu[start : start + _BLOCK].detach().cpu().double().numpy()
        length = np.sqrt(np.square(exact).sum(axis=1))
        far = ~(np.abs(length - 1) < 1e-3)  # true for NaN and infinity too
        if far.any():
            reject(
                f"{argument}.mu",
                exact[far][0][:4].tolist(),
                "starts a row that is not a unit vector of finite numbers",
                "normalise mu to length 1",
            )
        rounded[start : start + _BLOCK] = exact / length[:, None]
    certain = kappa.detach().cpu()
    require(certain >= 0, f"{argument}.kappa", certain, "is negative or NaN", "keep kappa in [0, inf]")
    return rounded


def prepare(
    mu: np.ndarray, kappa: torch.Tensor, keys: Sequence[str], metadata: Sequence[Mapping[str, Any] | None] | None
) -> Items:
    """Items from what `directions` has checked; nothing is shared with the caller's tensors."""
    require(len(keys) == len(mu), "ids", len(keys), f"there are {len(mu)} posteriors", "give one id each")
    if metadata is None:
        notes = [_NO_NOTE] * len(mu)
    else:
        require(
            not isinstance(metadata, Mapping) and len(metadata) == len(mu),
            "metadata",
            type(metadata).__name__ if isinstance(metadata, Mapping) else len(metadata),
            f"there are {len(mu)} posteriors",
            "give a sequence with one dict (or None) for each",
        )
        notes = [encode_metadata(one) for one in metadata]
    return Items(keys, mu, kappa.detach().cpu().numpy().astype(np.float32), notes)
