"""Damages of the rows of an index on Lance: named, or harmless. Never a wrong answer, never a raw error.

Lance's own files, which say where the rows are, have no checksums (see docs/reliability.md).

`make test` tries a hundred random ones, `make test-all` five hundred of each kind.
"""

import dataclasses
import warnings
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from typer.testing import CliRunner

from aleator.cli import app
from aleator.foundation import DamagedFileError
from aleator.retrieval import CredibleIndex, check_index
from aleator.retrieval.items import encode_id
from aleator.retrieval.stores.lance.store import LanceStore, _Change
from tests.test_damage import IDS, Index, posteriors, try_damages

pytest.importorskip("lancedb")


class LanceIndex(Index):
    """An index on Lance that was built, added to and removed from; files say which rows were removed."""

    reader: ProcessPoolExecutor | None = None  # of all of them
    ended = 0  # processes

    def write(self, folder):
        q, below = self.posteriors(), 10 if self.lists else 1000
        notes = [{"label": f"c{i % 3}"} for i in range(len(IDS))]
        with CredibleIndex.build(q[:36], IDS[:36], notes[:36], location=f"lance:{folder}", exact_below=below) as index:
            index.add(q[36:], IDS[36:], notes[36:])
            index.remove(["i1", "i37"])

    def read(self, folder):
        """In a process of its own, because Lance may end it when it reads a damaged file."""
        LanceIndex.reader = self.reader or ProcessPoolExecutor(1, get_context("spawn"))
        try:
            problem, found = self.reader.submit(read_here, LanceIndex(modes=self.modes), folder).result()
        except BrokenExecutor:
            LanceIndex.reader, self.ended = None, self.ended + 1
            problem = f"{folder}: the process has ended"
        if problem is not None:
            raise ValueError(problem)
        return found

    def read_here(self, folder):
        """Neighbours, by all routes: with the vector index if there is one, exactly, and with a filter."""
        q, found = self.posteriors()[:5], []
        with CredibleIndex.open(f"lance:{folder}") as index:
            for options in ({}, {"exact": True}, {"filter": {"label": "c1"}}):
                for hits in index.search(q, by="nearest", limit=12, **options):
                    found.append([(h.id, h.cosine, h.kappa, h.match_probability, str(h.metadata)) for h in hits])
            certainty = index.store.kappa_range(), index.store.count_below([10.0, 30.0]).tolist()
            held = index.store.existing([encode_id(id) for id in IDS])
            return found, len(index), sorted(held), certainty, index.prior, index.dim

    def files(self, folder):
        """The files of rows. What Lance keeps beside them is its own."""
        return [file for file in super().files(folder) if file.parts[1] == "data"]


