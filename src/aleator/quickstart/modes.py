"""One mode beside two, on digits that are partly covered, so that some could be one of two numerals.

Two heads learn from the same features, one with one mode and one with two, and ask the same gallery. The kappas of each
are scaled by one factor, with which as many of its credible sets hold the right numeral as their level says. So both
are compared at the same coverage. The factor is found from the questions themselves: it says nothing about new ones.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from aleator.data import to_bytes, to_unit
from aleator.foundation import save_figure
from aleator.own_data import Run
from aleator.posteriors import PosteriorBatch, VonMisesFisher
from aleator.quickstart.degradation import DEGRADATIONS, FULL_COVER, degrade
from aleator.quickstart.digits import LEVEL, Digits, load_split
from aleator.quickstart.either_or import Group, choose_questions, fewer_items, measure, say, two_groups
from aleator.quickstart.either_or_figure import Row, draw_either_or
from aleator.quickstart.heads import covering_scale, learn_head
from aleator.quickstart.questions import numeral_shares
from aleator.retrieval import CredibleIndex, Hit

_COPIES = 20  # of each training digit, each covered at a place of its own


def compare_modes(figures: Path, run: Run, seed: int, steps: int) -> dict[str, Any]:
    """Train a head with one mode and one with two, ask both, and draw either-or.png.

    Args:
        figures: Where the figure goes.
        run: The trained model of the digits.
        seed: Seed of everything random, that of `learn_digits`.
        steps: Number of training steps of the model. Each head takes half as many.

    Returns:
        Sizes and coverage of the credible sets of both, the questions of the figure, and sentences about them.
    """
    digits = load_split(seed)
    known, numerals = digits.labels[digits.train], [str(int(label)) for label in digits.labels[digits.test]]
    with torch.no_grad():
        gallery = run.encoder(run.inputs.normalise(digits.images[digits.train]))
    assert isinstance(gallery, VonMisesFisher)
    images, strength = _covered(digits.images[digits.test], seed + 3)
    one, two = _posteriors(run, digits, gallery, images, seed, steps)
    index = CredibleIndex.build(gallery, metadata=[{"label": str(int(n)), "path": ""} for n in known])
    answers = {modes: index.search(q, p=LEVEL) for modes, q in ((1, one), (2, two))}
    weights = two.log_weights.exp().tolist()
    groups = [two_groups(hits, weight) for hits, weight in zip(answers[2], weights, strict=True)]
    covered = (FULL_COVER * strength).tolist()
    either_or = [i for i, pair in enumerate(groups) if pair is not None]
    chosen = [(i, pair) for i in choose_questions(groups, covered) if (pair := groups[i]) is not None]
    rows = [Row(images[i, 0].numpy(), f"a {numerals[i]}, partly covered", pair, answers[1][i]) for i, pair in chosen]
    if rows:
        clear = digits.images[digits.train][:, 0].numpy()
        save_figure(draw_either_or(rows, clear, len(images)), figures / "either-or.png")
    fewer, error = fewer_items(answers[1], answers[2])
    report = {
        "questions": len(images),
        "gallery": len(known),
        "either_or": len(either_or),
        "one_mode": measure(answers[1], numerals, either_or).to_dict(),
        "two_modes": measure(answers[2], numerals, either_or).to_dict(),
        "fewer": fewer,
        "fewer_error": error,
        "shown": [_describe(numerals[i], strength[i], pair, answers[1][i]) for i, pair in chosen],
    }
    return report | {"sentences": say(report)}


def _covered(images: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Each image with a part covered, uint8, and how much (B,)."""
    generator = Generator().manual_seed(seed)
    strength = torch.rand(len(images), generator=generator)
    way = torch.full((len(images),), DEGRADATIONS.index("cover"))
    return to_bytes(degrade(to_unit(images), way, strength, generator)), strength


@torch.no_grad()
def _features(run: Run, inputs: Tensor) -> Tensor:
    return run.encoder.backbone(inputs)


def _posteriors(
    run: Run, digits: Digits, gallery: VonMisesFisher, images: Tensor, seed: int, steps: int
) -> list[PosteriorBatch]:
    """Posteriors of the questions from a head with one mode and from one with two, both with the same coverage."""
    known, right = digits.labels[digits.train], digits.labels[digits.test]
    copies, _ = _covered(digits.images[digits.train].repeat(_COPIES, 1, 1, 1), seed)
    features = _features(run, run.inputs.normalise(copies))
    asked = _features(run, run.inputs.normalise(images))
    posteriors = []
    for modes in (1, 2):
        labels = known.repeat(_COPIES)
        head = learn_head(modes, features, labels, gallery, known, run.kernel, max(2, steps // 2), seed)
        with torch.no_grad():
            q = head(asked)
            posteriors.append(q.scale_kappa(covering_scale(q, right, gallery, known, LEVEL)))
    return posteriors


def _describe(numeral: str, strength: Tensor, groups: tuple[Group, Group], one_mode: list[Hit]) -> dict[str, Any]:
    """A question of the figure as JSON."""
    return {
        "numeral": numeral,
        "strength": round(float(strength), 3),
        "groups": [{"numeral": group.numeral, "weight": group.weight, "size": len(group.hits)} for group in groups],
        "one_mode": {share.numeral: share.count for share in numeral_shares(one_mode)},
    }
