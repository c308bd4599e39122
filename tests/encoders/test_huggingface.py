"""Backbones from Hugging Face, with small networks that need no download."""

import json
import sys

import pytest
import torch

from aleator.encoders.encoder import Encoder
from aleator.encoders.huggingface import HubText, HubVision
from aleator.encoders.loading import load_encoder


def test_hub_backbones_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for load in (HubText.from_pretrained, HubVision.from_pretrained):
        with pytest.raises(ImportError, match=r"pip install 'aleator\[hub\]'"):
            load("any/model")


def test_hub_text_round_trip(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")

    words = tokenizers.models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2, "dog": 3, "cat": 4}, unk_token="[UNK]")
    tokeniser = tokenizers.Tokenizer(words)
    tokeniser.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    config = transformers.BertConfig(
        vocab_size=5, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    backbone = HubText(json.loads(config.to_json_string(use_diff=False)), tokeniser.to_str())
    encoder = Encoder(backbone, 4, kappa="head").eval()
    texts = ["a dog", "cat", "a cat a dog"]
    q = encoder(texts)
    assert q.mu.shape == (3, 4)
    torch.testing.assert_close(encoder(["cat"]).mu[0], q.mu[1])  # padding does not count
    encoder.save(tmp_path / "model")
    assert torch.equal(load_encoder(tmp_path / "model")(texts).mu, q.mu)
    with pytest.raises(ValueError, match="no tokeniser"):
        HubText(backbone.arguments["config"])(texts)


def test_hub_vision_round_trip(tmp_path):
    transformers = pytest.importorskip("transformers")

    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
    )
    encoder = Encoder(HubVision(json.loads(config.to_json_string(use_diff=False))), 4).eval()
    x = torch.randn(2, 3, 8, 8)
    encoder.save(tmp_path / "model")
    assert torch.equal(load_encoder(tmp_path / "model")(x).mu, encoder(x).mu)
