"""Embed a collection: run it through an encoder and write a posteriors file.

`NAME.safetensors` and `NAME.jsonl` are described in `aleator.retrieval.posteriors_file`. Until both are complete, the
rows are in `NAME.partial/`, one file for each process. The same command resumes the work there.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from aleator.foundation import process_group, replace_file, require, require_at_least, resolve_device
from aleator.own_data.collection import Collection
from aleator.own_data.rows import read_rows, stream_rows
from aleator.own_data.run import Run
from aleator.own_data.used_items import marked_records, used_as
from aleator.retrieval import label_header, match_header, read_header, write_items, write_posteriors

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
    """Embed a collection and write a posteriors file.

    Under torchrun each process embeds a part of the items, and the first process joins the parts. Work that was
    stopped is resumed by the same call. If the file is complete already, nothing is done.

    Args:
        run: The trained encoder.
        collection: Items of the kind that the run was trained on.
        output: Name of the .safetensors file. A .jsonl file with the records of the items is written beside it.
        batch_size: Number of items in a batch. Default: 64 images or texts, 4096 rows of features.
        device: "auto", "cpu", "cuda" or "cuda:1", for example.
        threads: Number of threads that load items ahead.
        replace: Whether a file of another embedding may be replaced.
        progress: Whether to show a progress bar. Default: on a terminal.

    Returns:
        Path of the .safetensors file.

    Raises:
        ValueError: If the items do not fit the encoder, or if `output` holds something else.

    Examples:
        >>> import numpy as np, aleator as al
        >>> from pathlib import Path
        >>> from aleator.data import Inputs
        >>> from aleator.encoders import MLP
        >>> from aleator.own_data import Run, embed, read_collection, read_embedded
        >>> encoder = al.Encoder(MLP(3, [8]), dim=4)
        >>> run = Run(Path("run"), encoder, Inputs("features", features=3), al.VMFKernel(), 0.5, "abc", {}, {})
        >>> np.save("features.npy", np.eye(3))
        >>> path = embed(run, read_collection("features.npy"), "features.safetensors", device="cpu")
        >>> read_embedded(path).q.mu.shape
        torch.Size([3, 4])
    """
    output = Path(output).expanduser()
    require(output.suffix == ".safetensors", "output", str(output), "has another ending", "name it .safetensors")
    require_fit(collection, run)
    batch_size = batch_size or BATCH_SIZES[collection.kind]
    require_at_least("batch_size", batch_size, 1, "leave it out")
    identity = {"fingerprint": run.fingerprint, "items": collection.digest()}
    header = identity | match_header(run.kernel, run.prior, run.maps)
    labels = run.answers.labels
    if output.exists() and not replace:
        way_out = "name another file, or replace it with --replace"
        same = (header | label_header(labels)).items() <= read_header(output).items()
        require(same, "output", str(output), "holds something else", way_out)
        return output
    count, dim, modes = len(collection), run.encoder.dim, run.encoder.modes
    columns = posterior_columns(dim, modes) + (run.answers.novelty is not None)
    parts = output.with_suffix(".partial")
    with process_group() as group:
        if group.first:
            _claim_folder(parts, identity | {"processes": group.count})
        group.wait()
        stream_rows(
            _part(parts, group.rank),
            columns,
            _Rows(run),
            lambda rows: rows,
            run.inputs,
            collection,
            (count * group.rank // group.count, count * (group.rank + 1) // group.count),
            title="embedding",
            batch_size=batch_size,
            device=resolve_device(device),
            threads=threads,
            progress=progress,
            speaks=group.first,
        )
        group.wait()
        if group.first:
            used = used_as(run.folder, collection)
            header |= {"source": str(collection.source.absolute())} | ({} if used is None else {"used": "marked"})
            write_items(output.with_suffix(".jsonl"), marked_records(collection, used))
            blocks = (rows for rank in range(group.count) for rows in read_rows(_part(parts, rank), columns))
            novelty = run.answers.novelty is not None
            split = (split_rows(rows, dim, modes) for rows in blocks)
            write_posteriors(output, count, dim, split, header, novelty=novelty, labels=labels, modes=modes)
            shutil.rmtree(parts)
        group.wait()
    return output


def require_fit(collection: Collection, run: Run) -> None:
    """Raise unless the encoder takes the items of the collection."""
    source, inputs = str(collection.source), run.inputs
    problem = f"holds {collection.kind}, and the run was trained on {inputs.kind}"
    require(collection.kind == inputs.kind, "data", source, problem, f"pass a collection of {inputs.kind}")
    if collection.kind == "features":
        width = collection.features
        problem = f"has rows of {width}, the run takes {inputs.features}"
        require(width == inputs.features, "data", source, problem, "pass features of the network it was trained on")


def _claim_folder(parts: Path, identity: dict[str, Any]) -> None:
    """Create the folder of unfinished parts, or check that it belongs to the same embedding."""
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
    """The row file of one process."""
    return parts / f"part-{rank:04d}.rows"


class _Rows(nn.Module):
    """Prepared items -> rows: mu, kappa, log weights of several modes, and novelty, if the run can tell."""

    def __init__(self, run: Run):
        super().__init__()
        self.run, self.encoder = run, run.encoder

    def forward(self, batch: Any) -> Tensor:
        q, novelty = self.run.encode(batch)
        columns = [q.components.mu.flatten(1), q.components.kappa]
        columns += [q.log_weights] if q.modes > 1 else []
        columns += [] if novelty is None else [novelty[:, None]]
        return torch.cat(columns, 1)


def posterior_columns(dim: int, modes: int) -> int:
    """Number of columns of a row that holds a posterior."""
    return modes * (dim + 1) + (modes if modes > 1 else 0)


def split_rows(rows: np.ndarray, dim: int, modes: int) -> tuple[np.ndarray, ...]:
    """What `write_posteriors` takes, from rows (n, columns) of posteriors and perhaps novelty."""
    if modes == 1:
        return rows[:, :dim], *rows[:, dim:].T
    mu, kappa, log_weights, rest = np.split(rows, [modes * dim, modes * (dim + 1), modes * (dim + 2)], axis=1)
    return mu.reshape(len(rows), modes, dim), kappa, log_weights, *rest.T
