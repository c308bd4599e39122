"""A damaged index in a folder is refused with the file, the problem and the way out, and never answers wrongly."""

import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch

from aleator import VonMisesFisher
from aleator.foundation import DamagedFileError
from aleator.retrieval import CredibleIndex, check_index
from aleator.retrieval.stores.checksums import row_digest
from tests.retrieval.worker import metadata_of, posterior_of

IDS = [f"i{i}" for i in range(30)]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """One index of each kind, which the tests copy."""
    made = {}
    for name, below in (("flat", 100), ("lists", 10)):
        made[name] = tmp_path_factory.mktemp("built") / name
        CredibleIndex.build(posterior_of(IDS), IDS, metadata_of(IDS), location=made[name], exact_below=below).close()
    return made


@pytest.fixture(params=["flat", "lists"])
def folder(tmp_path, request, built):
    return Path(shutil.copytree(built[request.param], tmp_path / "index"))


def change(folder, *statements):
    ledger = sqlite3.connect(folder / "ledger.sqlite")
    with ledger:
        for statement in statements:
            ledger.execute(*statement) if isinstance(statement, tuple) else ledger.execute(statement)
    ledger.close()


@pytest.fixture(params=["as it is", "with right checksums"])
def changed(request):
    """`change`; also followed by right checksums of all rows, so that what they hold is looked at."""

    def change_and_sign(folder, *statements):
        change(folder, *statements)
        ledger = sqlite3.connect(folder / "ledger.sqlite")
        ledger.create_function("row_digest", -1, row_digest)
        with ledger:
            for table in ("config", "items", "vectors", "added", "removed"):
                *columns, _ = [name for _, name, *_ in ledger.execute(f"PRAGMA table_info({table})")]
                ledger.execute(f"UPDATE {table} SET digest = row_digest({', '.join(columns)})")
        ledger.close()

    return change if request.param == "as it is" else change_and_sign


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
def test_settings_that_are_missing_or_empty(folder, changed, value):
    change(folder, "DELETE FROM config WHERE key = 'config'")
    if value is not None:
        changed(folder, ("INSERT INTO config VALUES ('config', ?, 0)", (value,)))
    refused(folder)


@pytest.mark.parametrize("setting", ["next_row", "saved"])
def test_a_count_that_is_lost_is_missed_when_it_is_needed(folder, setting):
    change(folder, f"DELETE FROM config WHERE key = '{setting}'")
    with CredibleIndex.open(folder) as index, pytest.raises(DamagedFileError, match=setting):
        index.save() if setting == "saved" else index.add(index_posterior(index), ["x"])


def index_posterior(index):
    return VonMisesFisher(torch.eye(1, index.dim), 5.0)


@pytest.mark.parametrize("key", ["dim", "kernel", "prior", "fingerprint", "exact_below", "report"])
def test_a_setting_that_is_lost(folder, changed, key):
    config = config_of(folder)
    del config[key]
    changed(folder, ("UPDATE config SET value = ? WHERE key = 'config'", (json.dumps(config),)))
    refused(folder)


@pytest.mark.parametrize("dim", [7, 9, 0, "8", None])
def test_another_dimension(folder, changed, dim):
    config = json.dumps(config_of(folder) | {"dim": dim})
    changed(folder, ("UPDATE config SET value = ? WHERE key = 'config'", (config,)))
    refused(folder)


def test_rows_cut_short(folder, changed):
    changed(folder, "UPDATE vectors SET rows = substr(rows, 1, length(rows) - 8)")
    refused(folder)
    changed(folder, "UPDATE vectors SET rows = substr(rows, 1, length(rows) - 3)")
    refused(folder)


def test_rows_set_to_zero(folder, changed):
    changed(folder, "UPDATE vectors SET rows = zeroblob(length(rows))")
    refused(folder)


def test_kappas_that_are_none(folder, changed):
    changed(folder, "UPDATE vectors SET kappas = substr(kappas, 1, 4)")
    refused(folder)


