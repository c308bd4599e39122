"""Two nodes of Ray on this machine: the same file as from one process, also when one node is killed midway."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from aleator.data import Inputs
from aleator.encoders import MLP, Encoder
from aleator.encoders.backbones import ResNet18
from aleator.matching import VMFKernel
from aleator.own_data import Run, embed, embed_into, read_collection, read_embedded
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.object_store import ObjectPath
from aleator.own_data.embedding import cluster
from aleator.own_data.embedding.readable import prepare_readable
from aleator.own_data.embedding.rows import RowFile

# A node that is slow to answer is not dead. One that is killed is seen at once, because its connection breaks.
SLOW = {"health_check_timeout_ms": 120_000, "health_check_initial_delay_ms": 60_000}
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}


def start_two_nodes():
    """Ray gives a node half a minute to start. A busy machine gets several attempts, until a deadline."""
    from ray.cluster_utils import Cluster

    deadline = time.monotonic() + 300
    while True:
        started = Cluster()
        try:
            started.add_node(**NODE, _system_config=SLOW)
            started.add_node(**NODE)
            return started
        except Exception:  # Ray raises errors of several kinds
            started.shutdown()
            if time.monotonic() > deadline:
                raise


@pytest.fixture(scope="module")
def nodes():
    """A cluster of two nodes, each with one core."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # it then uses 127.0.0.1, not the address of the machine
    pytest.importorskip("ray", reason="needs the extra `ray`")
    ray = cluster._import_ray()
    started = start_two_nodes()
    ray.init(started.address, log_to_driver=False, logging_level="ERROR")
    yield started
    ray.shutdown()
    started.shutdown()


