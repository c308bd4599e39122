"""Training: what is learned, what is refused, and how a stopped run is resumed."""

import os
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from aleator.encoders import MLP, Chain, Encoder, Standardise, load_encoder
from aleator.evaluation import rank_correlation
from aleator.own_data import Settings, load_run, read_collection, train
from tests.own_data.conftest import QUICK, blobs


def test_a_run_learns_and_knows_what_it_does_not_know(run):
    assert run.metrics["recall_at_1"] > 0.6
    assert run.metrics["recall_at_1_surer_half"] > min(0.99, run.metrics["recall_at_1"] + 0.1)
    assert run.metrics["r_auroc"] > 0.75
    assert run.metrics["match_ece"] < 0.1
    rows, _ = blobs()
    kappa = run.posteriors(rows).kappa
    ambiguous = torch.arange(len(rows)) % 4 == 0
    assert kappa[~ambiguous].median() > 1.2 * kappa[ambiguous].median()


def test_the_same_command_has_nothing_to_do(run, features):
    lines = []
    again = train(read_collection(features / "x.npy", features / "y.npy"), features / "run", QUICK, log=lines.append)
    assert "finished already" in lines[0]
    assert again.fingerprint == run.fingerprint


def test_labels_that_were_corrected_are_other_data(run, features):
    collection = read_collection(features / "x.npy", features / "y.npy")
    others = replace(collection.labels, values=collection.labels.values[::-1])
    with pytest.raises(ValueError, match=r"another run \(its data were others\)"):
        train(replace(collection, labels=others), features / "run", QUICK)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (Settings(steps=121, dim=4, width=32, batch_size=64), r"another run \(other steps\)"),
        (Settings(backbone="resnet18"), "does not take features; choose features"),
        (Settings(backbone="hf:x"), "does not take features"),
        (Settings(holdout=1.5), "holdout"),
        (Settings(holdout="a"), "holdout = 'a': is not a number"),
        (Settings(dim=1), "dim"),
    ],
)
def test_what_does_not_fit_is_refused(run, features, settings, problem):
    with pytest.raises(ValueError, match=problem):
        train(read_collection(features / "x.npy", features / "y.npy"), features / "run", settings)


def test_data_that_grew_are_not_a_matter_of_digests(run, features, tmp_path):
    rows, labels = np.load(features / "x.npy"), np.load(features / "y.npy")
    np.save(tmp_path / "x.npy", np.concatenate([rows, rows[:1]]))
    np.save(tmp_path / "y.npy", np.concatenate([labels, labels[:1]]))
    problem = r"another run \(its data were others: 400 items then, 401 now\); .*--from .* continues it in a new folder"
    with pytest.raises(ValueError, match=problem):
        train(read_collection(tmp_path / "x.npy", tmp_path / "y.npy"), features / "run", QUICK, device="cpu")


def test_the_same_rows_in_a_file_that_was_copied_are_the_same_data(run, features, tmp_path):
    for name in ("x.npy", "y.npy"):
        (tmp_path / f"copied-{name}").write_bytes((features / name).read_bytes())
    copied, lines = read_collection(tmp_path / "copied-x.npy", tmp_path / "copied-y.npy"), []
    again = train(copied, features / "run", QUICK, device="cpu", log=lines.append)
    assert (again.fingerprint, lines[-1]) == (run.fingerprint, f"{features / 'run'} is finished already")


def test_rows_that_changed_in_a_file_of_one_name_are_other_data(run, features, tmp_path):
    rows = np.load(features / "x.npy")
    rows[7, 0] += 1e-3
    np.save(tmp_path / "x.npy", rows)
    with pytest.raises(ValueError, match=r"another run \(its data were others\)"):
        train(read_collection(tmp_path / "x.npy", features / "y.npy"), features / "run", QUICK, device="cpu")


def test_images_that_changed_under_their_names_are_other_data(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "photos")
    little = Settings(steps=2, width=4, size=8, holdout=0.3)
    run = train(read_collection(tmp_path / "photos"), tmp_path / "run", little, device="cpu", baselines=False)
    lines = []
    for path in (tmp_path / "photos").rglob("*.png"):
        os.utime(path, (0, 0))
    again = train(read_collection(tmp_path / "photos"), tmp_path / "run", little, device="cpu", log=lines.append)
    assert (again.fingerprint, "finished already" in lines[-1]) == (run.fingerprint, True)
    changed = next((tmp_path / "photos").rglob("*.png"))
    before = changed.read_bytes()
    with Image.open(changed) as image:
        image.rotate(180).save(changed)
    changed.write_bytes(changed.read_bytes().ljust(len(before), b"\0")[: len(before)])  # of the same size
    with pytest.raises(ValueError, match=r"another run \(its data were others\)"):
        train(read_collection(tmp_path / "photos"), tmp_path / "run", little, device="cpu", baselines=False)


