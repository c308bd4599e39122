"""Embed a collection: run it through an encoder and write a posteriors file.

`NAME.safetensors` and `NAME.jsonl` are described in `aleator.retrieval.posteriors_file`. Until both are complete, the
rows are in `NAME.partial/`, one file for each process. The same command resumes the work there.
"""

import contextlib
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Collection as Numbers
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from aleator.data import Inputs, measure_levels
from aleator.foundation import (
    file_sha256,
    lock_beside,
    only_process,
    process_group,
    read_json,
    reject,
    replace_file,
    require,
    require_at_least,
    require_made_from,
    require_one_of,
    resolve_device,
    write_json,
)
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.contents import item_digests, items_made_from
from aleator.own_data.collection.left_out import describe_left_out, leave_out
from aleator.own_data.collection.number_tables import with_columns
from aleator.own_data.collection.parts import select_items
from aleator.own_data.collection.problems import Problem, stop_at
from aleator.own_data.collection.reading_ahead import BATCH_SIZES
from aleator.own_data.collection.used_items import marked_records, used_as
from aleator.own_data.embedding.rows import read_rows, stream_rows
from aleator.own_data.runs.run import Run
from aleator.retrieval import items_header, match_header, read_header, rewrite_header, write_items, write_posteriors

Engine = Literal["local", "ray"]


