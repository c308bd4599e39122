"""Atomic writes: the new file or the old one, whatever goes wrong in between."""

import errno
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from matplotlib.figure import Figure

from aleator.foundation.files import (
    create_file,
    holds_nothing,
    naming_file,
    replace_file,
    save_figure,
    write_json,
    writing_atomically,
)


def test_a_file_is_written_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "numbers.bin"
    replace_file(path, b"old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_target_changes_at_the_end_of_the_block(tmp_path):
    path = tmp_path / "numbers.bin"
    replace_file(path, b"old")
    with writing_atomically(path) as temporary:
        assert temporary.parent == tmp_path  # a move between file systems is not atomic
        temporary.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
@pytest.mark.parametrize("existed", [True, False])
def test_a_failure_in_the_block_leaves_everything_as_it_was(tmp_path, error, existed):
    path = tmp_path / "numbers.bin"
    if existed:
        replace_file(path, b"old")

    def fail_midway():
        with writing_atomically(path) as temporary:
            temporary.write_bytes(b"ne")
            raise error

    with pytest.raises(type(error)):
        fail_midway()
    assert [file.read_bytes() for file in tmp_path.iterdir()] == ([b"old"] if existed else [])


def test_a_failure_of_the_move_leaves_everything_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "numbers.bin"
    replace_file(path, b"old")

    def fail(source, target):
        raise OSError("read-only")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="read-only"):
        replace_file(path, b"new")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"old"]


def test_the_data_is_on_the_disk_before_the_move(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: events.append("fsync") or fsync(file))
    monkeypatch.setattr(os, "replace", lambda *paths: events.append("replace") or replace(*paths))
    replace_file(tmp_path / "numbers.bin", b"new")
    assert events[:2] == ["fsync", "replace"]


def test_a_killed_process_leaves_the_old_file(tmp_path):
    path = tmp_path / "numbers.bin"
    replace_file(path, b"old")
    code = f"""
import os, signal
from pathlib import Path
from aleator.foundation.files import writing_atomically
with writing_atomically(Path({str(path)!r})) as temporary:
    temporary.write_bytes(b"ne")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", code], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"


def test_json_is_readable_and_its_folder_is_made(tmp_path):
    path = tmp_path / "a" / "b" / "report.json"
    write_json(path, {"name": "Zürich", "values": [1, 2.5]})
    text = path.read_text(encoding="utf-8")
    assert json.loads(text) == {"name": "Zürich", "values": [1, 2.5]}
    assert '\n  "name": "Zürich"' in text
    assert text.endswith("}\n")


def test_what_is_not_json_leaves_the_old_file(tmp_path):
    path = tmp_path / "report.json"
    write_json(path, [1])
    with pytest.raises(TypeError):
        write_json(path, object())
    assert json.loads(path.read_text()) == [1]


def test_a_folder_of_unfinished_files_holds_nothing(tmp_path):
    folder = tmp_path / "new"
    assert holds_nothing(folder)
    (folder / "cache").mkdir(parents=True)
    (folder / "cache" / ".audit.json.12.partial").write_text("{")
    assert holds_nothing(folder)
    (folder / ".notes.partial").write_text("a person's own")
    assert not holds_nothing(folder)
    assert not holds_nothing(folder / ".notes.partial")


def test_a_file_is_created_once_and_whole(tmp_path):
    def create(number):
        return create_file(tmp_path / "state.json", f"{number}".encode() * 10_000)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(8)))
    assert won.count(True) == 1
    assert (tmp_path / "state.json").read_bytes() == f"{won.index(True)}".encode() * 10_000
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.SVG", b"<?xml"), ("a.pdf", b"%PDF")])
def test_a_figure_that_cannot_be_saved_leaves_the_older_one(tmp_path, name, start, monkeypatch):
    figure = Figure(figsize=(1, 1))
    save_figure(figure, tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    assert whole.startswith(start)
    monkeypatch.setattr(Figure, "savefig", _saved_on_a_full_disk)
    with pytest.raises(OSError, match=rf"{name}'$"):
        save_figure(figure, tmp_path / name)
    assert (tmp_path / name).read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == [name]


def _saved_on_a_full_disk(figure, path, **options):
    path.write_bytes(b"a part")
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_error_names_the_file_that_is_written(tmp_path):
    def fail(*arguments):
        with writing_atomically(tmp_path / "rows.bin") as temporary:
            temporary.write_bytes(b"part")
            raise OSError(*arguments)

    with pytest.raises(OSError, match=r"rows\.bin'$"):
        fail(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match=r"^another sentence$"):
        fail("another sentence")
    with pytest.raises(OSError, match=r"'other'$"), naming_file("rows.bin"):
        raise OSError(errno.ENOENT, "No such file", "other")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError, match=r"nowhere/rows\.bin'$"):
        replace_file(tmp_path / "nowhere" / "rows.bin", b"")
