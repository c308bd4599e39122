"""Sets with a promise: do they hold a right answer as often as promised, and how large are they?

python -m benchmarks.conformal_sets                                            clusters and noisy digits, made here
python -m benchmarks.conformal_sets --items photos.safetensors --questions questions.safetensors --name photos

Both files come from `aleator embed` and carry labels. The questions must not have been trained on. Each of 20 splits
draws half of the questions for the calibration, at most 1,000, and at most 1,000 of the others as new questions.

labels        `index.calibrate(..., sets="labels")`: one item of each label that the question could have
ranked        `sets="ranked"`: the nearest items, as many as the question needs
k-NN          the k nearest items in mu for every question; k is the conformal quantile of the same calibration
k at the      the smallest k that covers as many of the new questions as `ranked` does: k-NN sets of the same coverage,
same coverage chosen in hindsight
k labels      the nearest item of each of the k nearest labels, k by the same rule: a fixed number of labels

The error is that of first answers that are sure. A promise with an assurance of 90 % may be broken by one split in ten,
and the share of wrong answers among the new questions varies by chance around the true one.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aleator import CredibleIndex, VMFKernel, VonMisesFisher
from aleator.evaluation import conformal_quantile
from aleator.foundation import describe_run, write_json
from aleator.retrieval import match_settings, read_header, read_items, read_posteriors

SPLITS, COVERAGE = 20, 0.95
ERROR, ASSURANCE = 0.1, 0.9  # of sure first answers; probability that error and coverage are kept
MOST = 1000  # questions for a calibration, and new questions


class Questions:
    """Items and questions with their labels, and how near the right answers are."""

    def __init__(
        self,
        items: VonMisesFisher,
        item_labels: np.ndarray,
        questions: VonMisesFisher,
        labels: np.ndarray,
        kernel: VMFKernel | None = None,
        prior: float = 0.5,
    ):
        metadata = [{"label": label} for label in item_labels.tolist()]
        self.index = CredibleIndex.build(items, metadata=metadata, kernel=kernel, prior=prior)
        self.questions, self.labels = questions, labels
        nearest = np.argsort(-(questions.mu @ items.mu.T).numpy(), axis=1, kind="stable")
        ranked = item_labels[nearest]
        right = ranked == labels[:, None]
        self.rank = np.where(right.any(axis=1), right.argmax(axis=1) + 1.0, np.inf)  # of the nearest right item
        first = np.where(np.isfinite(self.rank), self.rank, 1)
        before = [len(set(row[: int(rank) - 1])) for row, rank in zip(ranked, first, strict=True)]
        self.label_rank = np.where(np.isfinite(self.rank), np.array(before) + 1.0, np.inf)  # of the right label


def clusters(seed: int = 0, labels: int = 20, dim: int = 16, count: int = 5000) -> Questions:
    """Overlapping clusters: nothing is learned, and kappa is right."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.nn.functional.normalize(torch.randn(labels, dim, generator=generator), dim=-1)
    label = torch.randint(labels, (count,), generator=generator)
    kappa = 4 + 60 * torch.rand(count, generator=generator)
    q = VonMisesFisher(VonMisesFisher(centres[label], kappa).sample(generator=generator), kappa)
    half = count // 2
    return Questions(q[:half], label[:half].numpy(), q[half:], label[half:].numpy())


def noisy_digits(seed: int = 0, copies: int = 3) -> Questions:
    """scikit-learn's digits with noise of a different strength for each, as features; a head is trained on half."""
    from sklearn.datasets import load_digits

    from aleator.own_data import read_collection, train

    rng = np.random.default_rng(seed)
    pixels, labels = load_digits(return_X_y=True)
    parts = np.split(rng.permutation(len(pixels)), [900])
    inputs, answers = [], []
    for part in parts:
        clean, strength = np.repeat(pixels[part] / 16, copies, axis=0), rng.uniform(0.1, 0.7, (copies * len(part), 1))
        inputs.append((clean + strength * rng.standard_normal(clean.shape)).astype(np.float32))
        answers.append(np.repeat(labels[part], copies))
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        np.save(folder / "x.npy", inputs[0])
        np.save(folder / "y.npy", answers[0])
        run = train(read_collection(folder / "x.npy", folder / "y.npy"), folder / "run")
        items, questions = (run.posteriors(x) for x in inputs)
    return Questions(items, answers[0], questions, answers[1], run.kernel)


def from_files(items: Path, questions: Path) -> Questions:
    """Posteriors of `aleator embed`, with labels in the files beside them."""
    kernel, prior = match_settings(read_header(items))
    labels = []
    for path in (items, questions):
        metadata = read_items(path.with_suffix(".jsonl"))[1] or []
        labels.append(np.array([item["label"] for item in metadata]))
    return Questions(read_posteriors(items), labels[0], read_posteriors(questions), labels[1], kernel, prior)


