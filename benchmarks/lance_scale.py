"""Credible search on Lance from 10^5 to 10^7 items, beside the folder store and plain LanceDB k-NN.

64 dimensions, the directions and queries of `benchmarks.retrieval`: for each query the kappa whose 95 % cap holds about
ten items. Questions are asked one at a time, and are complete: from a posterior to hits with ids, metadata and match
probabilities. Plain k-NN asks the same table through the same vector index for ten neighbours, with ids and metadata,
probing as few partitions as reach the same recall. The three take turns. Memory is the peak of a process that does
nothing else; it has the input vectors, too, while it builds.

    python -m benchmarks.lance_scale 100000 1000000 10000000
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import faiss
import numpy as np
import torch

from aleator import VonMisesFisher
from aleator.foundation.files import write_json
from aleator.foundation.provenance import describe_run
from aleator.retrieval import CredibleIndex
from benchmarks.retrieval import DIM, LEVEL, RECALL, answers, directions, posteriors, share

QUERIES = 100
NEIGHBOURS = 10
OUTPUT = "lance_scale.json"
LOCATIONS = {"lance": "lance:{}/lance", "folder": "{}/folder"}


def main(sizes: list[int], folder: Path = Path("results/benchmarks")) -> None:
    """Measure each size, and write what is there after each."""
    began, path = time.time(), folder / OUTPUT
    rows = json.loads(path.read_text())["rows"] if path.exists() else {}  # sizes may be measured one by one
    for size in sizes:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            rows[str(size)] = measure(Path(scratch), size)
        print(json.dumps(rows[str(size)], indent=1), flush=True)
        found = {"benchmark": "lance_scale", "provenance": describe_run(began, "cpu"), "dim": DIM, "rows": rows}
        rows = found["rows"] = dict(sorted(rows.items(), key=lambda row: int(row[0])))
        write_json(path, found)
    figure(folder, rows)


def measure(work: Path, size: int) -> dict:
    X = np.lib.format.open_memmap(work / "items.npy", "w+", np.float32, (size, DIM))
    for number, start in enumerate(range(0, size, 1_000_000)):
        X[start : start + 1_000_000] = directions(min(1_000_000, size - start), 1000 + number)
    X.flush()
    Q = directions(QUERIES, 1)
    best, nearest = faiss.knn(Q, X, NEIGHBOURS + 1, metric=faiss.METRIC_INNER_PRODUCT)
    radius = (best[:, NEIGHBOURS - 1] + best[:, NEIGHBOURS]) / 2
    np.savez(work / "queries.npz", Q=Q, radius=radius, nearest=nearest[:, :NEIGHBOURS])
    del X
    row: dict = {"load before": os.getloadavg()[0]}
    for kind in LOCATIONS:
        row[f"build, {kind}"] = apart("build", kind, work)
    row["asking"] = apart("ask", "all", work)
    for kind in LOCATIONS:
        row[f"memory while asking, {kind}"] = apart("memory", kind, work)["peak GB"]
    row["load after"] = os.getloadavg()[0]
    return row


def apart(task: str, kind: str, work: Path) -> dict:
    """Do one task in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.lance_scale", task, kind, str(work)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def build(kind: str, work: Path) -> dict:
    X = np.load(work / "items.npy", mmap_mode="r+")
    kappa = torch.as_tensor(np.random.default_rng(3).uniform(50, 500, len(X)).astype(np.float32))
    began = time.perf_counter()
    location = LOCATIONS[kind].format(work)
    index = CredibleIndex.build(VonMisesFisher(torch.from_numpy(X), kappa), location=location, exact_below=1)
    result = {"seconds": time.perf_counter() - began, "peak GB": peak()}
    files = [path.stat().st_size for path in (work / kind).rglob("*") if path.is_file()]
    return {**result, "disk GB": sum(files) / 1e9, "recall report": index.recall_report.to_dict()}


def ask(kind: str, work: Path) -> dict:
    given = np.load(work / "queries.npz")
    queries = posteriors(given["Q"], given["radius"])
    indexes = {
        kind: CredibleIndex.open(place.format(work)) for kind, place in LOCATIONS.items() if (work / kind).exists()
    }
    exact = answers(indexes["lance"].search(queries, p=LEVEL, exact=True))
    result: dict = {"mean size of a set": statistics.mean(map(len, exact))}
    table = indexes["lance"].store._table
    wanted = [set(map(int, row)) for row in given["nearest"]]

    def plain(i: int, probes: int) -> set[int]:
        query = table.search(given["Q"][i], vector_column_name="mu").distance_type("l2").nprobes(probes)
        found = query.limit(NEIGHBOURS).select(["key", "note", "_distance"]).to_arrow()
        return {int(key) for key in found["key"].to_pylist()}

    for probes in indexes["lance"].store.efforts:
        recall = share([plain(i, probes) for i in range(QUERIES)], wanted)
        if recall >= RECALL:
            break
    result["plain k-NN: partitions probed"], result["plain k-NN: recall"] = probes, recall
    ways = {"plain k-NN": lambda i: plain(i, probes)}
    for name, index in indexes.items():
        ways[name] = lambda i, index=index: answers(index.search(queries[i : i + 1], p=LEVEL))[0]
        found = [ways[name](i) for i in range(QUERIES)]
        result[f"{name}: recall"] = share(found, exact)
        result[f"{name}: share of all items of the sets"] = sum(
            len(a & b) for a, b in zip(found, exact, strict=True)
        ) / sum(map(len, exact))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(3):
        for i in range(QUERIES):
            for name, way in ways.items():
                began = time.perf_counter()
                way(i)
                seconds[name].append(time.perf_counter() - began)
    for name, times in seconds.items():
        result[f"{name}: ms per question"] = 1e3 * statistics.median(times)
        result[f"{name}: ms per question, mean"] = 1e3 * statistics.mean(times)
    floor = result["plain k-NN: ms per question"]
    for name in indexes:
        result[f"{name}: ratio to plain k-NN"] = result[f"{name}: ms per question"] / floor
    result["ratio of means, lance to plain k-NN"] = statistics.mean(seconds["lance"]) / statistics.mean(
        seconds["plain k-NN"]
    )
    return result


def memory(kind: str, work: Path) -> dict:
    given = np.load(work / "queries.npz")
    queries = posteriors(given["Q"], given["radius"])
    index = CredibleIndex.open(LOCATIONS[kind].format(work))
    for i in range(QUERIES):
        index.search(queries[i : i + 1], p=LEVEL)
    return {"peak GB": peak()}


def peak() -> float:
    """Most memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def figure(folder: Path, rows: dict) -> None:
    """Time per question over the number of items."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(5, 3.4), layout="constrained")
    axes = drawing.subplots()
    for name in ("lance", "folder", "plain k-NN"):
        measured = f"{name}: ms per question"
        points = [(int(size), row["asking"][measured]) for size, row in rows.items() if measured in row["asking"]]
        axes.plot(*zip(*points, strict=True), "o-", label=name)
    axes.set(xscale="log", yscale="log", xlabel="items", ylabel="ms per question, recall 0.99")
    axes.legend()
    drawing.savefig(folder / "lance_scale.png", dpi=150)


if __name__ == "__main__":
    tasks = {"build": build, "ask": ask, "memory": memory}
    if sys.argv[1] in tasks:
        print(json.dumps(tasks[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))))
    else:
        main(list(map(int, sys.argv[1:])))
