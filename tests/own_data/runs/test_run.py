"""A run folder is complete, and a damaged one is refused."""

import json
import shutil

import pytest
import torch

from aleator.encoders import load_encoder
from aleator.foundation import DamagedFileError, lock_beside, only_process
from aleator.own_data import load_run, read_collection, train
from tests.own_data.conftest import blobs


def test_a_run_folder_is_complete(run, features):
    folder = features / "run"
    for name in ("inputs.json", "config.json", "metrics.json", "training/training.csv"):
        assert (folder / name).is_file(), name
    for name in ("reject-curve", "reliability", "reliability-hits", "reliability-random", "kappa"):
        assert (folder / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    again = load_run(folder)
    assert again.fingerprint == run.fingerprint
    assert again.metrics == run.metrics
    rows, _ = blobs()
    plain = load_encoder(folder / "encoder")(torch.from_numpy(rows))
    assert torch.equal(plain.mu, again.posteriors(rows).mu)
    assert json.loads((folder / "config.json").read_text())["match"]["prior"] == run.prior
    assert again.maps == run.maps
    assert run.maps.calibrated
    assert run.prior == pytest.approx(0.25, abs=0.03)  # of four classes
    assert {"match_ece", "match_ece_hits", "match_ece_random"} <= set(run.metrics)


def test_an_older_run_opens_without_maps(run, features, tmp_path):
    shutil.copytree(features / "run", tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    del config["match"]["maps"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    (tmp_path / "run" / "checksums.json").unlink()
    older = load_run(tmp_path / "run")
    assert older.prior == run.prior
    assert not older.maps.calibrated


@pytest.mark.parametrize("name", ["inputs", "config", "metrics"])
def test_a_damaged_run_is_refused(run, features, tmp_path, name):
    shutil.copytree(features / "run", tmp_path / "run")
    (tmp_path / "run" / f"{name}.json").write_text("{")
    with pytest.raises(ValueError, match=rf"{name}\.json is damaged"):
        load_run(tmp_path / "run")
    (tmp_path / "run" / f"{name}.json").unlink()
    with pytest.raises(ValueError, match=rf"no {name}\.json"):
        load_run(tmp_path / "run")


@pytest.mark.parametrize("name", ["inputs.json", "config.json", "metrics.json", "items.npz", "labels/labels.json"])
def test_every_file_that_decides_an_answer_has_a_checksum(run, features, tmp_path, name):
    shutil.copytree(features / "run", tmp_path / "run")
    path = tmp_path / "run" / name
    whole = path.read_bytes()
    data = bytearray(whole)
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedFileError, match=r"damaged.*restore the run from a copy"):
        load_run(tmp_path / "run")
    path.unlink()
    with pytest.raises(ValueError, match=r"missing|has no"):
        load_run(tmp_path / "run")
    path.write_bytes(whole)
    assert load_run(tmp_path / "run").prior == run.prior


def test_of_two_trainings_into_one_folder_the_second_is_told(features, tmp_path):
    collection = read_collection(features / "x.npy", features / "y.npy")
    held = only_process(lock_beside(tmp_path / "run"), "output", "train")
    with held, pytest.raises(ValueError, match=r"train, process .* wait for it or stop it"):
        train(collection, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
