"""Our side: `train` with its defaults, `embed`, and the answers that a user would get."""

import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aleator.evaluation import nearest_neighbours
from aleator.matching import LogOddsMap, match_probability
from aleator.own_data import Run, Settings, embed, load_run, read_collection, read_embedded, train
from aleator.posteriors import VonMisesFisher
from benchmarks.own_data.data_sets import DataSet, Part
from benchmarks.own_data.measuring import DrawnPairs, Matches
from benchmarks.own_data.rivals import Answers


@dataclass(frozen=True)
class Trained:
    """A finished run, the posteriors of gallery and questions, and the CPU seconds of `train`."""

    run: Run
    gallery: VonMisesFisher
    questions: VonMisesFisher
    cpu_seconds: float


def train_ours(data: DataSet, folder: Path, overrides: dict[str, Any]) -> Trained:
    """Train, embed the gallery and the questions.

    Args:
        data: The data set.
        folder: Folder of the run; the embeddings are written beside it.
        overrides: Settings that are not to be the defaults, by name.
    """
    known = {field.name for field in fields(Settings)}
    overrides = {name: value for name, value in overrides.items() if name in known and value is not None}
    began = time.process_time()
    train(_collection(data.train), folder, Settings(**overrides), device="cpu", progress=False, log=print)
    seconds = time.process_time() - began
    run = load_run(folder)
    q = {}
    for part, name in ((data.train, "gallery"), (data.questions, "questions")):
        output = folder.with_name(f"{folder.name}-{name}.safetensors")
        q[name] = read_embedded(embed(run, _collection(part), output, device="cpu", replace=True, progress=False)).q
    return Trained(run, q["gallery"], q["questions"], seconds)


def neighbour_answers(data: DataSet, trained: Trained) -> tuple[Answers, np.ndarray]:
    """The class of the nearest item by mu, with kappa as certainty; and the numbers of these items, (Q,)."""
    nearest = nearest_neighbours(trained.questions.mu, trained.gallery.mu)[:, 0].numpy()
    return Answers(data.train.hard[nearest], trained.questions.kappa.numpy()), nearest


def label_answers(data: DataSet, trained: Trained) -> Answers | None:
    """The likeliest label, with the certainty of its probabilities; None if the run has none."""
    model = trained.run.answers.labels
    if model is None:
        return None
    found = model.probabilities(trained.questions).numpy()
    column = {name: c for c, name in enumerate(model.names)}
    probability = np.zeros((len(found), len(data.names)), np.float32)
    for c, name in enumerate(data.names):
        if name in column:
            probability[:, c] = found[:, column[name]]
    return Answers.of_probabilities(probability)


def our_matches(trained: Trained, nearest: np.ndarray, pairs: DrawnPairs) -> Matches:
    """Match probabilities as a search shows them."""
    run, asked, gallery = trained.run, trained.questions, trained.gallery

    def probability(questions: torch.Tensor, items: torch.Tensor, calibration: LogOddsMap) -> torch.Tensor:
        return match_probability(asked[questions], gallery[items], run.kernel, run.prior, calibration)

    return Matches(
        probability(torch.arange(len(asked)), torch.as_tensor(nearest), run.maps.hit),
        probability(pairs.questions, pairs.items, run.maps.pair),
        probability(pairs.half_questions, pairs.half_items, run.maps.pair),
    )


def _collection(part: Part) -> Any:
    return read_collection(part.path, part.labels_path)
