"""Damaged checkpoints are refused, and the one before is used."""

import shutil
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from aleator.training.checkpoints import Checkpoints, last_saved_step
from tests.training.training_cases import StoppedError, assert_same_run, pairs, run


@pytest.mark.parametrize("damage", ["truncated", "altered", "index truncated", "index altered"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(damage, tmp_path, uninterrupted):
    def stopping(step, generator):
        if step == 18:
            raise StoppedError
        return pairs(step, generator)

    with pytest.raises(StoppedError):
        run(tmp_path / "run", stopping)
    newest = tmp_path / "run" / "checkpoints" / "step-00000015"
    path = newest / "checkpoint.json" if "index" in damage else next(newest.glob("*.safetensors"))
    data = bytearray(path.read_bytes())
    if "truncated" in damage:
        data = data[:-7]
    else:
        data[len(data) // 2] ^= 4
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="checkpoint refused, going back to the one before.*step-00000015"):
        result = run(tmp_path / "run")
    assert result.resumed_from == 10
    assert_same_run(result, uninterrupted)


def test_two_checkpoints_are_kept_and_if_all_are_damaged_nothing_is_overwritten(tmp_path):
    run(tmp_path / "run")
    folders = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert [folder.name for folder in folders] == ["step-00000020", "step-00000024"]
    for folder in folders:
        (folder / "checkpoint.json").write_text("{}")
    before = sorted(path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.is_file())
    with (
        pytest.warns(UserWarning, match="refused"),
        pytest.raises(ValueError, match=r"no checkpoint is whole.*new folder"),
    ):
        run(tmp_path / "run")
    assert before == sorted(path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.is_file())


def test_an_unfinished_checkpoint_and_copies_of_others_do_not_count(tmp_path):
    run(tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    (folder / "step-00009999").mkdir()  # as after a kill in the middle of writing
    shutil.copytree(folder / "step-00000020", folder / "step-00000020 (copy)")
    (folder / "step-abc").mkdir()
    assert last_saved_step(tmp_path / "run") == 24
    with pytest.warns(UserWarning, match="step-00009999 was never finished, and is left out"):
        assert Checkpoints(tmp_path / "run").latest() is not None
    assert last_saved_step(tmp_path / "elsewhere") is None


class CheckpointMachine(RuleBasedStateMachine):
    """Saving, damage and loss in any order, against a plain model: what `latest` returns, or that it refuses."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.checkpoints = Checkpoints(Path(self.folder.name))
        self.model: dict[int, tuple[int, str]] = {}  # step -> its number, and "whole", "damaged" or "unfinished"

    def teardown(self):
        self.folder.cleanup()

    def place(self, step):
        return Path(self.folder.name) / "checkpoints" / f"step-{step:08d}"

    def newest(self, back):
        return sorted(self.model, reverse=True)[back % len(self.model)]

    @rule(step=st.integers(0, 30), number=st.integers(-5, 5))
    def save(self, step, number):
        self.checkpoints.save(step, {"weights": torch.full((3,), float(number)), "number": number})
        self.model[step] = (number, "whole")
        self.model = dict(sorted(self.model.items(), reverse=True)[:2])

    @precondition(lambda self: self.model)
    @rule(back=st.integers(0, 1), share=st.floats(0, 0.999))
    def flip_a_byte(self, back, share):
        step = self.newest(back)
        number, state = self.model[step]
        if state == "whole":
            file = next(self.place(step).glob("*.safetensors"))
            content = bytearray(file.read_bytes())
            content[int(share * len(content))] ^= 0xFF
            file.write_bytes(content)
            self.model[step] = (number, "damaged")

    @precondition(lambda self: self.model)
    @rule(back=st.integers(0, 1))
    def stop_before_the_end(self, back):
        step = self.newest(back)
        (self.place(step) / "checkpoint.json").unlink(missing_ok=True)
        self.model[step] = (self.model[step][0], "unfinished")

    @rule()
    def read(self):
        whole = [number for _, (number, state) in sorted(self.model.items(), reverse=True) if state == "whole"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not whole and any(state == "damaged" for _, state in self.model.values()):
                with pytest.raises(ValueError, match="no checkpoint is whole"):
                    self.checkpoints.latest()
                return
            found = self.checkpoints.latest()
        assert (found is None) == (not whole)
        if whole:
            assert found["number"] == whole[0]
            assert torch.equal(found["weights"], torch.full((3,), float(whole[0])))


TestCheckpointMachine = CheckpointMachine.TestCase
TestCheckpointMachine.settings = settings(max_examples=15, stateful_step_count=12, deadline=None)
