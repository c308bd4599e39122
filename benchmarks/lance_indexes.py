"""Vector indexes of Lance beside each other: IVF, which the store uses, and HNSW with full or quantised vectors.

10^5 items of 64 dimensions, with the directions and queries of `benchmarks.lance_scale`: credible sets of ten items.
Each index is asked for the vectors within the radius of each query. Of its settings (partitions, width `ef` of the walk
through the graph, neighbours that are compared again with their full vectors), the one counts that takes least time
among those that find 99 % of the sets. The indexes then take turns, one question at a time.

    python -m benchmarks.lance_indexes
"""

import itertools
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import faiss
import lancedb
import numpy as np
import pyarrow as pa
from lancedb.index import HnswFlat, HnswSq, IvfFlat

from aleator.foundation.files import write_json
from aleator.foundation.provenance import describe_run
from aleator.retrieval.scoring import slack
from aleator.retrieval.stores.lance.store import partition_count
from benchmarks.retrieval import DIM, RECALL, directions, share

ITEMS, QUERIES, SET, LIMIT, ROUNDS = 100_000, 100, 10, 64, 3
EF = (64, 128, 256, 512)


def main(folder: Path = Path("results/benchmarks")) -> None:
    """Build each index on a copy of the table, tune it, and let all of them take turns."""
    began = time.time()
    X, Q = directions(ITEMS, 1000), directions(QUERIES, 1)
    best, nearest = faiss.knn(Q, X, SET + 1, metric=faiss.METRIC_INNER_PRODUCT)
    bound = 2 - 2 * ((best[:, SET - 1] + best[:, SET]) / 2 - slack(DIM))
    sets = [set(map(int, row)) for row in nearest[:, :SET]]
    rows: dict[str, Any] = {"load before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as scratch:
        ways = {}
        for name, (config, settings) in INDEXES.items():
            table, row = _build(scratch, X, config)
            row["settings tried"], ways[name] = _tune(table, settings, Q, bound, sets, row)
            rows[name] = row
            print(name, row, flush=True)
        seconds: dict[str, list[float]] = {name: [] for name, way in ways.items() if way is not None}
        for _, i in itertools.product(range(ROUNDS), range(QUERIES)):
            for name, times in seconds.items():
                start = time.perf_counter()
                ways[name](i)
                times.append(time.perf_counter() - start)
    for name, times in seconds.items():
        rows[name]["ms per question"] = 1e3 * statistics.median(times)
        rows[name]["ratio to IVF"] = statistics.median(times) / statistics.median(seconds["IVF_FLAT"])
    rows["load after"] = os.getloadavg()[0]
    found = {"benchmark": "lance_indexes", "provenance": describe_run(began, "cpu"), "items": ITEMS, "dim": DIM}
    write_json(folder / "lance_indexes.json", {**found, "rows": rows})
    print(rows)


def _build(scratch: str, X: np.ndarray, config: Any) -> tuple[Any, dict[str, Any]]:
    work = tempfile.mkdtemp(dir=scratch)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), DIM)
    table = lancedb.connect(work).create_table("items", pa.table({"row": pa.array(range(len(X))), "mu": vectors}))
    written = _size(work)
    start = time.perf_counter()
    table.create_index("mu", config=config)
    return table, {"build seconds": time.perf_counter() - start, "index GB": (_size(work) - written) / 1e9}


def _size(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def _tune(
    table: Any, settings: list[dict[str, int]], Q: np.ndarray, bound: np.ndarray, sets: list[set[int]], row: dict
):
    """The fastest setting that reaches the recall, as a function of a question's number; None if there is none."""

    def ask(i: int, setting: dict[str, int]) -> set[int]:
        query = table.search(Q[i], vector_column_name="mu").distance_type("l2").limit(LIMIT)
        query = query.nprobes(setting["partitions"]).distance_range(None, float(bound[i]))
        query = query.ef(setting["ef"]) if "ef" in setting else query
        query = query.refine_factor(setting["refine"]) if "refine" in setting else query
        return set(query.select(["row", "_distance"]).to_arrow()["row"].to_pylist())

    tried = []
    for setting in settings:
        found, seconds = [], []
        for i in range(QUERIES):
            start = time.perf_counter()
            found.append(ask(i, setting))
            seconds.append(time.perf_counter() - start)
        tried.append({**setting, "recall": share(found, sets), "ms": 1e3 * statistics.median(seconds)})
    enough = [one for one in tried if one["recall"] >= RECALL]
    row["best recall of any setting"] = max(one["recall"] for one in tried)
    if not enough:
        return tried, None
    chosen = min(enough, key=lambda one: one["ms"])
    row["setting"] = chosen
    return tried, lambda i: ask(i, chosen)


_GRAPH = {"distance_type": "l2", "num_partitions": 1, "ef_construction": 150}
_WALKS = [{"partitions": 1, "ef": ef} for ef in EF]
_REFINED = [{**walk, "refine": refine} for walk in _WALKS for refine in (1, 2, 4) if refine * LIMIT <= walk["ef"]]
INDEXES: dict[str, tuple[Any, list[dict[str, int]]]] = {
    "IVF_FLAT": (
        IvfFlat("l2", num_partitions=partition_count(ITEMS), sample_rate=64, max_iterations=10),
        [{"partitions": p} for p in (8, 12, 16, 20, 24, 28, 32, 48, 64)],
    ),
    "IVF_HNSW_FLAT": (HnswFlat(**_GRAPH), _WALKS),
    "IVF_HNSW_SQ": (HnswSq(**_GRAPH), _WALKS + _REFINED),
}

if __name__ == "__main__":
    main()
