"""A damaged index in a folder is refused with the file, the problem and the way out, and never answers wrongly."""

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from aleator import VonMisesFisher
from aleator.foundation import DamagedFileError
from aleator.retrieval import CredibleIndex
from tests.retrieval.worker import metadata_of, posterior_of

RELEASE_1 = Path(__file__).parents[1] / "release_1" / "index"
IDS = [f"i{i}" for i in range(30)]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """One index of each kind, which the tests copy; also one of an older release, without checksums."""
    made = {"release 1": RELEASE_1}
    for name, below in (("flat", 100), ("lists", 10)):
        made[name] = tmp_path_factory.mktemp("built") / name
        CredibleIndex.build(posterior_of(IDS), IDS, metadata_of(IDS), location=made[name], exact_below=below).close()
    return made


@pytest.fixture(params=["flat", "lists"])
def folder(tmp_path, request, built):
    return Path(shutil.copytree(built[request.param], tmp_path / "index"))


@pytest.fixture(params=["flat", "lists", "release 1"])
def any_folder(tmp_path, request, built):
    return Path(shutil.copytree(built[request.param], tmp_path / "index"))


def change(folder, *statements):
    ledger = sqlite3.connect(folder / "ledger.sqlite")
    with ledger:
        for statement in statements:
            ledger.execute(*statement) if isinstance(statement, tuple) else ledger.execute(statement)
    ledger.close()


def config_of(folder):
    ledger = sqlite3.connect(folder / "ledger.sqlite")
    (text,) = ledger.execute("SELECT value FROM config WHERE key = 'config'").fetchone()
    ledger.close()
    return json.loads(text)


def refused(folder, match=None, **options):
    with pytest.raises(DamagedFileError, match=match) as caught:
        CredibleIndex.open(folder, **options)
    message = str(caught.value)
    assert str(folder) in message
    assert "aleator index repair" in message
    return message


@pytest.mark.parametrize("value", [None, "", "{}", "null", "[1]"])
def test_settings_that_are_missing_or_empty(any_folder, value):
    change(any_folder, "DELETE FROM config WHERE key = 'config'")
    if value is not None:
        change(any_folder, ("INSERT INTO config VALUES ('config', ?)", (value,)))
    refused(any_folder)


@pytest.mark.parametrize("setting", ["next_row", "saved"])
def test_a_count_that_is_lost_is_missed_when_it_is_needed(tmp_path, setting):
    path = Path(shutil.copytree(RELEASE_1, tmp_path / "index"))
    change(path, f"DELETE FROM config WHERE key = '{setting}'")
    with CredibleIndex.open(path) as index, pytest.raises(DamagedFileError, match=setting):
        index.save() if setting == "saved" else index.add(index_posterior(index), ["x"])


def index_posterior(index):
    return VonMisesFisher(torch.eye(1, index.dim), 5.0)


@pytest.mark.parametrize("key", ["dim", "kernel", "prior", "fingerprint", "exact_below", "report"])
def test_a_setting_that_is_lost(any_folder, key):
    config = config_of(any_folder)
    del config[key]
    change(any_folder, ("UPDATE config SET value = ? WHERE key = 'config'", (json.dumps(config),)))
    refused(any_folder)


@pytest.mark.parametrize("dim", [7, 9, 0, "8", None])
def test_another_dimension(any_folder, dim):
    config = json.dumps(config_of(any_folder) | {"dim": dim})
    change(any_folder, ("UPDATE config SET value = ? WHERE key = 'config'", (config,)))
    refused(any_folder)


def test_rows_cut_short(any_folder):
    change(any_folder, "UPDATE vectors SET rows = substr(rows, 1, length(rows) - 8)")
    refused(any_folder)
    change(any_folder, "UPDATE vectors SET rows = substr(rows, 1, length(rows) - 3)")
    refused(any_folder)


def test_rows_set_to_zero(any_folder):
    change(any_folder, "UPDATE vectors SET rows = zeroblob(length(rows))")
    refused(any_folder)


def test_kappas_that_are_none(any_folder):
    change(any_folder, "UPDATE vectors SET kappas = substr(kappas, 1, 4)")
    refused(any_folder)


def test_no_vectors_named(any_folder):
    change(any_folder, "DELETE FROM vectors")
    refused(any_folder, "does not name its vectors|do not match their checksum")


@pytest.mark.parametrize("name", ["../elsewhere.faiss", "/etc/passwd", "ledger.sqlite", ""])
def test_vectors_outside_the_folder_are_not_read(any_folder, name):
    change(any_folder, ("UPDATE vectors SET file = ?", (name,)))
    refused(any_folder)


def test_an_item_that_is_lost(any_folder):
    change(any_folder, "DELETE FROM items WHERE row = (SELECT min(row) FROM items)")
    refused(any_folder)


def test_an_id_that_was_altered(folder):
    change(folder, ("UPDATE items SET key = ? WHERE row = 3", ('"other"',)))
    refused(folder, "ids and metadata do not match their checksum")


