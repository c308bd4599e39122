"""Errors speak the options of the command; Ctrl-C says what is kept; --help loads nothing heavy."""

import errno
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from aleator.cli import app
from aleator.cli.errors import in_words_of_the_command, kept_in, plain_errors, plain_output
from aleator.foundation import require

_FULL = "the disk is full; make room, then repeat the command"


def message(*arguments, raised=None) -> str:
    """What a small command prints when its work raises an error."""
    small = typer.Typer()

    @small.command()
    def work(data: str, batch_size: int = 1, replace: bool = False) -> None:
        with plain_errors():
            raise raised if raised is not None else _checked(batch_size)

    result = CliRunner().invoke(small, [*arguments])
    assert result.exit_code == 2, result.output
    return result.stderr.strip()


def _checked(batch_size: int) -> Exception:
    require(batch_size >= 1, "batch_size", batch_size, "must be at least 1", "leave batch_size out")
    return ValueError


def test_options_are_named_as_they_are_typed():
    assert message("x", "--batch-size", "0") == "--batch-size 0: must be at least 1; leave --batch-size out"
    assert message("x", raised=ValueError("pass replace=True, or batch_size=8")) == "pass --replace, or --batch-size 8"


def test_arguments_and_other_names():
    with pytest.raises(ValueError) as caught:
        require(False, "data", "x", "is empty", "fill it")
    assert message("x", raised=caught.value) == "DATA 'x': is empty; fill it"
    with pytest.raises(ValueError) as caught:
        require(False, "dim", 1, "too small", "pass 2")
    assert message("x", raised=caught.value) == "dim = 1: too small; pass 2"


def test_names_inside_paths_stay():
    text = "/home/batch_size/replace=Trueish: no such file"
    assert message("x", raised=OSError(text)) == text.replace("replace=", "--replace ")


def test_errors_of_the_operating_system_have_a_way_out(tmp_path):
    with pytest.raises(OSError) as caught:
        (tmp_path / "nowhere" / "a.txt").read_text()
    assert message("x", raised=caught.value) == (
        f"{tmp_path}/nowhere/a.txt: there is no such file or folder; check the path (No such file or directory)"
    )
    full = OSError(errno.ENOSPC, "No space left on device", "a.safetensors")
    assert "the disk is full; make room" in message("x", raised=full)


def test_a_real_command(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((40, 3)))
    np.save(tmp_path / "y.npy", np.arange(40) % 2)
    command = ["train", str(tmp_path / "x.npy"), "--labels", str(tmp_path / "y.npy"), "--output", str(tmp_path / "run")]
    result = CliRunner().invoke(app, [*command, "--batch-size", "0"])
    assert result.exit_code == 2
    assert result.stderr.startswith("--batch-size 0: ")


def test_after_ctrl_c(tmp_path):
    assert "starts again" in kept_in(tmp_path / "nowhere", "the items")
    assert f"{tmp_path} keeps the items. The same command goes on" in kept_in(tmp_path, "the items")
    small = typer.Typer()

    @small.command()
    def work() -> None:
        with plain_errors(lambda: "The rows are kept."):
            raise KeyboardInterrupt

    result = CliRunner().invoke(small, [])
    assert (result.exit_code, result.stderr) == (130, "Stopped. The rows are kept.\n")


def test_help_loads_nothing_heavy():
    program = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from aleator.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "assert CliRunner().invoke(app, ['query', '--help']).exit_code == 0\n"
        "print(sorted({'torch', 'numpy', 'scipy', 'sklearn', 'matplotlib', 'faiss', 'fastapi'} & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_stopped_work_is_kept_and_goes_on(tmp_path, features, monkeypatch):
    """Ctrl-C in the middle of a training and of an embedding, and the same command again."""
    from aleator.own_data.embedding import rows
    from aleator.training.checkpoints import Checkpoints

    command = ["train", str(features / "x.npy"), "--labels", str(features / "y.npy"), "--output", str(tmp_path / "run")]
    command += ["--steps", "40", "--dim", "4", "--width", "8", "--no-baselines"]
    save = Checkpoints.save

    def interrupted(checkpoints, step, state):
        save(checkpoints, step, state)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "save", interrupted)
        stopped = CliRunner().invoke(app, command)
    assert stopped.exit_code == 130
    kept = re.search(r"Stopped\. .*run keeps the training up to step (\d+)\. The same command goes on", stopped.stderr)
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 0, again.output
    assert f"holds the training up to step {kept[1]}" in again.stderr

    command = ["embed", str(tmp_path / "run"), str(features / "x.npy"), "--output", str(tmp_path / "a.safetensors")]
    command += ["--batch-size", "100"]
    append = rows.RowFile.append

    def interrupted_row(file, block, digests):
        append(file, block, digests)
        if file.done == 200:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(rows.RowFile, "append", interrupted_row)
        stopped = CliRunner().invoke(app, command)
    assert stopped.exit_code == 130
    assert stopped.stderr == (
        f"Stopped. {tmp_path}/a.partial keeps the items that are done. The same command goes on from there.\n"
    )
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 0, again.output
    assert "goes on: 200 of 400 items are done" in again.stderr
    assert "400 items" in again.stdout


# Without a buffer the print fails, with it what Python does at the end.
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a file of Linux")
@pytest.mark.parametrize(("how", "unbuffered"), [("--json", ""), ("--csv", "1"), ("--by=kappa", "")])
def test_a_full_disk_under_standard_output_is_told_of_and_a_closed_pipe_is_silent(tmp_path, how, unbuffered):
    np.savez(tmp_path / "q.npz", mu=np.eye(3), kappa=np.array([1.0, 2.0, 3.0]))
    command = [sys.executable, "-m", "aleator", "rank", str(tmp_path / "q.npz"), how]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}

    def ends(stdout):
        result = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment)
        return result.returncode, result.stderr

    with open("/dev/full", "w") as full:
        code, said = ends(full)
    assert (code, said) == (2, f"standard output: {_FULL} (No space left on device)\n")
    reading, writing = os.pipe()
    os.close(reading)
    assert ends(writing) == (1, "")
    os.close(writing)


def test_an_error_of_another_file_is_not_taken_for_one_of_standard_output(tmp_path):
    with pytest.raises(FileNotFoundError), plain_output():
        (tmp_path / "nowhere").read_text()


def test_what_is_not_utf8_is_shown_as_ascii():
    with pytest.raises(UnicodeEncodeError) as caught:
        "caf\udce9".encode()
    assert in_words_of_the_command(caught.value).startswith(r"'caf\udce9' is not UTF-8; rename the file")