def measure(data: Questions, splits: int = SPLITS, most: int = MOST) -> dict[str, Any]:
    """Coverage, sizes and errors of all kinds of sets, a value for each split."""
    kinds: dict[str, dict[str, list[float]]] = {}
    for calibration, new in _splits(len(data.labels), splits, most):
        for sets in ("labels", "ranked"):
            row = kinds.setdefault(sets, {})
            error_promised = _calibrate(data, calibration, sets)
            answers = data.index.answer_sets(data.questions[new])
            pairs = list(zip(answers, data.labels[new].tolist(), strict=True))
            held = [any(hit.metadata["label"] == right for hit in answer.hits) for answer, right in pairs]
            _append(row, coverage=np.mean(held), size=np.mean([len(answer.hits) for answer in answers]))
            if error_promised:
                wrong = [answer.hits[0].metadata["label"] != right for answer, right in pairs if answer.sure]
                _append(row, error=np.mean(wrong), answered=len(wrong) / len(answers))
        coverage = kinds["ranked"]["coverage"][-1]
        for name, rank in (("k-NN", data.rank), ("k labels", data.label_rank)):
            k = conformal_quantile(rank[calibration], COVERAGE, ASSURANCE)
            _append(kinds.setdefault(name, {}), coverage=np.mean(rank[new] <= k), size=k)
        k = np.quantile(data.rank[new], coverage, method="higher")
        _append(kinds.setdefault("k at the same coverage", {}), coverage=np.mean(data.rank[new] <= k), size=k)
    return {
        "recall_at_1": float(np.mean(data.rank == 1)),
        "items": len(data.index),
        "questions": len(data.labels),
        "sets": {kind: {name: _summary(values) for name, values in row.items()} for kind, row in kinds.items()},
    }


def _calibrate(data: Questions, calibration: np.ndarray, sets: Any) -> bool:
    """Calibrate with a promise of the error if it can be made, else without; returns whether it was made."""
    questions, right = data.questions[calibration], data.labels[calibration]
    try:
        data.index.calibrate(questions, right, COVERAGE, error=ERROR, assurance=ASSURANCE, sets=sets)
    except ValueError as problem:
        if not str(problem).startswith("error ="):
            raise
        data.index.calibrate(questions, right, COVERAGE, sets=sets)
        return False
    return True


def _splits(count: int, splits: int, most: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for seed in range(splits):
        shuffled = np.random.default_rng(seed).permutation(count)
        calibration, others = np.split(shuffled, [min(count // 2, most)])
        yield calibration, others[:most]


def _append(row: dict[str, list[float]], **values: float) -> None:
    for name, value in values.items():
        row.setdefault(name, []).append(float(value))


def _summary(values: list[float]) -> dict[str, Any]:
    return {"mean": float(np.mean(values)), "least": min(values), "most": max(values), "values": values}


def show(name: str, row: dict[str, Any]) -> None:
    """Print a table for one data set."""
    print(f"{name}: {row['items']} items, {row['questions']} questions, Recall@1 {row['recall_at_1']:.3f}")
    for kind, numbers in row["sets"].items():
        line = f"  {kind:24s} coverage {100 * numbers['coverage']['mean']:.1f} %"
        line += f" ({100 * numbers['coverage']['least']:.1f} to {100 * numbers['coverage']['most']:.1f})"
        line += f", size {numbers['size']['mean']:.2f}"
        if "error" in numbers:
            errors = numbers["error"]["values"]
            line += f"; error of {ERROR:g} promised in {len(errors)} splits, kept on average {np.mean(errors):.3f}"
            line += f", above in {sum(e > ERROR for e in errors)}, answered {100 * numbers['answered']['mean']:.0f} %"
        print(line)


def main() -> None:
    """Measure, print and write results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=Path, help="posteriors file of the collection")
    parser.add_argument("--questions", type=Path, help="posteriors file of the questions")
    parser.add_argument("--name", default="own", help="name of the data in the result")
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--most", type=int, default=MOST, help="most questions for a calibration, and new questions")
    parser.add_argument("--output", type=Path, default=Path("results/own-data/conformal-sets.json"))
    options = parser.parse_args()
    began = time.time()
    if options.items:
        made = {options.name: lambda: from_files(options.items, options.questions)}
    else:
        made = {"clusters": clusters, "noisy digits": noisy_digits}
    rows = {}
    for name, make in made.items():
        rows[name] = measure(make(), options.splits, options.most)
        show(name, rows[name])
    provenance = describe_run(began, "cpu")
    write_json(options.output, {"experiment": "conformal-sets", "provenance": provenance, "rows": rows})


if __name__ == "__main__":
    main()
