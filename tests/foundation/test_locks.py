import json
import os
import signal
import subprocess
import sys

import pytest

from aleator.foundation import only_process

HOLD = """
import sys, time
from pathlib import Path
from aleator.foundation import only_process
with only_process(Path(sys.argv[1]), "output", "embed"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock."""
    path = tmp_path / ".out.safetensors.lock"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process, path
    process.stdin.close()
    process.stdout.close()
    process.wait()


def test_the_second_process_is_told_who_holds_the_lock_and_a_killed_one_holds_nothing(holder):
    process, path = holder
    told = f"embed, process {process.pid} on .*; wait for it or stop it"
    with pytest.raises(ValueError, match=told) as caught, only_process(path, "output", "embed"):
        pass
    assert "out.safetensors'" in str(caught.value)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert path.exists()  # a stale lock file
    with only_process(path, "output", "embed"):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert not path.exists()


def test_a_lock_is_released_when_the_block_fails(tmp_path):
    path = tmp_path / "x.lock"
    with pytest.raises(RuntimeError), only_process(path, "output", "x"):
        raise RuntimeError
    assert not path.exists()
    first, second = only_process(path, "output", "x"), only_process(path, "output", "x")
    with first, pytest.raises(ValueError, match="another process works on it"), second:
        pass
