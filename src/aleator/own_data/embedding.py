"""A collection through an encoder -> a posteriors file, streamed; one process, or several under torchrun.

`NAME.safetensors` holds mu (N, D) and kappa (N,), and in its header the encoder's fingerprint and the kernel and prior
of its match probabilities. `NAME.jsonl` beside it says what each item is. Until both are whole, the work lies in
`NAME.partial/`, one file of rows for each process, and the same command goes on with it.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from aleator.foundation import CountBar, process_group, replace_file, require, resolve_device
from aleator.own_data.collection import Collection
from aleator.own_data.rows import RowFile, read_rows, stream
from aleator.own_data.run import Run
from aleator.retrieval import read_header, write_items, write_posteriors

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
            read_header(output) == metadata,
            "output",
            str(output),
            "holds something else",
            "name another file, or replace it with --replace",
        )
        return output
    with process_group() as group:
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
            write_items(output.with_suffix(".jsonl"), collection.facts())
            blocks = (rows for r in range(world) for rows in read_rows(_part(parts, r), dim + 1))
            write_posteriors(output, count, dim, ((rows[:, :-1], rows[:, -1]) for rows in blocks), metadata)
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
