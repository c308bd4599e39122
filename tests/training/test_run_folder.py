"""A run's folder belongs to one configuration; a folder of anything else is left alone."""

import pytest
import torch

from aleator.encoders.backbones import MLP
from aleator.encoders.encoder import Encoder
from aleator.losses import HIB, ExactInfoNCE, MCInfoNCE
from aleator.matching.kernels import VMFKernel
from aleator.matching.zonal import ZonalKernel
from aleator.training.loop import fit
from aleator.training.run_folder import claim_run_folder, run_identity
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


def test_a_record_that_lost_its_contents_is_told_of_in_a_few_words(tmp_path):
    run(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(ValueError, match=r"recipe was None, now \{.*\.\.\.") as refused:
        run(tmp_path / "run")
    assert len(str(refused.value)) < 1000


def test_the_losss_settings_are_part_of_a_run(tmp_path):
    def with_samples(samples):
        return lambda: (build()[0], MCInfoNCE(VMFKernel(20.0), samples))

    run(tmp_path / "run", build=with_samples(2))
    with pytest.raises(ValueError, match=r"loss\.loss\.samples was 2, now 3"):
        run(tmp_path / "run", build=with_samples(3))
    with pytest.raises(ValueError, match=r"loss\.kernel\..* was .*20.*now .*21"):
        run(tmp_path / "run", build=lambda: (build()[0], MCInfoNCE(VMFKernel(21.0), 2)))


def gauss(t):
    return torch.exp(-4 * (1 - t) ** 2)


def cauchy(t):
    return 1 / (1 + 4 * (1 - t))


def loss_records(loss: torch.nn.Module) -> dict:
    return run_identity(build()[0], loss, recipe(), 1, None)


OTHER_LOSSES = {
    "another function": (
        lambda: ExactInfoNCE(ZonalKernel(gauss)),
        lambda: ExactInfoNCE(ZonalKernel(cauchy)),
        rf"loss\.kernel\.functions\.fn was '{__name__}\.gauss', now '{__name__}\.cauchy'",
    ),
    "another start of kappa_pos": (
        lambda: ExactInfoNCE(VMFKernel(20.0, requires_grad=True)),
        lambda: ExactInfoNCE(VMFKernel(7.0, requires_grad=True)),
        r"loss\.kernel\.start_kappa_pos was 20\.0, now 7\.0",
    ),
    "another start of a": (
        lambda: HIB(2.0, 1.0, requires_grad=True),
        lambda: HIB(2.5, 1.0, requires_grad=True),
        r"loss\.loss\.start_a was 2\.0, now 2\.5",
    ),
}


@pytest.mark.parametrize("case", OTHER_LOSSES)
def test_a_loss_that_began_otherwise_is_another_run(case, tmp_path):
    begun, other, message = OTHER_LOSSES[case]
    claim_run_folder(tmp_path / "run", loss_records(begun()))
    claim_run_folder(tmp_path / "run", loss_records(begun()))
    with pytest.raises(ValueError, match=message):
        claim_run_folder(tmp_path / "run", loss_records(other()))


@pytest.mark.parametrize("case", OTHER_LOSSES)
def test_a_folder_of_an_earlier_release_goes_on(case, tmp_path):
    """It says nothing about functions, nor about where learned parameters began."""
    begun, _, _ = OTHER_LOSSES[case]
    old = loss_records(begun())
    for module in old["loss"].values():
        for name in ("functions", "start_kappa_pos", "start_a", "start_b"):
            module.pop(name, None)
    claim_run_folder(tmp_path / "run", old)
    claim_run_folder(tmp_path / "run", loss_records(begun()))
    with pytest.raises(ValueError, match=r"loss\.loss\.class"):
        claim_run_folder(tmp_path / "run", loss_records(MCInfoNCE()))


def test_a_loss_that_has_learned_goes_on_with_its_run(tmp_path):
    """As in a notebook, where an interrupted cell is run again."""
    loss = ExactInfoNCE(VMFKernel(20.0, requires_grad=True))
    claim_run_folder(tmp_path / "run", loss_records(loss))
    with torch.no_grad():
        loss.kernel.log_kappa_pos += 1.0
    claim_run_folder(tmp_path / "run", loss_records(loss))


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"no run\.json"):
        run(tmp_path)
    with pytest.raises(ValueError, match="is a file"):
        run(tmp_path / "thesis.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
