"""Real images: scikit-learn's digits, made worse by known amounts, learned, evaluated and searched.

Half of the digits, as they are, become the gallery of an index. Degraded digits that the encoder has never seen are the
questions. Everything is left on disk as `aleator train`, `embed` and `index` leave it.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from aleator.data import Inputs, LabelledBatches, to_bytes, to_unit
from aleator.encoders import MLP, Chain, Encoder, Flatten
from aleator.evaluation import plots, rank_correlation
from aleator.foundation import one_thread
from aleator.losses import ExactInfoNCE
from aleator.matching import VMFKernel
from aleator.own_data import (
    EmbeddedCollection,
    Labels,
    Run,
    calibrate_on_labels,
    embed,
    evaluate,
    kernel_width,
    load_run,
    read_collection,
    read_embedded,
    save_run,
)
from aleator.posteriors import VonMisesFisher
from aleator.quickstart.degradation import KINDS, RandomDegradation, degrade
from aleator.retrieval import CredibleIndex
from aleator.training import Recipe, fit

DIM, SIZE, LEVEL = 8, 8, 0.95
TRAIN, CALIBRATION = 900, 300  # of 1,797 digits; the rest are questions
_NAMES = tuple(str(digit) for digit in range(10))


def learn_digits(folder: Path, figures: Path, seed: int, steps: int, progress: bool | None = None) -> dict[str, Any]:
    """Train, evaluate, embed, index and query; figures and numbers."""
    images, labels = _load()
    order = torch.randperm(len(images), generator=Generator().manual_seed(seed))
    train, calibration, test = order[:TRAIN], order[TRAIN : TRAIN + CALIBRATION], order[TRAIN + CALIBRATION :]
    run = _train(folder / "run", images, labels, train, calibration, test, seed, steps, progress)

    # The questions, each worse by a known amount, and the gallery: folders of images, as anybody might have them.
    worse, kind, strength = _degraded(images[test], seed + 2)
    _write_images(folder / "gallery", images[train], labels[train])
    _write_images(folder / "questions", worse, labels[test], kind, strength)
    found = {}
    for name in ("gallery", "questions"):
        embed(run, read_collection(folder / name), folder / f"{name}.safetensors", progress=False)
        found[name] = read_embedded(folder / f"{name}.safetensors")
    gallery, questions = found["gallery"], found["questions"]
    with CredibleIndex.build(
        gallery.q,
        [facts["id"] for facts in gallery.records],
        [{key: value for key, value in facts.items() if key != "id"} for facts in gallery.records],
        location=folder / "index",
        kernel=run.kernel,
        prior=run.prior,
        fingerprint=run.fingerprint,
    ) as index:
        answers = index.search(questions.q, p=LEVEL)

    strength = torch.tensor(
        [int(str(facts["id"]).split("-")[-1].removesuffix(".png")) / 100 for facts in questions.records]
    )
    kappa = questions.q.kappa
    numerals = [{hit.metadata["label"] for hit in hits} for hits in answers]
    holds = [facts["label"] in found for found, facts in zip(numerals, questions.records, strict=True)]
    many = torch.tensor([float(len(found)) for found in numerals])
    quarter = (strength * 4).long().clamp_max(3)
    steps_of = ("0 to 1/4", "1/4 to 1/2", "1/2 to 3/4", "3/4 to 1")
    plots.levels(
        {name: kappa[quarter == i].tolist() for i, name in enumerate(steps_of)}, "strength of the degradation"
    ).savefig(figures / "digits-kappa.png")
    _examples(folder, questions).savefig(figures / "digits-examples.png")
    _answers(folder, questions, answers).savefig(figures / "digits-answers.png")
    metrics = run.metrics
    for name, figure in (
        ("reject-curve", plots.reject_curve(**metrics["reject_curve"])),
        ("reliability", plots.reliability_diagram(**metrics["reliability"])),
    ):
        figure.savefig(figures / f"digits-{name}.png")
    return {
        "recall_at_1": metrics["recall_at_1"],
        "recall_at_1_surer_half": metrics["recall_at_1_surer_half"],
        "r_auroc": metrics["r_auroc"],
        "match_ece": metrics["match_ece"],
        "degradation_rank": rank_correlation(-kappa, strength),
        "credible_set_holds_the_numeral": sum(holds) / len(holds),
        "numerals_in_the_credible_set": {name: many[quarter == i].mean().item() for i, name in enumerate(steps_of)},
        "gallery": len(gallery.records),
        "questions": len(questions.records),
    }


def _load() -> tuple[Tensor, Tensor]:
    """1,797 images (N, 3, 8, 8) uint8 and their digits."""
    from sklearn.datasets import load_digits

    data = load_digits()
    grey = torch.from_numpy((data.images * (255 / 16)).round().astype(np.uint8))
    return grey[:, None].expand(-1, 3, -1, -1).contiguous(), torch.from_numpy(data.target.astype(np.int64))


def _train(
    folder: Path,
    images: Tensor,
    labels: Tensor,
    train: Tensor,
    calibration: Tensor,
    test: Tensor,
    seed: int,
    steps: int,
    progress: bool | None,
) -> Run:
    sample = to_unit(images[train], torch.float64)
    mean, std = (tuple(value.tolist()) for value in (sample.mean((0, 2, 3)), sample.std((0, 2, 3))))
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

    def posteriors(chosen: Tensor, draw: int) -> tuple[VonMisesFisher, Labels]:
        with torch.no_grad():
            q = encoder(inputs.normalise(_degraded(images[chosen], draw)[0]))
        return q, Labels("classes", labels[chosen].numpy(), _NAMES)

    found = calibrate_on_labels(*posteriors(calibration, seed + 1), kernel, seed)
    encoder.scale_kappa(found.kappa_scale)
    metrics = evaluate(*posteriors(test, seed + 2), VMFKernel(found.kappa_pos), found.prior, seed=seed)
    match = {"kappa_pos": found.kappa_pos, "prior": found.prior}
    config = {"settings": {"steps": steps, "seed": seed, "dim": DIM}, "data": {"source": "scikit-learn's digits"}}
    save_run(folder, encoder, inputs, config, metrics, match)
    return load_run(folder)


def _degraded(images: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Each image once, with its kind and strength (in whole percent); uint8."""
    generator = Generator().manual_seed(seed)
    kind = torch.randint(len(KINDS), (len(images),), generator=generator)
    strength = torch.randint(101, (len(images),), generator=generator) / 100
    worse = degrade(to_unit(images), kind, strength, generator)
    return to_bytes(worse), kind, strength


