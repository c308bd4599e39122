"""Random damages of every format on disk: noticed and named, or harmless. Never a wrong answer, never another error.

`make test` tries a few of each, `make test-all` a thousand; ALEATOR_DAMAGES sets another number.
"""

import os
import random
import shutil
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from aleator import Encoder, VMFMixture, VonMisesFisher, load_encoder
from aleator.data import Inputs
from aleator.encoders import MLP
from aleator.foundation import DamagedFileError
from aleator.own_data import load_run, read_embedded, save_run
from aleator.retrieval import CredibleIndex, items_header, write_items, write_posteriors
from aleator.training.checkpoints import Checkpoints
from tests.fuzzing.mutations import damaged

FEW, MANY = 40, int(os.environ.get("ALEATOR_DAMAGES", "1000"))
IDS = [f"i{i}" for i in range(40)]


def posteriors(dim=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mu = torch.nn.functional.normalize(torch.randn(len(IDS), dim, generator=generator), dim=-1)
    return VonMisesFisher(mu, torch.rand(len(IDS), generator=generator) * 50 + 1)


def damage(path: Path, draw: random.Random) -> str:
    """Damage a file in one of the ways of disks, copies and programs; returns what was done."""
    data, kind = damaged(path.read_bytes(), draw)
    path.write_bytes(data)
    return kind


class Format:
    """A thing on disk: how it is written, and what is read from it."""

    def write(self, folder: Path) -> None:
        raise NotImplementedError

    def read(self, folder: Path):
        raise NotImplementedError

    def files(self, folder: Path) -> list[Path]:
        """Files that are damaged, relative to the folder; one that is named twice is damaged twice as often."""
        return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


class Index(Format):
    def __init__(self, lists=False, memory_map=False, changed=False, modes=1):
        self.lists, self.memory_map, self.changed, self.modes = lists, memory_map, changed, modes

    def posteriors(self):
        q = posteriors()
        if self.modes == 1:
            return q
        components = VonMisesFisher(torch.stack([q.mu, q.mu.flip(0)], 1), torch.stack([q.kappa, q.kappa.flip(0)], 1))
        return VMFMixture(torch.log(torch.tensor([[0.7, 0.3]])).expand(len(IDS), 2), components)

    def write(self, folder):
        q, below = self.posteriors(), 10 if self.lists else 1000
        notes = [{"label": f"c{i % 3}"} for i in range(len(IDS))]
        with CredibleIndex.build(q[:36], IDS[:36], notes[:36], location=folder, exact_below=below) as index:
            if self.changed:
                index.add(q[36:], IDS[36:], notes[36:])
                index.remove(["i1", "i37"])

    def read(self, folder):
        with CredibleIndex.open(folder, memory_map=self.memory_map) as index:
            hits = index.search(
                self.posteriors()[:5], by="nearest", limit=len(IDS)
            )  # ids are verified when they are shown
            found = [
                [(hit.id, hit.cosine, hit.kappa, hit.match_probability, str(hit.metadata)) for hit in one]
                for one in hits
            ]
            return found, len(index), [id in index for id in IDS], index.prior, index.dim


class Posteriors(Format):
    def write(self, folder):
        folder.mkdir()
        q = posteriors()
        records = [{"id": id, "label": f"c{i % 3}"} for i, id in enumerate(IDS)]
        write_items(folder / "p.jsonl", records)
        header = {"fingerprint": "f", "prior": "0.25", "kappa_pos": "9.0"} | items_header(records)
        write_posteriors(folder / "p.safetensors", len(IDS), 6, [(q.mu.numpy(), q.kappa.numpy())], header)

    def read(self, folder):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            embedded = read_embedded(folder / "p.safetensors")
        numbers = embedded.q.mu.tolist(), embedded.q.kappa.tolist(), embedded.prior, float(embedded.kernel.kappa_pos)
        changed = any("was changed after it was written" in str(warning.message) for warning in told)
        return *numbers, [record["id"] for record in embedded.records], None if changed else str(embedded.records)


class Npz(Format):
    """A file from elsewhere: its zip container has checksums of its own."""

    def write(self, folder):
        folder.mkdir()
        q = posteriors()
        np.savez(folder / "p.npz", mu=q.mu.numpy(), kappa=q.kappa.numpy())

    def read(self, folder):
        embedded = read_embedded(folder / "p.npz")
        return embedded.q.mu.tolist(), embedded.q.kappa.tolist()


class SavedEncoder(Format):
    def write(self, folder):
        torch.manual_seed(0)
        Encoder(MLP(5, (8,)), 4).save(folder)

    def read(self, folder):
        q = load_encoder(folder)(torch.linspace(-1, 1, 15).view(3, 5))
        return q.mu.tolist(), q.kappa.tolist()


class SavedRun(Format):
    def write(self, folder):
        folder.mkdir()
        torch.manual_seed(0)
        config = {"settings": {"dim": 4}, "data": {"items": 3}}
        metrics = {"items": 3, "recall_at_1": 0.5}
        inputs = Inputs("features", features=5)
        save_run(
            folder, Encoder(MLP(5, (8,)), 4), inputs, config, metrics, {"kappa_pos": 9.0, "prior": 0.2}, draw=False
        )
        (folder / "README.md").unlink()  # a card for people

    def read(self, folder):
        run = load_run(folder)
        q = run.posteriors(np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5))
        return q.mu.tolist(), q.kappa.tolist(), run.prior, float(run.kernel.kappa_pos), run.metrics, run.fingerprint


