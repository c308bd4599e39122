"""A person's own data: embedding against the bare network, memory over many items, and a head on frozen features.

embedding      `embed` over a folder of images, decoding included, against the backbone's forward pass over the same
               images, decoded and prepared beforehand; both in one run, in turn
memory         the process's resident memory while 100,000 items are embedded: after a tenth of them, and at the end
head           `train` on 50,000 x 512 features, from the .npy files to the finished run
"""

import os
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from aleator.data.inputs import Inputs
from aleator.encoders import MLP, Chain, ResNet18, Standardise, UnitScale
from aleator.encoders.encoder import Encoder
from aleator.foundation.files import write_json
from aleator.foundation.provenance import describe_run
from aleator.matching.kernels import VMFKernel
from aleator.own_data import Settings, embed, read_collection, train
from aleator.own_data.runs.run import Run
from benchmarks.timing import interleaved, show

IMAGES, SIDE, BATCH = 768, 32, 64
ITEMS, FEATURES = 100_000, 512
HEAD_ITEMS, CLASSES = 50_000, 100


def main(folder: Path = Path("results/benchmarks")) -> None:
    began = time.time()
    torch.manual_seed(0)
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as work:
        rows = {"embedding": embedding(Path(work)), "memory": memory(Path(work)), "head": head(Path(work))}
    rows["load"] = {"before": load_before, "after": os.getloadavg()[0], "cores": os.cpu_count()}
    write_json(
        folder / "own_data.json", {"benchmark": "own_data", "provenance": describe_run(began, "cpu"), "rows": rows}
    )


def embedding(work: Path) -> dict:
    """The ResNet-18 of the paper's CIFAR experiments, 32 x 32 PNGs, batches of 64."""
    generator = np.random.default_rng(0)
    (work / "photos").mkdir()
    for i in range(IMAGES):
        coarse = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(work / "photos" / f"{i:05d}.png")
    inputs = Inputs("images", size=SIDE, mean=(0.5,) * 3, std=(0.25,) * 3)
    encoder = Encoder(ResNet18(), 16).eval()
    encoder.to(memory_format=torch.channels_last)  # what `embed` does too
    run = _run(work, encoder, inputs)
    collection = read_collection(work / "photos")
    prepared = [inputs.prepare(collection.raw(i, i + BATCH)) for i in range(0, IMAGES, BATCH)]

    @torch.inference_mode()
    def bare() -> None:
        for batch in prepared:
            encoder.backbone(batch)

    def whole() -> None:
        embed(
            run, collection, work / "photos.safetensors", batch_size=BATCH, replace=True, progress=False, device="cpu"
        )

    seconds = interleaved({"bare forward pass": bare, "aleator embed": whole}, repeats=5)
    ratios = show(f"{IMAGES} images", seconds, "bare forward pass")
    return {"images": IMAGES, "seconds": seconds, "ratio": ratios["aleator embed"]}


def memory(work: Path) -> dict:
    """100,000 rows of 512 features, 200 MB on disk, through a head."""
    generator = np.random.default_rng(0)
    rows = np.lib.format.open_memmap(work / "many.npy", "w+", np.float32, (ITEMS, FEATURES))
    for start in range(0, ITEMS, 10_000):
        rows[start : start + 10_000] = generator.standard_normal((10_000, FEATURES))
    del rows
    encoder = Encoder(_head(), 16).eval()
    run = _run(work, encoder, Inputs("features", features=FEATURES))
    seen: list[tuple[int, float]] = []
    output, stop = work / "many.safetensors", threading.Event()
    part = output.with_suffix(".partial") / "part-0000.rows"

    def watch() -> None:
        while not stop.wait(0.005):
            done = part.stat().st_size // (4 * 17 + 8) if part.exists() else 0
            seen.append((done, _resident()))

    thread = threading.Thread(target=watch)
    thread.start()
    began = time.perf_counter()
    embed(run, read_collection(work / "many.npy"), output, batch_size=1024, progress=False, device="cpu")
    seconds = time.perf_counter() - began
    stop.set()
    thread.join()
    early = max(value for done, value in seen if 0 < done <= ITEMS // 10)
    peak = max(value for _, value in seen)
    growth = peak - early
    print(f"{ITEMS} items: {early:.0f} MB after a tenth of them, {peak:.0f} MB at most, {seconds:.1f} s")
    return {"items": ITEMS, "mb_after_a_tenth": early, "mb_peak": peak, "mb_growth": growth, "seconds": seconds}


def head(work: Path) -> dict:
    """100 classes in 512 dimensions; a third of the rows are mixtures of two classes, labelled with either."""
    generator = np.random.default_rng(1)
    centres = generator.standard_normal((CLASSES, FEATURES)).astype(np.float32)
    labels = generator.integers(CLASSES, size=HEAD_ITEMS)
    rows = centres[labels]
    mixed = generator.random(HEAD_ITEMS) < 1 / 3
    rows[mixed] = (rows[mixed] + centres[generator.integers(CLASSES, size=mixed.sum())]) / 2
    rows += 2.0 * generator.standard_normal((HEAD_ITEMS, FEATURES)).astype(np.float32)
    np.save(work / "features.npy", rows)
    np.save(work / "labels.npy", labels)
    began = time.perf_counter()
    collection = read_collection(work / "features.npy", work / "labels.npy")
    run = train(collection, work / "head", Settings(), device="cpu", progress=False, log=print)
    seconds = time.perf_counter() - began
    named = ("recall_at_1", "recall_at_1_surer_half", "r_auroc", "match_ece")
    metrics = {name: run.metrics[name] for name in named}
    print(f"head on {HEAD_ITEMS} x {FEATURES} features: {seconds:.0f} s, {metrics}")
    return {"items": HEAD_ITEMS, "features": FEATURES, "seconds": seconds, "metrics": metrics}


def _head() -> Chain:
    return Chain([Standardise(FEATURES), UnitScale(FEATURES), MLP(FEATURES, (256, 256))])


def _run(work: Path, encoder: Encoder, inputs: Inputs) -> Run:
    return Run(work, encoder, inputs, VMFKernel(10.0), 0.5, "benchmark", {}, {})


def _resident() -> float:
    """MB of this process's own memory that are in use, by the kernel's account."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    main()