def test_a_folder_of_something_else_is_left_alone(features, tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match="is not empty"):
        train(read_collection(features / "x.npy", features / "y.npy"), tmp_path, QUICK)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_stopped_run_goes_on_to_the_same_weights(features, tmp_path, run, monkeypatch):
    from aleator.own_data.learning import recipe as recipes

    class StoppedError(Exception):
        pass

    whole_fit = recipes.fit

    def stopping_fit(encoder, loss, batches, recipe, **options):
        def until(step, generator):
            if step == 75:
                raise StoppedError
            return batches(step, generator)

        return whole_fit(encoder, loss, until, recipe, **options)

    collection = read_collection(features / "x.npy", features / "y.npy")
    with monkeypatch.context() as patched:
        patched.setattr(recipes, "fit", stopping_fit)
        with pytest.raises(StoppedError):
            train(collection, tmp_path / "run", QUICK, device="cpu", baselines=False)
    with pytest.raises(ValueError, match="not finished"):
        load_run(tmp_path / "run")
    assert list((tmp_path / "run/training/checkpoints").iterdir())
    with pytest.raises(ValueError, match=r"other steps.*repeat the command that started it") as refused:
        train(collection, tmp_path / "run", replace(QUICK, steps=121), device="cpu", baselines=False)
    assert "--from" not in str(refused.value)  # an unfinished run cannot be continued elsewhere
    resumed = train(collection, tmp_path / "run", QUICK, device="cpu", baselines=False)
    weights, expected = resumed.encoder.state_dict(), run.encoder.state_dict()
    assert all(torch.equal(weights[name], expected[name]) for name in weights)
    assert resumed.metrics["recall_at_1"] == run.metrics["recall_at_1"]


def test_images_in_class_folders(photos, tmp_path):
    settings = Settings(steps=25, dim=4, width=4, batch_size=24, size=8, holdout=0.4)
    run = train(read_collection(photos), tmp_path / "run", settings, device="cpu", baselines=False)
    assert run.inputs.kind == "images"
    assert run.inputs.size == 8
    assert len(run.inputs.mean) == 3
    assert run.metrics["recall_at_1"] > 0.6
    q = run.posteriors([photos / "red/00.png", (photos / "blue/00.png").read_bytes()])
    assert len(q) == 2


def test_without_the_extra_the_way_out_is_named(photos, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"hf:dino.*needs the package transformers; pip install"):
        train(read_collection(photos), tmp_path / "run", Settings(backbone="hf:dino", holdout=0.4))


@pytest.mark.parametrize("label_kind", ["soft", "groups", "pairs"])
def test_other_kinds_of_labels(tmp_path, label_kind):
    rows, labels = blobs(240)
    np.save(tmp_path / "x.npy", rows)
    path = tmp_path / "labels.csv"
    if label_kind == "soft":
        path = tmp_path / "labels.npy"
        soft = 0.9 * np.eye(4)[labels] + 0.025
        np.save(path, soft)
    elif label_kind == "groups":
        groups = 40 * labels + np.arange(len(rows)) % 40
        path.write_text("group\n" + "\n".join(map(str, groups)) + "\n")
    else:
        pairs = [(i, i + 120) for i in range(120)]
        rows[120:] = rows[:120] + 0.05
        np.save(tmp_path / "x.npy", rows)
        path.write_text("first,second\n" + "\n".join(f"{a},{b}" for a, b in pairs) + "\n")
    settings = Settings(steps=10, width=16, dim=4, batch_size=32, holdout=0.4)
    run = train(read_collection(tmp_path / "x.npy", path), tmp_path / "run", settings, device="cpu")
    assert run.metrics["items"] > 20
    assert 0 <= run.metrics["recall_at_1"] <= 1
    assert run.config["data"]["labels"] == label_kind


