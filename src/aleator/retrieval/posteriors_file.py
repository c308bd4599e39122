"""Posteriors files: reading and writing.

A posteriors file holds N posteriors and, if `aleator embed` wrote it, where they came from:

    NAME.safetensors   mu (N, D) float32, kappa (N,) float32; header: fingerprint, kappa_pos, prior, maps, items
                       posteriors of K modes: mu (N, K, D), kappa (N, K) and log_weights (N, K)
                       from runs that can tell: novelty (N,) float32, positive for what is unlike anything seen;
                       labels.mu, labels.kappa, labels.weights and the header's labels: a `LabelModel`;
                       answers.certainty (N,), answers.labels and answers.probabilities (N, T): what it says of each
                       item, so that a list of the least certain items needs no computation
    NAME.jsonl         one JSON object for each posterior, in the same order: its id, and any metadata

Both have checksums: see `aleator.stored.checksums`. `aleator.stored` reads the file without torch.

A file from elsewhere may also be an .npz with the arrays mu and kappa, and log_weights for K modes. It has no header.
"""

import json
import math
import shutil
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aleator.evaluation import LIKELY, LabelModel, label_certainty, pack_label_model, top_labels, unpack_label_model
from aleator.foundation import DamagedFileError, reject, writing_atomically
from aleator.matching import DEFAULT_PRIOR, MatchMaps, VMFKernel
from aleator.posteriors import VMFMixture, VonMisesFisher
from aleator.stored import (
    ANSWERS,
    UNSEALED,
    VERSION,
    WAY_OUT,
    one_line,
    read_arrays,
    read_header,
    reject_numbers,
    seal_posteriors,
)

_TENSORS = ("mu", "kappa", "log_weights")
_FLOAT32_BYTES = 4


def read_posteriors(path: Path) -> VonMisesFisher | VMFMixture:
    """Read the posteriors of an .npz or .safetensors file.

    Args:
        path: A file with the arrays mu (N, D) and kappa (N,); for posteriors of K modes mu (N, K, D), kappa (N, K) and
            log_weights (N, K).

    Returns:
        N posteriors, in the dtype of the file.

    Raises:
        ValueError: If the file is missing, damaged or has no such arrays.

    Examples:
        >>> import numpy as np
        >>> from pathlib import Path
        >>> from aleator.retrieval import read_posteriors
        >>> np.savez("two.npz", mu=np.eye(2, 3), kappa=np.array([5.0, 50.0]))
        >>> read_posteriors(Path("two.npz")).kappa.tolist()
        [5.0, 50.0]
    """
    stored = read_arrays(path)
    try:
        tensors = {name: torch.as_tensor(stored[name]) for name in _TENSORS if name in stored}
        components = VonMisesFisher(tensors["mu"], tensors["kappa"])
        return VMFMixture(tensors["log_weights"], components) if "log_weights" in tensors else components
    except (ValueError, TypeError, RuntimeError) as problem:
        reject_numbers(path, one_line(problem))


def match_settings(header: Mapping[str, str], path: Path) -> tuple[VMFKernel, float, MatchMaps]:
    """Kernel, prior and maps of match probabilities, from the header of a file; defaults where it has none."""
    try:
        kernel = VMFKernel(float(header["kappa_pos"])) if "kappa_pos" in header else VMFKernel()
        maps = MatchMaps.from_dict(json.loads(header["maps"]) if "maps" in header else None)
        return kernel, float(header.get("prior", DEFAULT_PRIOR)), maps
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        reject("posteriors", str(path), f"its header cannot be read ({one_line(problem)})", "write the file again")


def match_header(kernel: VMFKernel, prior: float, maps: MatchMaps) -> dict[str, str]:
    """The part of a header that `match_settings` reads. Maps that are the identity are left out."""
    header = {"kappa_pos": repr(float(kernel.kappa_pos)), "prior": repr(prior)}
    return header | ({"maps": json.dumps(maps.to_dict())} if maps.calibrated else {})


