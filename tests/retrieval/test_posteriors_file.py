"""Posteriors files are read as they were written, and appear when they are complete."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from aleator.matching import LogOddsMap, MatchMaps, VMFKernel
from aleator.retrieval import (
    match_header,
    match_settings,
    read_header,
    read_items,
    read_posteriors,
    write_items,
    write_posteriors,
)

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
    assert read_header(path) == HEADER


def test_missing_rows_leave_no_file(tmp_path, arrays):
    with pytest.raises(AssertionError, match="N rows in total"):
        written(tmp_path / "q.safetensors", *arrays, [3, 3])
    assert not (tmp_path / "q.safetensors").exists()


def test_a_file_without_a_header_has_default_match_settings(tmp_path, arrays):
    np.savez(tmp_path / "q.npz", mu=arrays[0], kappa=arrays[1])
    header = read_header(tmp_path / "q.npz")
    assert header == {}
    kernel, prior, maps = match_settings(header)
    assert (float(kernel.kappa_pos), prior) == (float(VMFKernel().kappa_pos), 0.5)
    assert not maps.calibrated
    (tmp_path / "q.safetensors").write_bytes(b"something else")
    assert read_header(tmp_path / "q.safetensors") == {}
    fitted = MatchMaps(LogOddsMap((0.0, 1.0), (0.5, 0.75)), LogOddsMap((0.0, 1.0), (0.1, 0.3)))
    kernel, prior, maps = match_settings(match_header(VMFKernel(7.0), 0.1, fitted))
    assert (float(kernel.kappa_pos), prior, maps) == (7.0, 0.1, fitted)
    kernel, prior, maps = match_settings(HEADER)
    assert (float(kernel.kappa_pos), prior) == (12.5, 0.25)
    assert not maps.calibrated


def test_items_are_read_as_they_were_written(tmp_path):
    items = [{"id": 0, "text": "two \u2028 still two"}, {"id": "\u00e9", "label": "b", "labels": {"b": 1.0}}]
    write_items(tmp_path / "q.jsonl", items)
    ids, metadata = read_items(tmp_path / "q.jsonl")
    assert [{"id": id} | entry for id, entry in zip(ids, metadata, strict=True)] == items
