"""A trained model as an ONNX file, for programs without torch: prepared inputs in, mu and kappa out.

    images      pixels (B, 3, S, S), float32 in [0, 1]; mean and deviation are part of the network
    features    features (B, F), float32
    text        input_ids and attention_mask (B, T), int64; the tokeniser is written to NAME.tokenizer.json

The outputs are mu (B, D) and kappa (B,), for one item or more. With K modes they are mu (B, K, D), kappa (B, K) and
log_weights (B, K). The file says what it holds in its metadata, under "aleator", as JSON. For a table, "columns" says
how each column becomes features, and "features" has their names in order.
"""

import contextlib
import importlib.util
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from aleator.data import Inputs
from aleator.encoders import Encoder, HubText
from aleator.foundation import require, writing_atomically
from aleator.own_data.runs.run import Run

_TOLERANCE = 1e-4  # largest difference of the ONNX outputs from those of torch: in mu, and of kappa relatively
_PACKAGES = ("onnx", "onnxscript")


def export_onnx(run: Run, path: Path) -> Path:
    """Write the model of a run as an ONNX file. If onnxruntime is installed, its outputs are compared with torch's.

    Args:
        run: The run.
        path: The .onnx file. It is replaced if it exists.

    Returns:
        The file.

    Raises:
        ValueError: If a package is missing, the ending is another, it is a folder, or the outputs differ from those of
            torch.
    """
    require(path.suffix == ".onnx", "path", str(path), "has another ending", "name it .onnx")
    require(not path.is_dir(), "path", str(path), "is a folder", "name a file")
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    require(not missing, "path", str(path), f"needs {' and '.join(missing)}", "pip install 'aleator[onnx]'")
    network, device, training = run.encoder, next(run.encoder.parameters()).device, run.encoder.training
    network.to("cpu").eval()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with torch.no_grad(), writing_atomically(path) as temporary:
            _write(run, temporary)
            _compare(run, temporary, path)
    finally:
        network.to(device).train(training)
    text = _text_network(network)
    if text is not None and text.tokenizer is not None:
        path.with_suffix(".tokenizer.json").write_text(text.tokenizer.to_str())
    return path


class _OnnxNetwork(nn.Module):
    """From the inputs of the ONNX file to its outputs."""

    def __init__(self, encoder: Encoder, inputs: Inputs):
        super().__init__()
        self.encoder, self.inputs = encoder, inputs

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        if self.inputs.kind == "text":
            q = self.encoder({"input_ids": tensors[0], "attention_mask": tensors[1]})
        else:
            q = self.encoder(self.inputs.normalise(tensors[0]))
        parts = q.components
        if q.modes > 1:
            return parts.mu, parts.kappa, q.log_weights
        return parts.mu.squeeze(1), parts.kappa.squeeze(1)


def _write(run: Run, path: Path) -> None:
    import onnx

    inputs, modes = run.inputs, run.encoder.modes
    names = {"images": ["pixels"], "features": ["features"], "text": ["input_ids", "attention_mask"]}[inputs.kind]
    batch = torch.export.Dim("batch", min=1)
    shapes: dict[int, Any] = {0: batch}
    if inputs.kind == "text":
        shapes[1] = torch.export.Dim("tokens", min=2, max=_longest(run.encoder))
    network = _OnnxNetwork(run.encoder, inputs).eval()
    with _quiet():
        program = torch.onnx.export(
            network,
            _examples(run, count=2),
            input_names=names,
            output_names=["mu", "kappa", "log_weights"][: 2 if modes == 1 else 3],
            dynamic_shapes=(tuple(dict(shapes) for _ in names),),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    facts = {
        "inputs": inputs.to_dict(),
        "dim": run.encoder.dim,
        "modes": modes,
        "fingerprint": run.fingerprint,
        "labels": list(run.label_names),
    }
    if run.columns is not None:
        facts["columns"] = run.columns
    onnx.helper.set_model_props(model, {"aleator": json.dumps(facts)})
    onnx.save(model, str(path))


def _compare(run: Run, written: Path, path: Path) -> None:
    """Raise if onnxruntime computes something else than torch, on a batch of another size. Errors name `path`."""
    if importlib.util.find_spec("onnxruntime") is None:
        return
    import onnxruntime

    session = onnxruntime.InferenceSession(str(written), providers=["CPUExecutionProvider"])
    example = _examples(run, count=3)
    fed = {put.name: tensor.numpy() for put, tensor in zip(session.get_inputs(), example, strict=True)}
    theirs = session.run(None, fed)
    ours = [tensor.numpy() for tensor in _OnnxNetwork(run.encoder, run.inputs).eval()(*example)]
    differences = [abs(theirs[0] - ours[0]), abs(theirs[1] / ours[1] - 1)]
    differences += [abs(a - b) for a, b in zip(theirs[2:], ours[2:], strict=True)]  # log_weights, of several modes
    difference = max(each.max() for each in differences)
    problem = f"onnxruntime's outputs differ from torch's by {difference:.2g}"
    require(bool(difference <= _TOLERANCE), "path", str(path), problem, "report it, with the backbone of the run")


def _examples(run: Run, count: int) -> tuple[Tensor, ...]:
    """Inputs of the ONNX network: random pixels or features, or tokens of different lengths."""
    inputs, random = run.inputs, np.random.default_rng(count)
    if inputs.kind == "text":
        text = _text_network(run.encoder)
        require(text is not None, "run", str(run.folder), "its text network is not known", "export a HubText network")
        assert text is not None
        ids = random.integers(text.arguments["config"]["vocab_size"], size=(count, 4 + count))
        mask = np.arange(4 + count) < random.integers(2, 5 + count, size=(count, 1))
        return torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))
    shape = (3, inputs.size, inputs.size) if inputs.kind == "images" else (inputs.features,)
    return (torch.from_numpy(random.random((count, *shape), dtype=np.float32)),)


def _text_network(encoder: Encoder) -> HubText | None:
    return next((module for module in encoder.modules() if isinstance(module, HubText)), None)


def _longest(encoder: Encoder) -> int:
    """Largest number of tokens that the text network takes."""
    text = _text_network(encoder)
    assert text is not None
    return int(text.arguments["config"].get("max_position_embeddings") or text.arguments["max_length"])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's messages about its own inside."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