def write_posteriors(
    path: Path,
    count: int,
    dim: int,
    blocks: Iterable[tuple[np.ndarray, ...]],
    header: Mapping[str, str],
    *,
    novelty: bool = False,
    labels: LabelModel | None = None,
    modes: int = 1,
) -> None:
    """Write a posteriors file, block by block: the posteriors need not fit into memory.

    The file appears under its name when it is complete, never in part.

    Args:
        path: The .safetensors file.
        count: N, the number of posteriors.
        dim: D, the dimension of mu.
        blocks: Arrays mu (n, D), kappa (n,) and, if there is novelty, novelty (n,), float32, in order; N rows in total.
            For K > 1 modes mu (n, K, D), kappa (n, K), log_weights (n, K) and novelty (n,).
        header: Strings for the file's header; see `read_header`.
        novelty: Whether the blocks have novelty.
        labels: Label probabilities to store with the posteriors. The header gets its numbers; see `label_header`.
        modes: K, the number of modes of each posterior.
    """
    shapes = {"mu": [count, dim], "kappa": [count]}
    if modes > 1:
        shapes = {"mu": [count, modes, dim], "kappa": [count, modes], "log_weights": [count, modes]}
    shapes |= {"novelty": [count]} if novelty else {}
    if labels is not None and len(labels.names) > 1:
        most = min(LIKELY, len(labels.names))
        shapes |= dict(zip(ANSWERS, ([count], [count, most], [count, most]), strict=True))
        blocks = _with_answers(blocks, labels, modes)
    rows = len(shapes)
    extra = {}
    if labels is not None:
        extra = {f"labels.{name}": tensor.float().numpy() for name, tensor in pack_label_model(labels)[1].items()}
        shapes |= {name: list(array.shape) for name, array in extra.items()}
    checks = {"version": VERSION, "sha256": UNSEALED}
    layout: dict[str, Any] = {"__metadata__": {**header, **label_header(labels), **checks}}
    offsets, end = [], 0
    for name, shape in shapes.items():
        offsets.append(end)
        end += _FLOAT32_BYTES * math.prod(shape)
        layout[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offsets[-1], end]}
    start = _start_of_file(layout)
    with writing_atomically(path) as temporary:
        with open(temporary, "wb") as file:
            file.write(start)
            places = [len(start) + offset for offset in offsets]
            for place, array in zip(places[rows:], extra.values(), strict=True):
                _write_at(file, place, array)
            for block in blocks:
                for column, array in enumerate(block):
                    places[column] += _write_at(file, places[column], array)
            first_rows = places[0] == len(start) + _FLOAT32_BYTES * math.prod(shapes["mu"])
            assert first_rows, "the blocks do not have N rows in total"
        seal_posteriors(temporary)


def rewrite_header(path: Path, changes: Mapping[str, str]) -> None:
    """Write a posteriors file again, with other strings in its header and the same posteriors.

    Args:
        path: The .safetensors file.
        changes: The strings that change, by name.
    """
    with open(path, "rb") as file, writing_atomically(path) as temporary:
        layout = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        layout["__metadata__"] |= {**changes, "sha256": UNSEALED}
        with open(temporary, "wb") as copy:
            copy.write(_start_of_file(layout))
            shutil.copyfileobj(file, copy)
        seal_posteriors(temporary)


def _start_of_file(layout: dict[str, Any]) -> bytes:
    """The length of the header, and the header."""
    text = json.dumps(layout).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _with_answers(
    blocks: Iterable[tuple[np.ndarray, ...]], labels: LabelModel, modes: int
) -> Iterator[tuple[np.ndarray, ...]]:
    """Blocks with what label probabilities say of each item: the columns of `ANSWERS`."""
    for block in blocks:
        columns = [torch.from_numpy(np.ascontiguousarray(column)) for column in block]
        # They come from an encoder. A second check of their lengths would cost as much as writing them.
        q = VonMisesFisher(columns[0], columns[1], validate_args=False)
        probabilities = labels.probabilities(q if modes == 1 else VMFMixture(columns[2], q, validate_args=False))
        numbers, values = top_labels(probabilities, LIKELY)
        yield *block, *(column.float().numpy() for column in (label_certainty(probabilities), numbers, values))


def label_header(labels: LabelModel | None) -> dict[str, str]:
    """What the header of a posteriors file says about label probabilities: names and numbers, as JSON."""
    return {} if labels is None else {"labels": json.dumps(pack_label_model(labels)[0])}


def read_answers(path: Path) -> tuple[LabelModel | None, Tensor | None]:
    """Read what a posteriors file holds beside posteriors.

    Args:
        path: A posteriors file.

    Returns:
        The label probabilities, and the novelty (N,) of the items, which is positive for what is unlike anything seen.
        None for what the file does not have.
    """
    from safetensors import safe_open

    header = read_header(path)
    if not header:
        return None, None
    with safe_open(path, "pt") as file:
        names = set(file.keys())
        novelty = file.get_tensor("novelty") if "novelty" in names else None
        tensors = {name.removeprefix("labels."): file.get_tensor(name) for name in names if name.startswith("labels.")}
    if "labels" not in header:
        return None, novelty
    try:
        return unpack_label_model(json.loads(header["labels"]), tensors), novelty
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise DamagedFileError(path, f"its label probabilities cannot be read ({one_line(problem)})", WAY_OUT) from None


def _write_at(file: Any, offset: int, array: np.ndarray) -> int:
    """Write an array at a byte offset of a file; returns the number of bytes."""
    file.seek(offset)
    return file.write(np.ascontiguousarray(array).tobytes())
