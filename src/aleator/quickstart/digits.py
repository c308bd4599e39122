"""Real images: scikit-learn's digits, degraded by known amounts. Train, evaluate, embed, index and search.

Half of the digits, undegraded, are the gallery of an index. Degraded digits that the encoder was not trained on are the
questions. The files on disk are those that `aleator train`, `embed` and `index` write.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from aleator.data import Inputs, LabelledBatches, to_bytes, to_unit
from aleator.encoders import MLP, Chain, Encoder, Flatten
from aleator.evaluation import LabelModel, fit_label_model, likely_labels, plots, rank_correlation
from aleator.foundation import one_thread, save_figure
from aleator.losses import ExactInfoNCE
from aleator.matching import VMFKernel
from aleator.own_data import (
    Answers,
    EmbeddedCollection,
    Labels,
    Questions,
    Run,
    calibrate_on_labels,
    embed,
    evaluate,
    fit_match_maps,
    kernel_width,
    load_run,
    one_mode,
    read_collection,
    read_embedded,
    save_run,
)
from aleator.posteriors import VonMisesFisher
from aleator.quickstart.degradation import DEGRADATIONS, RandomDegradation, degrade
from aleator.quickstart.questions import SampleQuestion, choose_samples, explain, numeral_shares
from aleator.retrieval import CredibleIndex, Hit, certainty_in_words
from aleator.training import Recipe, fit

DIM, SIZE, LEVEL = 8, 8, 0.95
TRAIN, CALIBRATION = 900, 300  # of 1,797 digits; the others are questions
QUARTERS = ("0 to 1/4", "1/4 to 1/2", "1/2 to 3/4", "3/4 to 1")  # of the strength of degradation
_NUMERALS = tuple(str(numeral) for numeral in range(10))
_METRICS = ("recall_at_1", "recall_at_1_surer_half", "r_auroc", "match_ece", "match_ece_hits", "match_ece_random")
_IN_WORDS = {"noise": "with noise", "blur": "blurred", "cover": "partly covered"}


@dataclass(frozen=True)
class Digits:
    """1,797 images (N, 3, 8, 8) uint8, their numerals (N,), and which of them belong to each part."""

    images: Tensor
    labels: Tensor
    train: Tensor
    calibration: Tensor
    test: Tensor


def learn_digits(folder: Path, figures: Path, seed: int, steps: int, progress: bool | None = None) -> dict[str, Any]:
    """Train, evaluate, embed, index and query; write figures.

    Args:
        folder: Where the run, the gallery, the questions and the index go.
        figures: Where the figures go.
        seed: Seed of everything random.
        steps: Number of training steps.
        progress: Whether to show progress bars. None: on a terminal.

    Returns:
        The numbers of the report, and the sample questions.
    """
    digits = load_split(seed)
    run = _train(folder / "run", digits, seed, steps, progress)
    gallery, questions = _embed_gallery_and_questions(folder, run, digits, seed)
    clear = _clear_versions(digits, questions)
    with _build_index(folder / "index", run, gallery) as index:
        answers = index.search(questions.q, p=LEVEL)
        clear_q = one_mode(run.posteriors(list(clear)))
        clear_answers = index.search(clear_q, p=LEVEL)
    assert run.answers.labels is not None
    samples = _sample_questions(folder, run.answers.labels, questions, answers, clear, clear_q, clear_answers)
    strength = _strengths(questions)
    _draw_figures(folder, figures, run, questions, strength, samples)
    return _measure(run, gallery, questions, strength, answers) | {
        "empty_credible_sets": sum(not hits for hits in answers),
        "sample_questions": [sample.to_dict() for sample in samples],
    }


def load_split(seed: int) -> Digits:
    """scikit-learn's digits in a random split."""
    from sklearn.datasets import load_digits

    data = load_digits()
    grey = torch.from_numpy((data.images * (255 / 16)).round().astype(np.uint8))
    images = grey[:, None].expand(-1, 3, -1, -1).contiguous()
    order = torch.randperm(len(images), generator=Generator().manual_seed(seed))
    parts = order[:TRAIN], order[TRAIN : TRAIN + CALIBRATION], order[TRAIN + CALIBRATION :]
    return Digits(images, torch.from_numpy(data.target.astype(np.int64)), *parts)


