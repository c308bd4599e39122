"""The experiment in benchmarks/own_data: its pictures can be made again, and its verdicts say who wins."""

from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.own_data import data_sets, drawn_images, table
from benchmarks.own_data.data_sets import DataSet, Part
from benchmarks.own_data.measuring import classifier_matches, draw_pairs, measure
from benchmarks.own_data.rivals import Answers, raw_neighbours

from aleator.evaluation import expected_calibration_error, match_log_likelihood


@pytest.mark.parametrize("draw", [drawn_images.glyphs, drawn_images.shapes])
def test_drawn_images_can_be_made_again(draw):
    images, labels = draw(12, seed=3)
    again, _ = draw(12, seed=3)
    other, _ = draw(12, seed=4)
    assert images.dtype == np.uint8
    assert np.array_equal(images, again)
    assert not np.array_equal(images, other)
    assert labels.tolist() == (np.arange(12) % len(np.unique(labels))).tolist()


def test_items_have_the_order_of_the_collection(tmp_path):
    """Rivals see arrays and we see files: item i is the same in both."""
    from aleator.own_data import read_collection

    data = data_sets.load("digits", tmp_path, quick=True)
    collection = read_collection(data.train.path)
    assert [collection.labels.names[c] for c in collection.labels.hard()] == [str(c) for c in data.train.hard]
    from PIL import Image

    for i in (0, 57, len(collection) - 1):
        assert np.array_equal(np.asarray(Image.open(Path(collection.raw(i, i + 1)[0]))), data.train.items[i])


def exact_classifier(count: int, classes: int = 4) -> tuple[DataSet, Answers]:
    """Questions whose labels are drawn from the probabilities of the answers."""
    generator = np.random.default_rng(0)
    p = generator.dirichlet(np.full(classes, 0.5), size=2 * count)
    labels = np.eye(classes, dtype=np.float32)[[generator.choice(classes, p=row) for row in p]]
    items = p.astype(np.float32)
    parts = [Part(items[half], labels[half], Path()) for half in (slice(None, count), slice(count, None))]
    return DataSet("exact", *parts, tuple("abcd")), Answers.of_probabilities(p[count:])


def test_the_true_probabilities_are_calibrated_matches():
    data, answers = exact_classifier(3000)
    pairs = draw_pairs(data)
    matches = classifier_matches(data, answers, pairs)
    row = measure(data, answers, matches, pairs, resamples=10)
    assert row["match_ece_top"]["value"] < 0.05
    assert row["match_ece_random"]["value"] < 0.02
    log_odds = (matches.half / pairs.prior).log()
    assert expected_calibration_error(torch.sigmoid(log_odds), pairs.half_match) < 0.03
    best = match_log_likelihood(log_odds, pairs.half_match)
    assert row["match_log_likelihood"]["value"] == pytest.approx(best)
    for change in (0.5, 1.5):
        assert match_log_likelihood(change * log_odds, pairs.half_match) < best
    expected = np.log(answers.probability[np.arange(3000), data.questions.hard]).mean()
    assert row["label_log_likelihood"]["value"] == pytest.approx(expected)


def test_raw_neighbours_count_the_agreement_of_ten():
    data, _ = exact_classifier(200)
    answers = raw_neighbours(data, 1.0, 0)
    rows, questions = data.train.items, data.questions.items
    spread = rows.std(0, ddof=1)
    for i in range(5):
        near = np.linalg.norm((rows - questions[i]) / spread, axis=1).argsort()[:10]
        assert answers.answer[i] == data.train.hard[near[0]]
        assert answers.certainty[i] == pytest.approx((data.train.hard[near] == answers.answer[i]).mean())


def row(value: float, width: float = 0.01) -> dict:
    return {"metrics": {"aurc": {"value": value, "low": value - width, "high": value + width}}}


def test_the_verdict_says_who_wins():
    assert table.verdicts({"aleator": row(0.1), "CNN": row(0.2)}) == [
        "AURC: ours wins, 0.100 against 0.200 (aleator; CNN)"
    ]
    assert table.verdicts({"aleator": row(0.3), "CNN": row(0.2), "worse": row(0.9)}) == [
        "AURC: **CNN wins**, 0.200 against 0.300 of ours (aleator)"
    ]
    assert "level" in table.verdicts({"aleator": row(0.205), "CNN": row(0.2)})[0]
    assert table.verdicts({"aleator": row(0.1)}) == []
    assert "**0.100**" in table.markdown({"digits": {"aleator": row(0.1), "CNN": row(0.2)}})