@pytest.fixture(autouse=True)
def one_thread():
    """As the workers have: more threads could change the last bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def run():
    torch.manual_seed(0)
    return Run(Path("run"), Encoder(MLP(3, [8]), 4), Inputs("features", features=3), VMFKernel(), 0.5, "abc", {}, {})


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    path = tmp_path_factory.mktemp("features") / "x.npy"
    np.save(path, np.random.default_rng(0).standard_normal((1003, 3)))
    return read_collection(path)


def same_files(first: Path, second: Path) -> bool:
    """Whether posteriors, header and records are the same, byte for byte."""
    return all(
        first.with_suffix(ending).read_bytes() == second.with_suffix(ending).read_bytes()
        for ending in (".safetensors", ".jsonl")
    )


def test_images_on_two_nodes_and_a_damaged_one_is_reported(nodes, photos, tmp_path):
    broken = photos / "red/xx.png"
    broken.write_bytes(b"not a picture")
    torch.manual_seed(0)
    run = Run(tmp_path, Encoder(ResNet18(width=2), 4), Inputs("images", size=8), VMFKernel(), 0.5, "abc", {}, {})
    try:
        items, said, here = read_collection(photos), [], {"batch_size": 4, "device": "cpu", "strict": False}
        alone = embed(run, items, tmp_path / "alone.safetensors", **here)
        shared = embed(run, items, tmp_path / "shared.safetensors", engine="ray", log=said.append, **here)
    finally:
        broken.unlink()
    assert same_files(alone, shared)
    assert len(read_embedded(shared).records) == 60
    assert any("red/xx.png" in line for line in said)
    assert not (tmp_path / "shared.partial").exists()


@pytest.mark.slow  # starts one more worker; a bad row of features, below, takes the same road
def test_a_damaged_image_stops_strict_work(nodes, photos, tmp_path):
    broken = photos / "red/xx.png"
    broken.write_bytes(b"not a picture")
    run = Run(tmp_path, Encoder(ResNet18(width=2), 4), Inputs("images", size=8), VMFKernel(), 0.5, "abc", {}, {})
    options = {"batch_size": 4, "device": "cpu", "engine": "ray", "workers": 1}
    try:
        with pytest.raises(ValueError, match=r"red/xx\.png"):
            embed(run, read_collection(photos), tmp_path / "strict.safetensors", **options)
    finally:
        broken.unlink()


def test_images_of_an_object_store_into_parquet_have_the_rows_of_one_process(
    nodes, photos, tmp_path, object_store, bucket_url
):
    """The worker reads the images itself, with the options of the collection. Other tests have two."""
    from pyarrow import parquet

    torch.manual_seed(0)
    run = Run(tmp_path, Encoder(ResNet18(width=2), 4), Inputs("images", size=8), VMFKernel(), 0.5, "abc", {}, {})
    for path in photos.rglob("*.png"):
        ObjectPath.parse(f"{bucket_url}/{path.relative_to(photos).as_posix()}").upload(path)
    options = {name.lower(): value for name, value in object_store.environment.items()}
    items, here = read_collection(bucket_url, storage_options=options), {"batch_size": 8, "device": "cpu"}
    alone = read_embedded(embed(run, read_collection(photos), tmp_path / "alone.safetensors", **here))
    shared = embed_into(run, items, tmp_path / "shared.parquet", engine="ray", workers=1, **here)
    table = parquet.read_table(shared)
    assert (np.array(table["mu"].to_pylist(), np.float32) == alone.q.mu.numpy()).all()
    assert (table["kappa"].to_numpy() == alone.q.kappa.numpy()).all()
    assert table["id"].to_pylist() == [record["id"] for record in alone.records]


def test_a_bad_row_of_features_is_named_as_by_one_process(nodes, run, tmp_path):
    features = np.zeros((50, 3))
    features[41] = np.nan
    np.save(tmp_path / "x.npy", features)
    with pytest.raises(ValueError, match=r"row 41 of .*not finite"):
        embed(
            run, read_collection(tmp_path / "x.npy"), tmp_path / "x.safetensors", batch_size=2, engine="ray", workers=1
        )


def test_stopped_work_of_one_process_goes_on_with_ray(nodes, run, collection, tmp_path, monkeypatch):
    alone = embed(run, collection, tmp_path / "alone.safetensors", batch_size=100, device="cpu")
    append = RowFile.append

    def stop_at_300(self, rows, digests):
        append(self, rows, digests)
        if self.done == 300:
            raise KeyboardInterrupt

    monkeypatch.setattr(RowFile, "append", stop_at_300)
    output, said = tmp_path / "shared.safetensors", []
    with pytest.raises(KeyboardInterrupt):
        embed(run, collection, output, batch_size=100, device="cpu")
    monkeypatch.undo()
    embed(run, collection, output, batch_size=100, device="cpu", engine="ray", workers=1, log=said.append)
    assert any("300 of 1,003 items are done" in line for line in said)
    assert same_files(alone, output)


def test_a_node_is_killed_midway(nodes, run, collection, tmp_path, monkeypatch):
    """Last in this file: the node does not come back."""
    alone = embed(run, collection, tmp_path / "alone.safetensors", batch_size=5, device="cpu")
    (victim,) = set(nodes.list_all_nodes()) - {nodes.head_node}
    hand_out, killed = cluster._Pool._hand_out, []

    def kill_when_both_work(self, tasks, waiting, given, only_read):
        both_ready = len(self.workers) == 2 and all(worker.starting is None for worker in self.workers)
        if not killed and not both_ready:
            return  # on a busy machine one worker could do everything before the other has started
        hand_out(self, tasks, waiting, given, only_read)
        if given and not killed and all(worker.in_hand for worker in self.workers):
            killed.append(given)
            nodes.remove_node(victim, allow_graceful=False)

    monkeypatch.setattr(cluster._Pool, "_hand_out", kill_when_both_work)
    monkeypatch.setattr(cluster, "_BATCHES", 1)
    monkeypatch.setattr(cluster, "_AHEAD", 2)
    output, said = tmp_path / "shared.safetensors", []
    embed(run, collection, output, batch_size=5, device="cpu", engine="ray", workers=2, log=said.append)
    assert killed
    assert any("a worker is lost" in line for line in said)
    assert same_files(alone, output)
    ids = [record["id"] for record in read_embedded(output).records]
    assert ids == list(range(1003))


def test_a_block_keeps_the_numbers_of_its_items():
    texts = Collection("text", Path("lines.txt"), [f"text {i}" for i in range(100)])
    part = cluster._part(texts, 40, 60)
    assert part.raw(41, 44) == texts.raw(41, 44)
    empty = cluster._part(Collection("text", Path("lines.txt"), ["a", "b", "", "d"]), 2, 4)
    _, numbers, bad = prepare_readable(Inputs("text"), empty, 2, 4)
    assert numbers.tolist() == [3]
    assert bad[2].item == "text 2"


def test_images_and_features_are_named_by_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros((3, 2)))
    shared = cluster._shared_paths(read_collection("x.npy"))
    monkeypatch.chdir("/")
    assert shared.raw(0, 3).shape == (3, 2)
    assert cluster._shared_paths(Collection("images", Path("a"), ["1.png"], Path("a"))).root.is_absolute()


def test_a_block_that_kills_workers_is_an_error():
    cluster._require_few_deaths(1, [(0, 10), (10, 20)])
    with pytest.raises(ValueError, match="5 workers died while they computed items 0 to 19"):
        cluster._require_few_deaths(5, [(0, 10), (10, 20)])


def test_what_is_missing_is_named(run, collection, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="engine = 'local': has no workers and no address"):
        embed(run, collection, tmp_path / "x.safetensors", workers=2)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"needs the package ray; pip install 'aleator\[ray\]'"):
        embed(run, collection, tmp_path / "x.safetensors", engine="ray")
    with pytest.raises(ValueError, match="engine = 'spark': not known"):
        embed(run, collection, tmp_path / "x.safetensors", engine="spark")


def test_one_machine_needs_no_ray():
    code = "import sys, aleator.own_data, aleator.cli; sys.exit('ray' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
