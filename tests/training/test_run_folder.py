"""A run's folder belongs to one configuration; a folder of anything else is left alone."""

import pytest

from aleator.encoders.backbones import MLP
from aleator.encoders.encoder import Encoder
from aleator.losses import MCInfoNCE
from aleator.matching.kernels import VMFKernel
from aleator.training.loop import fit
from tests.training.training_cases import SmallLoss, build, mean_kappa, pairs, recipe, run


def test_a_folder_of_another_run_is_left_alone(tmp_path):
    run(tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"another configuration \(recipe.learning_rate was 0.01, now 0.02\)"):
        run(tmp_path / "run", recipe=recipe(learning_rate=0.02))
    with pytest.raises(ValueError, match=r"config\.data was None, now 'other'"):
        run(tmp_path / "run", config={"data": "other"})
    encoder = Encoder(MLP(4, (9,)), 3, kappa="head")
    with pytest.raises(ValueError, match=r"encoder\.features was 8, now 9"):
        fit(encoder, SmallLoss(), pairs, recipe(), folder=tmp_path / "run", validate=mean_kappa, device="cpu")
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    run(tmp_path / "run", recipe=recipe(checkpoint_every=7))  # this may change


def test_the_losss_settings_are_part_of_a_run(tmp_path):
    def with_samples(samples):
        return lambda: (build()[0], MCInfoNCE(VMFKernel(20.0), samples))

    run(tmp_path / "run", build=with_samples(2))
    with pytest.raises(ValueError, match=r"loss\.loss\.samples was 2, now 3"):
        run(tmp_path / "run", build=with_samples(3))
    with pytest.raises(ValueError, match=r"loss\.kernel\..* was .*20.*now .*21"):
        run(tmp_path / "run", build=lambda: (build()[0], MCInfoNCE(VMFKernel(21.0), 2)))


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"no run\.json"):
        run(tmp_path)
    with pytest.raises(ValueError, match="is a file"):
        run(tmp_path / "thesis.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
