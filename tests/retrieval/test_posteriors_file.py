"""Posteriors files are read as they were written, and appear when they are complete."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from aleator import VMFMixture, VonMisesFisher
from aleator.foundation import DamagedFileError
from aleator.matching import LogOddsMap, MatchMaps, VMFKernel
from aleator.retrieval import (
    index_from_file,
    items_header,
    match_header,
    match_settings,
    read_answers,
    read_header,
    read_items,
    read_items_beside,
    read_posteriors,
    write_items,
    write_posteriors,
)
from aleator.stored import read_records

HEADER = {"fingerprint": "abc", "kappa_pos": "12.5", "prior": "0.25"}


@pytest.fixture
def arrays() -> tuple[np.ndarray, np.ndarray]:
    """mu (7, 3) and kappa (7,)."""
    mu = torch.nn.functional.normalize(torch.randn(7, 3), dim=-1)
    return mu.numpy(), np.arange(1, 8, dtype=np.float32)


def written(path: Path, mu: np.ndarray, kappa: np.ndarray, sizes: list[int]) -> Path:
    ends = np.cumsum(sizes)
    blocks = [(mu[end - size : end], kappa[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
    write_posteriors(path, 7, 3, blocks, HEADER)
    return path


def test_blocks_of_any_size_give_the_same_file(tmp_path, arrays):
    whole, parts = (
        written(tmp_path / f"{len(sizes)}.safetensors", *arrays, sizes).read_bytes() for sizes in ([7], [3, 0, 4])
    )
    assert whole == parts
    assert len(list(tmp_path.iterdir())) == 2  # nothing else is left


def test_the_file_is_a_safetensors_file(tmp_path, arrays):
    path = written(tmp_path / "q.safetensors", *arrays, [7])
    tensors = load_file(path)
    assert np.array_equal(tensors["mu"].numpy(), arrays[0])
    assert np.array_equal(tensors["kappa"].numpy(), arrays[1])
    q = read_posteriors(path)
    assert torch.equal(q.kappa, tensors["kappa"])
    assert read_header(path).items() >= HEADER.items()


def test_missing_rows_leave_no_file(tmp_path, arrays):
    with pytest.raises(AssertionError, match="N rows in total"):
        written(tmp_path / "q.safetensors", *arrays, [3, 3])
    assert not (tmp_path / "q.safetensors").exists()


def test_a_file_without_a_header_has_default_match_settings(tmp_path, arrays):
    np.savez(tmp_path / "q.npz", mu=arrays[0], kappa=arrays[1])
    header = read_header(tmp_path / "q.npz")
    assert header == {}
    kernel, prior, maps = match_settings(header, tmp_path)
    assert (float(kernel.kappa_pos), prior) == (float(VMFKernel().kappa_pos), 0.5)
    assert not maps.calibrated
    (tmp_path / "q.safetensors").write_bytes(b"something else")
    assert read_header(tmp_path / "q.safetensors") == {}
    fitted = MatchMaps(LogOddsMap((0.0, 1.0), (0.5, 0.75)), LogOddsMap((0.0, 1.0), (0.1, 0.3)))
    kernel, prior, maps = match_settings(match_header(VMFKernel(7.0), 0.1, fitted), tmp_path)
    assert (float(kernel.kappa_pos), prior, maps) == (7.0, 0.1, fitted)
    kernel, prior, maps = match_settings(HEADER, tmp_path)
    assert (float(kernel.kappa_pos), prior) == (12.5, 0.25)
    assert not maps.calibrated


def test_items_are_read_as_they_were_written(tmp_path):
    items = [{"id": 0, "text": "two \u2028 still two"}, {"id": "\u00e9", "label": "b", "labels": {"b": 1.0}}]
    write_items(tmp_path / "q.jsonl", items)
    ids, metadata = read_items(tmp_path / "q.jsonl")
    assert [{"id": id} | entry for id, entry in zip(ids, metadata, strict=True)] == items


def test_posteriors_of_several_modes_come_back(tmp_path):
    g = torch.Generator().manual_seed(0)
    parts = VonMisesFisher(
        torch.nn.functional.normalize(torch.randn(7, 2, 3, generator=g), dim=-1), torch.rand(7, 2) * 9
    )
    q = VMFMixture(torch.randn(7, 2, generator=g), parts)
    columns = [tensor.numpy() for tensor in (parts.mu, parts.kappa, q.log_weights, torch.arange(7.0))]
    path = tmp_path / "q.safetensors"
    blocks = [[column[:4] for column in columns], [column[4:] for column in columns]]
    write_posteriors(path, 7, 3, map(tuple, blocks), HEADER, novelty=True, modes=2)
    read = read_posteriors(path)
    assert isinstance(read, VMFMixture)
    torch.testing.assert_close(read.log_weights, q.log_weights)
    assert torch.equal(read.components.mu, parts.mu)
    assert torch.equal(read.components.kappa, parts.kappa)
    assert read_answers(path)[1].tolist() == list(range(7))
    np.savez(tmp_path / "q.npz", mu=columns[0], kappa=columns[1], log_weights=columns[2])
    torch.testing.assert_close(read_posteriors(tmp_path / "q.npz").log_prob(parts.mu[:, 0]), q.log_prob(parts.mu[:, 0]))
    np.savez(tmp_path / "bad.npz", mu=columns[0], kappa=columns[1])
    with pytest.raises(ValueError, match="several modes and no weights"):
        read_posteriors(tmp_path / "bad.npz")


@pytest.fixture
def sealed(tmp_path):
    """A file as `aleator embed` writes it."""
    path = tmp_path / "p.safetensors"
    mu = np.eye(6, dtype=np.float32)
    records = [{"id": f"i{i}", "label": "ab"[i % 2]} for i in range(6)]
    write_items(path.with_suffix(".jsonl"), records)
    header = items_header(records)
    write_posteriors(path, 6, 6, [(mu[:4], np.ones(4, np.float32)), (mu[4:], np.ones(2, np.float32))], header)
    return path


def test_every_byte_of_a_file_counts(sealed):
    whole = sealed.read_bytes()
    assert read_header(sealed)["version"] == "1"
    assert read_items_beside(sealed)[0] == [f"i{i}" for i in range(6)]
    for place in range(0, len(whole), 7):
        data = bytearray(whole)
        data[place] ^= 4
        sealed.write_bytes(data)
        with pytest.raises(ValueError):
            read_posteriors(sealed)
    for length in (0, 7, 100, len(whole) - 1):
        sealed.write_bytes(whole[:length])
        with pytest.raises(DamagedFileError, match="restore it from a copy"):
            read_posteriors(sealed)
    sealed.write_bytes(whole)
    assert len(read_posteriors(sealed)) == 6


def test_a_file_that_is_damaged_after_it_was_read_is_noticed(sealed):
    read_posteriors(sealed)
    data = bytearray(sealed.read_bytes())
    data[-3] ^= 1
    sealed.write_bytes(data)
    with pytest.raises(DamagedFileError, match="does not match its checksum"):
        read_header(sealed)


def test_other_ids_beside_a_file_are_refused_and_other_labels_are_told(sealed):
    beside = sealed.with_suffix(".jsonl")
    lines = beside.read_text().splitlines()
    beside.write_text("\n".join([lines[1], lines[0], *lines[2:]]) + "\n")
    with pytest.raises(DamagedFileError, match="its ids are not those of the posteriors"):
        read_items_beside(sealed)
    beside.write_text("\n".join(lines).replace('"a"', '"c"') + "\n")
    with pytest.warns(UserWarning, match="was changed after it was written"):
        assert read_items_beside(sealed)[1][0] == {"label": "c"}
    beside.write_bytes(b"\xff\xfe")
    with pytest.raises(DamagedFileError, match="not UTF-8"):
        read_items_beside(sealed)


def test_a_lost_file_of_items_is_damage_and_not_items_without_a_name(sealed, arrays, tmp_path):
    (tmp_path / "link").mkdir()
    link = tmp_path / "link" / "another.safetensors"
    link.symlink_to(sealed)
    assert read_items_beside(link)[0] == [f"i{i}" for i in range(6)]  # they are beside the target
    sealed.with_suffix(".jsonl").unlink()
    for path in (sealed, link):
        for read in (read_items_beside, lambda path: read_records(path, 6)):
            with pytest.raises(DamagedFileError, match=rf"{path.stem}\.jsonl is damaged: it is missing.*copy it along"):
                read(path)
    without = written(tmp_path / "without.safetensors", *arrays, [7])
    assert read_items_beside(without) == (None, None)  # such posteriors never had one


def test_a_folder_is_told_from_a_name_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"is a folder; name an \.npz or \.safetensors file"):
        read_posteriors(tmp_path)
    with pytest.raises(ValueError, match="there is no such file; name an"):
        read_posteriors(tmp_path / "nowhere.npz")
    with pytest.raises(ValueError, match="is a folder; name a file of JSON lines"):
        read_items(tmp_path)


def test_another_format_is_refused_by_name(sealed):
    data = sealed.read_bytes().replace(b'"version": "1"', b'"version": "9"')
    sealed.write_bytes(data)
    with pytest.raises(ValueError, match=r"is in format 9.*open it with the release that wrote it"):
        read_posteriors(sealed)


@pytest.mark.parametrize("options", [{"prior": 0.0}, {"kappa_pos": 0.0}])
def test_a_number_that_is_passed_is_not_taken_for_one_that_is_left_out(options, arrays, tmp_path):
    (name,) = options
    with pytest.raises(ValueError, match=f"^{name} = 0"):
        index_from_file(written(tmp_path / "a.safetensors", *arrays, [7]), None, None, None, **options)