def _train(folder: Path, digits: Digits, seed: int, steps: int, progress: bool | None) -> Run:
    """Train on digits that are degraded anew in every batch, calibrate, evaluate, and write a run folder."""
    images, labels, train = digits.images, digits.labels, digits.train
    sample = to_unit(images[train], torch.float64)
    mean, std = (tuple(moment.tolist()) for moment in (sample.mean((0, 2, 3)), sample.std((0, 2, 3))))
    inputs = Inputs("images", size=SIZE, mean=mean, std=std)
    torch.manual_seed(seed)
    width = 3 * SIZE * SIZE
    encoder = Encoder(Chain([Flatten(width), MLP(width, (256, 256))]), DIM)
    encoder.set_kappa_range(inputs.normalise(images[train[:256]]), kappa_range=(0.5 * DIM, 2.0 * DIM))
    kernel = VMFKernel(kernel_width(DIM, lift=10.0))
    batches = LabelledBatches(images[train], labels[train], 192, augment=RandomDegradation(inputs))
    recipe = Recipe(steps, optimiser="adamw", learning_rate=2e-3, schedule="one-cycle", clip_norm=5.0, seed=seed)
    with one_thread():
        fit(encoder, ExactInfoNCE(kernel), batches, recipe, progress=progress, loggers=(), device="cpu")

    def degraded_posteriors(numbers: Tensor, seed: int) -> tuple[VonMisesFisher, Labels]:
        with torch.no_grad():
            q = encoder(inputs.normalise(_degraded(images[numbers], seed)[0]))
        return q, Labels("classes", labels[numbers].numpy(), _NUMERALS)

    calibration = calibrate_on_labels(*degraded_posteriors(digits.calibration, seed + 1), kernel, seed)
    encoder.scale_kappa(calibration.kappa_scale)
    kernel = VMFKernel(calibration.kappa_pos)
    with torch.no_grad():
        gallery = encoder(inputs.normalise(images[train]))

    def ask(numbers: Tensor, seed: int) -> Questions:
        q, asked = degraded_posteriors(numbers, seed)
        gallery_labels = Labels("classes", labels[train].numpy(), _NUMERALS)
        return Questions(q, asked, gallery, gallery_labels, np.full(len(q), -1))

    questions = ask(digits.calibration, seed + 1)
    maps, prior = fit_match_maps(questions, kernel, seed), questions.prior
    known, asked = labels[digits.train], labels[digits.calibration]
    label_model = fit_label_model(gallery, known, questions.q, asked, kernel, _NUMERALS)
    questions = ask(digits.test, seed + 2)
    metrics = evaluate(questions.q, questions.labels, kernel, prior, maps=maps, questions=questions, seed=seed)
    match = {"kappa_pos": calibration.kappa_pos, "prior": prior, "maps": maps.to_dict()}
    config = {"settings": {"steps": steps, "seed": seed, "dim": DIM}, "data": {"source": "scikit-learn's digits"}}
    save_run(folder, encoder, inputs, config, metrics, match, Answers(label_model))
    return load_run(folder)


def _embed_gallery_and_questions(
    folder: Path, run: Run, digits: Digits, seed: int
) -> tuple[EmbeddedCollection, EmbeddedCollection]:
    """Write both as folders of images, such as a user has, and embed them."""
    degraded, degradation, strength = _degraded(digits.images[digits.test], seed + 2)
    names = [
        f"{i:04d}-{DEGRADATIONS[degradation[i]]}-{round(100 * float(strength[i])):03d}" for i in range(len(degraded))
    ]
    _write_images(folder / "gallery", digits.images[digits.train], digits.labels[digits.train])
    _write_images(folder / "questions", degraded, digits.labels[digits.test], names)
    embedded = []
    for name in ("gallery", "questions"):
        path = embed(run, read_collection(folder / name), folder / f"{name}.safetensors", progress=False)
        embedded.append(read_embedded(path))
    return embedded[0], embedded[1]


