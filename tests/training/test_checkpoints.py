"""Damaged checkpoints are refused, and the one before is used."""

import pytest

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
