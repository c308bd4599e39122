"""A collection through an encoder -> a posteriors file, streamed; one process, or several under torchrun.

`NAME.safetensors` holds mu (N, D) and kappa (N,), and in its header the encoder's fingerprint and the kernel and prior
of its match probabilities. `NAME.jsonl` beside it says what each item is. Until both are whole, the work lies in
`NAME.partial/`, one file of rows for each process, and the same command goes on with it.
"""

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aleator.foundation import CountBar, replace_file, require, resolve_device
from aleator.own_data.collection import Collection
from aleator.own_data.processes import processes
from aleator.own_data.rows import RowFile, read_rows, stream
from aleator.own_data.run import Run

BATCH_SIZES = {"images": 64, "features": 4096, "text": 64}


def embed(
    run: Run,
    collection: Collection,
    output: str | Path,
    *,
    batch_size: int | None = None,
    device: str = "auto",
    threads: int = 2,
    replace: bool = False,
    progress: bool | None = None,
) -> Path:
    """Write OUTPUT (a .safetensors) and its .jsonl; returns the former's path.

    Under torchrun each process embeds its part of the items, and the first one joins them. A command that was stopped
    goes on; one that was finished has nothing to do.
    """
    output = Path(output).expanduser()
    require(output.suffix == ".safetensors", "output", str(output), "has another ending", "name it .safetensors")
    require(
        collection.kind == run.inputs.kind,
        "data",
        str(collection.source),
        f"holds {collection.kind}, and the run was trained on {run.inputs.kind}",
        "embed what the run knows",
    )
    if collection.kind == "features":
        width = collection.features
        wanted = run.inputs.features
        way_out = "embed the features that it was trained on"
        require(
            width == wanted, "data", str(collection.source), f"has rows of {width}, the run takes {wanted}", way_out
        )
    batch_size = batch_size or BATCH_SIZES[collection.kind]
    require(batch_size >= 1, "batch_size", batch_size, "not positive", "leave it out")
    count, dim = len(collection), run.encoder.dim
    identity = {"fingerprint": run.fingerprint, "items": collection.digest()}
    metadata = identity | {"kappa_pos": repr(float(run.kernel.kappa_pos)), "prior": repr(run.prior)}
    if output.exists() and not replace:
        require(
            _metadata(output) == metadata,
            "output",
            str(output),
            "holds something else",
            "name another file, or replace it with --replace",
        )
        return output
    with processes() as group:
        rank, world, wait = group.rank, group.count, group.wait
        parts = output.with_suffix(".partial")
        if rank == 0:
            _claim(parts, identity | {"processes": world})
        wait()
        first, last = count * rank // world, count * (rank + 1) // world
        here = resolve_device(device)

        def as_rows(q: Any) -> torch.Tensor:
            return torch.cat([q.mu, q.kappa[:, None]], 1)

        with (
            RowFile(_part(parts, rank), dim + 1) as rows,
            CountBar("embedding", last - first, rows.done, progress, writing=rank == 0) as bar,
        ):
            stream(
                run.encoder,
                as_rows,
                run.inputs,
                collection,
                rows,
                first,
                last,
                batch_size=batch_size,
                device=here,
                threads=threads,
                advance=bar.advance,
            )
        wait()
        if rank == 0:
            _write_items(output.with_suffix(".jsonl"), collection)
            _join([_part(parts, r) for r in range(world)], output, count, dim, metadata)
            shutil.rmtree(parts)
        wait()
    return output


def _claim(parts: Path, identity: dict[str, Any]) -> None:
    """Make the folder of parts this embedding's, or check that it already is."""
    record = parts / "embedding.json"
    if record.is_file():
        require(
            json.loads(record.read_text()) == identity,
            "output",
            str(parts),
            "is the unfinished work of another run, other items or another number of processes",
            "finish that first, or remove the folder",
        )
        return
    parts.mkdir(parents=True, exist_ok=True)
    require(not any(parts.iterdir()), "output", str(parts), "holds other files", "remove the folder")
    replace_file(record, json.dumps(identity).encode())


def _part(parts: Path, rank: int) -> Path:
    return parts / f"part-{rank:04d}.rows"


def _join(parts: list[Path], output: Path, count: int, dim: int, metadata: dict[str, str]) -> None:
    """The parts as one safetensors file, block by block, put in place in one instant."""
    split, end = 4 * count * dim, 4 * count * (dim + 1)
    header = {
        "__metadata__": metadata,
        "mu": {"dtype": "F32", "shape": [count, dim], "data_offsets": [0, split]},
        "kappa": {"dtype": "F32", "shape": [count], "data_offsets": [split, end]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    partial = output.with_name(f".{output.name}.partial")
    with open(partial, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        mu_at, kappa_at = file.tell(), file.tell() + split
        for block in (block for part in parts for block in read_rows(part, dim + 1)):
            for values, at in ((block[:, :-1], mu_at), (block[:, -1], kappa_at)):
                file.seek(at)
                file.write(np.ascontiguousarray(values).tobytes())
            mu_at, kappa_at = mu_at + 4 * dim * len(block), kappa_at + 4 * len(block)
        assert kappa_at == 8 + len(text) + end, "a part is not whole"
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, output)


def _write_items(path: Path, collection: Collection) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with open(partial, "w", encoding="utf-8") as file:
        for facts in collection.facts():
            file.write(json.dumps(facts, ensure_ascii=False) + "\n")
    os.replace(partial, path)


def _metadata(path: Path) -> dict[str, str] | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            return file.metadata()
    except (SafetensorError, OSError):
        return None
