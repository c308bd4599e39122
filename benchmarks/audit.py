"""Label errors: ours beside cross-validated logistic regression and cleanlab, on the same features.

digits       scikit-learn's 1,797 digits as 64 features; one label in twenty is changed to another class
clusters     8,000 x 64 features of ten classes with two clusters each; likewise
CIFAR-10N    50,000 images with the labels that people gave: the aggregate of three, and the worst of three. An error
             is a label that differs from CIFAR-10's own. Needs a data folder. The features are those of a .npy file
             that ALEATOR_FEATURES names, otherwise patch features (`benchmarks/patch_features.py`): no label seen.

    python -m benchmarks audit
    ALEATOR_DATA=data/ python -m benchmarks audit
    ALEATOR_DATA=data/ ALEATOR_FEATURES=features.npy python -m benchmarks audit

cleanlab ranks labels by probabilities that its user brings. It gets those of the cross-validated logistic regression,
as in its tutorials, and ours. Without cleanlab installed its rows are left out. Precision is the share of wrong labels
among the first ones: as many as there are planted errors, or 1,000.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aleator.evaluation import (
    LabelErrors,
    choose_head_settings,
    deal_into_folds,
    judge_labels,
    neighbour_graph,
    standardise,
)
from aleator.foundation import describe_run, write_json

SEEDS, PLANTED, FIRST, NEIGHBOURS, FOLDS = 3, 0.05, 1000, 30, 5
CACHE = Path(".cache/audit")


def main(folder: Path = Path("results/own-data")) -> None:
    """Measure every set, and write the rows."""
    began = time.time()
    rows: dict[str, Any] = {}
    for name, make in {"digits": digits, "clusters": clusters}.items():
        rows[name] = over_seeds(lambda seed, make=make: compare(*planted(*make(seed), seed), seed=seed))
        show(name, rows[name])
    if "ALEATOR_DATA" in os.environ:
        data = Path(os.environ["ALEATOR_DATA"])
        features, source = cifar_features(data)
        labels = np.load(data / "cifar10n" / "labels.npz")
        clean = labels["clean_label"].astype(np.int64)
        for kind in ("aggre_label", "worse_label"):
            given = labels[kind].astype(np.int64)
            name = f"CIFAR-10N {kind}"
            rows[name] = {"features": source} | compare(features, given, given != clean, FIRST, seed=0)
            show(name, rows[name])
    versions = {"cleanlab": cleanlab_version()}
    write_json(
        folder / "audit.json",
        {"benchmark": "audit", "provenance": describe_run(began, "cpu") | versions, "rows": rows},
    )


def digits(seed: int) -> tuple[torch.Tensor, np.ndarray]:
    """Pixels and classes of scikit-learn's digits."""
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    return torch.from_numpy(pixels).float(), classes.astype(np.int64)


def clusters(seed: int, count: int = 8000, width: int = 64, classes: int = 10) -> tuple[torch.Tensor, np.ndarray]:
    """Classes of two Gaussian clusters each, that overlap."""
    generator = np.random.default_rng(seed)
    centres = generator.standard_normal((classes, 2, width)) * 0.35
    labels = generator.integers(classes, size=count)
    rows = centres[labels, generator.integers(2, size=count)] + generator.standard_normal((count, width))
    return torch.from_numpy(rows).float(), labels


def planted(features: torch.Tensor, classes: np.ndarray, seed: int) -> tuple[torch.Tensor, np.ndarray, np.ndarray, int]:
    """Change one label in twenty to another class, any with the same probability."""
    generator = np.random.default_rng(seed)
    count = round(PLANTED * len(classes))
    wrong = np.zeros(len(classes), bool)
    wrong[generator.choice(len(classes), count, replace=False)] = True
    others = generator.integers(1, classes.max() + 1, len(classes))
    return features, np.where(wrong, (classes + others) % (classes.max() + 1), classes), wrong, count


