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


@pytest.fixture
def small_text() -> HubText:
    """A small network of random weights for texts of the words a, dog and cat."""
    import tokenizers
    import transformers

    words = tokenizers.models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2, "dog": 3, "cat": 4}, unk_token="[UNK]")
    tokeniser = tokenizers.Tokenizer(words)
    tokeniser.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    config = transformers.BertConfig(
        vocab_size=5, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    return HubText(json.loads(config.to_json_string(use_diff=False)), tokeniser.to_str())


@pytest.mark.hub
def test_hub_text_round_trip(small_text, tmp_path):
    encoder = Encoder(small_text, 4, kappa="head").eval()
    texts = ["a dog", "cat", "a cat a dog"]
    q = encoder(texts)
    assert q.mu.shape == (3, 4)
    torch.testing.assert_close(encoder(["cat"]).mu[0], q.mu[1])  # padding does not count
    encoder.save(tmp_path / "model")
    assert torch.equal(load_encoder(tmp_path / "model")(texts).mu, q.mu)
    with pytest.raises(ValueError, match="no tokeniser"):
        HubText(small_text.arguments["config"])(texts)


@pytest.mark.hub
def test_texts_of_similar_length_go_together(small_text, monkeypatch):
    """The same features in the same order, from fewer tokens."""
    small_text.eval()
    texts = ["a dog " * (1 + 7 * i % 30) + "cat" for i in range(50)]
    seen, network = [], small_text.network.forward
    monkeypatch.setattr(small_text.network, "forward", lambda **b: seen.append(b["input_ids"].numel()) or network(**b))
    whole = small_text(texts)
    with torch.no_grad():
        parts = small_text(texts)
        alone = torch.cat([small_text([text]) for text in texts])
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(parts, alone, rtol=1e-5, atol=1e-5)
    assert sum(seen[1:5]) < 0.75 * seen[0]


@pytest.mark.hub
def test_hub_vision_round_trip(tmp_path):
    import transformers

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
