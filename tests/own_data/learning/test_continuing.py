"""A finished run is continued with new items and classes, and judged on items that it never saw."""

import shutil

import numpy as np
import pytest
import torch

from aleator.losses import PrototypeLoss
from aleator.own_data import Labels, Settings, load_run, read_collection, train
from aleator.own_data.collection.contents import item_digests
from aleator.own_data.collection.parts import Split
from aleator.own_data.collection.used_items import used_as
from aleator.own_data.learning.continuing import continued_settings, seen_items, start_classes
from aleator.own_data.learning.preparation import PreparedTraining
from aleator.own_data.learning.splits import split_items
from tests.own_data.conftest import blobs
from tests.own_data.runs.test_pretrained import network

__all__ = ["network"]

NEW = {"device": "cpu", "baselines": False, "figures": False}


def saved(folder, rows, labels):
    folder.mkdir()
    np.save(folder / "x.npy", rows)
    np.save(folder / "y.npy", labels)
    return read_collection(folder / "x.npy", folder / "y.npy")


@pytest.fixture
def grown(run, tmp_path):
    """The items of the first run, and 60 items of a fifth class."""
    rows, labels = blobs()
    generator = np.random.default_rng(5)
    fifth = 4 * np.eye(6)[4] + 0.3 * generator.standard_normal((60, 6))
    return saved(tmp_path / "grown", np.concatenate([rows, fifth]).astype(np.float32), np.append(labels, [4] * 60))


def test_a_new_class_is_learned_and_the_old_ones_stay(run, grown, tmp_path):
    log = []
    settings = Settings(start=str(run.folder), steps=120, learning_rate=0.02)
    more = train(grown, tmp_path / "more", settings, log=log.append, **NEW)
    assert any("which was trained on 321 of 460 items; new classes: 4" in line for line in log)
    assert more.label_names == ("0", "1", "2", "3", "4")
    rows, labels = blobs(seed=1)
    clear = np.arange(len(rows)) % 4 != 0
    assert (more.label_probabilities(rows[clear]).argmax(1).numpy() == labels[clear]).mean() > 0.9
    fresh = 4 * np.eye(6)[4] + 0.3 * np.random.default_rng(9).standard_normal((40, 6))
    assert (more.label_probabilities(fresh).argmax(1) == 4).float().mean() > 0.9
    assert more.encoder.dim == run.encoder.dim
    assert load_run(more.folder).config["data"]["start"] == run.fingerprint
    # Nothing that either run was trained on is held out, and both count as used from now on.
    first_used, used = (np.array(used_as(r.folder, item_digests(grown))) for r in (run, more))
    assert (used[first_used == "training"] == "training").all()
    assert (used == "calibration").any()


def test_it_starts_with_the_weights_of_the_first_run(run, grown, tmp_path):
    more = train(grown, tmp_path / "more", Settings(start=str(run.folder), steps=1, learning_rate=1e-9), **NEW)
    rows, _ = blobs()
    torch.testing.assert_close(more.posteriors(rows).mu, run.posteriors(rows).mu, rtol=1e-4, atol=1e-4)


def test_no_baselines_where_the_first_run_learned_from_other_items(run, grown, tmp_path):
    """They cannot learn from what ours learned from."""
    rows, labels = blobs(200, seed=3)
    for name, collection, left in (("new", saved(tmp_path / "few", rows, labels), True), ("all", grown, False)):
        log, settings = [], Settings(start=str(run.folder), steps=1)
        more = train(collection, tmp_path / name, settings, device="cpu", figures=False, log=log.append)
        said = any(line.startswith("no baselines: ") and "learned from 321 items that are not" in line for line in log)
        assert said == left
        assert ("baselines" in more.metrics) == (tmp_path / name / "baselines").is_dir() == (not left)


