"""`AleatorClassifier` with its defaults beside classifiers of scikit-learn, on tables of numbers.

python -m benchmarks.tables tables/

Each .csv file of the folder is a table: a header, columns of numbers, and the class in the last column, with no cell
empty. Classes of fewer than six rows are left out, and of a large table 6,000 rows are drawn. Each of two splits holds
30 % of the rows out, with the same share of each class.

`python -m benchmarks.public_tables` makes the folders that the figures in results/own-data are of: tables.json is of R
packages, tables-keel.json of the KEEL repository. Tables of R were used to choose defaults; those of KEEL were not.
Logistic regression and the MLP choose their regularisation by cross-validation; the other rivals have fixed settings.
"""

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # each process has one core

import numpy as np
import torch

import aleator as al
from aleator.evaluation import auroc, label_entropy, label_log_likelihood
from aleator.foundation import describe_run, write_json

OURS = "AleatorClassifier"
SPLITS, HELD_OUT, MOST_ROWS, LEAST_OF_A_CLASS = 2, 0.3, 6000, 6
MEASURES = {"accuracy": "right", "log_likelihood": "log-likelihood", "auroc": "AUROC of right answers"}
# Name -> rows of the tables that a summary is of, from and below.
SIZES = {"all": (0, MOST_ROWS + 1), "500 rows and more": (500, MOST_ROWS + 1), "fewer than 500 rows": (0, 500)}
_FLOOR = 1e-6  # of a probability: a forest can say 0


def classifiers() -> dict[str, Any]:
    """Name -> untrained classifier."""
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def tuned(model: Any, grid: dict[str, list[float]]) -> Any:
        return make_pipeline(StandardScaler(), GridSearchCV(model, grid, scoring="neg_log_loss", cv=3))

    return {
        OURS: al.AleatorClassifier(random_state=0),
        "logistic regression": tuned(LogisticRegression(max_iter=2000), {"C": [0.01, 0.1, 1.0, 10.0, 100.0]}),
        "MLP": tuned(MLPClassifier((128, 128), max_iter=100, random_state=0), {"alpha": [1e-3, 0.1, 1.0, 10.0]}),
        "random forest": RandomForestClassifier(300, min_samples_leaf=2, random_state=0),
        "gradient boosting": HistGradientBoostingClassifier(random_state=0),
        "10 nearest neighbours": make_pipeline(StandardScaler(), KNeighborsClassifier(10)),
    }


