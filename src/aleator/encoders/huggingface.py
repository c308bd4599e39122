"""Pretrained vision and text backbones from Hugging Face (the extra `hub`): inputs -> features (B, F).

A saved encoder keeps the network's configuration and, for text, its tokeniser beside the weights, so that
loading it needs `transformers` but no download.
"""

import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from aleator.encoders.backbones import register_backbone
from aleator.foundation import require, require_one_of


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as missing:
        raise ImportError(
            "Hugging Face backbones need the package transformers: pip install 'aleator[hub]'"
        ) from missing
    return transformers


def _build(config: Mapping[str, Any]) -> nn.Module:
    transformers = _transformers()
    settings = dict(config)
    return transformers.AutoModel.from_config(transformers.AutoConfig.for_model(settings.pop("model_type"), **settings))


def _config(network: nn.Module) -> dict[str, Any]:
    return json.loads(network.config.to_json_string(use_diff=False))  # type: ignore[union-attr,operator]


def _width(config: Mapping[str, Any]) -> int:
    width = config.get("hidden_size") or (config.get("hidden_sizes") or [None])[-1]
    require(
        isinstance(width, int),
        "config",
        config.get("model_type"),
        "does not say how wide its output is",
        "wrap the network in a module of your own that gives features (B, F)",
    )
    return width


class _HubBackbone(nn.Module):
    """A transformers network and how its last hidden state becomes one vector."""

    def __init__(self, config: Mapping[str, Any], pooling: str, network: nn.Module | None):
        super().__init__()
        require_one_of("pooling", pooling, ("cls", "mean"))
        self.network = _build(config) if network is None else network
        config = _config(self.network)
        self.arguments: dict[str, Any] = {"config": config, "pooling": pooling}
        self.out_features = _width(config)
        self.pooling = pooling

    def pool(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """hidden (B, T, F), mask (B, T) or None -> (B, F); a convolutional map (B, F, H, W) is averaged."""
        if hidden.dim() == 4:
            return hidden.mean((2, 3))
        if self.pooling == "cls":
            return hidden[:, 0]
        if mask is None:
            return hidden.mean(1)
        weight = mask.to(hidden.dtype).unsqueeze(-1)
        return (hidden * weight).sum(1) / weight.sum(1).clamp_min(1)


@register_backbone("hub-vision")
class HubVision(_HubBackbone):
    """Images (B, 3, H, W), normalised as the network expects -> (B, F)."""

    def __init__(self, config: Mapping[str, Any], pooling: str = "cls", *, network: nn.Module | None = None):
        super().__init__(config, pooling, network)

    @classmethod
    def from_pretrained(cls, name: str, pooling: str = "cls") -> "HubVision":
        """The network that `name` (a hub name or a folder) holds, with its weights."""
        network = _transformers().AutoModel.from_pretrained(name)
        return cls(_config(network), pooling, network=network)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.pool(self.network(pixel_values=pixels).last_hidden_state)


@register_backbone("hub-text")
class HubText(_HubBackbone):
    """A list of B strings, or a tokenised batch {input_ids, attention_mask} of (B, T) -> (B, F).

    `tokens`, the text of a tokenizer.json, makes strings acceptable; a tokenised batch does not need it.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        tokens: str | None = None,
        pooling: str = "mean",
        max_length: int = 256,
        *,
        network: nn.Module | None = None,
    ):
        super().__init__(config, pooling, network)
        self.arguments |= {"tokens": tokens, "max_length": max_length}
        self.tokenizer: Any = None
        if tokens is not None:
            _transformers()
            self.tokenizer = importlib.import_module("tokenizers").Tokenizer.from_str(tokens)
            self.tokenizer.enable_truncation(max_length)
            padding = self.tokenizer.padding or {}
            self.tokenizer.enable_padding(
                pad_id=self.arguments["config"].get("pad_token_id") or 0,
                pad_token=padding.get("pad_token", "[PAD]"),
            )

    @classmethod
    def from_pretrained(cls, name: str, pooling: str = "mean", max_length: int = 256) -> "HubText":
        """The network and tokeniser that `name` (a hub name or a folder) holds, with the weights."""
        transformers = _transformers()
        network = transformers.AutoModel.from_pretrained(name)
        tokens = transformers.AutoTokenizer.from_pretrained(name).backend_tokenizer.to_str()
        return cls(_config(network), tokens, pooling, max_length, network=network)

    def tokenise(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Strings -> {input_ids, attention_mask}, each (B, T), padded to the longest."""
        require(
            self.tokenizer is not None,
            "texts",
            list(texts)[:1],
            "this backbone has no tokeniser",
            "build it with HubText.from_pretrained, or pass a tokenised batch",
        )
        encoded = self.tokenizer.encode_batch(list(texts))
        device = next(self.network.parameters()).device
        return {
            "input_ids": torch.tensor([item.ids for item in encoded], device=device),
            "attention_mask": torch.tensor([item.attention_mask for item in encoded], device=device),
        }

    def forward(self, texts: Sequence[str] | Mapping[str, Tensor]) -> Tensor:
        batch = texts if isinstance(texts, Mapping) else self.tokenise(texts)
        return self.pool(self.network(**batch).last_hidden_state, batch.get("attention_mask"))
