"""Names of losses and kernels, and what they stand for."""

from dataclasses import replace

import pytest

import aleator as al
from aleator.experiments.cifar.folds import CifarSetting
from aleator.experiments.controlled.run import Setting
from aleator.experiments.settings import LOSSES, make_kernel, make_loss

CLASSES = {"exact": al.ExactInfoNCE, "mcinfonce": al.MCInfoNCE, "hib": al.HIB, "elk": al.ELK, "infonce": al.InfoNCE}


@pytest.mark.parametrize("setting", [Setting(samples=7, terms=20), CifarSetting(samples=7, terms=20)])
@pytest.mark.parametrize("name", LOSSES)
def test_a_name_gives_its_loss_with_the_parameters_of_the_setting(name, setting):
    loss = make_loss(replace(setting, loss=name, a=2.0, b=-1.0))
    assert type(loss) is CLASSES[name]
    if name in ("mcinfonce", "hib"):
        assert loss.samples == 7
    if name == "hib":
        assert (float(loss.a), float(loss.b)) == (2.0, -1.0)
    if name == "exact":
        assert loss.terms == 20
        assert float(loss.kernel.kappa_pos) == setting.kappa_pos
    assert not any(parameter.requires_grad for parameter in loss.parameters())


@pytest.mark.parametrize("name", LOSSES)
def test_parameters_of_a_loss_may_be_learnable(name):
    assert any(parameter.requires_grad for parameter in make_loss(Setting(loss=name, learnable=True)).parameters())


def test_a_name_gives_its_kernel():
    assert isinstance(make_kernel(Setting(kernel="vmf")), al.VMFKernel)
    assert isinstance(make_kernel(CifarSetting(kernel="acceptance")), al.AcceptanceKernel)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="loss = 'tripletloss'"):
        make_loss(Setting(loss="tripletloss"))
    with pytest.raises(ValueError, match="kernel = 'gauss'"):
        make_loss(Setting(kernel="gauss"))
