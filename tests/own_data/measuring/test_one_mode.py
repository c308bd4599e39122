"""Posteriors of several modes, from training to answers."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from aleator import VMFMixture, VonMisesFisher
from aleator.cli import app
from aleator.own_data import (
    Settings,
    certainty_score,
    embed,
    evaluate_embedded,
    load_run,
    one_mode,
    rank_by_certainty,
    read_collection,
    read_embedded,
    train,
)


def test_one_mode_leaves_single_posteriors_and_keeps_the_mean_of_others():
    single = VonMisesFisher(torch.eye(3), torch.tensor([1.0, 5.0, 9.0]))
    assert one_mode(single) is single
    assert torch.equal(certainty_score(single), single.kappa)
    q = VMFMixture(torch.tensor([[0.6, 0.4]]).log(), VonMisesFisher(torch.eye(2, 3)[None], 40.0))
    assert one_mode(q).mu[0, 0] > 0.99
    torch.testing.assert_close(one_mode(q).mean.norm(dim=-1), q.mean.norm(dim=-1))
    assert torch.equal(certainty_score(q), q.certainty)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two modes on features of four classes; a third of the items shows one of two classes."""
    folder = tmp_path_factory.mktemp("two-modes")
    rng = np.random.default_rng(0)
    label = rng.integers(4, size=240)
    centres = 3 * rng.standard_normal((4, 6))
    features = centres[label] + rng.standard_normal((240, 6))
    unclear = np.arange(240) % 3 == 0
    pair = label // 2  # of 0 and 1, or of 2 and 3, only the pair can be seen
    features[unclear] = 4 * np.eye(6)[pair][unclear] + 0.3 * rng.standard_normal((unclear.sum(), 6))
    np.save(folder / "x.npy", features.astype(np.float32))
    np.save(folder / "y.npy", label)
    collection = read_collection(folder / "x.npy", folder / "y.npy")
    settings = Settings(modes=2, steps=90, width=32, dim=8)
    return folder, train(collection, folder / "run", settings, device="cpu", baselines=True), collection


def test_a_run_of_two_modes_is_trained_saved_and_measured(run):
    folder, trained, _ = run
    loaded = load_run(folder / "run")
    assert loaded.encoder.modes == 2
    assert loaded.config["settings"]["modes"] == 2
    q = loaded.posteriors(np.load(folder / "x.npy")[:5])
    assert isinstance(q, VMFMixture)
    for name in ("recall_at_1", "label_accuracy", "match_ece", "mean_kappa"):
        assert np.isfinite(trained.metrics[name])
    assert trained.metrics["label_accuracy"] > 0.6
    assert trained.metrics["baselines"]["rows"][0]["method"] == "ours"


def test_embed_rank_evaluate_and_query(run, tmp_path):
    _, trained, collection = run
    path = embed(trained, collection, tmp_path / "q.safetensors", device="cpu")
    embedded = read_embedded(path)
    assert isinstance(embedded.q, VMFMixture)
    direct = trained.posteriors(np.load(collection.source))
    torch.testing.assert_close(embedded.q.log_weights, direct.log_weights, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(embedded.q.components.mu, direct.components.mu, atol=1e-5, rtol=1e-4)
    rows = list(rank_by_certainty(embedded, by="kappa"))
    expected = torch.argsort(embedded.q.certainty, stable=True).tolist()
    assert [row["id"] for row in rows] == [embedded.records[i]["id"] for i in expected]
    assert sum(rows[0]["modes"]) == pytest.approx(1, abs=0.02)
    assert 0.5 < evaluate_embedded(embedded, embedded.labels())["recall_at_1"] <= 1
    cli = CliRunner()
    assert cli.invoke(app, ["index", "build", str(tmp_path / "index"), str(path)]).exit_code == 0
    answer = cli.invoke(app, ["query", str(tmp_path / "index"), str(path), "--limit", "4", "--json", "--labels"])
    assert answer.exit_code == 0, answer.output
    described = json.loads(answer.stdout)
    assert len(described) == 240
    assert sum(described[0]["modes"]) == pytest.approx(1, abs=0.01)
    assert {hit["mode"] for one in described for hit in one["hits"]} == {0, 1}
    table = cli.invoke(app, ["query", str(tmp_path / "index"), str(path), "--limit", "2"])
    assert "either" in table.stdout
    assert cli.invoke(app, ["rank", str(path), "--limit", "3"]).exit_code == 0
