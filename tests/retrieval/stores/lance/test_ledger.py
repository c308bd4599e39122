"""The ledgers of an index on Lance: files in a folder, a table on an object store. Of several writers one wins."""

import itertools
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from aleator.foundation import DamagedFileError
from aleator.retrieval import CredibleIndex, check_index
from aleator.retrieval.stores.base import IndexGoneError
from aleator.retrieval.stores.lance import store
from aleator.retrieval.stores.lance.folder_ledger import FolderLedger, find_ledger
from aleator.retrieval.stores.lance.items import ItemTable
from aleator.retrieval.stores.lance.ledger import Ledger, TableLedger
from aleator.retrieval.stores.lance.place import Place
from tests.retrieval.stores.lance.test_store import add, build
from tests.retrieval.stores.test_kills import everything_in

pytest.importorskip("lancedb")


@pytest.fixture(params=["files", "table"])
def place(request, tmp_path, monkeypatch):
    """An index in a folder whose ledger is files, or a table as on an object store and in earlier releases."""
    if request.param == "table":
        monkeypatch.setattr(store, "create_ledger", TableLedger.create)
    return f"lance:{tmp_path / 'index'}"


def ledger_at(place) -> Ledger:
    parsed = Place.parse(place)
    return find_ledger(parsed, parsed.connect())


def test_a_folder_has_a_file_for_each_state_and_no_other(tmp_path):
    index = build(f"lance:{tmp_path}", ["a"])
    before = index.store.version
    add(index, ["b"])
    assert isinstance(index.store._ledger, FolderLedger)
    names = sorted(path.name for path in (tmp_path / "ledger").iterdir())
    assert names == [f"{number:020d}.json" for number in range(index.store.version)]
    assert index.store.version > before
    states = index.store._ledger.since(0)
    assert [state.number for state in states] == list(range(1, index.store.version))
    assert states[-1].count == 2
    assert index.store._ledger.since(index.store.version - 2) == states[-1:]
    (tmp_path / "ledger" / names[-2]).write_text("damaged")
    assert index.store._ledger.since(0) == states[-1:]


def test_saving_forgets_states_that_are_older_than_a_week(tmp_path):
    index, late = build(f"lance:{tmp_path}", ["a"]), CredibleIndex.open(f"lance:{tmp_path}")
    stalled = ledger_at(f"lance:{tmp_path}")
    add(index, ["b"])
    (tmp_path / "ledger" / ".left.partial").touch()
    for path in (tmp_path / "ledger").iterdir():
        os.utime(path, (0, 0))
    newest = index.store.version
    index.save()
    numbers = sorted(int(path.stem) for path in (tmp_path / "ledger").iterdir())
    assert min(numbers) >= newest  # the newest before the save was of 1970, too
    assert "b" in late  # it had a state that is forgotten
    assert stalled.swap(stalled.state, next_row=0) is None  # so had this writer, and nothing happens
    assert everything_in(CredibleIndex.open(f"lance:{tmp_path}")).keys() == {"a", "b"}
    add(late, ["c"])
    assert "c" in index


def test_a_folder_of_another_name_among_the_indexes_is_left_alone(tmp_path):
    index = build(f"lance:{tmp_path}", ["a"])
    (indexes,) = (table / "_indices" for table in tmp_path.glob("items-*.lance"))
    (indexes / "notes").mkdir(parents=True)
    add(index, ["b"])
    assert everything_in(CredibleIndex.open(f"lance:{tmp_path}")).keys() == {"a", "b"}


def test_every_change_happens_once_and_in_order(place):
    build(place, []).close()
    first = ledger_at(place).state.next_row

    def count_up(_):
        ledger = ledger_at(place)
        for _ in range(5):
            ledger.change(lambda state: {"next_row": state.next_row + 1})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count_up, range(4)))
    assert ledger_at(place).state.next_row == first + 20


def test_of_those_who_build_at_one_place_one_succeeds(place, monkeypatch):
    really = store.create_ledger

    def overtaken(*arguments):
        monkeypatch.setattr(store, "create_ledger", really)
        build(place, ["first"]).close()
        return really(*arguments)

    monkeypatch.setattr(store, "create_ledger", overtaken)
    with pytest.raises(ValueError, match="already holds an index; add to it, or pass replace=True"):
        build(place, ["second"])
    assert set(everything_in(CredibleIndex.open(place))) == {"first"}


