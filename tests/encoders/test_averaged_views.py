"""Features that are averaged over views of an image."""

import pytest
import torch

from aleator.encoders import AveragedViews, Encoder, SmallResNet, load_encoder


@pytest.fixture
def network() -> SmallResNet:
    torch.manual_seed(0)
    return SmallResNet(width=4).eval()


def moved(x: torch.Tensor, by: int) -> torch.Tensor:
    """Images moved to the lower right by some pixels; the edge repeats. Slow twin of a view."""
    rows = (torch.arange(x.shape[-2]) - by).clamp(0, x.shape[-2] - 1)
    columns = (torch.arange(x.shape[-1]) - by).clamp(0, x.shape[-1] - 1)
    return x[..., rows, :][..., columns]


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("shift", [0, 1, 3])
def test_mean_over_all_views(network, mirror, shift):
    x = torch.rand(3, 3, 16, 20)
    views = [moved(x, by) for by in ({0, shift, -shift})]
    views += [view.flip(-1) for view in views] if mirror else []
    expected = torch.stack([network(view) for view in views]).mean(0)
    torch.testing.assert_close(AveragedViews(network, mirror, shift).eval()(x), expected)


def test_training_sees_the_images_as_they_are(network):
    x = torch.rand(3, 3, 16, 16)
    averaged = AveragedViews(network, mirror=True, shift=2).train()
    network.train()
    torch.testing.assert_close(averaged(x), network(x))


def test_an_encoder_is_saved_with_its_views(network, tmp_path):
    encoder = Encoder(AveragedViews(network, mirror=True, shift=1), dim=4).eval()
    encoder.save(tmp_path / "encoder")
    loaded = load_encoder(tmp_path / "encoder")
    x = torch.rand(3, 3, 16, 16)
    torch.testing.assert_close(loaded(x).mu, encoder(x).mu)
    assert (loaded.backbone.mirror, loaded.backbone.shift) == (True, 1)


def test_negative_shift(network):
    with pytest.raises(ValueError, match="shift"):
        AveragedViews(network, shift=-1)
