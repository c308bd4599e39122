"""Embed straight into an index on Lance, or into a Parquet file for other programs, here or on an object store.

The posteriors file is made first, in a folder NAME.work beside the output, or in the current folder if the output is on
an object store. So the work is resumed like any embedding, with the same rows. The folder is removed at the end.
"""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from aleator.foundation import holds_nothing, reject, require, write_json, writing_atomically
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.contents import item_digests
from aleator.own_data.collection.object_store import AnyPath, ObjectPath, is_object
from aleator.own_data.collection.parquet import open_parquet
from aleator.own_data.embedding.embedding import Source, embed, fitted
from aleator.own_data.runs.run import Run
from aleator.posteriors import VonMisesFisher
from aleator.retrieval import (
    finish_index,
    index_from_file,
    is_lance,
    items_header,
    read_answers,
    read_header,
    read_items_beside,
    read_posteriors,
)

_ROWS = 65_536  # of a row group of Parquet
_RECORD = "output.json"  # in the folder of the work: it says that the folder is ours
_OURS = r"output\.json|posteriors\.(safetensors|jsonl|partial)|\..+\.\d+\.partial|\.posteriors\.safetensors\.lock"


def embed_into(
    run: Run,
    collection: Collection,
    output: str | Path,
    *,
    replace: bool = False,
    storage_options: Mapping[str, str] | None = None,
    **options: Any,
) -> str:
    """Embed a collection, and write a posteriors file, an index on Lance or a Parquet file.

    Args:
        run: The trained encoder.
        collection: Items of the kind that the run was trained on.
        output: NAME.safetensors; NAME.parquet or s3://bucket/NAME.parquet; or an index: lance:folder/ or
            s3://bucket/name. The Parquet file has the columns id, mu, kappa and metadata (as JSON text), log_weights of
            several modes, and novelty, if the run can tell. The header of the posteriors file is its metadata.
        replace: Whether something else that is there may be replaced.
        storage_options: Options of the object store that the output is on. Default: the usual environment variables.
        **options: As those of `embed`.

    Returns:
        The output.

    Raises:
        ValueError: If the items do not fit the encoder, or if `output` holds something else.

    Examples:
        >>> import numpy as np, aleator as al
        >>> from pathlib import Path
        >>> from aleator.data import Inputs
        >>> from aleator.encoders import MLP
        >>> from aleator.own_data import Run, embed_into, read_collection
        >>> encoder = al.Encoder(MLP(3, [8]), dim=4)
        >>> run = Run(Path("run"), encoder, Inputs("features", features=3), al.VMFKernel(), 0.5, "abc", {}, {})
        >>> np.save("three.npy", np.eye(3))
        >>> embed_into(run, read_collection("three.npy"), "three.safetensors", device="cpu")
        'three.safetensors'
    """
    name = str(output)
    if name.endswith(".parquet"):
        place: AnyPath = ObjectPath.parse(name, storage_options) if is_object(name) else Path(name).expanduser()
        return _into_parquet(run, collection, place, replace, options)
    if is_lance(name):
        require("#" not in name, "output", name, "an older version cannot change", "leave out the #")
        return _into_lance(run, collection, name, replace, storage_options, options)
    require(storage_options is None, "storage_options", "given", "are for object stores", "leave them out")
    way_out = "name it .safetensors or .parquet; or an index, such as lance:folder/ or s3://bucket/name"
    require(name.endswith(".safetensors"), "output", name, "has another ending", way_out)
    return str(embed(run, collection, output, replace=replace, **options))


def _into_parquet(run: Run, collection: Collection, output: AnyPath, replace: bool, options: dict[str, Any]) -> str:
    if output.is_file() and not replace:
        _renew_metadata(run, collection, output, options)
        _remove_work(_work_folder(str(output)))  # of a process that was killed while it did this
        return str(output)
    with _made_posteriors(run, collection, str(output), replace, options) as posteriors, _new_file(output) as temporary:
        _write_parquet(posteriors, temporary)
    return str(output)


@contextmanager
def _new_file(output: AnyPath) -> Iterator[Path]:
    """Where to write a file that then gets its name, in this file system or on an object store."""
    if not isinstance(output, ObjectPath):
        with writing_atomically(output) as temporary:
            yield temporary
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder, output.name)
        output.upload(Path(folder, output.name))


def _renew_metadata(run: Run, collection: Collection, output: AnyPath, options: dict[str, Any]) -> None:
    """Write the records of a finished Parquet file again if they have changed, such as labels. Its posteriors stay."""
    collection = fitted(collection, run)
    source = Source(run, collection, item_digests(collection, options.get("progress")))
    log = options.get("log", lambda line: None)
    with open_parquet(output, "output") as file:
        stored = file.schema_arrow.metadata or {}
        texts = {key.decode(): value.decode(errors="replace") for key, value in stored.items()}
        header = {key.removeprefix("aleator."): text for key, text in texts.items() if key.startswith("aleator.")}
        changed = source.changed_records(header, output, options.get("strict", True))
        if changed is None:
            log(f"{output} is finished already")
            return
        header |= items_header(changed.records())
        metadata = (_metadata(record) for record in changed.records())
        blocks = (_with_metadata(block, metadata) for block in file.iter_batches(_ROWS))
        with _new_file(output) as temporary:
            _write_blocks(blocks, header, temporary)
    log(f"{output}: its posteriors are finished already; the labels, or what the run has seen, are written again")


