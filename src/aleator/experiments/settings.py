"""What all experiments share: the names of presets, losses and kernels, and what the names stand for."""

from collections.abc import Callable
from typing import Literal, Protocol, get_args

from torch import nn

from aleator.foundation import require_one_of
from aleator.losses import ELK, HIB, ExactInfoNCE, InfoNCE, MCInfoNCE
from aleator.matching import AcceptanceKernel, NegativeLaw, VMFKernel, ZonalKernel

# How much work an experiment is. tables.py of each family of experiments says what a preset means there.
Preset = Literal["quick", "paper", "corrected", "best"]
PRESETS: tuple[Preset, ...] = get_args(Preset)

LossName = Literal["exact", "mcinfonce", "hib", "elk", "infonce"]
LOSSES: tuple[LossName, ...] = get_args(LossName)

# "acceptance" is the rule by which the paper's process accepts pairs, "vmf" the paper's approximation of it.
KernelName = Literal["acceptance", "vmf"]
KERNELS: tuple[KernelName, ...] = get_args(KernelName)


class LossSetting(Protocol):
    """The fields of a setting that decide its loss. Each loss reads only those that it has."""

    @property
    def loss(self) -> str: ...
    @property
    def kernel(self) -> str: ...
    @property
    def kappa_pos(self) -> float: ...
    @property
    def learnable(self) -> bool: ...
    @property
    def terms(self) -> int | None: ...
    @property
    def group(self) -> int | None: ...
    @property
    def assumed_rule(self) -> NegativeLaw: ...
    @property
    def samples(self) -> int: ...
    @property
    def average_negatives(self) -> bool: ...
    @property
    def a(self) -> float: ...
    @property
    def b(self) -> float: ...


def make_kernel(setting: LossSetting) -> ZonalKernel:
    """The kernel that a setting names, with its kappa_pos."""
    require_one_of("kernel", setting.kernel, KERNELS)
    kernel: Callable[..., ZonalKernel] = AcceptanceKernel if setting.kernel == "acceptance" else VMFKernel
    return kernel(setting.kappa_pos, setting.learnable)


def make_loss(setting: LossSetting) -> nn.Module:
    """The loss that a setting names, with its parameters."""
    require_one_of("loss", setting.loss, LOSSES)
    if setting.loss == "exact":
        return ExactInfoNCE(make_kernel(setting), setting.terms, setting.group, setting.assumed_rule)
    if setting.loss == "mcinfonce":
        return MCInfoNCE(make_kernel(setting), setting.samples, setting.average_negatives)
    if setting.loss == "hib":
        return HIB(setting.a, setting.b, setting.samples, setting.learnable)
    return (ELK if setting.loss == "elk" else InfoNCE)(setting.kappa_pos, setting.learnable)
