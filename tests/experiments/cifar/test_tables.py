"""Tables of the CIFAR-10H experiments: every row can be run, and the paper's figures belong to rows."""

import pytest

from aleator.experiments.cifar import tables as cifar_tables
from aleator.experiments.cifar.pretraining import PretrainingSetting
from aleator.experiments.cifar.run import run_fold
from aleator.experiments.runner import ExperimentRun, RunFunction
from aleator.experiments.settings import make_loss
from aleator.training.recipe import Recipe


@pytest.mark.parametrize("preset", ["quick", "paper", "best"])
@pytest.mark.parametrize("name", cifar_tables.CIFAR)
def test_rows_are_runs_that_can_be_made(name, preset):
    rows = cifar_tables.CIFAR[name](preset)
    assert (cifar_tables.CIFAR[name].__doc__ or "").strip()
    keys = [ExperimentRun(RunFunction("cifar", run_fold), row.setting, seed).key for row in rows for seed in row.seeds]
    assert len(set(keys)) == len(keys)
    for row in rows:
        setting = row.setting
        for network in (setting.network, *setting.beside):
            PretrainingSetting(**network)
        if setting.loss != "softmax-entropy":  # which trains nothing
            make_loss(setting)
        stages = [options for options in (setting.recipe, setting.head_first) if options]
        for options in stages:
            Recipe(**{"seed": 0, **options})
        assert stages or setting.loss == "softmax-entropy"
        assert setting.recipe.get("select") in (None, "crop_rank", "recall_at_1")
        # what the labels and the loss need is there
        assert setting.loss != "softmax-entropy" or setting.pretrained


def test_the_papers_figures_stand_beside_rows_of_ours():
    for experiment, setting, loss in cifar_tables.CIFAR_PAPER:
        rows = cifar_tables.CIFAR[experiment]("paper")
        assert any((row.setting.name, row.setting.loss) == (setting, loss) for row in rows), (experiment, setting, loss)