def test_few_groups_calibrate_nothing_and_the_log_says_so(tmp_path):
    """Of 20 groups, six are held out. Their word is not enough to scale kappa or to fit a map."""
    generator = np.random.default_rng(0)
    groups = np.arange(400) % 20
    rows = generator.standard_normal((20, 6))[groups] + generator.standard_normal((400, 6))
    np.save(tmp_path / "x.npy", rows.astype(np.float32))
    (tmp_path / "g.csv").write_text("group\n" + "\n".join(map(str, groups)) + "\n")
    lines, collection = [], read_collection(tmp_path / "x.npy", tmp_path / "g.csv")
    settings = Settings(steps=30, width=16, dim=4, batch_size=32, kappa_pos=30.0)
    run = train(collection, tmp_path / "run", settings, device="cpu", log=lines.append)
    assert run.metrics["notes"][0].startswith("NOT CALIBRATED: ")
    assert run.metrics["notes"][0] in lines
    assert not any(line.startswith("calibrated on") for line in lines)
    assert float(run.kernel.kappa_pos) == 30.0
    assert not run.maps.calibrated
    assert 0 < run.prior < 0.1
    assert "3 groups of queries, of 30 that are needed" in run.metrics["baselines"]["verdicts"][0]
    card = (tmp_path / "run/README.md").read_text()
    assert "NOT CALIBRATED" in card
    assert "were calibrated" not in card


def test_two_rings_are_told_apart_by_the_length_of_their_rows(tmp_path):
    generator = np.random.default_rng(0)
    labels, angle = np.arange(400) % 2, generator.uniform(0, 2 * np.pi, 400)
    rows = np.stack([np.cos(angle), np.sin(angle)], 1) * (1 + labels[:, None]) + generator.normal(0, 0.1, (400, 2))
    np.save(tmp_path / "x.npy", rows)
    np.save(tmp_path / "y.npy", labels)
    settings = Settings(steps=150, width=64, members=1)
    run = train(
        read_collection(tmp_path / "x.npy", tmp_path / "y.npy"),
        tmp_path / "run",
        settings,
        device="cpu",
        baselines=False,
    )
    assert run.metrics["recall_at_1"] > 0.9


def test_the_random_numbers_of_the_caller_are_left_alone(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((60, 3)).astype(np.float32))
    np.save(tmp_path / "y.npy", np.arange(60) % 2)
    collection = read_collection(tmp_path / "x.npy", tmp_path / "y.npy")
    torch.manual_seed(5)
    np.random.seed(5)
    expected = torch.rand(3), np.random.rand(3)
    torch.manual_seed(5)
    np.random.seed(5)
    train(collection, tmp_path / "run", Settings(steps=2, width=8), device="cpu", baselines=False, figures=False)
    assert torch.equal(torch.rand(3), expected[0])
    assert np.array_equal(np.random.rand(3), expected[1])


def test_long_features_are_not_taken_for_sure_ones(tmp_path):
    """Rows that are noisy are also longer: kappa must fall with the noise, not grow with the length."""
    generator = np.random.default_rng(0)
    labels = generator.integers(4, size=600)
    noise = generator.uniform(0.1, 2.0, size=(600, 1))
    rows = 3 * np.eye(4, 16)[labels] + noise * generator.standard_normal((600, 16))
    np.save(tmp_path / "x.npy", rows.astype(np.float32))
    np.save(tmp_path / "y.npy", labels)
    settings = Settings(steps=80, width=64, dim=8, batch_size=64)
    collection = read_collection(tmp_path / "x.npy", tmp_path / "y.npy")
    run = train(collection, tmp_path / "run", settings, device="cpu", baselines=False)
    assert rank_correlation(run.posteriors(rows).kappa, -noise[:, 0]) > 0.4


def test_chains_and_standardisation_survive_saving(tmp_path):
    rows = torch.randn(50, 3) * torch.tensor([1.0, 10.0, 0.0]) + 5
    layer = Standardise(3).fit(rows)
    out = layer(rows)
    torch.testing.assert_close(out.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.std(0, correction=0)[:2], torch.ones(2))
    encoder = Encoder(Chain([layer, MLP(3, (4,))]), 5).eval()
    encoder.save(tmp_path / "model")
    again = load_encoder(tmp_path / "model")
    assert torch.equal(again(rows).mu, encoder(rows).mu)
    assert set(load_file(next((tmp_path / "model").glob("*.safetensors")))) >= {"backbone.parts.0.mean"}
