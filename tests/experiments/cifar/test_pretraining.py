"""The classifier to start from: it learns, is kept, is found again, and goes on where it was stopped."""

import pytest
import torch

from aleator.data.cifar import CifarImages
from aleator.experiments.cifar import pretraining
from aleator.experiments.cifar.pretraining import PretrainingSetting, load_pretrained, predictions, pretrain_cifar

SMALL = PretrainingSetting(width=2, epochs=10, batch_size=32, learning_rate=0.05, cutout=0)


def coloured(n: int, seed: int) -> CifarImages:
    """Images whose class is their colour, more or less."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (n,), generator=generator)
    colour = torch.stack([labels * 25, 255 - labels * 25, labels % 3 * 100], 1)[:, :, None, None]
    noise = torch.randint(-20, 20, (n, 3, 32, 32), generator=generator)
    return CifarImages((colour + noise).clamp(0, 255).to(torch.uint8), labels)


def test_it_learns_and_is_kept(tmp_path):
    train, test = coloured(192, 1), coloured(100, 2)
    made = pretrain_cifar(train, test, tmp_path, SMALL, device="cpu")
    assert made.accuracy > 0.5  # a tenth by chance
    assert all(parameter.grad is None for parameter in made.classifier.parameters())
    found = pretrain_cifar(train, test, tmp_path, SMALL, device="cpu")
    assert found.fingerprint == made.fingerprint
    assert found.accuracy == made.accuracy
    assert torch.equal(predictions(found.classifier, test.images), predictions(made.classifier, test.images))
    folder = tmp_path / SMALL.name()
    assert not (folder / "unfinished").exists()
    with pytest.raises(ValueError, match="another setting"):
        load_pretrained(folder, PretrainingSetting(width=2))


def test_it_goes_on_exactly_where_it_was_stopped(tmp_path, monkeypatch):
    train, test = coloured(64, 1), coloured(20, 2)
    straight = pretrain_cifar(train, test, tmp_path / "straight", SMALL, device="cpu")

    class StoppedError(Exception):
        pass

    augment, calls = pretraining.ImageAugmentation.__call__, []

    def stop_in_epoch_seven(self, images, generator=None):
        calls.append(1)
        if len(calls) == 14:
            raise StoppedError
        return augment(self, images, generator)

    with monkeypatch.context() as patch:
        patch.setattr(pretraining.ImageAugmentation, "__call__", stop_in_epoch_seven)
        with pytest.raises(StoppedError):
            pretrain_cifar(train, test, tmp_path / "stopped", SMALL, device="cpu")
    again = pretrain_cifar(train, test, tmp_path / "stopped", SMALL, device="cpu")
    for a, b in zip(straight.classifier.parameters(), again.classifier.parameters(), strict=True):
        assert torch.equal(a, b)


def test_settings_have_names_of_their_own():
    assert PretrainingSetting().name() == "resnet18"
    assert PretrainingSetting(width=16, seed=2).name() == "resnet18-width-16-seed-2"


def test_too_few_images_are_refused(tmp_path):
    with pytest.raises(ValueError, match="batch_size = 512: there are 10 images"):
        pretrain_cifar(coloured(10, 1), coloured(10, 2), tmp_path, device="cpu")


def test_mixing_gives_image_and_label_the_same_share():
    labels = torch.eye(10).repeat(40, 1)
    values = torch.arange(10.0)
    images = (labels @ values)[:, None, None, None].expand(-1, 3, 4, 4)  # an image shows its class as its brightness
    mixed, target = pretraining._mixed(images, labels, 0.4, torch.Generator().manual_seed(0))
    torch.testing.assert_close(mixed, (target @ values)[:, None, None, None].expand_as(mixed))
    torch.testing.assert_close(target.sum(1), torch.ones(400))
    own = (target * labels).sum(1)
    assert own.min() >= 0.6 - 1e-6
    different = own < 1
    assert 0.85 < different.float().mean() < 0.95  # one in ten partners has the same class
    assert abs(own[different].mean() - 0.8) < 0.02