def test_seen_items_are_not_held_out(run, grown):
    seen = seen_items(run, item_digests(grown))
    assert seen.sum() == 321
    split = split_items(grown, grown.labels, 0.2, seed=0, seen=seen)
    assert not seen[split.calibration].any()
    assert not seen[split.test].any()
    together = np.sort(np.concatenate([split.train, split.calibration, split.test]))
    assert np.array_equal(together, np.arange(len(grown)))
    plain = split_items(grown, grown.labels, 0.2, seed=0)
    nothing = split_items(grown, grown.labels, 0.2, seed=0, seen=np.zeros(len(grown), bool))
    assert np.array_equal(plain.test, nothing.test)
    with pytest.raises(ValueError, match=r"too few items that are new \(0 of 460\)"):
        split_items(grown, grown.labels, 0.2, seed=0, seen=np.ones(len(grown), bool))


def test_groups_with_seen_items_are_not_held_out(grown):
    groups = Labels("groups", np.arange(460) // 4, tuple(map(str, range(115))))
    seen = np.zeros(460, bool)
    seen[:200] = True
    split = split_items(grown, groups, 0.3, seed=0, seen=seen)
    assert min(split.calibration.min(), split.test.min()) >= 200


def test_classes_start_where_their_items_are(run):
    rows, labels = blobs()
    training = PreparedTraining(run.inputs, run.encoder, torch.from_numpy(rows))
    everything = Split(np.arange(400), np.arange(0), np.arange(0))
    own = Labels("classes", labels, ("0", "1", "2", "3"))
    loss = PrototypeLoss(run.encoder.dim, own.counts())
    start_classes(loss, training, own, everything, seed=0)
    mean = run.posteriors(rows).mean
    for c in range(4):
        expected = torch.nn.functional.normalize(mean[torch.from_numpy(labels == c)].mean(0), dim=0)
        torch.testing.assert_close(loss.prototypes.mu[c], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [({"dim": 5}, "dim = 5: the run .* has 4"), ({"width": 7}, "width = 7"), ({"backbone": "resnet18"}, "backbone")],
)
def test_what_would_change_the_encoder_is_refused(run, grown, given, message):
    with pytest.raises(ValueError, match=message):
        continued_settings(Settings(**given), run, grown)


def test_items_of_another_kind_are_refused(run, photos, tmp_path):
    with pytest.raises(ValueError, match=r"was trained on features, and .* holds images"):
        continued_settings(Settings(), run, read_collection(photos))
    other = saved(tmp_path / "wide", np.zeros((40, 9), np.float32), np.arange(40) % 2)
    with pytest.raises(ValueError, match=r"takes rows of 6, and .* has rows of 9"):
        continued_settings(Settings(), run, other)


def test_a_network_that_was_trained_from_scratch_is_continued(photos, tmp_path):
    pictures = read_collection(photos)
    first = train(pictures, tmp_path / "first", Settings(steps=2, width=4, holdout=0.5, size=8), **NEW)
    settings = Settings(start=str(first.folder), steps=2, holdout=0.5)
    more = train(pictures, tmp_path / "more", settings, **NEW)
    assert more.inputs == first.inputs
    assert used_as(more.folder, item_digests(pictures)).count("training") == 30


def test_a_head_on_a_pretrained_network_is_continued(network, photos, tmp_path):
    """Its network is found in the first run; the folder that it came from is not needed."""
    pictures = read_collection(photos)
    copy = shutil.copytree(network, tmp_path / "network")
    settings = Settings(backbone=f"hf:{copy}", steps=2, width=8, members=1, holdout=0.5)
    first = train(pictures, tmp_path / "first", settings, **NEW)
    shutil.rmtree(copy)
    more = train(pictures, tmp_path / "more", Settings(start=str(first.folder), steps=2, holdout=0.5), **NEW)
    before, after = (run.encoder.backbone.parts[0].state_dict() for run in (first, more))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_run_to_continue_that_is_missing_is_named_as_it_was_passed(run, grown, tmp_path):
    with pytest.raises(ValueError, match=r"^start = '.*nowhere': there is no such folder"):
        train(grown, tmp_path / "more", Settings(start=str(tmp_path / "nowhere")), **NEW)
