"""An index in a folder: durability, files, several processes, damage."""

import sqlite3

import pytest
import torch

from aleator.posteriors import VMFMixture, VonMisesFisher
from aleator.retrieval import CredibleIndex
from tests.retrieval.processes import read, wait_until
from tests.retrieval.worker import metadata_of, posterior_of


def ids_in(index):
    uniform = posterior_of(["any"])
    return {hit.id for hit in index.search(uniform, by="nearest", limit=10_000)[0]}


@pytest.fixture
def folder(tmp_path):
    ids = [f"i{i}" for i in range(20)]
    CredibleIndex.build(posterior_of(ids), ids, metadata_of(ids), location=tmp_path / "index").close()
    return tmp_path / "index"


def test_additions_and_removals_last_without_saving(folder):
    with CredibleIndex.open(folder) as index:
        index.add(posterior_of(["x", "y"]), ["x", "y"])
        index.remove(["i0", "x"])
    wanted = {f"i{i}" for i in range(1, 20)} | {"y"}
    with CredibleIndex.open(folder) as index:
        assert ids_in(index) == wanted
        answers = index.search(posterior_of(sorted(wanted)), by="nearest", limit=3)
        index.save()
        assert index.search(posterior_of(sorted(wanted)), by="nearest", limit=3) == answers
    with CredibleIndex.open(folder) as index:
        assert ids_in(index) == wanted
        assert index.search(posterior_of(sorted(wanted)), by="nearest", limit=3) == answers


def test_the_state_tells_of_an_item_that_took_the_place_of_another(folder):
    with CredibleIndex.open(folder) as index:
        seen = [index.store.state()]
        for i in range(3):
            index.remove([f"i{i}"])
            index.save()  # drops what was removed
            index.add(posterior_of([f"x{i}"]), [f"x{i}"])
            seen.append(index.store.state())
        index.remove(list(ids_in(index)))
        index.save()
        seen.append(index.store.state())
    assert len(set(seen)) == len(seen)


def test_a_folder_holds_a_ledger_and_one_vector_file(folder):
    def names():
        return sorted(path.name.split("-")[0] for path in folder.iterdir())

    assert names() == ["ledger.sqlite", "vectors"]
    with CredibleIndex.open(folder) as index:
        for i in range(3):
            index.add(posterior_of([i]), [i])
            (folder / ".vectors-left-by-a-killed-save.faiss.1.partial").touch()
            index.save()
            assert names() == ["ledger.sqlite", "vectors"]
        (current,) = folder.glob("vectors-*")
        index.save()  # nothing to do
        assert list(folder.glob("vectors-*")) == [current]


def test_saving_elsewhere_moves_and_leaves_the_old_place_alone(folder, tmp_path):
    index = CredibleIndex.open(folder)
    index.add(posterior_of(["x"]), ["x"])
    index.save(tmp_path / "other")
    index.add(posterior_of(["y"]), ["y"])
    index.close()
    with CredibleIndex.open(folder) as old, CredibleIndex.open(tmp_path / "other") as new:
        assert ids_in(new) - ids_in(old) == {"y"}
        assert (len(old), len(new)) == (21, 22)


def test_a_memory_mapped_index_answers_alike_and_refuses_changes(folder):
    queries = posterior_of([f"i{i}" for i in range(20)])
    for lists in (False, True):
        if lists:
            build = CredibleIndex.build(queries, location=folder, replace=True, exact_below=10)
            assert build.recall_report is not None
            build.close()
        with CredibleIndex.open(folder) as index, CredibleIndex.open(folder, memory_map=True) as mapped:
            assert mapped.search(queries) == index.search(queries)
            with pytest.raises(ValueError, match="read-only"):
                mapped.add(posterior_of(["x"]), ["x"])
            with pytest.raises(ValueError, match="read-only"):
                mapped.remove([0])
            assert len(mapped) == 20
    with CredibleIndex.open(folder) as index:
        index.add(posterior_of(["x"]), ["x"])
        with pytest.raises(ValueError, match="since the last save"):
            CredibleIndex.open(folder, memory_map=True)
        index.save()
        with CredibleIndex.open(folder, memory_map=True) as mapped:
            assert len(mapped) == 21


def test_others_see_what_one_process_commits(folder):
    one, two = CredibleIndex.open(folder), CredibleIndex.open(folder)
    one.add(posterior_of(["x"]), ["x"])
    assert "x" in ids_in(two)
    two.remove(["x", "i1"])
    assert len(one) == 19
    two.save()
    one.add(posterior_of(["z"]), ["z"])
    assert ids_in(one) == ids_in(two)
    with pytest.raises(ValueError, match="already in the index"):
        two.add(posterior_of(["z"]), ["z"])
    one.close()
    two.close()


def test_writers_in_several_processes_queue(folder, jobs, tmp_path):
    names, reports = ("p", "q", "r"), []
    for name in names:
        reports.append(tmp_path / name)
        steps = [step for i in range(6) for step in (["add", [f"{name}{i}"]], ["save"])]
        jobs.start(folder, steps, reports[-1])
    wait_until(lambda: all(read(report)[-1:] == ["end"] for report in reports))
    with CredibleIndex.open(folder) as index:
        assert ids_in(index) == {f"i{i}" for i in range(20)} | {f"{name}{i}" for name in names for i in range(6)}


def test_damage_is_noticed(folder, tmp_path):
    (vectors,) = folder.glob("vectors-*")
    whole = vectors.read_bytes()
    vectors.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.raises(ValueError, match="damaged"):
        CredibleIndex.open(folder)
    vectors.unlink()
    with pytest.raises(ValueError, match="damaged"):
        CredibleIndex.open(folder)
    (folder / "ledger.sqlite").write_bytes(b"not a database at all" * 100)
    with pytest.raises(ValueError, match="damaged"):
        CredibleIndex.open(folder)
    with pytest.raises(ValueError, match="holds no index"):
        CredibleIndex.open(tmp_path / "nowhere")


def test_another_format_is_refused(folder):
    with sqlite3.connect(folder / "ledger.sqlite") as ledger:
        ledger.execute("PRAGMA user_version = 99")
    ledger.close()
    with pytest.raises(ValueError, match="format 99"):
        CredibleIndex.open(folder)


def test_exact_below_counts_items_and_not_their_modes(tmp_path):
    """As the other stores do."""
    components = VonMisesFisher(torch.nn.functional.normalize(torch.randn(60, 2, 4), dim=-1), torch.full((60, 2), 9.0))
    two_modes = VMFMixture(torch.full((60, 2), 0.5).log(), components)
    with CredibleIndex.build(two_modes, location=tmp_path / "index", exact_below=61) as index:
        assert index.recall_report is None
        index.add(two_modes[:1], ["one more"])
        index.save()
        assert index.recall_report is not None
    with CredibleIndex.build(two_modes, exact_below=60) as index:
        assert index.recall_report is not None
