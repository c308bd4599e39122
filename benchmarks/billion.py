"""What a billion items need, from measured curves, and how large credible sets become.

    python -m benchmarks billion

Reads results/benchmarks/retrieval.json and, if it is there, lance_scale.json. A curve of two or more sizes is fitted by
a power of N. Bytes and seconds to build of one size alone are carried over in proportion to N, times are not. Sizes of
sets are in closed form: N times the share of the collection in the query's cap. A simulation checks it.
"""

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import aleator as al
from aleator.foundation import describe_run, write_json
from aleator.posteriors.caps import log_cap_share

RESULTS = Path("results/benchmarks")
N, DIM, P = 10**9, 64, 0.95
KAPPAS = (30.0, 100.0, 200.0, 300.0, 500.0, 1000.0)
SHARDS = (1, 10, 100, 1000)


def main(path: Path = RESULTS / "billion.json") -> None:
    """Fit, simulate, print and write."""
    began = time.time()
    curves = _folder_curves() | _lance_curves() | _postgres_curves()
    plan = {name: _at_a_billion(name, curve) for name, curve in curves.items()}
    sets = {f"D = {dim}": _set_sizes(dim) for dim in (10, 64, 256)}
    clusters = _cluster_sizes()
    check = _simulate()
    for name, row in plan.items():
        print(name, row)
    print(json.dumps({"sets": sets, "clusters": clusters, "check": check}, indent=1))
    facts = {"items": N, "dim": DIM, "p": P, "curves": plan, "uniform": sets, "groups": clusters, "simulation": check}
    write_json(path, {"benchmark": "billion", "provenance": describe_run(began, "cpu"), **facts})


def _read(name: str) -> dict[str, Any] | None:
    path = RESULTS / name
    return json.loads(path.read_text()) if path.exists() else None


def _folder_curves() -> dict[str, dict[int, float]]:
    found = _read("retrieval.json")
    if found is None:
        return {}
    rows = found["rows"]
    growth, count = rows["growth"], rows["items"]
    return {
        "folder: bytes": {count: rows["build, ours"]["bytes_per_item"] * count},
        "folder: seconds to build": {count: rows["build, ours"]["seconds"]},
        "folder: ms per question, ten answers": {
            10**4: growth["10 answers among 10000: ms per query"],
            10**5: growth["10 answers among 100000: ms per query"],
            count: growth["10 answers: ms per query"],
        },
    }


def _postgres_curves() -> dict[str, dict[int, float]]:
    found = _read("retrieval.json")
    if found is None:
        return {}
    rows, count = found["rows"]["postgres"], found["rows"]["items"]
    return {
        "PostgreSQL: bytes": {count: rows["bytes in all"]},
        "PostgreSQL: seconds to build": {count: rows["HNSW and its recall: seconds"]},
        "PostgreSQL: ms per question, ten answers": {count: rows["credible: ms per query"]},
    }


def _lance_curves() -> dict[str, dict[int, float]]:
    found = _read("lance_scale.json")
    if found is None:
        return {}
    rows = {int(size): row for size, row in found["rows"].items()}
    return {
        "Lance: bytes": {size: 1e9 * row["build, lance"]["disk GB"] for size, row in rows.items()},
        "Lance: seconds to build": {size: row["build, lance"]["seconds"] for size, row in rows.items()},
        "Lance: ms per question, ten answers": {
            size: row["asking"]["lance: ms per question"] for size, row in rows.items()
        },
    }


def _at_a_billion(name: str, curve: dict[int, float]) -> dict[str, Any]:
    """The curve's power of N, and its value for a billion items in so many shards.

    Two fits: of all sizes, and of the last two, which is the more careful one where the curve bends upwards.
    """
    sizes, values = np.array(sorted(curve), float), np.array([curve[size] for size in sorted(curve)])
    if len(sizes) == 1:
        if "ms per" in name:
            return {"measured": curve, "kind": "one size measured: no growth is known"}
        each = {f"{count} shards": float(values[0] * N / count / sizes[0]) for count in SHARDS}
        return {"measured": curve, "kind": "one size measured: in proportion to N", "a shard of a billion": each}
    found: dict[str, Any] = {"measured": curve, "kind": "fitted"}
    for title, part in (("all sizes", slice(None)), ("last two sizes", slice(-2, None))):
        power, start = (float(number) for number in np.polyfit(np.log(sizes[part]), np.log(values[part]), 1))
        misfit = float(np.abs(np.exp(start + power * np.log(sizes[part])) / values[part] - 1).max())
        each = {f"{count} shards": math.exp(start) * (N / count) ** power for count in SHARDS}
        found[title] = {"power of N": power, "worst misfit": misfit, "a shard of a billion": each}
    return found


def _angle(kappa: torch.Tensor | float, dim: int) -> torch.Tensor:
    """Half the opening of each credible cap, float64."""
    kappa = torch.as_tensor(kappa, dtype=torch.float64).reshape(-1)
    mu = torch.eye(dim, dtype=torch.float64)[:1].expand(len(kappa), dim)
    return al.VonMisesFisher(mu, kappa).cap_angle(P)


def _set_sizes(dim: int) -> dict[str, Any]:
    """Expected sets in a collection that is spread evenly, and the kappa at which a set has so many items."""

    grid = np.geomspace(1, 1e5, 600)
    log_shares = log_cap_share(dim, _angle(torch.as_tensor(grid), dim)).numpy()

    def share(kappa: float) -> float:
        return math.exp(np.interp(math.log(kappa), np.log(grid), log_shares))

    def kappa_for(size: float, count: float) -> float:  # shares fall as kappa grows
        return math.exp(np.interp(-math.log(size / count), -log_shares, np.log(grid)))

    return {
        "share of the collection": {str(kappa): share(kappa) for kappa in KAPPAS},
        "expected set": {f"{count:.0e}": {str(k): count * share(k) for k in KAPPAS} for count in (1e6, 1e9)},
        "kappa below which the set is larger": {
            f"{count:.0e}": {f"{size:.0e}": kappa_for(size, count) for size in (10, 1e3, 1e6) if size < count}
            for count in (1e6, 1e9)
        },
    }


def _cluster_sizes() -> dict[str, dict[str, float]]:
    """Sets in a billion items of 1,000 groups, each vMF(kappa_group), for a query at the middle of a group."""
    found: dict[str, dict[str, float]] = {}
    for group in (100.0, 500.0):
        items = al.VonMisesFisher(torch.eye(DIM, dtype=torch.float64)[:1], torch.tensor([group], dtype=torch.float64))
        found[f"kappa of a group {group:.0f}"] = {
            str(kappa): N / 1000 * float(items.cap_probability(torch.cos(_angle(kappa, DIM)))) for kappa in KAPPAS
        }
    return found


def _simulate(count: int = 200_000, dim: int = 10) -> dict[str, dict[str, float]]:
    """The closed form beside the mean set of 50 queries, in a collection that is spread evenly."""
    generator = torch.Generator().manual_seed(0)
    items = torch.nn.functional.normalize(torch.randn(count, dim, generator=generator), dim=1)
    queries = torch.nn.functional.normalize(torch.randn(50, dim, generator=generator), dim=1)
    cosines = queries @ items.T
    found = {}
    for kappa in (10.0, 30.0, 100.0):
        angle = _angle(kappa, dim)
        closed = count * float(log_cap_share(dim, angle).exp())
        found[str(kappa)] = {
            "closed": closed,
            "counted": float((cosines >= float(torch.cos(angle))).sum(1).float().mean()),
        }
    return found
