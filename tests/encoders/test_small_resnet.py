"""SmallResNet: shapes, sizes, saving and loading."""

import pytest
import torch

import aleator as al
from aleator.encoders import SmallResNet


@pytest.mark.parametrize("size", [8, 28, 33])
def test_any_size_gives_features(size):
    network = SmallResNet(channels=1, width=4).eval()
    assert network(torch.rand(2, 1, size, size)).shape == (2, network.out_features) == (2, 16)


def test_features_do_not_depend_on_the_rest_of_the_batch_in_evaluation():
    network = SmallResNet(width=4).eval()
    x = torch.rand(3, 3, 32, 32)
    torch.testing.assert_close(network(x)[:1], network(x[:1]))


def test_saved_and_loaded(tmp_path):
    encoder = al.Encoder(SmallResNet(width=4), dim=3).eval()
    encoder.save(tmp_path / "encoder")
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(al.load_encoder(tmp_path / "encoder")(x).mu, encoder(x).mu)


def test_width_must_be_positive():
    with pytest.raises(ValueError, match=r"^width = 0"):
        SmallResNet(width=0)