def _write_images(
    folder: Path, images: Tensor, labels: Tensor, kind: Tensor | None = None, strength: Tensor | None = None
) -> None:
    """PNGs in class folders; what was done to a question stands in its name."""
    from PIL import Image

    for i, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        done = "" if kind is None or strength is None else f"-{KINDS[kind[i]]}-{round(100 * float(strength[i])):03d}"
        path = folder / str(label) / f"{i:04d}{done}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(path)


def _examples(folder: Path, questions: EmbeddedCollection) -> Any:
    """The surest and the least sure questions."""
    order = questions.q.kappa.argsort(descending=True).tolist()
    rows = {"surest": order[:10], "in the middle": order[len(order) // 2 - 5 :][:10], "least sure": order[-10:]}
    return plots.image_rows(
        {
            name: [(_image(folder / "questions", questions.records[i]), f"{questions.q.kappa[i]:.3g}") for i in chosen]
            for name, chosen in rows.items()
        }
    )


def _answers(folder: Path, questions: EmbeddedCollection, answers: list[Any]) -> Any:
    """Questions from sure to unsure, and of each numeral that one could be the nearest item."""
    order = questions.q.kappa.argsort(descending=True).tolist()
    rows = {}
    for share in (0.05, 0.5, 0.85, 0.99):
        i = order[int(share * len(order))]
        nearest: dict[str, Any] = {}
        for hit in answers[i]:
            nearest.setdefault(hit.metadata["label"], hit)
        images = [(_image(folder / "questions", questions.records[i]), "question")]
        images += [
            (_image(folder / "gallery", hit.metadata), f"{hit.match_probability:.2f}") for hit in nearest.values()
        ]
        rows[f"kappa {questions.q.kappa[i]:.3g}\n{len(answers[i])} answers"] = images
    return plots.image_rows(rows, first_apart=True)


def _image(folder: Path, facts: dict[str, Any]) -> np.ndarray:
    from PIL import Image

    with Image.open(folder / facts["path"]) as image:
        return np.asarray(image)