def _build_index(location: Path, run: Run, gallery: EmbeddedCollection) -> CredibleIndex:
    return CredibleIndex.build(
        gallery.q,
        [record["id"] for record in gallery.records],
        [{key: value for key, value in record.items() if key != "id"} for record in gallery.records],
        location=location,
        kernel=run.kernel,
        prior=run.prior,
        maps=run.maps,
        fingerprint=run.fingerprint,
    )


def _measure(
    run: Run, gallery: EmbeddedCollection, questions: EmbeddedCollection, strength: Tensor, answers: list[list[Hit]]
) -> dict[str, Any]:
    """The numbers of the report."""
    numerals = [{hit.metadata["label"] for hit in hits} for hits in answers]
    contained = [record["label"] in found for found, record in zip(numerals, questions.records, strict=True)]
    distinct = torch.tensor([float(len(found)) for found in numerals])
    quarter = _quarter(strength)
    return {
        **{name: run.metrics[name] for name in _METRICS},
        "degradation_rank": rank_correlation(-one_mode(questions.q).kappa, strength),
        "credible_set_holds_the_numeral": sum(contained) / len(contained),
        "numerals_in_the_credible_set": {name: distinct[quarter == i].mean().item() for i, name in enumerate(QUARTERS)},
        "gallery": len(gallery.records),
        "questions": len(questions.records),
    }


def _sample_questions(
    folder: Path,
    label_model: LabelModel,
    questions: EmbeddedCollection,
    answers: list[list[Hit]],
    clear: Tensor,
    clear_q: VonMisesFisher,
    clear_answers: list[list[Hit]],
) -> list[SampleQuestion]:
    """A clear digit, the same digit degraded, and a digit whose nearest neighbour is wrong; see `choose_samples`."""
    kappa, count = one_mode(questions.q).kappa, len(questions.records)
    numerals = [record["label"] for record in questions.records]
    percentiles = [(kappa < one).sum().item() / count for one in kappa]
    strengths = _strengths(questions)
    ambiguous, wrong = choose_samples(numerals, strengths.tolist(), percentiles, answers, clear_answers)

    def describe(title: str, image: str, i: int, q: VonMisesFisher, hits: list[Hit]) -> SampleQuestion:
        percentile = (kappa < q.kappa).sum().item() / count
        shares, nearest = numeral_shares(hits), hits[0].metadata["label"] if hits else None
        (likely,) = likely_labels(label_model.probabilities(q.reshape(1)), label_model.names)
        return SampleQuestion(
            title=title,
            image=image,
            numeral=numerals[i],
            kappa=float(q.kappa),
            percentile=percentile,
            certainty=certainty_in_words(likely[0][1], percentile),
            could_be=dict(likely),
            cap_degrees=math.degrees(math.acos(float(q.cap(LEVEL)))),
            numerals=shares,
            nearest=nearest,
            explanation=explain(numerals[i], percentile, shares, nearest),
        )

    def degraded(title: str, i: int) -> SampleQuestion:
        degradation = str(questions.records[i]["id"]).split("-")[1]
        title = f"{title}, {_IN_WORDS[degradation]} (strength {strengths[i]:.0%})"
        return describe(title, f"questions/{questions.records[i]['path']}", i, one_mode(questions.q)[i], answers[i])

    _write_image(folder / "samples" / "clear.png", clear[ambiguous])
    return [
        describe(
            f"A clear {numerals[ambiguous]}",
            "samples/clear.png",
            ambiguous,
            clear_q[ambiguous],
            clear_answers[ambiguous],
        ),
        degraded(f"The same {numerals[ambiguous]}", ambiguous),
        degraded(f"A {numerals[wrong]}", wrong),
    ]


