"""How long commands take to start, beside Python alone and `import torch`.

    python -m benchmarks startup

`aleator --help` loads no heavy library. `aleator rank` reads a file as `aleator embed` writes it, with labels, in
numpy. A file of an older release has no stored answers: they are computed, so its floor is `import torch`.

Seconds are those of a clock; where others use the machine, processor seconds say more.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from aleator import VMFKernel, VonMisesFisher
from aleator.evaluation import LabelModel
from aleator.foundation import describe_run, write_json
from aleator.retrieval import items_header, label_header, write_items, write_posteriors
from aleator.stored import ANSWERS
from benchmarks.timing import interleaved, show


def main(path: Path = Path("results/benchmarks/startup.json")) -> None:
    """Measure, print and write the times."""
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        file, older = _files(Path(folder))
        ways = {
            "python": ["-c", "pass"],
            "import torch": ["-c", "import torch"],
            "aleator --help": ["-m", "aleator", "--help"],
            "aleator rank --help": ["-m", "aleator", "rank", "--help"],
            "aleator rank": ["-m", "aleator", "rank", str(file)],
            "aleator rank, older file": ["-m", "aleator", "rank", str(older)],
        }
        processor: dict[str, list[float]] = {name: [] for name in ways}
        starts = {name: _start(arguments, processor[name]) for name, arguments in ways.items()}
        seconds = interleaved(starts, repeats=5)
    ratios = show("start-up", seconds, "import torch")
    processor_seconds = {name: statistics.median(times) for name, times in processor.items()}
    show("processor seconds", processor_seconds, "import torch")
    found = {"seconds": seconds, "ratios": ratios, "processor_seconds": processor_seconds}
    write_json(path, {"provenance": describe_run(began, "cpu"), "load_average": os.getloadavg()[0], **found})


def _files(folder: Path, items: int = 1000, dim: int = 16, classes: int = 10) -> tuple[Path, Path]:
    """A posteriors file as `aleator embed` writes it, and the same without stored answers."""
    file, older = folder / "items.safetensors", folder / "older.safetensors"
    mu = torch.nn.functional.normalize(torch.randn(items, dim), dim=1)
    names = tuple(f"class {c}" for c in range(classes))
    labels = LabelModel(VonMisesFisher(mu[:classes], 50.0), torch.eye(classes), names, VMFKernel(20.0))
    records = [{"id": f"{i}.png", "label": names[i % classes]} for i in range(items)]
    for path in (file, older):
        write_items(path.with_suffix(".jsonl"), records)
    header = items_header(records)
    write_posteriors(file, items, dim, [(mu.numpy(), torch.rand(items).numpy())], header, labels=labels)
    tensors = {name: tensor for name, tensor in load_file(file).items() if name not in ANSWERS}
    save_file(tensors, older, header | label_header(labels))
    return file, older


def _start(arguments: list[str], processor: list[float]):
    """Start a process and wait for its end. Its processor seconds are added to a list."""

    def run() -> None:
        before = _used()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        processor.append(_used() - before)

    return run


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