@pytest.mark.parametrize("gives_up", ["never", "before", "after"])
def test_whoever_comes_in_between_one_of_two_writers_of_one_id_succeeds(gives_up, place, monkeypatch):
    """A rival adds its whole batch before each step of a writer that reads or changes the ledger or the table.

    On a slow machine Lance then gives up the writer's next change of a table, because others write, after a single
    conflict. It may have happened nevertheless, if the answer of an object store was lost.
    """
    from lancedb.merge import LanceMergeInsertBuilder
    from lancedb.table import LanceTable

    steps = [(Ledger, "refresh"), (Ledger, "swap"), (ItemTable, "add"), (ItemTable, "find"), (ItemTable, "delete")]
    writes = [(LanceTable, "add"), (LanceTable, "delete"), (LanceMergeInsertBuilder, "execute")]
    outcomes = []
    for moment in itertools.count():
        place_now, refused = f"{place}-{moment}", None
        index = build(place_now, ["a"])
        rival = Rival(place_now, moment, gives_up)
        with monkeypatch.context() as patched:
            for owner, name in steps:
                patched.setattr(owner, name, rival.before(getattr(owner, name)))
            for owner, name in writes:
                patched.setattr(owner, name, rival.giving_up(getattr(owner, name)))
            try:
                add(index, ["mine", "shared"])
            except ValueError as error:
                refused = error
        if not rival.came:
            break
        held = set(everything_in(CredibleIndex.open(place_now)))
        if refused is None:
            assert held == {"a", "mine", "shared"}
            assert "already in the index" in str(rival.refused)
        else:
            assert "'shared': already in the index" in str(refused), refused
            assert held == {"a", "rival", "shared"}
            assert rival.refused is None
        assert check_index(place_now) == 3
        outcomes.append(refused is None)
    assert moment >= 8  # steps
    assert set(outcomes) == {True, False}


class Rival:
    """Adds items in the middle of another's call, once: before the step with a number."""

    def __init__(self, place, moment, gives_up):
        self.place, self.left, self.came, self.refused = place, moment, False, None
        self.gives_up = gives_up

    def before(self, really):
        def step(*arguments, **options):
            self.left -= 1
            if self.left < 0 and not self.came:
                self.came = True
                gives_up, self.gives_up = self.gives_up, "never"
                with CredibleIndex.open(self.place) as index:
                    try:
                        add(index, ["rival", "shared"])
                    except ValueError as error:
                        self.refused = error
                self.gives_up = gives_up
            return really(*arguments, **options)

        return step

    def giving_up(self, really):
        """A change of a table that Lance gives up, once, after the rival came."""

        def change(*arguments, **options):
            gives_up = self.gives_up if self.came else "never"
            if gives_up != "never":
                self.gives_up = "never"
            done = really(*arguments, **options) if gives_up != "before" else None
            if gives_up != "never":
                raise RuntimeError(GIVEN_UP)
            return done

        return change


# As Lance 13 says it, seen on an object store that was slow.
GIVEN_UP = "lance error: Too many concurrent writers. Attempted 2 times, but failed on retry_timeout of 30.000 seconds."


def test_a_damaged_or_missing_state_is_named(tmp_path):
    index = build(f"lance:{tmp_path / 'index'}", ["a"])
    newest = max((tmp_path / "index" / "ledger").iterdir())
    whole = newest.read_text()
    values = json.loads(whole)
    for text in (
        "",
        "{",
        "[]",
        "\0" * 99,
        whole[:-3],
        whole.replace('"count": 1', '"count": 2'),
        json.dumps({**values, "more": 1}),
    ):
        newest.write_text(text)
        with pytest.raises(DamagedFileError, match=r"index is damaged: its ledger.*; open an older version"):
            CredibleIndex.open(f"lance:{tmp_path / 'index'}")
    newest.write_text(whole)
    newest.rename(newest.with_name(f"{values['number'] + 1:020d}.json"))
    with pytest.raises(DamagedFileError, match="another number"):
        CredibleIndex.open(f"lance:{tmp_path / 'index'}")
    newest.with_name(f"{values['number'] + 1:020d}.json").unlink()
    with pytest.raises(IndexGoneError, match="not there any more"):
        len(index)


def test_an_index_whose_ledger_is_a_table_keeps_it(tmp_path, monkeypatch):
    """Of an earlier release, in a folder."""
    place = f"lance:{tmp_path / 'index'}"
    with monkeypatch.context() as earlier:
        earlier.setattr(store, "create_ledger", TableLedger.create)
        build(place, ["a", "b"]).close()
    index = CredibleIndex.open(place)
    add(index, ["c"])
    index.remove(["a"])
    build(place, ["d"], replace=True).close()
    assert isinstance(ledger_at(place), TableLedger)
    assert check_index(place) == 1
    assert not (tmp_path / "index" / "ledger").exists()