def test_an_id_that_is_altered_under_an_open_index(folder):
    with CredibleIndex.open(folder) as index:
        change(folder, ("UPDATE items SET note = ? WHERE row = 3", ('{"label": "wrong"}',)))
        with pytest.raises(DamagedFileError, match="item 3"):
            index.search(posterior_of(IDS), by="nearest", limit=30)


def test_an_added_direction_of_another_length(folder):
    with CredibleIndex.open(folder) as index:
        index.add(posterior_of(["x"]), ["x"])
    change(folder, "UPDATE added SET mu = substr(mu, 1, length(mu) - 4)")
    refused(folder)


def test_a_total_that_was_altered(folder):
    change(folder, "UPDATE checks SET total = total + 1 WHERE name = 'items'")
    refused(folder)


@pytest.mark.parametrize("memory_map", [False, True])
def test_vectors_cut_short(any_folder, memory_map):
    (vectors,) = any_folder.glob("vectors-*")
    whole = vectors.read_bytes()
    for length in (0, 30, len(whole) // 2, len(whole) - 1):
        vectors.write_bytes(whole[:length])
        message = refused(any_folder, memory_map=memory_map)
        assert vectors.name in message
    vectors.unlink()
    refused(any_folder, "missing", memory_map=memory_map)


@pytest.mark.parametrize("memory_map", [False, True])
def test_flipped_vectors_are_refused_or_change_nothing(any_folder, memory_map):
    (vectors,) = any_folder.glob("vectors-*")
    with CredibleIndex.open(any_folder) as index:
        queries = posterior_of(IDS) if index.dim == 8 else index_posterior(index)
        wanted = index.search(queries, by="nearest", limit=5)
    whole, draw, noticed = vectors.read_bytes(), np.random.default_rng(0), 0
    for _ in range(60):
        data = bytearray(whole)
        data[draw.integers(len(data))] ^= 1 << draw.integers(8)
        vectors.write_bytes(data)
        try:
            with CredibleIndex.open(any_folder, memory_map=memory_map) as index:
                assert index.search(queries, by="nearest", limit=5) == wanted
        except DamagedFileError as damage:
            noticed += vectors.name in str(damage)
    assert noticed >= 40


def test_a_memory_mapped_part_is_verified_when_it_is_first_read(tmp_path):
    ids = [f"i{i}" for i in range(2000)]
    path = tmp_path / "index"
    with CredibleIndex.build(posterior_of(ids), ids, location=path, exact_below=10, recall=0.5) as index:
        direction = index.store.vectors.vectors(np.array([77]))[0].tobytes()
    (vectors,) = path.glob("vectors-*")
    data = bytearray(vectors.read_bytes())
    place = data.index(direction)
    data[place + 3] ^= 64
    vectors.write_bytes(data)
    with CredibleIndex.open(path, memory_map=True) as index:  # opening reads no list
        with pytest.raises(DamagedFileError, match=r"part \d+ of the vectors"):
            index.search(posterior_of(["i77"]), by="nearest", limit=1)
        answered = 0
        for id in ids[:40]:
            try:
                answered += index.search(posterior_of([id]), by="nearest", limit=1)[0][0].id == id
            except DamagedFileError:
                continue
        assert answered > 0
        with pytest.raises(DamagedFileError):
            index.search(posterior_of(["i77"]), by="nearest", limit=1, exact=True)


def test_a_folder_that_is_removed_or_replaced_under_an_open_index(folder, tmp_path):
    index, copy = CredibleIndex.open(folder), tmp_path / "copy"
    shutil.copytree(folder, copy)
    shutil.rmtree(folder)
    for use in (
        lambda: index.search(posterior_of(["i1"])),
        lambda: index.add(posterior_of(["x"]), ["x"]),
        lambda: index.remove(["i1"]),
        lambda: len(index),
        lambda: "i1" in index,
        index.save,
    ):
        with pytest.raises(ValueError, match="removed or replaced while the index was open; open it again"):
            use()
    copy.rename(folder)
    with pytest.raises(ValueError, match="removed or replaced"):
        len(index)
    index.close()
    with CredibleIndex.open(folder) as again:
        assert len(again) == 30


def test_a_closed_index_says_so(folder):
    index = CredibleIndex.open(folder)
    index.close()
    with pytest.raises(ValueError, match="the index is closed"):
        index.search(posterior_of(["i1"]))


def test_a_ledger_without_its_seal_is_verified_row_by_row(folder):
    (folder / "ledger.sqlite.seal").unlink()
    CredibleIndex.open(folder).close()
    (folder / "ledger.sqlite.seal").write_text('{"version": 1, "sha256": 7}')
    CredibleIndex.open(folder).close()
    change(folder, "UPDATE items SET note = '{}' WHERE row = 2")
    refused(folder, "ids and metadata")


def test_reading_the_seal_keeps_the_locks_of_this_process(folder):
    """POSIX drops a process's locks on a file when any descriptor of it is closed."""
    writer = CredibleIndex.open(folder)
    ledger = writer.store._ledger
    with ledger.transaction():
        CredibleIndex.open(folder).close()
        other = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"
        state = subprocess.run([sys.executable, "-c", other, folder / "ledger.sqlite"], capture_output=True, text=True)
        assert "database is locked" in state.stderr
    writer.close()