def embed(
    run: Run,
    collection: Collection,
    output: str | Path,
    *,
    batch_size: int | None = None,
    device: str = "auto",
    threads: int = 2,
    replace: bool = False,
    strict: bool = True,
    progress: bool | None = None,
    log: Callable[[str], None] = lambda line: None,
    engine: Engine = "local",
    workers: int | None = None,
    address: str | None = None,
) -> Path:
    """Embed a collection and write a posteriors file.

    Under torchrun each process embeds a part of the items, and the first process joins the parts. Work that was
    stopped is resumed by the same call: items that changed meanwhile are embedded again. If the file is complete
    already, nothing is done, except that labels that have changed are written again.

    On a Ray cluster, workers compute the rows and this process writes them. Rows come from the same batches as here,
    so they are the same, bit for bit on the same kind of processor. Work of either engine is resumed by the other.

    Args:
        run: The trained encoder.
        collection: Items of the kind that the run was trained on.
        output: Name of the .safetensors file. A .jsonl file with the records of the items is written beside it.
        batch_size: Number of items in a batch. Default: 64 images or texts, 4096 rows of features.
        device: "auto", "cpu", "cuda" or "cuda:1", for example.
        threads: Number of threads that load items ahead.
        replace: Whether a file of another embedding may be replaced.
        strict: Whether items that cannot be read are an error, which lists them all. If not, they are left out, and the
            log lists them.
        progress: Whether to show a progress bar. Default: on a terminal.
        log: Called with each line of the log, such as `print`.
        engine: "local", or "ray": workers of a Ray cluster, which see the items under the same paths.
        workers: Of Ray: number of workers. Default: as many as the cluster has GPUs, or cores.
        address: Of Ray: address of the cluster. Default: RAY_ADDRESS, or the cluster of this machine, or a new one.

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
    require_one_of("engine", engine, get_args(Engine))
    alone = engine == "ray" or (workers is None and address is None)
    require(alone, "engine", engine, "has no workers and no address", "pass engine=ray")
    if workers is not None:
        require_at_least("workers", workers, 1, "leave it out")
    collection = fitted(collection, run)
    batch_size = BATCH_SIZES[collection.kind] if batch_size is None else batch_size
    require_at_least("batch_size", batch_size, 1, "leave it out")
    count, dim, modes = len(collection), run.encoder.dim, run.encoder.modes
    columns = posterior_columns(dim, modes) + (run.answers.novelty is not None)
    parts = output.with_suffix(".partial")
    with process_group() as group, contextlib.ExitStack() as held:
        if group.first:
            source = Source(run, collection, item_digests(collection, progress))
            if output.exists() and not replace:
                _renew_records(output, source, strict, log)
                _remove_parts(parts)  # of a process that was killed while it did this
            else:
                held.enter_context(only_process(lock_beside(output), "output", "embed"))
                _claim_folder(parts, source.made_from() | {"processes": group.count}, replace)
                digests = io.BytesIO()  # numpy does not see it if a file cannot grow
                np.save(digests, source.digests)
                replace_file(parts / _DIGESTS, digests.getvalue())
                if scaled_alone(run.inputs, collection):
                    log("images of more than 8 bits: the run has not seen such images, so each is scaled alone")
        group.wait()
        if not (parts / _DIGESTS).is_file():
            return output
        source = Source(run, collection, np.load(parts / _DIGESTS))
        network, elsewhere = _Rows(run), None
        if engine == "ray":
            from aleator.own_data.embedding.cluster import ray_workers

            require(group.count == 1, "engine", engine, "shares the work itself", "start it without torchrun")
            on: dict[str, Any] = {
                "device": device,
                "threads": threads,
                "workers": workers,
                "address": address,
                "log": log,
            }
            there = ray_workers(network, columns, run.inputs, collection, strict=strict, **on)
            elsewhere, device = held.enter_context(there), "cpu"
        group.wait()
        problems = stream_rows(
            _part(parts, group.rank),
            columns,
            network,
            lambda rows: rows,
            run.inputs,
            collection,
            (count * group.rank // group.count, count * (group.rank + 1) // group.count),
            digests=source.digests,
            title="embedding",
            batch_size=batch_size,
            device=resolve_device(device),
            threads=threads,
            progress=progress,
            speaks=group.first,
            strict=strict,
            log=log,
            elsewhere=elsewhere,
        )
        write_json(_problems_of(parts, group.rank), {number: asdict(found) for number, found in problems.items()})
        group.wait()
        if group.first:
            problems = _all_problems(parts, group.count)
            if len(problems) == count:
                stop_at(list(problems.values()), count)
            header = {"fingerprint": run.fingerprint} | match_header(run.kernel, run.prior, run.maps)
            header |= {MADE_FROM: json.dumps(source.made_from())}
            collection = leave_out(collection, problems)
            for note in collection.notes:
                log(note)
            report = describe_left_out(collection)
            if report:
                log(report)
            if problems:
                header["left_out"] = json.dumps(sorted(problems))
            source = source.without(problems)
            header |= _name_of(run) | {"source": str(collection.source.absolute())}
            header["run_folder"] = str(run.folder.resolve())  # `evaluate` looks for the baselines there
            header |= {} if source.used() is None else {"used": "marked"}
            beside = output.with_suffix(".jsonl")
            write_items(beside, source.records())
            header |= items_header(source.records())
            blocks = (rows for rank in range(group.count) for rows in read_rows(_part(parts, rank), columns))
            novelty = run.answers.novelty is not None
            kept = without_rows(blocks, problems)
            split = (split_rows(rows, dim, modes) for rows in kept)
            labels = run.answers.labels
            write_posteriors(output, len(collection), dim, split, header, novelty=novelty, labels=labels, modes=modes)
            _remove_parts(parts)
        group.wait()
    return output


MADE_FROM = "made_from"  # in the header of a posteriors file: digests, as JSON


@dataclass(frozen=True)
class Source:
    """What an embedding is made from: a run, and a collection with the digests (N,) of its items."""

    run: Run
    collection: Collection
    digests: np.ndarray

    def made_from(self) -> dict[str, str]:
        """Digests of what decides the posteriors; see `aleator.foundation.made_from`."""
        return {"model": self.run.digest()} | items_made_from(self.collection, self.digests)

    def without(self, numbers: Numbers[int]) -> "Source":
        """The source without the items of these numbers."""
        if not numbers:
            return self
        kept = np.setdiff1d(np.arange(len(self.collection)), list(numbers))
        return Source(self.run, select_items(self.collection, kept), self.digests[kept])

    def used(self) -> list[str | None] | None:
        """What the run has used each item for; see `used_as`."""
        return used_as(self.run.folder, self.digests)

    def records(self) -> Iterator[dict[str, Any]]:
        """The record of each item, with its label as it is now."""
        return marked_records(self.collection, self.digests, self.used())

    def changed_records(self, header: Mapping[str, str], output: object, strict: bool) -> "Source | None":
        """Of a finished output: the source of its records, if they have changed since. Its posteriors must not have.

        Args:
            header: The header of the output.
            output: Its name.
            strict: Whether an item that was left out is an error.

        Returns:
            The source without the items that were left out. None if the records are as they were.

        Raises:
            ValueError: If the output was made from something else.
        """
        way_out = "name another output, or replace it with --replace"
        before = json.loads(header.get(MADE_FROM, "null"))
        require_made_from(before, self.made_from(), "output", str(output), way_out)
        left_out = json.loads(header.get("left_out", "[]"))
        problem = f"was made without {len(left_out)} items that could not be read"
        require(not (strict and left_out), "output", str(output), problem, "mend them and replace it with --replace")
        kept = self.without(left_out)
        return None if items_header(kept.records())["items_sha256"] == header.get("items_sha256") else kept


def _renew_records(output: Path, source: Source, strict: bool, log: Callable[[str], None]) -> None:
    """Write the records of a finished file again if they have changed, such as labels. Its posteriors stay."""
    header, beside = read_header(output), output.with_suffix(".jsonl")
    changed = source.changed_records(header, output, strict)
    if changed is None and beside.is_file():
        log(f"{output} is finished already")
        return
    changed = changed or source.without(json.loads(header.get("left_out", "[]")))
    with only_process(lock_beside(output), "output", "embed"):
        now = items_header(changed.records())
        if beside.is_file():
            ours = file_sha256(beside) in (header["items_sha256"], now["items_sha256"])
            problem, way_out = "was changed after it was written, and the labels have changed too", "move it elsewhere"
            require(ours, "output", str(beside), problem, f"{way_out}; the same command then writes it again")
        write_items(beside, changed.records())
        rewrite_header(output, now)
    log(f"{output}: its posteriors are finished already; the labels, or what the run has seen, are written again")


def fitted(collection: Collection, run: Run) -> Collection:
    """The collection with the features that a run takes. Raise if its encoder does not take the items."""
    source, inputs = str(collection.source), run.inputs
    problem = f"holds {collection.kind}, and the run was trained on {inputs.kind}"
    require(collection.kind == inputs.kind, "data", source, problem, f"pass a collection of {inputs.kind}")
    if collection.kind != "features":
        return collection
    collection = with_columns(collection, run.columns)
    width = collection.features
    problem = f"has rows of {width}, the run takes {inputs.features}"
    require(width == inputs.features, "data", source, problem, "pass features of the network it was trained on")
    return collection


def _name_of(run: Run) -> dict[str, str]:
    """The part of a header that names the encoder for people; see `aleator.retrieval.encoder_name`."""
    day = run.metrics.get("provenance", {}).get("finished")
    return {"run": run.folder.resolve().name} | ({"trained": day} if day else {})


def scaled_alone(inputs: Inputs, collection: Collection) -> bool:
    """Whether images of more than eight bits are scaled one by one, for want of levels. A few images are looked at."""
    if collection.kind != "images" or inputs.whole_levels or inputs.float_levels:
        return False
    sample = collection.raw(0, len(collection))[:: len(collection) // 20 + 1]
    return measure_levels(sample, inputs.most_pixels).images > 0


def _claim_folder(parts: Path, identity: dict[str, Any], replace: bool) -> None:
    """Create the folder of unfinished parts, or check that it belongs to the same embedding.

    The contents of the items are not part of its identity: each row is sealed with the item that it was made from.
    Unfinished work whose record is lost cannot be trusted. It is removed, and the work begins again.
    """
    record = parts / "embedding.json"
    identity = {name: value for name, value in identity.items() if name != "contents"}
    require(not parts.is_file(), "output", str(parts), "is a file where the unfinished work belongs", "remove it")
    parts.mkdir(parents=True, exist_ok=True)
    others = [path.name for path in parts.iterdir() if not _is_part(path.name)]
    require(not others, "output", f"{parts}/{others[0] if others else ''}", "is not ours", "move it elsewhere")
    found = _read_record(record)
    if found == identity:
        return
    if found is not None and not replace:
        different = " and ".join(name for key, name in _PARTS_OF_IDENTITY.items() if found.get(key) != identity[key])
        way_out = "finish that first, or pass --replace to begin again"
        reject("output", str(parts), f"is the unfinished work of another {different or 'embedding'}", way_out)
    for path in list(parts.iterdir()):
        path.unlink()
    replace_file(record, json.dumps(identity).encode())


def _remove_parts(parts: Path) -> None:
    """Remove the folder of unfinished parts. What is not ours in it stays."""
    if not (parts / "embedding.json").is_file():
        return
    for path in list(parts.iterdir()):
        if _is_part(path.name) and path.is_file():
            path.unlink()
    with contextlib.suppress(OSError):  # something else is in it
        parts.rmdir()


_PARTS_OF_IDENTITY = {"model": "run", "names": "collection", "processes": "number of processes"}
_DIGESTS = "items.npy"  # those of the items, for all processes


def _read_record(record: Path) -> dict[str, Any] | None:
    """What the unfinished work says it is; None if it does not say it, or cannot be read."""
    try:
        found = json.loads(record.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _is_part(name: str) -> bool:
    """Whether a file of the folder of unfinished parts is one of ours."""
    ours = r"\.?(embedding\.json|items\.npy|part-\d{4,}\.problems\.json)(\.\d+\.partial)?|part-\d{4,}\.rows"
    return re.fullmatch(ours, name) is not None


def _part(parts: Path, rank: int) -> Path:
    """The row file of one process."""
    return parts / f"part-{rank:04d}.rows"


def _problems_of(parts: Path, rank: int) -> Path:
    """The file with the items that one process could not read."""
    return parts / f"part-{rank:04d}.problems.json"


def _all_problems(parts: Path, processes: int) -> dict[int, Problem]:
    """The items that could not be read, by number."""
    found: dict[int, Problem] = {}
    for rank in range(processes):
        facts = read_json(_problems_of(parts, rank), "embed again: the work is resumed")
        found |= {int(number): Problem(**problem) for number, problem in facts.items()}
    return found


def without_rows(blocks: Iterable[np.ndarray], left_out: Mapping[int, Any]) -> Iterator[np.ndarray]:
    """Blocks of rows, without the rows of these numbers."""
    start = 0
    for block in blocks:
        gone = [i - start for i in left_out if start <= i < start + len(block)]
        start += len(block)
        yield np.delete(block, gone, axis=0) if gone else block


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
