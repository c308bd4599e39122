"""Pretrained backbones from Hugging Face for images and text (extra `hub`): inputs -> features (B, F).

A saved encoder holds the network's configuration and weights and, for text, the tokeniser. Loading it needs the
package transformers but no download.
"""

import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from aleator.encoders.backbones import register_backbone
from aleator.encoders.model_sources import find_model
from aleator.foundation import require, require_one_of

Pooling = Literal["cls", "mean"]
_TOGETHER = 16  # texts of similar length that go through the network at once


def _transformers() -> Any:
    """The package, or an error that says how to install it."""
    try:
        import transformers
    except ImportError as missing:
        raise ImportError(
            "Hugging Face backbones need the package transformers: pip install 'aleator[hub]'"
        ) from missing
    return transformers


def _build(config: Mapping[str, Any]) -> nn.Module:
    """A network with fresh weights from its configuration."""
    transformers = _transformers()
    settings = dict(config)
    return transformers.AutoModel.from_config(transformers.AutoConfig.for_model(settings.pop("model_type"), **settings))


def _config(network: nn.Module) -> dict[str, Any]:
    """The complete configuration of a network, as JSON values."""
    return json.loads(network.config.to_json_string(use_diff=False))  # type: ignore[union-attr,operator]


def _width(config: Mapping[str, Any]) -> int:
    """F: the size of the last hidden state."""
    width = config.get("hidden_size") or (config.get("hidden_sizes") or [None])[-1]
    require(
        isinstance(width, int),
        "config",
        config.get("model_type"),
        "does not tell the size of its output",
        "wrap the network in a module of your own that gives features (B, F)",
    )
    return width


