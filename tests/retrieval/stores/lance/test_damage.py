"""Damages of an index on Lance: named, or harmless. Never a wrong answer, never a raw error.

A damaged length makes Lance ask for more memory than there is, and then it ends the process. So every file is verified
before Lance reads it.

`make test` tries a hundred random ones, `make test-all` five hundred of each kind.
"""

import json
import shutil
import warnings
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from aleator.cli import app
from aleator.foundation import DamagedFileError
from aleator.retrieval import CredibleIndex, check_index
from aleator.retrieval.items import encode_id
from aleator.retrieval.stores.base import IndexGoneError
from aleator.retrieval.stores.lance import state, store
from aleator.retrieval.stores.lance.certainties import Certainties, merged
from aleator.retrieval.stores.lance.checksums import kappa_checks, text_checks, vector_checks
from aleator.retrieval.stores.lance.files import table_files
from aleator.retrieval.stores.lance.place import Place
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
        """Most files are of older versions, or Lance's own records. Every second damage is of one that may decide."""
        files = super().files(folder)
        deciding = [file for file in files if file.parts[1] in ("data", "_indices", "_deletions")]
        return files + deciding * (len(files) // len(deciding))


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


@pytest.mark.parametrize("kind", ["_versions/*.manifest", "data/*"])
def test_a_file_that_is_lost_is_damage_which_opening_again_does_not_mend(tmp_path, kind):
    folder = tmp_path / "index"
    LanceIndex().write(folder)
    opened = CredibleIndex.open(f"lance:{folder}")
    named = [folder / name for name in opened.store._ledger.state.files]
    lost = next(file for file in folder.glob(f"*/{kind}") if file in named)
    lost.rename(tmp_path / "lost")
    words = rf"index is damaged: {lost.relative_to(folder)} of its newest version is missing; .*restore it"
    with pytest.raises(DamagedFileError, match=words):
        check_index(f"lance:{folder}")
    with pytest.raises(DamagedFileError, match=words):
        CredibleIndex.open(f"lance:{folder}").search(posteriors()[:1], by="nearest", limit=3)
    (tmp_path / "lost").rename(lost)
    assert check_index(f"lance:{folder}") == len(opened)


def test_files_that_a_newer_index_does_not_need_are_no_damage(tmp_path):
    folder = tmp_path / "index"
    LanceIndex().write(folder)
    with CredibleIndex.open(f"lance:{folder}") as reader, reader.store.one_version():
        with CredibleIndex.open(f"lance:{folder}") as writer:
            writer.remove(["i2"])
        shutil.rmtree(next(folder.glob("items-*")))
        with pytest.raises(IndexGoneError, match="open it again"):
            reader.search(posteriors()[:1], by="nearest", limit=3)


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
    """Change the table, and have the ledger name the changed version, with right checksums of its files."""
    with CredibleIndex.open(f"lance:{folder}") as index:
        store = index.store
        store._to_latest(store._ledger.state)
        change(store._items.table)
        store._ledger.change(store._newest)


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
def test_a_lost_item_and_one_that_comes_back_are_named(lists, tmp_path):
    LanceIndex(lists=lists).write(tmp_path / "lost")
    change_behind(tmp_path / "lost", lambda table: table.delete("row = 5"))
    LanceIndex(lists=lists).write(tmp_path / "back")
    change_behind(tmp_path / "back", lambda table: table.restore(table.list_versions()[-2]["version"]))
    for folder in ("lost", "back"):
        for exact in (False, True):
            index = CredibleIndex.open(f"lance:{tmp_path / folder}")
            with pytest.raises(DamagedFileError, match="some are lost, or too many"):
                index.search(posteriors()[:1], by="nearest", limit=2, exact=exact)
        with pytest.raises(DamagedFileError, match="match"):
            check_index(f"lance:{tmp_path / folder}")


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_the_ledger_has_checksums_of_all_files_that_lance_reads(name, saved, tmp_path):
    """Without the other files the answers are the same; and damage of one of these is named before Lance reads it."""
    kind, folder = LanceIndex(**KINDS[name]), tmp_path / "index"
    kind.write(folder)
    with CredibleIndex.open(f"lance:{folder}") as index:
        if saved:
            index.save()
        files = index.store._ledger.state.files
    wanted = kind.read_here(folder)
    for file in folder.rglob("*"):
        if file.is_file() and file.relative_to(folder).as_posix() not in files and file.parent.name != "ledger":
            file.unlink()
    assert kind.read_here(folder) == wanted
    needed = {"_versions", "data", *(["_indices"] if kind.lists else []), *([] if saved else ["_deletions"])}
    assert needed <= {name.split("/")[1] for name in files}
    for file in [folder / name for name in files]:
        whole = file.read_bytes()
        file.write_bytes(whole[:9] + bytes([whole[9] ^ 1]) + whole[10:])
        with pytest.raises(DamagedFileError, match=f"{file.name} does not match its checksum"):
            CredibleIndex.open(f"lance:{folder}")
        file.write_bytes(whole)
    assert check_index(f"lance:{folder}") == 38


@pytest.mark.parametrize("command", [("info",), ("check",), ("remove", "i5")])
def test_commands_name_damage_in_one_line(command, tmp_path):
    LanceIndex(lists=True).write(tmp_path / "index")
    with CredibleIndex.open(f"lance:{tmp_path / 'index'}") as index:
        one_of_each = {name.split("/")[1]: tmp_path / "index" / name for name in index.store._ledger.state.files}
    assert len(one_of_each) == 4
    for file in [max((tmp_path / "index" / "ledger").iterdir()), *one_of_each.values()]:
        whole = file.read_bytes()
        file.write_bytes(whole[:40])
        result = CliRunner().invoke(app, ["index", command[0], f"lance:{tmp_path / 'index'}", *command[1:]])
        assert result.exit_code == 2
        assert isinstance(result.exception, SystemExit)
        assert f"{tmp_path / 'index'} is damaged: " in result.stderr.splitlines()[-1]
        file.write_bytes(whole)


def test_a_manifest_that_cannot_be_read_is_damage(tmp_path):
    LanceIndex().write(tmp_path / "index")
    place, (table,) = Place.parse(f"lance:{tmp_path / 'index'}"), (tmp_path / "index").glob("items-*")
    manifest = min(table.glob("_versions/*.manifest"))
    version, whole = 2**64 - 1 - int(manifest.stem), manifest.read_bytes()
    assert len(table_files(place, table.stem, version, {})) >= 4
    begin = int.from_bytes(whole[-16:-8], "little") + 4
    broken = [b"", whole[:-20], whole[:-4] + b"LANX", whole[:begin] + b"\xff" * 40 + whole[begin + 40 :]]
    broken += [whole[:begin] + b"\x12\x04\x12\x02\x08\x01" + whole[begin + 6 :]]  # a file without a name
    for data in broken:
        manifest.write_bytes(data)
        with pytest.raises(DamagedFileError, match="manifest of version"):
            table_files(place, table.stem, version, {})


def test_check_asks_the_vector_index_for_items(tmp_path, monkeypatch):
    """Where its files have no checksums, as on an object store."""
    LanceIndex(lists=True).write(tmp_path / "index")
    table = "aleator.retrieval.stores.lance.items.ItemTable"
    monkeypatch.setattr(f"{table}.closest", lambda self, mu, k, effort: (next(self.blocks())[0].take([0]), None, None))
    with pytest.raises(DamagedFileError, match="does not find items that the index holds"):
        check_index(f"lance:{tmp_path / 'index'}")


# Formats


def test_an_index_of_an_earlier_release_has_no_checksums_and_still_works(tmp_path, monkeypatch):
    place = f"lance:{tmp_path / 'index'}"
    with monkeypatch.context() as earlier:
        really = store.schema
        earlier.setattr(store, "schema", lambda dim, mixtures, checked: really(dim, mixtures, False))
        earlier.setattr(store, "FORMAT", 1)
        LanceIndex(lists=True).write(tmp_path / "index")
    LanceIndex(lists=True).write(tmp_path / "new")
    state = json.loads(CredibleIndex.open(place).store._ledger.state.to_json())
    assert not {"format", "totals", "files", "digest"} & set(state)
    assert LanceIndex().read_here(tmp_path / "index") == LanceIndex().read_here(tmp_path / "new")
    with CredibleIndex.open(place) as index:
        index.add(posteriors()[1:2], ["i1"])
        index.remove(["i2"])
        index.save()
    with pytest.warns(UserWarning, match="has no checksums"):
        assert check_index(place) == 38
    CredibleIndex.build(posteriors(), IDS, location=place, replace=True).close()
    assert check_index(place) == 40


def test_a_newer_format_is_refused_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "FORMAT", 3)
    monkeypatch.setattr(state, "FORMAT", 3)
    LanceIndex().write(tmp_path / "index")
    monkeypatch.setattr(state, "FORMAT", 2)
    with pytest.raises(ValueError, match=r"is in format 3.*open it with the release that wrote it"):
        CredibleIndex.open(f"lance:{tmp_path / 'index'}")