def _draw_figures(
    folder: Path,
    figures: Path,
    run: Run,
    questions: EmbeddedCollection,
    strength: Tensor,
    samples: list[SampleQuestion],
) -> None:
    quarter, kappa = _quarter(strength), one_mode(questions.q).kappa
    by_quarter: dict[str, Sequence[float]] = {name: kappa[quarter == i].tolist() for i, name in enumerate(QUARTERS)}
    drawn = {
        "kappa": plots.levels(by_quarter, "strength of the degradation"),
        "examples": _draw_examples(folder, questions),
        "answers": _draw_answers(folder, samples),
        "reject-curve": plots.reject_curve(**run.metrics["reject_curve"]),
        "reliability": plots.reliability_diagram(**run.metrics["reliability_hits"]),
    }
    for name, figure in drawn.items():
        save_figure(figure, figures / f"digits-{name}.png")


def _draw_examples(folder: Path, questions: EmbeddedCollection) -> Any:
    """Questions with the largest, middle and smallest kappa."""
    order = one_mode(questions.q).kappa.argsort(descending=True).tolist()
    middle = len(order) // 2
    rows = {"most certain": order[:10], "in the middle": order[middle - 5 :][:10], "least certain": order[-10:]}

    def picture(i: int) -> tuple[np.ndarray, str]:
        return _read_image(folder / "questions" / questions.records[i]["path"]), f"{one_mode(questions.q).kappa[i]:.3g}"

    return plots.image_rows({title: [picture(i) for i in numbers] for title, numbers in rows.items()})


def _draw_answers(folder: Path, samples: list[SampleQuestion]) -> Any:
    """Each sample question, and the nearest answer of each numeral in its set with the numeral's share."""
    return plots.image_rows(
        {
            f"kappa {sample.kappa:.3g}\n{sample.hits} answers": [
                (_read_image(folder / sample.image), "question"),
                *(
                    (_read_image(folder / "gallery" / share.nearest), f"{share.numeral}: {share.share:.0%}")
                    for share in sample.numerals
                ),
            ]
            for sample in samples
        },
        first_apart=True,
    )


def _degraded(images: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Each image degraded once, uint8; with the kind (B,) and strength (B,) of its degradation, in whole percent."""
    generator = Generator().manual_seed(seed)
    degradation = torch.randint(len(DEGRADATIONS), (len(images),), generator=generator)
    strength = torch.randint(101, (len(images),), generator=generator) / 100
    degraded = degrade(to_unit(images), degradation, strength, generator)
    return to_bytes(degraded), degradation, strength


def _clear_versions(digits: Digits, questions: EmbeddedCollection) -> Tensor:
    """The digit of each question before it was degraded, (N, 3, 8, 8) uint8."""
    numbers = [int(Path(record["path"]).name[:4]) for record in questions.records]
    return digits.images[digits.test][numbers]


def _strengths(questions: EmbeddedCollection) -> Tensor:
    """Strength of each question's degradation (N,), from the names of the files."""
    percent = [int(str(record["id"]).split("-")[-1].removesuffix(".png")) for record in questions.records]
    return torch.tensor([number / 100 for number in percent])


def _quarter(strength: Tensor) -> Tensor:
    """Which of the QUARTERS each strength is in."""
    return (strength * 4).long().clamp_max(3)


def _write_images(folder: Path, images: Tensor, labels: Tensor, names: list[str] | None = None) -> None:
    """Write PNG files into class folders, under the given names or under numbers."""
    for i, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        name = f"{i:04d}" if names is None else names[i]
        _write_image(folder / str(label) / f"{name}.png", image)


def _write_image(path: Path, image: Tensor) -> None:
    """Write a grey image (3, H, W) uint8."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image[0].numpy()).save(path)


def _read_image(path: Path) -> np.ndarray:
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image)
