"""Throughput of `aleator embed --engine ray`: two workers beside one, and beside one process without Ray.

    OMP_NUM_THREADS=1 python -m benchmarks ray_embedding

Workers have one core and one thread each. The start of Ray and of the workers is not counted: a cluster that embeds for
hours starts once. Ways take turns within one run. The two workers need two free cores: the load that the machine had
from others is written beside the result, and CPU seconds, which depend little on it.
"""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import torch
from PIL import Image

from aleator import Encoder
from aleator.data import Inputs
from aleator.encoders import ResNet18
from aleator.foundation import describe_run, write_json
from aleator.own_data import read_collection
from aleator.own_data.collection.reading_ahead import spans
from aleator.own_data.embedding.cluster import ray_workers
from aleator.own_data.embedding.rows import RowMaker
from benchmarks.timing import interleaved, show

IMAGES, BATCH, SIZE = 3072, 32, 32


class Rows(torch.nn.Module):
    """Images -> rows of mu and kappa."""

    def __init__(self, encoder: Encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        q = self.encoder(batch)
        return torch.cat([q.mu, q.kappa[:, None]], 1)


def main(path: Path = Path("results/benchmarks/ray_embedding.json")) -> None:
    """Measure, print and write the times."""
    import ray

    began, load = time.time(), os.getloadavg()[0]
    torch.set_num_threads(1)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 Ray's default of 15 gives way to whatever else runs here
    ray.init("local", num_cpus=3, object_store_memory=100 * 2**20, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        _write_images(Path(folder))
        collection, inputs = read_collection(folder), Inputs("images", size=SIZE)
        network, todo = Rows(Encoder(ResNet18(width=16), 64)).eval(), list(spans(0, IMAGES, BATCH))
        maker = RowMaker(network, lambda rows: rows, 65, inputs, torch.device("cpu"), threads=1)

        def workers(count: int):
            return ray_workers(network, 65, inputs, collection, strict=True, device="cpu", threads=1, workers=count)

        with workers(1) as one, workers(2) as two:
            _start(one, todo)
            _start(two, todo)
            ways = {
                "one process, without Ray": lambda: list(maker.blocks(collection, todo, True, False)),
                "one worker": lambda: list(one(todo, False)),
                "two workers": lambda: list(two(todo, False)),
            }
            seconds = interleaved(ways, repeats=3)
            cpu = {name: _cpu_seconds(way) for name, way in ways.items()}
    ray.shutdown()
    ratios = show(f"embedding {IMAGES} images", seconds, "two workers")
    facts = {"load of others at the start": load, "load at the end": os.getloadavg()[0], "cores": os.cpu_count()}
    throughput = {name: IMAGES / value for name, value in seconds.items()}
    bound = 2 * cpu["one worker"] / cpu["two workers"]
    speed_up = {"two workers to one": ratios["one worker"], "one worker to no Ray": 1 / _ratio(seconds)}
    print(facts, speed_up, cpu, bound)
    write_json(
        path,
        {
            "benchmark": "ray_embedding",
            "provenance": describe_run(began, "cpu"),
            "images": IMAGES,
            "seconds": seconds,
            "images per second": throughput,
            "throughput": speed_up,
            "CPU seconds of all processes": cpu,
            "two workers to one that the CPU seconds allow on two free cores": bound,
            "load": facts,
        },
    )


def _ratio(seconds: dict[str, float]) -> float:
    return seconds["one worker"] / seconds["one process, without Ray"]


def _cpu_seconds(way: Callable[[], object]) -> float:
    """CPU seconds of one call, here and in the workers. Other processes of the machine hardly change them."""

    def used() -> float:
        here = psutil.Process()
        ours = [here, *(child for child in here.children(recursive=True) if child.name().startswith("ray::"))]
        return sum(sum(process.cpu_times()[:2]) for process in ours)

    before = used()
    way()
    return used() - before


def _start(blocks, todo: list[tuple[int, int]]) -> None:
    """Give work until every worker has started."""
    while True:
        list(blocks(todo[:16], True))
        hired = blocks.__self__.workers
        if all(worker.starting is None for worker in hired):
            return


def _write_images(folder: Path) -> None:
    generator = np.random.default_rng(0)
    for i in range(IMAGES):
        Image.fromarray(generator.integers(0, 255, (SIZE, SIZE, 3), dtype=np.uint8)).save(folder / f"{i:05d}.png")