class SavedCheckpoints(Format):
    """With two checkpoints: damage of the newer one leads back to the older one, with a warning."""

    def write(self, folder):
        checkpoints = Checkpoints(folder)
        for step in (1, 2):
            checkpoints.save(step, {"step": step, "w": torch.arange(50.0) * step, "more": [{"lr": 0.1}]})

    def read(self, folder):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            state = Checkpoints(folder).latest()
        assert state is not None
        assert torch.equal(state["w"], torch.arange(50.0) * state["step"])
        if state["step"] == 1:
            assert told, "an older checkpoint was taken without a word"
            raise DamagedFileError(folder, "the newer checkpoint", "the older one was taken")
        return state["step"], state["more"]


FORMATS = {
    "index": Index(),
    "index of lists": Index(lists=True),
    "index, memory-mapped": Index(memory_map=True),
    "index of lists, memory-mapped": Index(lists=True, memory_map=True),
    "index, changed since the save": Index(changed=True),
    "index of two modes": Index(modes=2),
    "posteriors file": Posteriors(),
    "npz file": Npz(),
    "encoder": SavedEncoder(),
    "run": SavedRun(),
    "checkpoints": SavedCheckpoints(),
}


def read_or_error(kind: Format, folder: Path):
    """What is read, or the error: damage, a newer format, or a file that is not what it should be."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return None, kind.read(folder)
    except ValueError as error:
        return error, None


def try_damages(name: str, kind: Format, count: int, folder: Path) -> Counter:
    """Damage copies of a thing, one file of it at a time, and count what happens."""
    draw, outcomes = random.Random(name), Counter()
    kind.write(folder / "whole")
    wanted = kind.read(folder / "whole")
    files = kind.files(folder / "whole")
    for number in range(count):
        copy = folder / f"copy-{number}"
        shutil.copytree(folder / "whole", copy)
        file = draw.choice(files)
        done = damage(copy / file, draw)
        error, found = read_or_error(kind, copy)
        if error is not None:
            assert str(copy) in str(error), f"{name}: {done} of {file} is not named: {error}"
            outcomes["named"] += 1
            outcomes["as damage"] += isinstance(error, DamagedFileError)
        else:
            if found != wanted and found[-1] is None:  # posteriors: changed labels, with a warning
                found, outcomes["told"] = (*found[:-1], wanted[-1]), outcomes["told"] + 1
            assert found == wanted, f"{name}: {done} of {file}: a wrong answer"
            outcomes["harmless"] += 1
        shutil.rmtree(copy)
    return outcomes


@pytest.mark.parametrize("name", FORMATS)
def test_damage_is_named_or_harmless(name, tmp_path):
    outcomes = try_damages(name, FORMATS[name], FEW, tmp_path)
    assert outcomes["named"] >= FEW // 4, outcomes


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_many_damages_are_named_or_harmless(name, tmp_path):
    outcomes = try_damages(name, FORMATS[name], MANY, tmp_path)
    print(name, dict(outcomes))
    assert outcomes["named"] >= MANY // 4, outcomes
