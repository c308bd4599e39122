import json

import pytest

from aleator.foundation import DamagedFileError, verify_checksums, write_checksums


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("a.json", "sub/b.bin"):
        (tmp_path / name).write_bytes(name.encode() * 10)
    write_checksums(tmp_path, ["a.json", "sub/b.bin", "not-there"])
    return tmp_path


def test_files_that_match_pass(folder):
    verify_checksums(folder, "restore it")
    (folder / "more").touch()  # files without a checksum are free
    verify_checksums(folder, "restore it")


@pytest.mark.parametrize("name", ["a.json", "sub/b.bin"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_names_the_file_and_the_way_out(folder, name, damage):
    path = folder / name
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data if damage == "flip" else data[:3])
    if damage == "remove":
        path.unlink()
    with pytest.raises(DamagedFileError, match="restore it") as caught:
        verify_checksums(folder, "restore it")
    assert caught.value.path == path
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 1, "sha256": 3}'])
def test_checksums_that_are_damaged_themselves(folder, text):
    (folder / "checksums.json").write_text(text)
    with pytest.raises(DamagedFileError, match=r"checksums\.json is damaged"):
        verify_checksums(folder, "restore it")


def test_a_folder_without_checksums_is_of_an_older_release(tmp_path):
    verify_checksums(tmp_path, "restore it")


def test_checksums_of_a_newer_release_are_refused(folder):
    (folder / "checksums.json").write_text(json.dumps({"version": 99, "sha256": {}}))
    with pytest.raises(ValueError, match="version 99"):
        verify_checksums(folder, "restore it")
