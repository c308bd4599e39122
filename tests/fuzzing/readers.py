"""Every reader of files that a person or a client hands over, by the name of its folder in `corpus/`.

A reader takes a case (a file, or a folder) and reads all that its users read. It may refuse, but in words of our own.
"""

import contextlib
import json
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from fastapi.testclient import TestClient

from aleator import VonMisesFisher, load_encoder
from aleator.data import Inputs
from aleator.foundation import BadArgumentError
from aleator.own_data import (
    load_run,
    rank_by_certainty,
    read_collection,
    read_embedded,
    read_labels,
)
from aleator.retrieval import CredibleIndex, check_index, read_items
from aleator.training.checkpoints import Checkpoints
from aleator.web import create_app
from aleator.web.collection import CollectionView
from aleator.web.findings import Findings
from tests.web.shapes import DIM, feature_run, image_run, text_run

try:
    import resource  # POSIX, and /proc is there on Linux only
except ImportError:  # pragma: no cover
    resource = None  # type: ignore[assignment]
if not Path("/proc/self/statm").is_file():
    resource = None  # type: ignore[assignment]

CORPUS = Path(__file__).parent / "corpus"
IDS = [f"i{i}" for i in range(6)]
SOURCE = str(Path(load_encoder.__code__.co_filename).parents[1])


def why_bad(error: BaseException, case: Path) -> str | None:
    """Why an error is not one of ours: another library raised it, or it does not name the file. None if it is good."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    if isinstance(error, BadArgumentError) and error.argument in ("backbone", "kappa_backbone", "features"):
        return None  # about what the caller passed, which may be another one
    if not isinstance(error, ValueError):
        return f"a raw {type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
    if not last.filename.startswith(SOURCE):
        return f"a {type(error).__name__} of {last.filename}:{last.lineno}: {error}"
    if case.name not in str(error):
        return f"the error does not name the file: {error} ({Path(last.filename).name}:{last.lineno})"
    return None


def outcome(reader: str, case: Path) -> str | None:
    """Read a case: None if it is read or refused in words, otherwise what is wrong."""
    try:
        with warnings.catch_warnings(), bounded_memory():
            warnings.simplefilter("ignore")
            READERS[reader](case)
    except Exception as error:
        return why_bad(error, case)
    return None


@contextlib.contextmanager
def bounded_memory(more: int = 2 << 30) -> Iterator[None]:
    """A small file must not take the machine: at most 2 GB more than before."""
    if resource is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def read_index(case: Path) -> None:
    for memory_map in (False, True):
        with CredibleIndex.open(case, memory_map=memory_map) as index:
            dim = index.dim
            asked = VonMisesFisher(torch.nn.functional.normalize(torch.ones(2, dim), dim=-1), torch.full((2,), 9.0))
            index.search(asked, by="nearest", limit=3)
            index.search(asked)
    check_index(case)


def read_posteriors_file(case: Path) -> None:
    (path,) = [path for path in case.iterdir() if path.suffix in (".safetensors", ".npz")]
    embedded = read_embedded(path)
    list(rank_by_certainty(embedded))


def read_run(case: Path) -> None:
    run = load_run(case)
    rows = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    run.posteriors_and_novelty(rows)
    if run.label_names:
        run.label_probabilities(rows)


def read_an_encoder(case: Path) -> None:
    encoder = load_encoder(case)
    encoder(torch.ones(2, 3, dtype=next(encoder.parameters()).dtype))


def read_checkpoints(case: Path) -> None:
    Checkpoints(case).latest()


def read_data(case: Path) -> None:
    collection = read_collection(case, strict=False)
    collection.raw(0, min(2, len(collection)))
    list(collection.records())


def read_label_file(case: Path) -> None:
    labels = read_labels(case, 6, "features.npy")
    if labels.kind != "pairs":
        labels.hard()
        labels.counts()


def read_image(case: Path) -> None:
    Inputs("images", size=8).prepare([case])


def read_jsonl(case: Path) -> None:
    read_items(case)


def read_audit(case: Path) -> None:
    findings = Findings(case, CollectionView(served_index()))
    for kind in findings.counts():
        findings.page(kind, 0, 10, images=False)


@cache
def served_index() -> CredibleIndex:
    generator = torch.Generator().manual_seed(0)
    mu = torch.nn.functional.normalize(torch.randn(6, DIM, generator=generator), dim=-1)
    return CredibleIndex.build(VonMisesFisher(mu, torch.arange(1.0, 7)), IDS, [{"label": "a"}] * 6)


@cache
def client(kind: str) -> TestClient:
    """A server that takes images, features or texts."""
    runs = {"image": image_run, "features": lambda: feature_run(3), "text": text_run, "posterior": image_run}
    return TestClient(create_app(served_index(), run=runs[kind]()), raise_server_exceptions=False)


def upload(case: Path) -> None:
    """A file sent to the server. Its name says what it is: image-..., features-..., text-..., posterior-..."""
    kind = case.name.split("-")[0]
    headers = {} if kind == "image" else {"content-type": "application/json"}
    answer = client(kind).post(f"/api/query/{kind}", content=case.read_bytes(), headers=headers)
    if answer.status_code not in (200, 400, 413, 415, 422):
        raise RuntimeError(f"{answer.status_code}: {answer.text[:300]}")
    json.loads(answer.content)


READERS: dict[str, Callable[[Path], None]] = {
    "audits": read_audit,
    "checkpoints": read_checkpoints,
    "data": read_data,
    "encoders": read_an_encoder,
    "images": read_image,
    "indexes": read_index,
    "items": read_jsonl,
    "labels": read_label_file,
    "posteriors": read_posteriors_file,
    "runs": read_run,
    "uploads": upload,
}