def test_no_vectors_named(folder, changed):
    changed(folder, "DELETE FROM vectors")
    refused(folder, "does not name its vectors")


@pytest.mark.parametrize("name", ["../elsewhere.faiss", "/etc/passwd", "ledger.sqlite", ""])
def test_vectors_outside_the_folder_are_not_read(folder, changed, name):
    changed(folder, ("UPDATE vectors SET file = ?", (name,)))
    refused(folder)


def test_an_item_that_is_lost(folder, changed):
    changed(folder, "DELETE FROM items WHERE row = (SELECT min(row) FROM items)")
    refused(folder)


def test_an_id_or_metadata_that_were_altered_are_named_when_they_are_shown(folder):
    change(folder, ("UPDATE items SET key = ? WHERE row = 3", ('"other"',)))
    with CredibleIndex.open(folder) as index:
        index.search(posterior_of(["i9"]), by="nearest", limit=1)
        with pytest.raises(DamagedFileError, match=r"does not match its checksum \(row 3\).*aleator index repair"):
            index.search(posterior_of(IDS), by="nearest", limit=30)
    with pytest.raises(DamagedFileError, match="row 3"):
        check_index(folder)


def test_an_item_that_is_lost_under_another_number_is_named_when_it_is_found(folder):
    change(folder, "UPDATE items SET row = 99 WHERE row = 3")
    with (
        CredibleIndex.open(folder) as index,
        pytest.raises(DamagedFileError, match="metadata of 1 items are lost"),
    ):
        index.search(posterior_of(IDS), by="nearest", limit=30)


def test_an_id_that_is_altered_under_an_open_index(folder):
    with CredibleIndex.open(folder) as index:
        change(folder, ("UPDATE items SET note = ? WHERE row = 3", ('{"label": "wrong"}',)))
        with pytest.raises(DamagedFileError, match="row 3"):
            index.search(posterior_of(IDS), by="nearest", limit=30)


def test_an_added_direction_of_another_length(folder):
    with CredibleIndex.open(folder) as index:
        index.add(posterior_of(["x"]), ["x"])
    change(folder, "UPDATE added SET mu = substr(mu, 1, length(mu) - 4)")
    refused(folder)


def test_rows_that_are_lost_are_missed(folder):
    with CredibleIndex.open(folder) as index:
        index.add(posterior_of(["x"]), ["x"])
        index.remove(["i1"])
    for table in ("added", "removed"):
        copy = Path(shutil.copytree(folder, folder.with_name(table)))
        change(copy, f"DELETE FROM {table}")
        refused(copy, "it lists 30 items, and there are vectors of")


@pytest.mark.parametrize("memory_map", [False, True])
def test_vectors_cut_short(folder, memory_map):
    (vectors,) = folder.glob("vectors-*")
    whole = vectors.read_bytes()
    for length in (0, 30, len(whole) // 2, len(whole) - 1):
        vectors.write_bytes(whole[:length])
        message = refused(folder, memory_map=memory_map)
        assert vectors.name in message
    vectors.unlink()
    refused(folder, "missing", memory_map=memory_map)


@pytest.mark.parametrize("memory_map", [False, True])
def test_flipped_vectors_are_refused_or_change_nothing(folder, memory_map):
    (vectors,) = folder.glob("vectors-*")
    with CredibleIndex.open(folder) as index:
        queries = posterior_of(IDS) if index.dim == 8 else index_posterior(index)
        wanted = index.search(queries, by="nearest", limit=5)
    whole, draw, noticed = vectors.read_bytes(), np.random.default_rng(0), 0
    for _ in range(60):
        data = bytearray(whole)
        data[draw.integers(len(data))] ^= 1 << draw.integers(8)
        vectors.write_bytes(data)
        try:
            with CredibleIndex.open(folder, memory_map=memory_map) as index:
                assert index.search(queries, by="nearest", limit=5) == wanted
        except DamagedFileError as damage:
            noticed += vectors.name in str(damage)
    assert noticed >= 40


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
