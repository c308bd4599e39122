"""The folder of an audit: it is not overwritten, and unfinished work is recognised."""

import numpy as np
import pytest

from aleator.own_data import read_collection
from aleator.own_data.auditing.files import claim_audit_folder


@pytest.fixture
def collection(tmp_path):
    np.save(tmp_path / "x.npy", np.eye(30))
    return read_collection(tmp_path / "x.npy")


def test_a_stopped_audit_goes_on(collection, tmp_path):
    cache = claim_audit_folder(tmp_path / "audit", collection, None, None)
    (cache / "features.rows").write_bytes(b"12345678")
    assert claim_audit_folder(tmp_path / "audit", collection, None, None) == cache
    assert (cache / "features.rows").read_bytes() == b"12345678"


def test_an_audit_of_other_items_is_not_mixed_in(collection, tmp_path):
    claim_audit_folder(tmp_path / "audit", collection, None, None)
    np.save(tmp_path / "other.npy", np.eye(31))
    with pytest.raises(ValueError, match="unfinished audit of other items"):
        claim_audit_folder(tmp_path / "audit", read_collection(tmp_path / "other.npy"), None, None)
    with pytest.raises(ValueError, match="unfinished audit of other items"):
        claim_audit_folder(tmp_path / "audit", collection, None, "features.npy")


def test_a_finished_audit_is_kept(collection, tmp_path):
    claim_audit_folder(tmp_path / "audit", collection, None, None)
    (tmp_path / "audit" / "summary.json").write_text("{}")
    with pytest.raises(ValueError, match="holds a finished audit; name a new folder"):
        claim_audit_folder(tmp_path / "audit", collection, None, None)


def test_a_folder_of_something_else(collection, tmp_path):
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "thesis.txt").write_text("all of it")
    with pytest.raises(ValueError, match="is not empty"):
        claim_audit_folder(tmp_path / "audit", collection, None, None)
