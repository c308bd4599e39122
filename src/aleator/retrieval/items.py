"""What goes into an index: ids, directions, certainties and metadata, checked once and in one form.

All stores keep an id and its metadata as ASCII JSON text. So `7` and `"7"` are different ids, values come back as they
were given, and no character has a special meaning for a database or a file system. An id as JSON text is called a key.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from aleator.foundation import reject, require, require_type
from aleator.posteriors import PosteriorBatch
from aleator.stored import Id, Metadata

LONGEST_KEY = 1024  # bytes of JSON; an index entry of PostgreSQL holds at most about 2,700
LEAST_WEIGHT = 1e-3  # of a component that is stored; the others are dropped, and the rest sums to 1 again
_NO_METADATA = "{}"
_BLOCK = 65_536  # rows in double precision at a time


@dataclass(frozen=True)
class Items:
    """n checked items, as a store takes them.

    Args:
        keys: Ids as JSON text, n of them, each once.
        mu: Unit vectors rounded to float32, shape (n, D).
        kappa: Certainties in [0, inf], shape (n,), float32.
        metadata_json: Metadata as JSON text, n of them.
        weight: None for items of one mode. Items of several modes have m >= n vectors: mu (m, D) and kappa (m,) of all
            components, with the weights (m,), float32, of each item's components, the heaviest first.
        owner: Position among the keys of the item that each vector belongs to, shape (m,), ascending. None as `weight`.

    Examples:
        >>> import numpy as np
        >>> from aleator.retrieval import Items
        >>> items = Items(['"a"', "7"], np.eye(2, dtype=np.float32), np.ones(2, np.float32), ["{}", '{"n": 1}'])
        >>> len(items)
        2
    """

    keys: Sequence[str]
    mu: np.ndarray
    kappa: np.ndarray
    metadata_json: list[str]
    weight: np.ndarray | None = None
    owner: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def rows_of_vectors(self, rows: np.ndarray) -> np.ndarray:
        """The row of each vector.

        Args:
            rows: The row of each item, shape (n,).

        Returns:
            Rows, shape (m,).
        """
        return rows if self.owner is None else rows[self.owner]

    def digests(self) -> np.ndarray:
        """The digest of each vector, as `digests_of` makes it.

        Returns:
            Digests, shape (m,), uint64.
        """
        described = list(zip(self.keys, self.metadata_json, strict=True))
        of_vectors = described if self.owner is None else [described[item] for item in self.owner.tolist()]
        return digests_of(of_vectors, self.mu, self.kappa, self.weight)


class NumberKeys(Sequence[str]):
    """Keys of integer ids, made when they are read. A million items need no million strings in memory."""

    def __init__(self, numbers: Sequence[int]):
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, choice: Any) -> Any:
        chosen = self._numbers[choice]
        return NumberKeys(chosen) if isinstance(choice, slice) else str(chosen)


def digests_of(
    described: Sequence[tuple[str, str]], mu: np.ndarray, kappa: np.ndarray, weight: np.ndarray | None
) -> np.ndarray:
    """A digest (m,) uint64 of each vector (m, D) with its kappa (m,), its weight (m,), and its item's id and metadata.

    Their sum over an index is its state: it says what the index holds, in any order. A store keeps the sum: it adds the
    digests of new items, and subtracts those of removed ones.
    """
    digests = np.empty(len(mu), np.uint64)
    for start in range(0, len(mu), _BLOCK):
        block = slice(start, start + _BLOCK)
        one = np.ones(len(mu[block])) if weight is None else weight[block]
        numbers = np.column_stack([mu[block], kappa[block], one]).astype(np.float32)
        each = (
            hashlib.blake2b(f"{key}\0{metadata}\0".encode() + row.tobytes(), digest_size=8).digest()
            for (key, metadata), row in zip(described[block], numbers, strict=True)
        )
        digests[block] = np.frombuffer(b"".join(each), np.uint64)
    return digests


def sum_of(digests: np.ndarray) -> int:
    """The sum of digests, modulo 2**64."""
    return int(np.add.reduce(digests, dtype=np.uint64))


def state_text(total: int) -> str:
    """A sum of digests as text, which JSON keeps exactly."""
    return f"{total % 2**64:016x}"


def encode_id(value: Id) -> str:
    """An id as JSON text: `7` and `"7"` are two ids."""
    if isinstance(value, np.integer):
        value = int(value)
    valid = isinstance(value, str | int) and not isinstance(value, bool)
    require(valid, "ids", value, f"an id cannot be a {type(value).__name__}", "use strings or integers")
    key = json.dumps(value)
    way_out = f"keep ids below {LONGEST_KEY} bytes and put the rest into metadata"
    require(len(key) <= LONGEST_KEY, "ids", f"{key[:40]}...", f"takes {len(key)} bytes as JSON", way_out)
    return key


def decode_id(key: str) -> Id:
    """The id that `encode_id` turned into JSON text."""
    return json.loads(key) if key[0] == '"' else int(key)


def encode_ids(ids: Iterable[Id]) -> list[str]:
    """Ids as JSON text. An id that appears twice is an error."""
    require(not isinstance(ids, str), "ids", ids, "is one string, not a sequence of ids", "pass [id]")
    keys = [encode_id(value) for value in (ids.tolist() if isinstance(ids, torch.Tensor) else ids)]
    if len(set(keys)) < len(keys):
        seen: set[str] = set()
        duplicate = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        reject("ids", decode_id(duplicate), "given twice in one call", "give each item an id of its own")
    return keys


def encode_metadata(metadata: Mapping[str, Any] | None) -> str:
    """Metadata as JSON text. Metadata that JSON cannot represent exactly are an error."""
    if not metadata and (metadata is None or isinstance(metadata, Mapping)):
        return _NO_METADATA
    try:
        text = json.dumps(metadata, allow_nan=False)
        unchanged = isinstance(metadata, Mapping) and json.loads(text) == metadata
    except (TypeError, ValueError, RecursionError):
        unchanged = False
    if not unchanged:
        way_out = "use a dict from strings to finite numbers, strings, booleans, None, lists and dicts"
        reject("metadata", metadata, "cannot be stored as JSON without a change", way_out)
    return text


def decode_metadata(text: str) -> Metadata:
    """The metadata that `encode_metadata` turned into JSON text."""
    return {} if text == _NO_METADATA else json.loads(text)


def directions(posteriors: PosteriorBatch, argument: str, dim: int | None = None) -> np.ndarray:
    """Check N posteriors, and return their mu as float32 unit vectors: (N, D), or (N, K, D) for K modes.

    Items and queries are rounded in the same way, so that an item finds itself.
    """
    require_type(argument, posteriors, PosteriorBatch, "pass a VonMisesFisher or VMFMixture with batch shape (N,)")
    is_batch = len(posteriors.batch_shape) == 1
    shape = f"batch shape {tuple(posteriors.batch_shape)}"
    require(is_batch, argument, shape, "expected batch shape (N,)", "reshape mu to (N, D) and kappa to (N,)")
    components = posteriors.components.flatten()
    mu, kappa = components.mu, components.kappa
    require(
        dim is None or mu.shape[1] == dim,
        argument,
        f"posteriors of {mu.shape[1]} dimensions",
        f"the index holds {dim} dimensions",
        "use the encoder that made the index",
    )
    rounded = np.empty(tuple(mu.shape), np.float32)
    for start in range(0, len(rounded), _BLOCK):
        exact = mu[start : start + _BLOCK].detach().cpu().double().numpy()
        length = np.sqrt(np.square(exact).sum(axis=1))
        bad = ~(np.abs(length - 1) < 1e-3)  # true for NaN and infinity too
        if bad.any():
            reject(
                f"{argument}.mu",
                exact[bad][0][:4].tolist(),
                "starts a row that is not a unit vector of finite numbers",
                "normalise mu to length 1",
            )
        rounded[start : start + _BLOCK] = exact / length[:, None]
    certainty = kappa.detach().cpu()
    require(certainty >= 0, f"{argument}.kappa", certainty, "is negative or NaN", "keep kappa in [0, inf]")
    return rounded if posteriors.modes == 1 else rounded.reshape(len(posteriors), posteriors.modes, -1)


def items_of(
    posteriors: PosteriorBatch, ids: Iterable[Id] | None, metadata: Sequence[Mapping[str, Any] | None] | None
) -> Items:
    """Items of a new index. Without ids they are numbered."""
    mu = directions(posteriors, "posteriors")
    keys = NumberKeys(range(len(mu))) if ids is None else encode_ids(ids)
    return make_items(posteriors, mu, keys, metadata, mixtures=posteriors.modes > 1)


def make_items(
    posteriors: PosteriorBatch,
    mu: np.ndarray,
    keys: Sequence[str],
    metadata: Sequence[Mapping[str, Any] | None] | None,
    mixtures: bool,
) -> Items:
    """Items with the directions that `directions` has checked. They share no memory with the caller's tensors.

    Items of an index for `mixtures` have weights, also if their posteriors have one mode.
    """
    count = f"there are {len(mu)} posteriors"
    require(len(keys) == len(mu), "ids", len(keys), count, "give one id for each")
    if metadata is None:
        encoded = [_NO_METADATA] * len(mu)
    else:
        require(
            not isinstance(metadata, Mapping) and len(metadata) == len(mu),
            "metadata",
            type(metadata).__name__ if isinstance(metadata, Mapping) else len(metadata),
            count,
            "give a sequence with one dict (or None) for each",
        )
        encoded = [encode_metadata(item_metadata) for item_metadata in metadata]
    certainty = posteriors.components.kappa.detach().cpu()  # (n, K)
    fits = (certainty <= torch.finfo(torch.float32).max) | certainty.isinf()
    way_out = "pass math.inf for point masses, or smaller numbers"
    require(fits, "posteriors.kappa", certainty, "too large for float32, in which an index keeps it", way_out)
    kappa = certainty.numpy().astype(np.float32)
    if not mixtures:
        return Items(keys, mu, kappa[:, 0], encoded)
    weight = posteriors.log_weights.detach().cpu().double().exp().numpy()
    order = np.argsort(-weight, axis=1, kind="stable")
    weight, kappa = np.take_along_axis(weight, order, 1), np.take_along_axis(kappa, order, 1)
    mu = np.take_along_axis(mu.reshape(len(mu), posteriors.modes, -1), order[:, :, None], 1)
    used = weight >= LEAST_WEIGHT
    weight = weight / np.where(used, weight, 0).sum(axis=1, keepdims=True)
    return Items(keys, mu[used], kappa[used], encoded, weight[used].astype(np.float32), np.nonzero(used)[0])
