"""Items that cannot be read are left out: the result is that of the collection without them."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from aleator.data import Inputs
from aleator.encoders import Encoder, ResNet18
from aleator.foundation import ProcessGroup
from aleator.matching import VMFKernel
from aleator.own_data import (
    Collection,
    Problem,
    Run,
    Settings,
    audit,
    embed,
    evaluate_embedded,
    read_collection,
    read_embedded,
    train,
)
from aleator.own_data.collection.contents import item_digests
from aleator.own_data.collection.left_out import leave_out, record_left_out
from aleator.own_data.collection.parts import Split
from aleator.own_data.collection.used_items import save_used_items
from aleator.own_data.learning.splits import split_items
from aleator.own_data.measuring.baselines import fit_baselines, save_baselines
from tests.own_data.conftest import complete_settings

SETTINGS = Settings(steps=3, dim=4, width=4, batch_size=16, size=8, holdout=0.4, augment="none")
BAD = ("blue/03.png", "green/00.png", "red/19.png")


@pytest.fixture
def damaged(photos, tmp_path):
    """The photos, three of them damaged in different ways; and a copy without these."""
    shutil.copytree(photos, tmp_path / "photos")
    shutil.copytree(photos, tmp_path / "clean")
    for name in BAD:
        (tmp_path / "clean" / name).unlink()
    broken = tmp_path / "photos"
    (broken / BAD[0]).write_bytes((broken / BAD[0]).read_bytes()[:100])
    (broken / BAD[1]).write_text("not an image")
    (broken / BAD[2]).write_bytes(b"")
    return tmp_path


@pytest.fixture
def image_run(tmp_path):
    torch.manual_seed(0)
    encoder = Encoder(ResNet18(width=4), dim=4).eval()
    return Run(tmp_path / "no-run", encoder, Inputs("images", size=8), VMFKernel(), 0.5, "abc", {}, {})


def test_training_goes_on_without_them(damaged):
    log = []
    folder, clean = damaged / "run", read_collection(damaged / "clean")
    collection = read_collection(damaged / "photos")
    run = train(collection, folder, SETTINGS, device="cpu", baselines=False, strict=False, log=log.append)
    split = split_items(clean, clean.labels, SETTINGS.holdout, SETTINGS.seed)
    with np.load(folder / "items.npz") as used:
        assert used["training"].tolist() == item_digests(clean)[split.train].tolist()
        assert used["test"].tolist() == item_digests(clean)[split.test].tolist()
    assert run.metrics["items"] == len(split.test)
    (report,) = [line for line in log if "cannot be used" in line]
    assert report.startswith("3 of 60 items")
    assert all(name in report for name in BAD)
    assert "--strict" in report
    assert len(json.loads((folder / "left_out.json").read_text())) == 3


@pytest.mark.parametrize("limit", [2**30, 1000], ids=["in memory", "in a file"])
def test_images_that_can_be_read_are_prepared(damaged, monkeypatch, limit):
    from aleator.own_data.learning import preparation

    monkeypatch.setattr(preparation, "_MEMORY_LIMIT", limit)
    settings = complete_settings(backbone="small-resnet", size=8, augment="none")
    prepared = []
    for name in ("photos", "clean", "photos"):  # at last from the file
        job = preparation.Job(damaged / f"run-{name}", ProcessGroup(0, 1, lambda: None), "cpu", strict=False)
        prepared.append(preparation.prepare(read_collection(damaged / name), settings, job))
    assert sorted(prepared[0].problems) == sorted(prepared[2].problems) == [3, 20, 59]
    assert torch.equal(prepared[0].items, prepared[1].items)
    assert torch.equal(prepared[2].items, prepared[1].items)


def test_strict_training_stops_with_all_of_them(damaged):
    with pytest.raises(ValueError, match="3 of 60 items cannot be used") as caught:
        train(read_collection(damaged / "photos"), damaged / "run", SETTINGS, device="cpu", baselines=False)
    assert all(name in str(caught.value) for name in BAD)


def test_embedding_goes_on_without_them(damaged, image_run):
    log = []
    broken, clean = read_collection(damaged / "photos"), read_collection(damaged / "clean")
    path = embed(image_run, broken, damaged / "a.safetensors", batch_size=7, device="cpu", strict=False, log=log.append)
    expected = read_embedded(embed(image_run, clean, damaged / "b.safetensors", device="cpu"))
    found = read_embedded(path)
    assert found.records == expected.records
    torch.testing.assert_close(found.q.mu, expected.q.mu)
    assert log[0].startswith("3 of 60 items cannot be used")
    assert len(log) == 1


def test_the_rest_is_compared_with_baselines(damaged, image_run):
    """The items are read again for the baselines, and found by their ids."""
    none = np.empty(0, np.uint64)
    image_run.folder.mkdir()
    save_used_items(image_run.folder, none, Split(*[none] * 3))  # all items are new to the run
    clean = read_collection(damaged / "clean")
    images = torch.stack([image_run.inputs.load(item) for item in clean.raw(0, len(clean))])
    known = fit_baselines(images, np.arange(len(clean)), clean.labels, inputs="pixels")
    save_baselines(image_run.folder, known)
    rows = []
    for name in ("photos", "clean"):
        path = damaged / f"{name}.safetensors"
        embedded = read_embedded(embed(image_run, read_collection(damaged / name), path, device="cpu", strict=False))
        comparison = evaluate_embedded(embedded, embedded.labels(), run=image_run)["baselines"]
        rows.append([(row["method"], row["recall_at_1"]["value"]) for row in comparison["rows"]])
    assert len(rows[0]) == 3
    assert rows[0] == rows[1]


def test_pairs_of_paths_are_evaluated(damaged, image_run):
    """The pairs of the table that was embedded are found by id; a pair with an item that was left out is gone."""
    paths = [f"photos/{colour}/{i:02d}.png" for colour in ("blue", "green", "red") for i in range(20)]
    lines = [f"{first};{second}" for first, second in zip(paths[::2], paths[1::2], strict=True)]
    table = damaged / "pairs.csv"
    table.write_text("\n".join(["first;second", *reversed(lines)]))
    path = embed(image_run, read_collection(table), damaged / "a.safetensors", device="cpu", strict=False)
    embedded = read_embedded(path)
    pairs = embedded.labels()
    assert (pairs.kind, len(embedded.q), len(pairs.values)) == ("pairs", 57, 27)
    ids = [record["id"] for record in embedded.records]
    assert {f"{ids[a]};{ids[b]}" for a, b in pairs.values} <= set(lines)
    assert evaluate_embedded(embedded, pairs, baselines=False)["items"] == 57
    table.unlink()
    with pytest.raises(ValueError, match="has no label"):
        embedded.labels()


def test_a_strict_embedding_goes_on_when_the_files_are_mended(damaged, image_run):
    broken = damaged / "photos"
    output = damaged / "a.safetensors"
    embed(image_run, read_collection(damaged / "clean"), damaged / "clean.safetensors", device="cpu")
    with pytest.raises(ValueError, match="3 of 60 items"):
        embed(image_run, read_collection(broken), output, batch_size=16, device="cpu")
    for name in BAD:
        Image.fromarray(np.full((8, 8, 3), 90, np.uint8)).save(broken / name)
    whole = read_embedded(embed(image_run, read_collection(broken), output, batch_size=16, device="cpu"))
    fresh = read_embedded(embed(image_run, read_collection(broken), damaged / "fresh.safetensors", device="cpu"))
    assert len(whole.q) == 60
    torch.testing.assert_close(whole.q.mu, fresh.q.mu)


def test_rows_of_unreadable_items_are_tried_again(damaged, image_run, monkeypatch):
    """Work that was stopped after it met a damaged file uses the file when it is mended."""
    from aleator.own_data.embedding import embedding

    output = damaged / "a.safetensors"

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(embedding, "_all_problems", stopped)
        with pytest.raises(KeyboardInterrupt):
            embed(image_run, read_collection(damaged / "photos"), output, device="cpu", strict=False)
    Image.fromarray(np.full((8, 8, 3), 90, np.uint8)).save(damaged / "photos" / BAD[1])
    found = read_embedded(embed(image_run, read_collection(damaged / "photos"), output, device="cpu", strict=False))
    ids = [record["id"] for record in found.records]
    assert len(ids) == 58
    place = ids.index(BAD[1])
    clean = read_collection(damaged / "photos" / "green")
    fresh = read_embedded(embed(image_run, clean, damaged / "fresh.safetensors", device="cpu"))
    torch.testing.assert_close(found.q.mu[place], fresh.q.mu[0])


def test_an_audit_goes_on_without_them(damaged, image_run, monkeypatch):
    from aleator.own_data.auditing import audit as auditing

    monkeypatch.setattr(auditing, "write_audit", lambda *_: None)  # its figures take seconds
    log = []
    collection = read_collection(damaged / "photos")
    found = audit(
        collection, damaged / "audit", run=image_run, device="cpu", progress=False, strict=False, log=log.append
    )
    assert len(found.collection) == len(found.oddness) == 57
    assert log[0].startswith("3 of 60 items cannot be used")


def test_nothing_readable_is_an_error(tmp_path, image_run):
    for i in range(3):
        (tmp_path / f"{i}.png").write_text("no")
    collection = read_collection(tmp_path)
    with pytest.raises(ValueError, match="3 of 3 items cannot be used"):
        embed(image_run, collection, tmp_path / "a.safetensors", device="cpu", strict=False)


def test_problems_add_up(tmp_path):
    first, second = Problem("line 1", "is empty", "remove it"), Problem("text 1", "is odd", "mend it")
    collection = Collection("text", tmp_path / "t.txt", ["one", "two"], problems=(first,), names=[1, 2])
    part = leave_out(collection, {1: second})
    assert (part.items, part.ids(), part.problems) == (["one"], [1], (first, second))
    assert leave_out(collection, {}) is collection


def test_a_resumed_run_leaves_out_the_same_items(tmp_path):
    problems = [Problem("a.png", "is damaged", "copy it")]
    record_left_out(tmp_path, problems)
    record_left_out(tmp_path, problems)
    with pytest.raises(ValueError, match=r"left out other items; now differs: a\.png"):
        record_left_out(tmp_path, [])
