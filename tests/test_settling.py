"""Fisher scoring of the output layers finds the truth again where only they are off."""

import pytest
import torch

from aleator import Encoder, ExactInfoNCE
from aleator.backbones import Features
from aleator.generative import GenerativeProcess
from aleator.harmonics import AcceptanceKernel
from aleator.settling import settle


class EncoderProcess(GenerativeProcess):
    """A process whose posteriors are an encoder's, so that the encoder is the truth."""

    def __init__(self, encoder: Encoder):
        self.encoder, self.dim, self.kappa_range, self.family = encoder, encoder.dim, (8.0, 40.0), "vmf"
        self.kernel, self.seed, self.device = AcceptanceKernel(10.0), 0, torch.device("cpu")

    @torch.no_grad()
    def posterior(self, x):
        return self.encoder(x)


def linear_encoder() -> Encoder:
    torch.manual_seed(0)
    encoder = Encoder(Features(3), 3, kappa="head", kappa_hidden=(), kappa_range=(10.0, 30.0))
    with torch.no_grad():
        encoder.mu_head.weight.copy_(4 * torch.eye(3))
        encoder.mu_head.bias.fill_(-2.0)
        encoder.kappa_head.layers[0].weight.fill_(1.0)
        encoder.kappa_head.layers[0].bias.fill_(-1.5)
    return encoder


@pytest.mark.parametrize("negatives", [0, pytest.param(8, marks=pytest.mark.slow)], ids=["batch", "drawn"])
def test_a_shifted_encoder_settles_at_the_truth(negatives):
    truth, encoder = linear_encoder(), linear_encoder()
    with torch.no_grad():
        encoder.mu_head.bias.add_(torch.tensor([0.3, -0.2, 0.1]))
        encoder.kappa_head.shift.add_(0.06)
        encoder.kappa_head.scale.mul_(1.1)
    anchors, count = 96, 40
    batches = EncoderProcess(truth).batches(anchors, negatives)
    settled = settle(encoder, ExactInfoNCE(AcceptanceKernel(10.0)), batches, count, rounds=4)
    error = (torch.linalg.inv(settled.hessian).diagonal() / (anchors * count)).sqrt()
    unit = truth.mu_head.weight.norm() / 3**0.5
    assert ((encoder.mu_head.bias - truth.mu_head.bias).abs() < 4 * unit * error[:3]).all()
    assert (encoder.kappa_head.scale / truth.kappa_head.scale - 1).abs() < 4 * 1.1 * error[-2]
    assert (encoder.kappa_head.shift - truth.kappa_head.shift).abs() < 4 * error[-1]
    # Small against what was put wrong, or the test would be empty.
    assert unit * error[0] < 0.06
    assert error[-1] < 0.01
    assert (settled.change[-1].abs() < 0.5 * error).all()  # Newton's method has converged


def test_an_encoder_without_a_kappa_head_is_refused():
    encoder = Encoder(Features(3), 3, kappa="norm")
    with pytest.raises(ValueError, match='kappa="head"'):
        settle(encoder, ExactInfoNCE(), lambda step, generator: None, 1)
