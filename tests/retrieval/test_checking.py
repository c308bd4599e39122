"""What is whole in a damaged index is kept, what is lost is named, and the damaged folder stays."""

import shutil
import sqlite3

import numpy as np
import pytest
import torch

from aleator import VMFMixture, VonMisesFisher
from aleator.foundation import DamagedFileError
from aleator.retrieval import CredibleIndex, check_index, repair_index
from tests.retrieval.worker import metadata_of, posterior_of

IDS = [f"i{i}" for i in range(60)]


@pytest.fixture(params=["flat", "lists"])
def folder(tmp_path, request):
    path = tmp_path / "index"
    below = 10 if request.param == "lists" else 100
    with CredibleIndex.build(
        posterior_of(IDS), IDS, metadata_of(IDS), location=path, exact_below=below, prior=0.25, fingerprint="f"
    ) as index:
        index.remove(["i3", "i4"])
        index.add(posterior_of(["x", "y"]), ["x", "y"], metadata_of(["x", "y"]))
    return path


def change(folder, *statement):
    ledger = sqlite3.connect(folder / "ledger.sqlite")
    with ledger:
        ledger.execute(*statement)
    ledger.close()


def answers(path, **options):
    with CredibleIndex.open(path, **options) as index:
        hits = index.search(posterior_of(["any"]), by="nearest", limit=100)[0]
        assert (index.prior, index.fingerprint) == (0.25, "f")
        return {hit.id: (hit.cosine, hit.kappa, hit.match_probability, hit.metadata) for hit in hits}


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 32
    path.write_bytes(data)


def test_a_whole_index_is_left_as_it_is(folder):
    assert check_index(folder) == 60
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    repaired = repair_index(folder)
    assert (repaired.kept, repaired.damaged) == (60, None)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_lost_vectors_are_named_or_made_again(folder, tmp_path):
    wanted = answers(folder)
    (vectors,) = folder.glob("vectors-*")
    vectors.unlink()
    again = shutil.copytree(folder, tmp_path / "again")
    with pytest.raises(DamagedFileError):
        check_index(folder)
    repaired = repair_index(folder)  # those added since the last save are in the ledger
    assert (repaired.kept, len(repaired.lost), repaired.notes) == (2, 58, ["the vector file is missing"])
    assert answers(folder) == {id: wanted[id] for id in ("x", "y")}
    assert check_index(folder) == 2
    assert repaired.damaged == tmp_path / "index.damaged-1"
    assert (repaired.damaged / "ledger.sqlite").is_file()
    repaired = repair_index(again, posterior_of(IDS), IDS)
    assert (repaired.kept, repaired.made_again, repaired.lost) == (60, 58, [])
    assert answers(again) == wanted


def test_a_damaged_vector_loses_its_item_alone(folder):
    wanted = answers(folder)
    with CredibleIndex.open(folder) as index:
        direction = index.store.vectors.vectors(np.array([7]))[0].tobytes()
    (vectors,) = folder.glob("vectors-*")
    flip(vectors, vectors.read_bytes().index(direction) + 2)
    repaired = repair_index(folder)
    assert (repaired.kept, repaired.lost) == (59, ["i7"])
    assert repaired.notes == ["1 of 60 vectors in the vector file are damaged"]
    assert answers(folder) == {id: wanted[id] for id in wanted if id != "i7"}


def test_a_damaged_id_loses_one_item(folder):
    wanted = answers(folder)
    change(folder, "UPDATE items SET key = ? WHERE row = 9", ('"other"',))
    repaired = repair_index(folder)
    assert (repaired.kept, repaired.nameless, repaired.lost) == (59, 1, [])
    assert answers(folder) == {id: wanted[id] for id in wanted if id != "i9"}


def test_settings_that_are_lost_are_named(folder):
    change(folder, "DELETE FROM config WHERE key = 'config'")
    repaired = repair_index(folder, posterior_of(IDS), IDS)
    assert "the settings are lost" in repaired.notes[0]
    with CredibleIndex.open(folder) as index:
        assert index.fingerprint is None
        assert len(index) == repaired.kept == 60


def test_a_list_of_vectors_that_is_damaged(folder):
    wanted = answers(folder)
    change(folder, "UPDATE vectors SET rows = zeroblob(length(rows))")
    repaired = repair_index(folder, posterior_of(IDS), IDS)
    assert repaired.notes == ["the list of vectors is damaged"]
    assert answers(folder) == wanted


def test_several_modes(tmp_path):
    components = VonMisesFisher(torch.nn.functional.normalize(torch.randn(20, 2, 5), dim=-1), torch.rand(20, 2) * 50)
    q = VMFMixture(torch.log_softmax(torch.randn(20, 2), -1), components)
    path = tmp_path / "index"
    CredibleIndex.build(q, location=path).close()
    with CredibleIndex.open(path) as index:
        wanted = index.search(q[:3], by="nearest", limit=20)
    change(path, "UPDATE items SET note = '{}x' WHERE row = 5")
    assert repair_index(path).kept == 19
    with CredibleIndex.open(path) as index:
        found = index.search(q[:3], by="nearest", limit=20)
    assert found == [[hit for hit in hits if hit.id != 5] for hits in wanted]


@pytest.mark.parametrize("damage", ["cut", "delete"])
def test_vectors_that_are_lost_together_come_back_from_the_posteriors(tmp_path, damage):
    path = tmp_path / "small"
    CredibleIndex.build(posterior_of(IDS), IDS, metadata_of(IDS), location=path, prior=0.25, fingerprint="f").close()
    wanted = answers(path)
    (vectors,) = path.glob("vectors-*")
    whole = vectors.read_bytes()
    if damage == "cut":
        vectors.write_bytes(whole[:-3])
    else:
        vectors.unlink()
    with pytest.raises(DamagedFileError, match="index repair`, with --from POSTERIORS"):
        check_index(path)
    with pytest.raises(ValueError, match="no item is whole; run `aleator index repair` --from the posteriors file"):
        repair_index(path)
    with pytest.raises(ValueError, match="no item is whole; restore it from a copy"):  # it was passed, and is another
        repair_index(path, posterior_of(["x"]), ["x"])
    repaired = repair_index(path, posterior_of(IDS), IDS)
    assert (repaired.kept, repaired.made_again, repaired.lost) == (60, 60, [])
    assert answers(path) == wanted


def test_a_lost_ledger_is_named(folder):
    (folder / "ledger.sqlite").unlink()
    for use in (check_index, repair_index, lambda path: repair_index(path, posterior_of(IDS), IDS)):
        with pytest.raises(ValueError, match=r"has vectors and no ledger\.sqlite, .*build the index again"):
            use(folder)
    CredibleIndex.build(posterior_of(IDS), IDS, metadata_of(IDS), location=folder).close()
    assert check_index(folder) == 60


def test_where_nothing_is_whole(tmp_path, folder):
    (folder / "ledger.sqlite").write_bytes(b"nothing" * 1000)
    with pytest.raises(ValueError, match="no item is whole; restore it from a copy, or build it again"):
        repair_index(folder)
    with pytest.raises(ValueError, match="holds no index"):
        repair_index(tmp_path)
    with pytest.raises(ValueError, match="is on a server"):
        repair_index("postgresql://host/db#name")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index"]