def compare(features: torch.Tensor, given: np.ndarray, wrong: np.ndarray, first: int, *, seed: int) -> dict[str, Any]:
    """Precision among the first labels of every ranking, and seconds of the two models."""
    began = time.perf_counter()
    errors = judge(features, given, seed)
    ours_seconds = time.perf_counter() - began
    began = time.perf_counter()
    rival = logistic_regression(features, given, seed)
    rival_seconds = time.perf_counter() - began
    rankings = {
        "ours": errors.order(),
        "logistic regression": np.argsort(rival[np.arange(len(given)), given], kind="stable"),
    }
    for owner, probabilities in (("logistic regression", rival), ("our probabilities", errors.probabilities)):
        for name, order in cleanlab_rankings(given, probabilities).items():
            rankings[f"cleanlab {name}, {owner}"] = order
    return {
        "items": len(given),
        "wrong": int(wrong.sum()),
        "first": first,
        "precision": {name: float(wrong[order[:first]].mean()) for name, order in rankings.items()},
        "seconds": {"ours": ours_seconds, "logistic regression": rival_seconds},
        "judges": errors.judges,
        "weights": errors.weights,
    }


def judge(features: torch.Tensor, given: np.ndarray, seed: int) -> LabelErrors:
    """Our judgement, as `aleator audit` makes it."""
    targets = torch.nn.functional.one_hot(torch.as_tensor(given)).float()
    settings = choose_head_settings(features, targets, seed)
    neighbours = neighbour_graph(standardise(features, settings.each), NEIGHBOURS)
    fold = deal_into_folds(given, FOLDS, seed=seed)
    return judge_labels(features, targets, neighbours, fold, settings=settings, seed=seed)


def logistic_regression(features: torch.Tensor, given: np.ndarray, seed: int) -> np.ndarray:
    """Probabilities of scikit-learn's logistic regression on standardised features, cross-validated."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    return cross_val_predict(model, features.numpy(), given, cv=folds, method="predict_proba")


def cleanlab_rankings(given: np.ndarray, probabilities: np.ndarray) -> dict[str, np.ndarray]:
    """cleanlab's three label quality scores, and its list of label issues; nothing if it is not installed."""
    try:
        from cleanlab.filter import find_label_issues
        from cleanlab.rank import get_label_quality_scores
    except ImportError:
        return {}
    probabilities = probabilities / probabilities.sum(1, keepdims=True)
    rankings = {
        name: np.argsort(get_label_quality_scores(given, probabilities, method=name), kind="stable")
        for name in ("self_confidence", "normalized_margin", "confidence_weighted_entropy")
    }
    ranked_by = {"return_indices_ranked_by": "self_confidence", "n_jobs": 1}
    rankings["find_label_issues"] = find_label_issues(given, probabilities, **ranked_by)
    return rankings


def cleanlab_version() -> str | None:
    """The version of cleanlab, if it is installed."""
    try:
        import cleanlab
    except ImportError:
        return None
    return cleanlab.__version__


def cifar_features(data: Path) -> tuple[torch.Tensor, str]:
    """Features of the 50,000 training images, and where they come from."""
    if given := os.environ.get("ALEATOR_FEATURES"):
        return torch.from_numpy(np.load(given)).float(), Path(given).name
    path = CACHE / "patch_features.npy"
    if not path.is_file():
        from aleator.data import load_cifar10
        from benchmarks.patch_features import patch_features

        CACHE.mkdir(parents=True, exist_ok=True)
        np.save(path, patch_features(load_cifar10("train", data).images).numpy())
    return torch.from_numpy(np.load(path)), "patch features"


def over_seeds(measure: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds, with all values of the precisions."""
    runs = [measure(seed) for seed in range(SEEDS)]
    values = {name: [run["precision"][name] for run in runs] for name in runs[0]["precision"]}
    return runs[0] | {
        "precision": {name: float(np.mean(found)) for name, found in values.items()},
        "values": values,
        "seeds": SEEDS,
    }


def show(name: str, row: dict[str, Any]) -> None:
    """Print one set."""
    print(f"{name}: {row['wrong']} of {row['items']} wrong; precision among the first {row['first']}")
    for method, precision in row["precision"].items():
        print(f"  {method:70} {precision:.3f}")


if __name__ == "__main__":
    main()
