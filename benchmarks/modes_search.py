"""Credible search with posteriors of two modes, against one mode in the same items.

The items and queries of benchmarks/retrieval.py. A second index holds items of two modes (weights 0.7 and 0.3), whose
first direction is that of the first index; the second directions are new ones. Its queries have two modes too, with
sharper ones, so that the sets of both are of similar size. Times are of one batch of queries, from posteriors to hits.

    python -m benchmarks.modes_search [ITEMS]
"""

import sys
import time
from pathlib import Path

import faiss
import numpy as np
import torch

from aleator import CredibleIndex, VMFMixture, VonMisesFisher
from aleator.foundation.files import write_json
from aleator.foundation.provenance import describe_run
from benchmarks.retrieval import DIM, LEVEL, alternate, directions, posteriors

ITEMS, QUERIES, SIZE = 1_000_000, 1000, 10
WEIGHTS = (0.7, 0.3)


def main(folder: Path = Path("results/benchmarks"), items: int = ITEMS) -> None:
    began = time.time()
    X, other = directions(items, 0), directions(items, 2)
    Q, second = directions(QUERIES, 1), directions(QUERIES, 3)
    kappa = torch.as_tensor(np.random.default_rng(3).uniform(50, 500, items).astype(np.float32))
    one_query = asked(Q, X)
    two_queries = mixtures(asked(Q, X, SIZE // 5), asked(second, X, SIZE // 5))
    one = CredibleIndex.build(VonMisesFisher(torch.as_tensor(X), kappa), exact_below=1)
    two = CredibleIndex.build(
        mixtures(VonMisesFisher(torch.as_tensor(X), kappa), VonMisesFisher(torch.as_tensor(other), kappa)),
        exact_below=1,
    )
    searches = {
        "one mode": lambda: one.search(one_query, p=LEVEL),
        "two modes": lambda: two.search(two_queries, p=LEVEL),
        "queries of two modes, items of one": lambda: one.search(two_queries, p=LEVEL),
        "regions alone": lambda: two_queries.double().region(LEVEL),
    }
    times = alternate(searches)
    rows = {f"{name}: ms per query": 1e3 * seconds / QUERIES for name, seconds in times.items()}
    for name in ("one mode", "two modes"):
        rows[f"{name}: mean size"] = float(np.mean([len(hits) for hits in searches[name]()]))
    rows["ratio of two modes to one"] = times["two modes"] / times["one mode"]
    for name, value in rows.items():
        print(f"{name:45} {value:.4g}")
    if items == ITEMS:
        found = {"benchmark": "modes_search", "provenance": describe_run(began, "cpu"), "rows": rows}
        write_json(folder / "modes_search.json", found | {"items": items, "dim": DIM, "queries": QUERIES})


def asked(mu: np.ndarray, items: np.ndarray, size: int = SIZE) -> VonMisesFisher:
    """Queries whose 95 % caps hold `size` of the items."""
    best, _ = faiss.knn(mu, items, size + 1, metric=faiss.METRIC_INNER_PRODUCT)
    return posteriors(mu, (best[:, size - 1] + best[:, size]) / 2)


def mixtures(first: VonMisesFisher, second: VonMisesFisher) -> VMFMixture:
    return VMFMixture(torch.tensor(WEIGHTS).log().expand(len(first), 2), VonMisesFisher.stack([first, second], 1))


if __name__ == "__main__":
    main(items=int(sys.argv[1]) if len(sys.argv) > 1 else ITEMS)