def read_table(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features (N, F) and classes (N,) of a table."""
    cells = np.loadtxt(path, dtype=str, delimiter=",", skiprows=1, ndmin=2)
    return some_rows(cells[:, :-1].astype(np.float64), cells[:, -1])


def some_rows(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows that are compared on: those of classes that are not too small, and not too many."""
    names, counts = np.unique(y, return_counts=True)
    kept = np.flatnonzero(np.isin(y, names[counts >= LEAST_OF_A_CLASS]))
    if len(kept) > MOST_ROWS:
        kept = np.random.default_rng(0).choice(kept, MOST_ROWS, replace=False)
    return X[kept], y[kept]


def measure(probabilities: np.ndarray, numbers: np.ndarray) -> dict[str, float | None]:
    """How good probabilities (N, C) of the classes with these numbers (N,) are."""
    p = torch.as_tensor(probabilities, dtype=torch.float64)
    right = probabilities.argmax(1) == numbers
    can_be_ranked = 0 < right.sum() < len(right)
    return {
        "accuracy": float(right.mean()),
        "log_likelihood": label_log_likelihood(p.clamp_min(_FLOOR), torch.as_tensor(numbers)),
        "auroc": auroc(-label_entropy(p).numpy(), right) if can_be_ranked else None,
    }


def compare(path: Path) -> dict[str, Any]:
    """One table: its size, and each classifier's measures, one for each split."""
    torch.set_num_threads(1)
    X, y = read_table(path)
    return compare_classifiers(path.stem, X, y, classifiers())


def compare_classifiers(table: str, X: np.ndarray, y: np.ndarray, compared: dict[str, Any]) -> dict[str, Any]:
    """The size of a table, and the measures of classifiers by their names, one for each split."""
    import warnings

    from sklearn.model_selection import StratifiedShuffleSplit

    warnings.simplefilter("ignore")  # an MLP says that more iterations would help
    splits = list(StratifiedShuffleSplit(SPLITS, test_size=HELD_OUT, random_state=0).split(X, y))
    methods: dict[str, Any] = {}
    for name, classifier in compared.items():
        rows, began = [], time.process_time()
        for train, test in splits:
            fitted = classifier.fit(X[train], y[train])
            rows.append(measure(fitted.predict_proba(X[test]), np.searchsorted(fitted.classes_, y[test])))
        seconds = round((time.process_time() - began) / SPLITS, 1)
        methods[name] = {**{measure: [row[measure] for row in rows] for measure in MEASURES}, "seconds": seconds}
    shape = {"rows": len(X), "columns": X.shape[1], "classes": len(np.unique(y))}
    return {"table": table, **shape, "methods": methods}


def summary(tables: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """For each classifier: its mean of each measure over all splits that all could be measured in, and its seconds."""
    names = list(tables[0]["methods"])
    means: dict[str, dict[str, float]] = {name: {} for name in names}
    for measured in MEASURES:
        splits = [
            values
            for table in tables
            for values in zip(*(table["methods"][name][measured] for name in names), strict=True)
            if None not in values
        ]
        for name, column in zip(names, zip(*splits, strict=True), strict=True):
            means[name][measured] = sum(column) / len(column)
            ours = [split[0] for split in splits]
            means[name][f"{measured}_ours_better"] = sum(a > b for a, b in zip(ours, column, strict=True))
            means[name][f"{measured}_ours_worse"] = sum(a < b for a, b in zip(ours, column, strict=True))
    for name in names:
        means[name]["seconds"] = sum(table["methods"][name]["seconds"] for table in tables) / len(tables)
    return means


def summaries(tables: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """The summary of all tables, of the larger and of the smaller ones; sizes without a table are left out."""
    chosen = {name: [t for t in tables if low <= t["rows"] < high] for name, (low, high) in SIZES.items()}
    return {name: summary(some) for name, some in chosen.items() if some}


def show(means: dict[str, dict[str, float]]) -> None:
    """Print the means, in how many splits ours is better and worse, and who has the best mean."""
    for name, row in means.items():
        cells = []
        for measured, label in MEASURES.items():
            better, worse = (row[f"{measured}_ours_{word}"] for word in ("better", "worse"))
            beside = "" if name == OURS else f" ({better}:{worse})"
            cells.append(f"{label} {row[measured]:.3f}{beside}")
        print(f"{name:22} {', '.join(cells)}, {row['seconds']:.1f} s")
    for measured, label in MEASURES.items():
        best = max(means, key=lambda name: means[name][measured])
        print(f"best {label}: {'ours' if best == OURS else best}")


def run(compare: Callable[[Path], dict[str, Any]], description: str | None, name: str) -> None:
    """Compare on all tables of a folder that the command line names; print and write the results."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of .csv files")
    parser.add_argument("--jobs", type=int, default=2, help="tables at the same time")
    parser.add_argument("--output", type=Path, default=Path(f"results/own-data/{name}.json"))
    options = parser.parse_args()
    began = time.time()
    paths = sorted(options.folder.glob("*.csv"), key=lambda path: -path.stat().st_size)  # long ones first
    if not paths:
        parser.error(f"{options.folder} holds no .csv file")
    tables = []
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for table in pool.map(compare, paths):
            print(table["table"], {name: row["accuracy"] for name, row in table["methods"].items()}, flush=True)
            tables.append(table)
    by_size = summaries(tables)
    for name, means in by_size.items():
        print(f"== {name}")
        show(means)
    provenance = describe_run(began, torch.device("cpu"))
    write_json(options.output, {"experiment": name, "provenance": provenance, "summary": by_size, "tables": tables})


if __name__ == "__main__":
    run(compare, __doc__, "tables")
