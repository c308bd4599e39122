"""Random sequences of calls on an index in a folder or on Lance, beside a plain dictionary of what it must hold."""

import random
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aleator.foundation import DamagedFileError
from aleator.retrieval import CredibleIndex, check_index, repair_index
from tests.retrieval.worker import posterior_of

NAMES = st.lists(st.sampled_from([f"n{i}" for i in range(12)]), min_size=1, max_size=4, unique=True)


class Machine(RuleBasedStateMachine):
    """One place, two open indexes on it, and the model."""

    scheme = ""

    def __init__(self):
        super().__init__()
        self.scratch = Path(tempfile.mkdtemp(prefix="machine"))
        self.folder = self.scratch / "index"
        self.place = f"{self.scheme}{self.folder}"
        self.model: dict[str, dict] = {"n0": {"v": 0}}
        start = posterior_of(["n0"])
        self.open = [
            CredibleIndex.build(start, ["n0"], [{"v": 0}], location=self.place, exact_below=8),
            CredibleIndex.open(self.place),
        ]
        self.version = 0

    def teardown(self):
        for index in self.open:
            index.close()
        shutil.rmtree(self.scratch)

    @rule(which=st.integers(0, 1), names=NAMES)
    def add(self, which, names):
        self.version += 1
        notes = [{"v": self.version}] * len(names)
        if set(names) & set(self.model):
            with pytest.raises(ValueError, match="already in the index"):
                self.open[which].add(posterior_of(names), names, notes)
        else:
            self.open[which].add(posterior_of(names), names, notes)
            self.model |= dict(zip(names, notes, strict=True))

    @rule(which=st.integers(0, 1), names=NAMES)
    def remove(self, which, names):
        if set(names) <= set(self.model):
            self.open[which].remove(names)
            for name in names:
                del self.model[name]
        else:
            with pytest.raises(ValueError, match="not in the index"):
                self.open[which].remove(names)

    @rule(which=st.integers(0, 1))
    def save(self, which):
        self.open[which].save()

    @rule(which=st.integers(0, 1))
    def reopen(self, which):
        self.open[which].close()
        self.open[which] = CredibleIndex.open(self.place)

    @invariant()
    def both_hold_the_model(self):
        for index in self.open:
            self.compare(index)

    def compare(self, index, whole=True, model=None):
        model = self.model if model is None else model
        hits = index.search(posterior_of(["any"]), by="nearest", limit=100, exact=True)[0]
        held = {hit.id: hit.metadata for hit in hits}
        assert len(held) == len(hits) == len(index)
        if whole:
            assert held == model
        else:
            assert held.items() <= model.items()
        for name, found in zip(held, index.search(posterior_of(held), by="nearest", limit=1, exact=True), strict=True):
            assert found[0].id == name
            assert found[0].cosine > 1 - 1e-6


class IndexMachine(Machine):
    """An index in a folder: memory maps, moves, damage and repair."""

    @rule()
    def read_from_disk(self):
        self.open[0].save()
        with CredibleIndex.open(self.folder, memory_map=True) as mapped:
            self.compare(mapped)

    @rule(which=st.integers(0, 1))
    def move_and_come_back(self, which):
        elsewhere = self.scratch / "elsewhere"
        self.open[which].save(elsewhere)
        with CredibleIndex.open(elsewhere) as moved:
            self.compare(moved)
        self.open[which].close()
        shutil.rmtree(elsewhere)
        self.open[which] = CredibleIndex.open(self.folder)

    @precondition(lambda self: len(self.model) > 0)
    @rule(seed=st.integers(0, 10_000))
    def damage_and_repair(self, seed):
        """A damaged copy is refused or whole, and its repair holds a part of the model and nothing else."""
        copy, draw = self.scratch / "copy", random.Random(seed)
        shutil.copytree(self.folder, copy)
        damage_one_bit(draw.choice(sorted(copy.iterdir())), draw)
        try:
            check_index(copy)
        except (DamagedFileError, ValueError):
            try:
                repair_index(copy)
            except ValueError:
                shutil.rmtree(copy)  # nothing was whole, or it is no index any more
                return
        with CredibleIndex.open(copy) as repaired:
            self.compare(repaired, whole=False)
        for left in self.scratch.glob("copy*"):
            shutil.rmtree(left)


def damage_one_bit(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


class LanceMachine(Machine):
    """An index on Lance: older versions, an index that is replaced, damage, and certainties."""

    scheme = "lance:"

    def __init__(self):
        super().__init__()
        self.models: dict[int, dict[str, dict]] = {}

    @rule(which=st.integers(0, 1))
    def replace(self, which):
        self.version += 1
        notes = [{"v": self.version}] * 3
        names = ["n1", "n2", "n3"]
        self.open[which].close()
        self.open[which] = CredibleIndex.build(
            posterior_of(names), names, notes, location=self.place, replace=True, exact_below=8
        )
        self.model = dict(zip(names, notes, strict=True))

    @rule(seed=st.integers(0, 10_000))
    def open_an_older_version(self, seed):
        self.models[self.open[0].store.version] = dict(self.model)
        number = random.Random(seed).choice(sorted(self.models))
        with CredibleIndex.open(f"{self.place}#{number}") as old:
            self.compare(old, model=self.models[number])

    @rule(seed=st.integers(0, 10_000))
    def damage(self, seed):
        """A copy with damaged rows is refused, or whole. A file of an older version need not be whole."""
        copy, draw = self.scratch / "copy", random.Random(seed)
        shutil.copytree(self.folder, copy)
        damage_one_bit(draw.choice(sorted(copy.glob("*/data/*"))), draw)
        try:
            check_index(f"lance:{copy}")
            with CredibleIndex.open(f"lance:{copy}") as index:
                self.compare(index)
        except DamagedFileError:
            pass
        finally:
            shutil.rmtree(copy)

    @invariant()
    def certainties_are_those_of_a_fresh_index(self):
        with CredibleIndex.open(self.place) as fresh:
            fresh.store.check()
            wanted = fresh.store.kappa_range(), fresh.store.count_below(np.arange(9.0)).tolist()
        for index in self.open:
            assert (index.store.kappa_range(), index.store.count_below(np.arange(9.0)).tolist()) == wanted


class LongLanceMachine(LanceMachine):
    """The same, for longer."""


class LongIndexMachine(IndexMachine):
    """The same, for longer."""


RELAXED = {"deadline": None, "suppress_health_check": list(HealthCheck)}
IndexMachine.TestCase.settings = settings(max_examples=3, stateful_step_count=8, **RELAXED)
LongIndexMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, **RELAXED)
TestIndexMachine = IndexMachine.TestCase
TestLongIndexMachine = pytest.mark.slow(LongIndexMachine.TestCase)
LanceMachine.TestCase.settings = settings(max_examples=3, stateful_step_count=8, **RELAXED)
LongLanceMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=25, **RELAXED)
TestLanceMachine = LanceMachine.TestCase
TestLongLanceMachine = pytest.mark.slow(LongLanceMachine.TestCase)
