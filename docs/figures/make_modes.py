"""Make modes.png: digits with a hidden part, their two groups of hits, beside what posteriors of one mode answer.

    python docs/figures/make_modes.py FOLDER

scikit-learn's digits, whole and with the upper or the lower half hidden. A head with one mode and a head with two learn
which of them show the same numeral (`aleator train --modes`); both are kept in FOLDER. The questions are hidden digits
that were not trained on. The collection holds whole digits alone.
"""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

from aleator import CredibleIndex
from aleator.own_data import Run, Settings, read_collection, train
from aleator.retrieval import Hit, group_by_mode

OUTPUT = Path(__file__).with_name("modes.png")
LEVEL = 0.8
TRAIN = 1400  # digits to train on; the others are questions
QUESTIONS, HITS = 4, 5  # rows of the figure, and hits of each group
LEAST = 0.25  # weight of the second mode of a question that is shown


def hide(digits: np.ndarray, part: str) -> np.ndarray:
    """Digits (N, 64) with half of the pixels grey."""
    images = digits.reshape(-1, 8, 8).copy()
    images[:, slice(0, 4) if part == "upper" else slice(4, 8)] = 8
    return images.reshape(-1, 64)


def learn(folder: Path, digits: np.ndarray, numerals: np.ndarray, modes: int) -> Run:
    """A head that learns from whole and hidden digits."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "numerals.npy").exists():
        items = np.concatenate([digits, hide(digits, "upper"), hide(digits, "lower")])
        np.save(folder / "digits.npy", items.astype(np.float32))
        np.save(folder / "numerals.npy", np.tile(numerals, 3))
    collection = read_collection(folder / "digits.npy", folder / "numerals.npy")
    settings = Settings(modes=modes, dim=16, steps=500, members=1, width=128, holdout=0.1)
    return train(collection, folder / f"run-{modes}", settings, device="cpu", baselines=False, log=print)


def answers(run: Run, gallery: np.ndarray, numerals: np.ndarray, questions: np.ndarray) -> tuple[list, np.ndarray]:
    """Hits of each question, and the weights of its modes."""
    metadata = [{"label": int(numeral)} for numeral in numerals]
    q = run.posteriors(questions.astype(np.float32))
    with CredibleIndex.build(run.posteriors(gallery.astype(np.float32)), metadata=metadata) as index:
        return index.search(q, p=LEVEL), q.log_weights.exp().numpy()


def numeral_of(hits: list[Hit]) -> int:
    return Counter(hit.metadata["label"] for hit in hits).most_common(1)[0][0]


def clear_cases(found: list[list[Hit]], weights: np.ndarray, truth: np.ndarray) -> list[int]:
    """Questions with two groups of different numerals, one of them right; no pair of numerals twice."""
    order = np.argsort(-weights.min(axis=1), kind="stable")
    chosen, seen = [], set()
    for i in order.tolist():
        groups = [group for _, group in group_by_mode(found[i]) if len(group) >= HITS]
        if len(groups) < 2 or weights[i].min() < LEAST:
            continue
        pair = frozenset(numeral_of(group[:HITS]) for group in groups)
        if len(pair) == 2 and truth[i] in pair and pair not in seen:
            seen.add(pair)
            chosen.append(i)
    return chosen[:QUESTIONS]


def draw(questions, gallery, truth, chosen, two, weights, one) -> Figure:
    """One row for each question: the question, its two groups of hits, and the hits of one mode."""
    columns = 1 + 2 * HITS + HITS
    figure = Figure(figsize=(13.5, 1.15 * len(chosen) + 0.7), dpi=110)
    grid = figure.add_gridspec(
        len(chosen), columns + 3, width_ratios=[1.2, 0.5, *[1] * HITS, 0.5, *[1] * HITS, 0.9, *[1] * HITS]
    )
    figure.subplots_adjust(left=0.01, right=0.99, top=0.86, bottom=0.02, wspace=0.06, hspace=0.45)

    def show(row: int, column: int, pixels: np.ndarray, title: str = "") -> None:
        axes = figure.add_subplot(grid[row, column])
        axes.imshow(pixels.reshape(8, 8), cmap="gray_r", vmin=0, vmax=16)
        axes.set(xticks=[], yticks=[])
        axes.set_title(title, fontsize=9, loc="left", pad=3)

    for row, i in enumerate(chosen):
        show(row, 0, questions[i], f"a {truth[i]}, half hidden")
        groups = [(mode, group) for mode, group in group_by_mode(two[i]) if len(group) >= HITS][:2]
        for place, (mode, group) in enumerate(groups):
            word = "either" if place == 0 else "or"
            for k, hit in enumerate(group[:HITS]):
                title = f"{word} this, {weights[i, mode]:.0%}: the first of {len(group)} answers" if k == 0 else ""
                show(row, 2 + place * (HITS + 1) + k, gallery[hit.id], title)
        for k, hit in enumerate(one[i][:HITS]):
            title = f"the first of {len(one[i])} answers" if k == 0 else ""
            show(row, 4 + 2 * HITS + k, gallery[hit.id], title)
    for x, text in (
        (0.01, "Question"),
        (0.1, "Two modes: two groups of answers"),
        (0.705, "One mode: one list of answers"),
    ):
        figure.text(x, 0.95, text, fontsize=12, weight="bold")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the two runs are kept")
    folder = parser.parse_args().folder
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.data))
    digits, numerals = data.data[order], data.target[order]
    gallery, known = digits[:TRAIN], numerals[:TRAIN]
    questions = np.concatenate([hide(digits[TRAIN:], "upper"), hide(digits[TRAIN:], "lower")])
    truth = np.tile(numerals[TRAIN:], 2)
    (one, _), (two, weights) = (
        answers(learn(folder, gallery, known, modes), gallery, known, questions) for modes in (1, 2)
    )
    for name, found in (("one mode", one), ("two modes", two)):
        right = np.mean([truth[i] in {hit.metadata["label"] for hit in hits} for i, hits in enumerate(found)])
        print(f"{name}: the right numeral is in {right:.1%} of the sets, of {np.mean([*map(len, found)]):.0f} digits")
    chosen = clear_cases(two, weights, truth)
    draw(questions, gallery, truth, chosen, two, weights, one).savefig(OUTPUT)
    print(f"{len(chosen)} questions in {OUTPUT}")


if __name__ == "__main__":
    main()
