"""A list of the least certain items from a file alone, without torch, equals the list that posteriors give."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from aleator import VMFKernel, VMFMixture, VonMisesFisher
from aleator.evaluation import LabelModel, pack_label_model
from aleator.foundation import DamagedFileError
from aleator.own_data import rank_by_certainty, read_embedded
from aleator.retrieval import items_header, read_posteriors, write_items, write_posteriors
from aleator.stored import ListedItems, rank_rows, rank_stored, rounded_certainty

COUNT, DIM = 40, 5


def directions(*shape: int) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(*shape, DIM, generator=torch.Generator().manual_seed(1)), dim=-1)


def label_model(names: tuple[str, ...] = ("coat", "shirt", "shoe", "bag")) -> LabelModel:
    gallery = VonMisesFisher(torch.eye(DIM)[: len(names)], 30.0)
    return LabelModel(gallery, torch.eye(len(names)), names, VMFKernel(20.0), floor=0.02)


def embedded_file(folder: Path, modes: int = 1, labels: LabelModel | None = None, novelty: bool = True) -> Path:
    """A file as `aleator embed` writes it, in two blocks; two items have the same kappa."""
    path = folder / "items.safetensors"
    records = [{"id": f"i{i}", "label": "coat", "used": i % 2 == 0} for i in range(COUNT)]
    write_items(path.with_suffix(".jsonl"), records)
    header = {"fingerprint": "f"} | items_header(records)
    shape = (COUNT,) if modes == 1 else (COUNT, modes)
    kappa = torch.linspace(1, 40, int(np.prod(shape))).flip(0).reshape(shape)
    kappa[3] = kappa[7]
    columns = [directions(*shape), kappa]
    columns += [torch.zeros(shape).log_softmax(-1)] if modes > 1 else []
    columns += [torch.linspace(-1, 1, COUNT)] if novelty else []
    blocks = [tuple(column[part].numpy() for column in columns) for part in (slice(0, 25), slice(25, None))]
    write_posteriors(path, COUNT, DIM, blocks, header, novelty=novelty, labels=labels, modes=modes)
    return path


@pytest.mark.parametrize("names", [("coat", "shirt"), ("coat", "shirt", "shoe", "bag"), None])
@pytest.mark.parametrize("by", [None, "kappa", "labels"])
def test_the_file_alone_gives_the_list_that_posteriors_give(tmp_path, names, by):
    path = embedded_file(tmp_path, labels=None if names is None else label_model(names), novelty=names is not None)
    if names is None and by == "labels":
        assert rank_stored(path, by=by) is None  # the other reader says what is wrong
        return
    for limit, surest in ((None, False), (7, True)):
        computed = list(rank_by_certainty(read_embedded(path), limit, surest, by))
        stored = rank_stored(path, limit, surest, by)
        assert [list(row) for row in stored] == [list(row) for row in computed]  # the same columns in the same order
        for ours, theirs in zip(stored, computed, strict=True):
            assert ours.pop("certainty", 0) == pytest.approx(theirs.pop("certainty", 0), abs=1e-6)
            assert ours.pop("could_be", {}) == pytest.approx(theirs.pop("could_be", {}), abs=2e-4)
            assert ours == theirs


def test_files_from_elsewhere_are_listed(tmp_path):
    mu, kappa = directions(COUNT), torch.rand(COUNT)
    np.savez(tmp_path / "q.npz", mu=mu.double().numpy(), kappa=kappa.double().numpy())
    save_file({"mu": mu, "kappa": kappa}, tmp_path / "q.safetensors")
    for name in ("q.npz", "q.safetensors"):
        rows = rank_stored(tmp_path / name)
        assert rows == list(rank_by_certainty(read_embedded(tmp_path / name)))
        assert [row["id"] for row in rows] == kappa.argsort().tolist()


def test_kappa_decides_between_items_that_are_equally_sure():
    certainty = rounded_certainty(np.array([0.9, 0.9 + 1e-8, 0.5, 0.9], np.float64))
    kappa = np.array([7.0, 5.0, 9.0, 5.0])
    records = [{"id": i} for i in range(4)]
    rows = [
        rank_rows(records, certainty, kappa, lambda items: ListedItems(kappa[items]), None, s) for s in (False, True)
    ]
    assert [[row["id"] for row in listed] for listed in rows] == [[2, 1, 3, 0], [0, 1, 3, 2]]


@pytest.mark.parametrize("stored", [True, False])
def test_of_items_that_are_equally_sure_those_out_of_place_come_first(tmp_path, stored):
    """Every label is as sure as the floor allows, to another height for each; two outliers have a large kappa."""
    kappa = torch.tensor([900.0, 1000.0, 2000.0, 950.0, 1500.0, 980.0])
    novelty = torch.tensor([-1.0, -0.5, 0.7, -0.2, 0.1, -2.0])
    mu = torch.eye(DIM)[torch.tensor([0, 1, 1, 2, 0, 1])]
    weights = torch.diag(torch.tensor([1.0, 5.0, 2.0, 2.0]))
    path = tmp_path / "sure.safetensors"
    block = tuple(column.numpy() for column in (mu, kappa, novelty))
    labels = replace(label_model(), weights=weights, beta=4.0)
    write_posteriors(path, len(kappa), DIM, [block], {}, novelty=True, labels=labels)

    def ids(surest: bool) -> list[int]:
        rows = rank_stored(path, None, surest) if stored else rank_by_certainty(read_embedded(path), None, surest)
        return [row["id"] for row in rows]

    assert ids(surest=False) == [4, 2, 0, 3, 5, 1]
    assert ids(surest=True) == [1, 5, 3, 0, 2, 4]


def test_what_must_be_computed_is_left_to_the_other_reader(tmp_path):
    assert rank_stored(embedded_file(tmp_path, modes=2)) is None
    path = embedded_file(tmp_path, modes=2, labels=label_model())
    assert rank_stored(path) is None
    assert isinstance(read_posteriors(path), VMFMixture)
    assert rank_stored(embedded_file(tmp_path), by="size") is None  # no such score
    np.savez(tmp_path / "long.npz", mu=2 * directions(3).numpy(), kappa=np.ones(3, np.float32))
    np.savez(tmp_path / "whole.npz", mu=np.eye(3, dtype=int), kappa=np.ones(3, int))
    np.savez(tmp_path / "negative.npz", mu=directions(3).numpy(), kappa=-np.ones(3, np.float32))
    for name in ("long", "whole", "negative"):
        assert rank_stored(tmp_path / f"{name}.npz") is None
        with pytest.raises(ValueError, match="holds no posteriors"):
            read_posteriors(tmp_path / f"{name}.npz")


def test_a_file_without_stored_answers_is_computed(tmp_path):
    """Files of older releases have the label probabilities, and not what they say of each item."""
    facts, tensors = pack_label_model(label_model())
    tensors = {f"labels.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    path = tmp_path / "old.safetensors"
    save_file({"mu": directions(3), "kappa": torch.ones(3), **tensors}, path, {"labels": json.dumps(facts)})
    assert rank_stored(path) is None
    assert [row["rank"] for row in rank_by_certainty(read_embedded(path))] == [1, 2, 3]


def test_numbers_that_numpy_does_not_have_are_refused_in_plain_words(tmp_path):
    save_file({"mu": directions(3).bfloat16(), "kappa": torch.ones(3)}, tmp_path / "half.safetensors")
    with pytest.raises(ValueError, match=r"holds no posteriors .*; store mu of length 1 .* float32 or float64"):
        rank_stored(tmp_path / "half.safetensors")


def test_damage_is_noticed_without_torch(tmp_path):
    path = embedded_file(tmp_path, labels=label_model())
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedFileError, match="does not match its checksum"):
        rank_stored(path)


@pytest.mark.parametrize("damaged", [False, True])
def test_rank_starts_without_torch(tmp_path, damaged):
    path = embedded_file(tmp_path, labels=label_model())
    if damaged:
        path.write_bytes(path.read_bytes()[:-1])
    code = (
        "import atexit, sys; from aleator.cli import main; "
        "atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr)); "
        f"sys.argv = ['aleator', 'rank', {str(path)!r}, '--csv', '--limit', '2']; main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == (2 if damaged else 0), result.stderr
    assert result.stderr.splitlines()[-1] == "False"
    assert ("restore it from a copy" in result.stderr) is damaged
