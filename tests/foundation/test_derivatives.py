"""A gradient that cannot be differentiated raises where a second derivative is asked for, and never leaves it out."""

import pytest
import torch

import aleator as al


def posteriors(x):
    return al.VonMisesFisher(torch.nn.functional.normalize(x, dim=-1), x.square().sum(-1) + 1)


@pytest.fixture
def x():
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("loss", [al.ExactInfoNCE(), al.MCInfoNCE(samples=4), al.HIB(samples=4)], ids=repr)
def test_a_loss_without_second_derivatives_raises(loss, x):
    value = loss(posteriors(x), posteriors(x.flip(0)))
    with pytest.raises(RuntimeError, match=r"create_graph = True: .* no second derivatives; .* InfoNCE or ELK"):
        torch.autograd.grad(value, x, create_graph=True)


@pytest.mark.parametrize("loss", [al.InfoNCE(), al.ELK()], ids=repr)
def test_the_others_have_the_right_ones(loss, x):
    def penalty(x):
        (gradient,) = torch.autograd.grad(loss(posteriors(x), posteriors(x.flip(0))), x, create_graph=True)
        return gradient.square().sum()

    assert torch.autograd.gradcheck(penalty, x)