def read_here(kind, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return None, kind.read_here(folder)
        except ValueError as error:
            return str(error), None


KINDS = {"exact": {}, "vector index": {"lists": True}, "two modes": {"modes": 2}}


@pytest.mark.parametrize("count", [34, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KINDS)
def test_a_damage_is_named_or_harmless(name, count, tmp_path, capfd):
    kind = LanceIndex(**KINDS[name])
    outcomes = try_damages(f"{name} {count}", kind, count, tmp_path)
    capfd.readouterr()  # what Lance says about its own files
    print(f"{name}: {outcomes['named']} named, {outcomes['harmless']} harmless, {kind.ended} processes ended")
    assert outcomes["named"] >= count // 10
    assert kind.ended == 0


def test_a_lost_file_of_rows_is_damage_which_opening_again_does_not_mend(tmp_path):
    folder = tmp_path / "index"
    LanceIndex().write(folder)
    lost = max(folder.glob("*/data/*"), key=lambda path: path.stat().st_size)
    lost.rename(tmp_path / "lost")
    words = rf"index is damaged: Lance cannot read it .*{lost.name}.*restore it"
    with pytest.raises(DamagedFileError, match=words):
        check_index(f"lance:{folder}")
    with pytest.raises(DamagedFileError, match=words):
        CredibleIndex.open(f"lance:{folder}").search(posteriors()[:1], by="nearest", limit=3)
    (tmp_path / "lost").rename(lost)
    assert check_index(f"lance:{folder}") == 38


# The table is written again with other values, as damage that Lance does not notice would do it.

CHANGES = {
    "a kappa": ("kappa = 3.25", "row = 5"),
    "a vector": ("mu = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]", "row = 5"),
    "an id": ("key = '\"i6\"'", "row = 5"),
    "metadata": ('note = \'{"label": "c0"}\'', "row = 5"),
    "a row": ("row = 4", "row = 5"),
    "a checksum of a vector": ("vector_check = 7", "row = 5"),
    "a checksum of texts": ("text_check = 7", "row = 5"),
}


def change_behind(folder, change):
    with CredibleIndex.open(f"lance:{folder}") as index:
        change(index.store._table)


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("lists", [False, True])
def test_a_changed_value_is_named_by_a_search_and_by_check(name, lists, tmp_path):
    LanceIndex(lists=lists).write(tmp_path / "index")
    changed, where = CHANGES[name]
    change_behind(tmp_path / "index", lambda table: table.update(where=where, values_sql=dict([changed.split(" = ")])))
    with CredibleIndex.open(f"lance:{tmp_path / 'index'}") as index:
        for exact in (False, True):
            with pytest.raises(
                DamagedFileError, match=r"match.*; open an older version, restore it, or build it again"
            ):
                index.search(posteriors()[5:6], by="nearest", limit=40, exact=exact)
    with pytest.raises(DamagedFileError, match="match"):
        check_index(f"lance:{tmp_path / 'index'}")


@pytest.mark.parametrize("lists", [False, True])
def test_items_that_are_lost_or_there_twice_are_named(lists, tmp_path):
    changes = {
        "lost": lambda table: table.delete("row = 5"),
        "twice": lambda table: table.add(table.search().where("row = 5").limit(1).to_arrow()),
    }
    for name, change in changes.items():
        LanceIndex(lists=lists).write(tmp_path / name)
        index = CredibleIndex.open(f"lance:{tmp_path / name}")
        change_behind(tmp_path / name, change)
        for exact in (False, True):
            with pytest.raises(DamagedFileError, match="and 38 were written"):
                index.search(posteriors()[:1], by="nearest", limit=2, exact=exact)
        with pytest.raises(DamagedFileError, match="and 38 were written"):
            check_index(f"lance:{tmp_path / name}")


STATES = {
    "text": ({"values": {"note": "{}"}}, "do not match their checksums"),
    "token": ({"values": {"token": 7}}, "the number of its state is another one"),
    "row": ({"values": {"row": -2}}, "it has 0 rows that say what it holds"),
}


@pytest.mark.parametrize("name", STATES)
def test_a_damaged_or_missing_state_is_named(name, tmp_path):
    LanceIndex().write(tmp_path / "index")
    change, words = STATES[name]
    change_behind(tmp_path / "index", lambda table: table.update(where="row = -1", **change))
    with pytest.raises(DamagedFileError, match=words):
        CredibleIndex.open(f"lance:{tmp_path / 'index'}")


@pytest.mark.parametrize("command", [("info",), ("check",), ("remove", "i5")])
def test_commands_name_damage_in_one_line(command, tmp_path):
    LanceIndex(lists=True).write(tmp_path / "index")
    for file in (tmp_path / "index").glob("*/data/*"):
        file.write_bytes(file.read_bytes()[:40])
    result = CliRunner().invoke(app, ["index", command[0], f"lance:{tmp_path / 'index'}", *command[1:]])
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert f"{tmp_path / 'index'} is damaged: " in result.stderr.splitlines()[-1]


def test_check_asks_the_vector_index_for_items(tmp_path, monkeypatch):
    LanceIndex(lists=True).write(tmp_path / "index")
    monkeypatch.setattr(LanceStore, "closest", lambda self, mu, k, effort: (next(self._blocks()).take([0]), None))
    with pytest.raises(DamagedFileError, match="does not find items that the index holds"):
        check_index(f"lance:{tmp_path / 'index'}")


def test_another_format_is_refused_by_its_number(tmp_path):
    LanceIndex().write(tmp_path / "index")
    index = CredibleIndex.open(f"lance:{tmp_path / 'index'}")
    with pytest.raises(ValueError, match=r"is in format 9.*open it with the release that wrote it"):
        index.store._change(lambda state: _Change(dataclasses.replace(state, format=9)))
    with pytest.raises(ValueError, match=r"is in format 9.*open it with the release that wrote it"):
        CredibleIndex.open(f"lance:{tmp_path / 'index'}")
