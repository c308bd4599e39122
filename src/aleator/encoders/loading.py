"""Loading an encoder from the folder that `Encoder.save` wrote."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aleator.encoders.backbones import build_backbone
from aleator.encoders.encoder import FORMAT_VERSION, Encoder
from aleator.foundation import read_bundle, reject, using_contents


def load_encoder(
    path: str | Path,
    *,
    backbone: nn.Module | None = None,
    kappa_backbone: nn.Module | None = None,
    device: str | torch.device = "cpu",
) -> Encoder:
    """Load an encoder that `Encoder.save` wrote. No code from the folder is run.

    Backbones of this package, and those registered with `register_backbone`, are rebuilt. Any other backbone must be
    passed, built with the same arguments; its weights are then loaded into it.

    Args:
        path: The folder.
        backbone: Module to load the backbone's weights into. Default: rebuild it.
        kappa_backbone: The same for the backbone of kappa.
        device: Where to put the encoder.

    Returns:
        The encoder, in evaluation mode.

    Raises:
        ValueError: If the folder holds no encoder or is damaged, or a backbone is missing or does not fit.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.encoders import MLP
        >>> encoder = al.Encoder(MLP(4, (16,)), dim=3).eval()
        >>> fingerprint = encoder.save("model")
        >>> x = torch.randn(5, 4)
        >>> torch.equal(al.load_encoder("model")(x).mu, encoder(x).mu)
        True
    """
    bundle = read_bundle(path, "encoder", FORMAT_VERSION)
    with using_contents(path, "save the encoder again", ("backbone", "kappa_backbone")):
        encoder = _build(bundle.metadata, bundle.tensors, backbone, kappa_backbone)
    return encoder.to(device).eval()


def _build(
    spec: dict[str, Any], tensors: dict[str, Tensor], backbone: nn.Module | None, kappa_backbone: nn.Module | None
) -> Encoder:
    """The encoder, from what was saved."""
    with torch.random.fork_rng(devices=[]):  # fresh weights are replaced at once: leave the random state alone
        if backbone is None:
            backbone = build_backbone(spec["backbone"], "backbone")
        if kappa_backbone is None and spec["kappa_backbone"] is not None:
            kappa_backbone = build_backbone(spec["kappa_backbone"], "kappa_backbone")
        encoder = Encoder(
            backbone,
            spec["dim"],
            spec["kappa"],
            features=spec["features"],
            kappa_hidden=spec["kappa_hidden"],
            kappa_of=spec["kappa_of"],
            kappa_backbone=kappa_backbone,
            kappa_range=spec["kappa_range"],
            kappa_bounds=spec["kappa_bounds"],
            freeze_backbone=spec["freeze_backbone"],
            modes=spec.get("modes", 1),  # encoders saved before there were several modes
        )
    encoder.to(tensors["mu_head.weight"].dtype)
    for name, own in [*encoder.named_parameters(), *encoder.named_buffers()]:
        if name in tensors and own.is_floating_point():
            own.data = own.data.to(tensors[name].dtype)  # the backbone may have another precision
    if encoder.kappa_head is not None:
        encoder.kappa_head.materialise(spec["kappa_features"])
    try:
        encoder.load_state_dict(tensors)
    except RuntimeError as mismatch:
        problem = f"does not fit what was saved: {mismatch}"
        reject("backbone", type(backbone).__name__, problem, "build it with the same arguments as before")
    return encoder
