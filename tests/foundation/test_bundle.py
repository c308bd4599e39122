import json
import os

import pytest
import torch

from aleator.foundation import DamagedFileError
from aleator.foundation.bundle import pack_state, read_bundle, unpack_state, write_bundle

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([1, 2])}


def test_pack_is_inverted_exactly():
    state = {
        "state": {0: {"step": torch.tensor(3.0), "none": None}, 1: {}},
        "groups": [{"lr": 0.1 + 0.2, "betas": (0.9, 0.999), "fused": True, "name": "x"}],
        "raw": b"\x00\xff",
        (1, "tuple key"): [float("inf")],
    }
    tensors: dict[str, torch.Tensor] = {}
    packed = json.loads(json.dumps(pack_state(state, tensors)))
    back = unpack_state(packed, tensors)
    assert torch.equal(back["state"][0].pop("step"), state["state"][0].pop("step"))
    assert back == state


def test_pack_names_what_it_cannot_save():
    with pytest.raises(ValueError, match=r"state/optimiser/0 = 'object'"):
        pack_state({"optimiser": [object()]}, {})


def test_round_trip_and_same_content_twice(tmp_path):
    one = write_bundle(tmp_path / "x", "thing", 1, {"n": 1}, TENSORS)
    assert write_bundle(tmp_path / "x", "thing", 1, {"n": 1}, TENSORS) == one
    bundle = read_bundle(tmp_path / "x", "thing", 1)
    assert bundle.metadata == {"n": 1}
    assert bundle.fingerprint == one
    assert all(torch.equal(bundle.tensors[key], TENSORS[key]) for key in TENSORS)


def test_other_content_is_not_overwritten_unless_asked(tmp_path):
    write_bundle(tmp_path / "x", "thing", 1, {"n": 1}, TENSORS)
    with pytest.raises(ValueError, match=r"not empty.*overwrite=True"):
        write_bundle(tmp_path / "x", "thing", 1, {"n": 2}, TENSORS)
    assert read_bundle(tmp_path / "x", "thing", 1).metadata == {"n": 1}
    write_bundle(tmp_path / "x", "thing", 1, {"n": 2}, {"a": torch.zeros(1)}, overwrite=True)
    assert read_bundle(tmp_path / "x", "thing", 1).metadata == {"n": 2}
    assert len(list((tmp_path / "x").iterdir())) == 2


def test_a_crash_while_overwriting_leaves_the_old_bundle(tmp_path, monkeypatch):
    write_bundle(tmp_path / "x", "thing", 1, {"n": 1}, TENSORS)
    replace = os.replace

    def crash_at_the_index(source, target):
        if str(target).endswith(".json"):
            raise OSError("power cut")
        replace(source, target)

    monkeypatch.setattr(os, "replace", crash_at_the_index)
    with pytest.raises(OSError, match="power cut"):
        write_bundle(tmp_path / "x", "thing", 1, {"n": 2}, {"a": torch.zeros(1)}, overwrite=True)
    assert read_bundle(tmp_path / "x", "thing", 1).metadata == {"n": 1}


@pytest.mark.parametrize("target", ["thing.json", "thing-*.safetensors"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
def test_damage_is_noticed(tmp_path, target, damage):
    write_bundle(tmp_path, "thing", 1, {"n": 1, "text": "abc"}, TENSORS)
    (path,) = tmp_path.glob(target)
    data = bytearray(path.read_bytes())
    if damage == "truncate":
        data = data[: len(data) // 2]
    elif damage == "flip":
        data[data.index(b"abc") if target.endswith("json") else -1] ^= 1
    else:
        data = bytearray()
    path.write_bytes(data)
    with pytest.raises(DamagedFileError, match="damaged"):
        read_bundle(tmp_path, "thing", 1)


def test_other_versions_formats_and_nothing_at_all(tmp_path):
    write_bundle(tmp_path / "x", "thing", 2, {}, TENSORS)
    with pytest.raises(ValueError, match="format version 2, and this release reads version 1"):
        read_bundle(tmp_path / "x", "thing", 1)
    with pytest.raises(ValueError, match=r"holds no thing\.json"):
        read_bundle(tmp_path, "thing", 1)


def test_tensors_outside_the_folder_are_not_read(tmp_path):
    write_bundle(tmp_path / "x", "thing", 1, {}, TENSORS)
    index = tmp_path / "x" / "thing.json"
    document = json.loads(index.read_text())
    document["tensors"]["file"] = "../" + document["tensors"]["file"]
    del document["sha256"]
    from aleator.foundation.bundle import _fingerprint

    index.write_text(json.dumps(document | {"sha256": _fingerprint(document)}))
    with pytest.raises(ValueError, match="outside itself"):
        read_bundle(tmp_path / "x", "thing", 1)


def test_tensors_whose_places_read_alike_are_kept_apart(tmp_path):
    state = {"a/b": torch.tensor(1), "a": {"b": torch.tensor(2)}, 1: torch.tensor(3), "1": torch.tensor(4)}
    tensors: dict[str, torch.Tensor] = {}
    back = unpack_state(json.loads(json.dumps(pack_state(state, tensors))), tensors)
    assert back == state