# Checksums


def test_every_bit_counts():
    draw = np.random.default_rng(0)
    row, mu = np.arange(3), draw.normal(size=(3, 5)).astype(np.float32)
    kappa, weight = np.ones(3, np.float32), np.ones(3, np.float32)
    whole = vector_checks(row, mu, kappa, weight), kappa_checks(row, kappa, np.array([True, False, True]))
    for values in (row, mu, kappa, weight):
        bits = values.view(np.uint8).reshape(-1)
        for place in range(bits.size):
            bits[place] ^= 1 << place % 8
            changed = vector_checks(row, mu, kappa, weight) != whole[0]
            assert changed.tolist() == [i == place * 3 // bits.size for i in range(3)]
            if values is row or values is kappa:
                assert (kappa_checks(row, kappa, np.array([True, False, True])) != whole[1]).sum() == 1
            bits[place] ^= 1 << place % 8
    assert (kappa_checks(row, kappa, np.array([True, True, True])) != whole[1]).tolist() == [False, True, False]


def test_texts_have_checksums_of_their_letters_and_places():
    row = np.zeros(1, np.int64)
    pairs = [("", ""), ("\0", ""), ("", "\0"), ("\0\0", ""), ("ab", ""), ("ba", ""), ("a", "b"), ("b", "a"), ("", "ab")]
    sums = [int(text_checks(row, pa.array([key]), pa.array([note]))[0]) for key, note in pairs]
    assert len(set(sums)) == len(pairs)
    keys, notes = pa.array([key for key, _ in pairs]), pa.array([note for _, note in pairs])
    assert text_checks(np.zeros(len(pairs), np.int64), keys, notes).tolist() == sums
    assert text_checks(np.zeros(3, np.int64), keys.slice(4, 3), notes.slice(4, 3)).tolist() == sums[4:7]
    assert text_checks(row, pa.array(["x" * 5000]), pa.array(["y"])) != text_checks(
        row, pa.array(["x" * 4999]), pa.array(["y"])
    )


def test_texts_whose_ends_are_damaged_have_no_checksum():
    for ends in ([0, 9, 1, 3], [0, 2, 1, 3], [0, -1, 2, 3]):
        broken = pa.StringArray.from_buffers(3, pa.py_buffer(np.array(ends, np.int32)), pa.py_buffer(b"abc"))
        assert text_checks(np.zeros(3, np.int64), broken, pa.array(["y", "y", "y"])) is None
    assert text_checks(np.zeros(1, np.int64), pa.array([None], pa.string()), pa.array(["y"])) is None


# Certainties of a version, from those of the version before


@pytest.mark.parametrize("name", KINDS)
def test_after_a_change_only_the_rows_that_changed_are_read(name, tmp_path, monkeypatch):
    """By the writer and by another reader; a save and an index that was replaced are read anew."""
    kind, place = LanceIndex(**KINDS[name]), f"lance:{tmp_path / 'index'}"
    kind.write(tmp_path / "index")
    whole, draw, q = [], np.random.default_rng(0), kind.posteriors()
    really = Certainties.read.__func__

    def read(cls, items, state, where=None):
        whole.append(where is None)
        return really(cls, items, state, where)

    def certainties(index):
        return index.store.kappa_range(), index.store.count_below(np.linspace(0, 60, 200)).tolist()

    with CredibleIndex.open(place) as writer, CredibleIndex.open(place) as reader:
        certainties(writer), certainties(reader)
        monkeypatch.setattr(Certainties, "read", classmethod(read))
        held = set(IDS) - {"i1", "i37"}
        for step in range(12):
            for _ in range(1 + step % 3):  # the reader may miss some states
                chosen = draw.choice(sorted(held if step % 2 else set(IDS) - held), 2 if step % 2 else 1).tolist()
                chosen = sorted(set(chosen))
                if step % 2:
                    writer.remove(chosen)
                    held -= set(chosen)
                elif chosen[0] not in held:
                    writer.add(q[[IDS.index(id) for id in chosen]], chosen)
                    held |= set(chosen)
            found = certainties(reader)
            assert found == certainties(writer)
            assert not any(whole)
            with CredibleIndex.open(place) as fresh:
                assert certainties(fresh) == found
            whole.clear()
        assert len(reader) == len(held)
        CredibleIndex.build(q, IDS, location=place, replace=True).close()
        assert certainties(reader)[1][-1] == len(IDS)
        assert any(whole)


def test_rows_that_are_lost_or_come_back_under_an_open_index_are_named(tmp_path):
    changes = {"lost": lambda table: table.delete("row = 5")}
    changes["back"] = lambda table: table.restore(table.list_versions()[-2]["version"])
    for name, change in changes.items():
        LanceIndex(lists=True).write(tmp_path / name)
        with CredibleIndex.open(f"lance:{tmp_path / name}") as index:
            index.search(posteriors()[:1], by="nearest", limit=2)
            change_behind(tmp_path / name, change)
            with pytest.raises(DamagedFileError, match="some are lost, or too many"):
                index.search(posteriors()[:1], by="nearest", limit=2)


def test_ascending_values_without_some_and_with_others():
    values, draw = np.sort(np.random.default_rng(0).integers(0, 9, 50)).astype(np.float32), np.random.default_rng(1)
    for _ in range(20):
        lost = np.sort(draw.choice(values, 12, replace=False))
        new = np.sort(draw.integers(0, 12, 7)).astype(np.float32)
        wanted = [*values.tolist(), *new.tolist()]
        for value in lost.tolist():
            wanted.remove(value)
        assert merged(values, new, lost).tolist() == sorted(wanted)
    assert merged(values, values[:0], np.array([3.5], np.float32)) is None
    assert merged(values[:1], values[:0], np.array([values[0]] * 2)) is None
    assert merged(values[:0], values[:0], values[:0]).tolist() == []