def _with_metadata(block: Any, metadata: Iterator[str]) -> Any:
    pa = _pyarrow()
    place = block.schema.get_field_index("metadata")
    return block.set_column(place, "metadata", pa.array(list(islice(metadata, len(block))), pa.string()))


def _metadata(record: Mapping[str, Any]) -> str:
    return json.dumps({key: value for key, value in record.items() if key != "id"})


def _into_lance(
    run: Run,
    collection: Collection,
    output: str,
    replace: bool,
    storage_options: Mapping[str, str] | None,
    options: dict[str, Any],
) -> str:
    unfinished = (_work_folder(output) / _RECORD).is_file()
    with _made_posteriors(run, collection, output, replace, options) as posteriors:
        ids, metadata = read_items_beside(posteriors)
        if unfinished and not replace and finish_index(posteriors, output, ids, metadata, storage_options):
            return output
        index_from_file(posteriors, output, ids, metadata, replace=replace, storage_options=storage_options).close()
    return output


@contextmanager
def _made_posteriors(
    run: Run, collection: Collection, output: str, replace: bool, options: dict[str, Any]
) -> Iterator[Path]:
    """The posteriors file in its folder, which is removed at the end. After an error it stays, to be gone on with."""
    work = _work_folder(output)
    _claim_work(work, output)
    yield embed(run, collection, work / "posteriors.safetensors", replace=replace, **options)
    _remove_work(work)


def _claim_work(work: Path, output: str) -> None:
    """Create the folder of the work, or check that everything in it is ours: it is removed at the end."""
    way_out = "move it elsewhere, or name another output"
    require(not work.is_file(), "output", str(work), "is a file where the unfinished work belongs", way_out)
    ours = (work / _RECORD).is_file() or holds_nothing(work)
    for path in sorted(work.iterdir()) if work.is_dir() else ():
        known = ours and re.fullmatch(_OURS, path.name) is not None
        require(
            known or holds_nothing(path), "output", str(path), "is not ours, where the unfinished work belongs", way_out
        )
    write_json(work / _RECORD, {"output": output})


def _remove_work(work: Path) -> None:
    """Remove the folder of the work. What is not ours in it stays."""
    if not (work / _RECORD).is_file():
        return
    for path in list(work.iterdir()):
        if re.fullmatch(_OURS, path.name) and path.name != _RECORD and path.is_file():
            path.unlink()
    (work / _RECORD).unlink()
    with suppress(OSError):  # something else is in it
        work.rmdir()


def unfinished_work(output: str) -> Path:
    """The folder of the rows that are done, while `embed_into` works or after it was stopped.

    Args:
        output: As of `embed_into`.

    Returns:
        The folder. It need not be there.
    """
    name = output.removeprefix("lance:")
    if name.endswith(".safetensors"):
        return Path(name).expanduser().with_suffix(".partial")
    return _work_folder(output) / "posteriors.partial"


def _work_folder(output: str) -> Path:
    """Where the posteriors file is made."""
    if "://" in output:
        return Path(f"{output.rstrip('/').rpartition('/')[2]}.work")
    folder = Path(output.removeprefix("lance:").rstrip("/")).expanduser()
    return folder.with_name(f"{folder.name}.work")


def _write_parquet(posteriors: Path, path: Path) -> None:
    """A posteriors file as Parquet, some rows at a time."""
    _write_blocks(_blocks(posteriors, _pyarrow()), read_header(posteriors), path)


def _write_blocks(blocks: Iterator[Any], header: Mapping[str, str], path: Path) -> None:
    import pyarrow.parquet as parquet

    first = next(blocks)
    schema = first.schema.with_metadata({f"aleator.{key}": value for key, value in header.items()})
    with parquet.ParquetWriter(path, schema) as writer:
        writer.write_batch(first)
        for block in blocks:
            writer.write_batch(block)


def _blocks(posteriors: Path, pa: Any) -> Iterator[Any]:
    q, (_, novelty) = read_posteriors(posteriors), read_answers(posteriors)
    ids, metadata = read_items_beside(posteriors)
    assert ids is not None
    assert metadata is not None
    one = isinstance(q, VonMisesFisher)
    mu, kappa = (q.mu, q.kappa) if isinstance(q, VonMisesFisher) else (q.components.mu, q.components.kappa)
    numbered = all(isinstance(id, int) for id in ids)
    for start in range(0, max(len(q), 1), _ROWS):
        rows = slice(start, start + _ROWS)
        columns = {
            "id": pa.array(ids[rows] if numbered else [str(id) for id in ids[rows]]),
            "mu": _nested(mu[rows].numpy(), pa),
            "kappa": _nested(kappa[rows].numpy(), pa),
            "metadata": pa.array([_metadata(entry) for entry in metadata[rows]], pa.string()),
        }
        if not one:
            columns["log_weights"] = _nested(q.log_weights[rows].numpy(), pa)
        if novelty is not None:
            columns["novelty"] = pa.array(novelty[rows].numpy())
        yield pa.RecordBatch.from_pydict(columns)


def _nested(array: np.ndarray, pa: Any) -> Any:
    """An array (n, ...) as a column of n numbers, lists or lists of lists."""
    column = pa.array(np.ascontiguousarray(array).reshape(-1))
    for size in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        reject("output", ".parquet", "Parquet needs the package pyarrow", "pip install 'aleator[ray]'")
    return pyarrow