class _HubBackbone(nn.Module):
    """Base class: a transformers network, and pooling of its last hidden state to one vector."""

    def __init__(self, config: Mapping[str, Any], pooling: Pooling, network: nn.Module | None):
        super().__init__()
        require_one_of("pooling", pooling, get_args(Pooling))
        self.network = _build(config) if network is None else network
        config = _config(self.network)
        self.arguments: dict[str, Any] = {"config": config, "pooling": pooling}
        self.out_features = _width(config)
        self.pooling = pooling

    def pool(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pool the last hidden state to one vector for each input.

        Args:
            hidden: Hidden states (B, T, F), or a convolutional map (B, F, H, W), which is averaged.
            mask: 1 for tokens and 0 for padding, (B, T). Default: all are tokens.

        Returns:
            Features (B, F).
        """
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
    """A vision network from Hugging Face: images (B, 3, H, W), normalised as the network expects -> (B, F).

    `from_pretrained` is the usual way to build one.

    Args:
        config: Configuration of the network.
        pooling: "cls" takes the first token, "mean" the mean over all tokens.
        network: The network, if it exists already. Default: one with fresh weights, from the configuration.

    Raises:
        ImportError: If the package transformers is missing.

    Examples:
        >>> from aleator.encoders import HubVision
        >>> backbone = HubVision.from_pretrained("facebook/dinov2-small")  # doctest: +SKIP
        >>> encoder = al.Encoder(backbone, dim=16, freeze_backbone=True)  # doctest: +SKIP
    """

    def __init__(self, config: Mapping[str, Any], pooling: Pooling = "cls", *, network: nn.Module | None = None):
        super().__init__(config, pooling, network)

    @classmethod
    def from_pretrained(cls, name: str, pooling: Pooling = "cls") -> "HubVision":
        """Load a network with its weights.

        Args:
            name: A folder, or a name on the hub; see `find_model`.
            pooling: "cls" or "mean".

        Returns:
            The backbone.

        Raises:
            ValueError: If the model is not on this machine and the hub does not answer.
        """
        transformers = _transformers()
        network = transformers.AutoModel.from_pretrained(find_model(name))
        return cls(_config(network), pooling, network=network)

    def forward(self, pixels: Tensor) -> Tensor:
        """Compute features.

        Args:
            pixels: Images (B, 3, H, W), normalised.

        Returns:
            Features (B, F).
        """
        return self.pool(self.network(pixel_values=pixels).last_hidden_state)


@register_backbone("hub-text")
class HubText(_HubBackbone):
    """A text network from Hugging Face: B strings, or a tokenised batch -> (B, F).

    `from_pretrained` is the usual way to build one.

    Args:
        config: Configuration of the network.
        tokens: The tokeniser, as the text of a tokenizer.json. Needed for strings, not for tokenised batches.
        pooling: "cls" takes the first token, "mean" the mean over all tokens.
        max_length: Longer texts are cut to this number of tokens.
        network: The network, if it exists already. Default: one with fresh weights, from the configuration.

    Raises:
        ImportError: If the package transformers is missing.

    Examples:
        >>> from aleator.encoders import HubText
        >>> backbone = HubText.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
        >>> q = al.Encoder(backbone, dim=16)(["a dog", "a cat"])  # doctest: +SKIP

        A model of sentence-transformers, in one line:

        >>> encoder = al.Encoder(HubText.from_sentence_transformer(model), dim=16)  # doctest: +SKIP
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        tokens: str | None = None,
        pooling: Pooling = "mean",
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
    def from_pretrained(cls, name: str, pooling: Pooling = "mean", max_length: int = 256) -> "HubText":
        """Load a network with its weights, and its tokeniser.

        Args:
            name: A folder, or a name on the hub; see `find_model`.
            pooling: "cls" or "mean".
            max_length: Longer texts are cut to this number of tokens.

        Returns:
            The backbone.

        Raises:
            ValueError: If the model is not on this machine and the hub does not answer.
        """
        transformers = _transformers()
        name = find_model(name)
        network = transformers.AutoModel.from_pretrained(name)
        tokens = transformers.AutoTokenizer.from_pretrained(name).backend_tokenizer.to_str()
        return cls(_config(network), tokens, pooling, max_length, network=network)

    @classmethod
    def from_sentence_transformer(cls, model: Any) -> "HubText":
        """Take network, tokeniser and pooling out of a model of sentence-transformers.

        Args:
            model: A `sentence_transformers.SentenceTransformer` of one transformer with "mean" or "cls" pooling. A
                normalisation after it is left out: an encoder has its own.

        Returns:
            The backbone. It shares the network with the model.

        Raises:
            ValueError: If the model pools in another way, or has further layers.
        """
        names = [type(part).__name__ for part in model]
        plain = names[:2] == ["Transformer", "Pooling"] and set(names[2:]) <= {"Normalize"}
        way_out = "wrap it in a module of your own that gives features (B, F)"
        require(plain, "model", names, "not a transformer and its pooling alone", way_out)
        pooling = model[1].get_config_dict().get("pooling_mode")
        require(pooling in get_args(Pooling), "model", pooling, "this pooling is not known", way_out)
        network = model[0].auto_model
        tokens = model[0].tokenizer.backend_tokenizer.to_str()
        return cls(_config(network), tokens, pooling, int(model.max_seq_length), network=network)

    def tokenise(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Tokenise strings.

        Args:
            texts: B strings.

        Returns:
            {input_ids, attention_mask}, each (B, T), padded to the longest text.

        Raises:
            ValueError: If the backbone has no tokeniser.
        """
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
        """Compute features.

        Args:
            texts: B strings, or a tokenised batch {input_ids, attention_mask} of (B, T).

        Returns:
            Features (B, F).
        """
        if isinstance(texts, Mapping):
            return self._features(texts)
        batch = self.tokenise(texts)
        return self._features(batch) if torch.is_grad_enabled() else self._features_by_length(batch)

    def _features(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Features (B, F) of a tokenised batch."""
        return self.pool(self.network(**batch).last_hidden_state, batch.get("attention_mask"))

    def _features_by_length(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The same with texts of similar length together, which are padded less."""
        mask = batch["attention_mask"]
        order, parts = mask.sum(1).argsort(stable=True), []
        for chosen in order.split(_TOGETHER):
            used = mask[chosen].any(0)
            parts.append(self._features({name: x[chosen][:, used] for name, x in batch.items()}))
        return torch.cat(parts)[order.argsort()]
