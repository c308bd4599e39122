"""Straight into Parquet or Lance, from disk and from an S3 server: the rows of the posteriors file."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch

from aleator import VonMisesFisher
from aleator.data import Inputs
from aleator.encoders import Encoder
from aleator.encoders.backbones import ResNet18
from aleator.matching import VMFKernel
from aleator.own_data import Run, embed, embed_into, read_collection, read_embedded, unfinished_work
from aleator.own_data.collection.object_store import ObjectPath
from aleator.own_data.embedding.rows import RowFile
from aleator.retrieval import CredibleIndex


@pytest.fixture
def collection(features):
    return read_collection(features / "x.npy", features / "y.npy")


def table_of(output):
    if not str(output).startswith("s3:"):
        return parquet.read_table(output)
    with ObjectPath.parse(output).reading() as file:
        return parquet.read_table(file)


def check_parquet(output, wanted):
    """The same rows, ids and metadata as the posteriors file has."""
    table, embedded = table_of(output), read_embedded(wanted)
    mu = np.array(table["mu"].to_pylist(), np.float32)
    assert (mu == embedded.q.mu.numpy()).all()
    assert (table["kappa"].to_numpy() == embedded.q.kappa.numpy()).all()
    if embedded.novelty is not None:
        assert (table["novelty"].to_numpy() == embedded.novelty.numpy()).all()
    records = [
        {"id": id, **json.loads(text)}
        for id, text in zip(table["id"].to_pylist(), table["metadata"].to_pylist(), strict=True)
    ]
    assert records == embedded.records
    assert table.schema.metadata[b"aleator.fingerprint"].decode() == embedded.fingerprint


def check_index(location, wanted):
    embedded = read_embedded(wanted)
    with CredibleIndex.open(location) as index:
        hits = index.search(VonMisesFisher.uniform(index.dim, (1,)))[0]
        assert {hit.id: hit.kappa for hit in hits} == pytest.approx(
            {record["id"]: kappa for record, kappa in zip(embedded.records, embedded.q.kappa.tolist(), strict=True)}
        )
        assert index.fingerprint == embedded.fingerprint
        nearest = index.search(embedded.q[:20], by="nearest", limit=1)
        assert [hits[0].cosine for hits in nearest] == pytest.approx([1.0] * 20)


@pytest.mark.parametrize("where", ["folder", "s3"])
def test_parquet_has_the_rows_of_the_posteriors_file(where, run, collection, whole, tmp_path, request, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("aleator.own_data.embedding.exporting._ROWS", 150)
    output = f"{tmp_path if where == 'folder' else request.getfixturevalue('bucket_url')}/all.parquet"
    assert embed_into(run, collection, output, device="cpu") == output
    check_parquet(output, whole)
    assert not unfinished_work(output).parent.exists()
    assert embed_into(run, collection, output, device="cpu") == output  # it is there
    other = Run(run.folder, run.encoder, run.inputs, run.kernel, run.prior, "another", {}, {})
    with pytest.raises(ValueError, match="was made from another run; name another output, or replace"):
        embed_into(other, collection, output, device="cpu")


@pytest.mark.parametrize("where", ["folder", "s3"])
def test_an_index_has_the_rows_of_the_posteriors_file(where, run, collection, whole, tmp_path, request, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = f"lance:{tmp_path / 'index'}/" if where == "folder" else request.getfixturevalue("bucket_url")
    embed_into(run, collection, output, device="cpu")
    check_index(output, whole)
    assert not unfinished_work(output).parent.exists()
    with pytest.raises(ValueError, match="already holds an index"):
        embed_into(run, collection, output, device="cpu")
    embed_into(run, collection, output, device="cpu", replace=True)
    check_index(output, whole)


def test_stopped_work_goes_on(run, collection, whole, tmp_path, monkeypatch):
    append, output, said = RowFile.append, str(tmp_path / "all.parquet"), []

    def stop_at_100(self, rows, digests):
        append(self, rows, digests)
        if self.done == 100:
            raise KeyboardInterrupt

    monkeypatch.setattr(RowFile, "append", stop_at_100)
    with pytest.raises(KeyboardInterrupt):
        embed_into(run, collection, output, device="cpu", batch_size=50)
    monkeypatch.undo()
    assert unfinished_work(output).is_dir()
    assert not Path(output).exists()
    embed_into(run, collection, output, device="cpu", batch_size=50, log=said.append)
    assert any("100 of 400 items are done" in line for line in said)
    assert parquet.read_table(output).num_rows == 400


def claim(work):
    """The folder of the work, as a process leaves it that was killed early."""
    work.mkdir()
    (work / "output.json").write_text("{}")
    return work


STOPS = {
    "before the vector index": "aleator.retrieval.stores.lance.store.LanceStore.save",
    "before the name of the encoder": "aleator.retrieval.CredibleIndex.remember_encoder",
    "before the clean-up": "aleator.own_data.embedding.exporting._remove_work",
}


@pytest.mark.parametrize("stop", STOPS)
def test_an_index_whose_embedding_was_killed_is_finished(stop, run, collection, whole, tmp_path, monkeypatch):
    """At any moment after the items were there. Another index stays as it is."""
    output = f"lance:{tmp_path / 'index'}/"

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(STOPS[stop], killed)
        with pytest.raises(KeyboardInterrupt):
            embed_into(run, collection, output, device="cpu")
    work = unfinished_work(output).parent
    assert work.is_dir()
    if stop == "before the clean-up":  # or in the middle of it
        (work / "posteriors.safetensors").unlink()
    embed_into(run, collection, output, device="cpu")
    check_index(output, whole)
    assert not work.exists()
    claim(work)
    with CredibleIndex.open(output) as index:
        index.remove([next(iter(index.search(VonMisesFisher.uniform(index.dim, (1,)))[0])).id])
    with pytest.raises(ValueError, match="already holds an index"):
        embed_into(run, collection, output, device="cpu")


def test_parquet_of_items_that_changed_is_refused_and_corrected_labels_are_written(run, features, tmp_path):
    x, y, output, said = tmp_path / "x.npy", tmp_path / "y.npy", tmp_path / "all.parquet", []
    rows, labels = np.load(features / "x.npy")[:40], np.load(features / "y.npy")[:40]
    np.save(x, rows)
    np.save(y, labels)
    embed_into(run, read_collection(x, y), output, device="cpu")
    np.save(y, labels[::-1])
    before = parquet.read_table(output)
    embed_into(run, read_collection(x, y), output, device="cpu", log=said.append)
    fresh = embed(run, read_collection(x, y), tmp_path / "fresh.safetensors", device="cpu")
    check_parquet(output, fresh)
    assert parquet.read_table(output)["mu"] == before["mu"]
    assert "labels" in said[-1]
    written = output.read_bytes()
    embed_into(run, read_collection(x, y), output, device="cpu", log=said.append)
    assert (output.read_bytes(), said[-1]) == (written, f"{output} is finished already")
    np.save(x, rows + 1)
    with pytest.raises(ValueError, match="items that have changed since; name another output"):
        embed_into(run, read_collection(x, y), output, device="cpu")
    assert output.read_bytes() == written


@pytest.mark.parametrize("output", ["all.parquet", "lance:index/"])
def test_a_folder_of_the_user_in_the_place_of_the_work_is_kept(output, run, collection, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    work = unfinished_work(output).parent
    work.mkdir()
    (work / "posteriors.jsonl").write_text("mine")
    with pytest.raises(ValueError, match=r"posteriors\.jsonl'?: is not ours"):
        embed_into(run, collection, output, device="cpu")
    (work / "posteriors.jsonl").rename(tmp_path / "mine")
    embed_into(run, collection, output, device="cpu")
    assert not work.exists()
    claim(work)
    (tmp_path / "mine").rename(work / "mine")
    with pytest.raises(ValueError, match=r"mine'?: is not ours"):
        embed_into(run, collection, output, device="cpu", replace=True)
    assert (work / "mine").read_text() == "mine"


def test_parquet_that_was_written_is_cleaned_up_after(run, collection, tmp_path, monkeypatch):
    output = str(tmp_path / "all.parquet")
    embed_into(run, collection, output, device="cpu")
    work = claim(unfinished_work(output).parent)
    embed_into(run, collection, output, device="cpu")
    assert not work.exists()


def test_images_on_a_store_have_the_posteriors_of_those_on_disk(photos, tmp_path, bucket_url):
    torch.manual_seed(0)
    run = Run(tmp_path, Encoder(ResNet18(width=2), 4), Inputs("images", size=8), VMFKernel(), 0.5, "abc", {}, {})
    for path in photos.rglob("*.png"):
        ObjectPath.parse(f"{bucket_url}/{path.relative_to(photos).as_posix()}").upload(path)
    here = embed(run, read_collection(photos), tmp_path / "here.safetensors", device="cpu")
    there = embed(run, read_collection(bucket_url), tmp_path / "there.safetensors", device="cpu")
    assert torch.equal(read_embedded(here).q.mu, read_embedded(there).q.mu)
    assert torch.equal(read_embedded(here).q.kappa, read_embedded(there).q.kappa)
    assert read_embedded(here).records == read_embedded(there).records


def test_a_posteriors_file_is_written_as_before(run, collection, whole, tmp_path):
    output = embed_into(run, collection, tmp_path / "all.safetensors", device="cpu")
    assert Path(output).read_bytes() == whole.read_bytes()
    assert unfinished_work(output) == tmp_path / "all.partial"
    with pytest.raises(ValueError, match="are for object stores"):
        embed_into(run, collection, tmp_path / "x.safetensors", storage_options={})


def test_another_ending_is_answered_with_all_that_can_be_written(run, collection, tmp_path):
    with pytest.raises(
        ValueError, match=r"has another ending; name it .safetensors or .parquet; or an index, such as lance:"
    ):
        embed_into(run, collection, str(tmp_path / "out"), device="cpu")
