"""Embedding gives the encoder's posteriors; killed work is resumed; processes share the work."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

from aleator.data.inputs import Inputs
from aleator.encoders.backbones import ResNet18
from aleator.encoders.encoder import Encoder
from aleator.foundation import lock_beside, only_process
from aleator.matching.kernels import VMFKernel
from aleator.own_data import Run, embed, load_run, read_collection, read_embedded
from aleator.own_data.embedding.rows import RowFile
from tests.own_data.conftest import blobs

HERE = Path(__file__).parents[1]


def test_the_file_holds_what_the_encoder_says(run, whole):
    tensors = load_file(whole)
    q = run.posteriors(blobs()[0])
    torch.testing.assert_close(tensors["mu"], q.mu)
    torch.testing.assert_close(tensors["kappa"], q.kappa)
    with safe_open(whole, "pt") as file:
        header = file.metadata()
    assert header["fingerprint"] == run.fingerprint
    assert float(header["kappa_pos"]) == float(run.kernel.kappa_pos)
    assert float(header["prior"]) == run.prior
    lines = [json.loads(line) for line in whole.with_suffix(".jsonl").read_text().splitlines()]
    content = lines[7].pop("content")
    assert lines[7] == {"id": 7, "label": str(blobs()[1][7]), "used": "training"}
    assert len(content) == 16
    assert len(lines) == 400
    assert sorted(path.name for path in whole.parent.iterdir()) == ["all.jsonl", "all.safetensors"]


def test_batches_and_threads_change_nothing_but_rounding(run, features, whole, tmp_path):
    odd = embed(run, read_collection(features / "x.npy"), tmp_path / "odd.safetensors", batch_size=17, threads=3)
    torch.testing.assert_close(load_file(odd)["mu"], load_file(whole)["mu"], rtol=1e-5, atol=1e-6)


def test_a_finished_file_is_neither_made_again_nor_overwritten(run, features, whole, tmp_path):
    before = whole.stat().st_mtime_ns
    collection = read_collection(features / "x.npy", features / "y.npy")
    embed(run, collection, whole)
    assert whole.stat().st_mtime_ns == before
    other = tmp_path / "other.safetensors"
    other.write_bytes(b"something else")
    with pytest.raises(ValueError, match="holds something else"):
        embed(run, collection, other)
    assert other.read_bytes() == b"something else"
    embed(run, collection, other, replace=True)
    assert len(load_file(other)["kappa"]) == 400


def kill_when(done: int, command: list[str]) -> None:
    """Start the process, wait until it has written so many rows, and kill it."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if int(line) >= done:
                break
            process.stdin.write("\n")
            process.stdin.flush()
        process.send_signal(signal.SIGKILL)


def test_a_killed_process_goes_on(run, features, whole, tmp_path):
    output = tmp_path / "all.safetensors"
    names = [str(features / "run"), str(features / "x.npy"), str(output)]
    for done in (100, 200):
        kill_when(done, [sys.executable, str(HERE / "embed_slowly.py"), *names])
        assert not output.exists()
        part = tmp_path / "all.partial" / "part-0000.rows"
        assert part.stat().st_size >= done * (4 * (run.encoder.dim + 1) + 8)
        with open(part, "ab") as file:  # a row that was cut short
            file.write(b"abc")
    collection = read_collection(features / "x.npy")
    with pytest.raises(ValueError, match="unfinished work of another collection; finish that first, or pass --replace"):
        embed(run, read_collection(write_rows(tmp_path, 10)), output)
    embed(run, collection, output)
    assert not part.parent.exists()
    torch.testing.assert_close(load_file(output)["mu"], load_file(whole)["mu"], rtol=1e-5, atol=1e-6)


def write_rows(folder: Path, count: int) -> Path:
    np.save(folder / "few.npy", blobs(count)[0])
    return folder / "few.npy"


def test_two_processes_share_the_work(run, features, whole, tmp_path):
    output = tmp_path / "all.safetensors"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "aleator", "embed"]
    command += [str(features / "run"), str(features / "x.npy"), "--output", str(output), "--device", "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("400 items") == 1
    torch.testing.assert_close(load_file(output)["mu"], load_file(whole)["mu"], rtol=1e-5, atol=1e-6)
    assert len(output.with_suffix(".jsonl").read_text().splitlines()) == 400


def test_images_from_folders_and_tables(photos, tmp_path):
    """The same images from folders and from a table in another order give the same posteriors."""
    encoder = Encoder(ResNet18(width=2), 4).eval()
    run = Run(tmp_path, encoder, Inputs("images", size=8), VMFKernel(10.0), 0.5, "abc", {}, {})
    folder = read_embedded(embed(run, read_collection(photos), tmp_path / "folder.safetensors", batch_size=7))
    names = [record["path"] for record in folder.records]
    assert len(names) == 60
    assert folder.records[0].items() >= {"id": "blue/00.png", "path": "blue/00.png", "label": "blue"}.items()
    table = photos / "items.csv"
    table.write_text("path\n" + "\n".join(reversed(names)) + "\n")
    turned = read_embedded(embed(run, read_collection(table), tmp_path / "table.safetensors", batch_size=16))
    table.unlink()
    torch.testing.assert_close(turned.q.mu.flip(0), folder.q.mu, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(folder.q.mu[:2], run.posteriors([photos / name for name in names[:2]]).mu)


def test_a_damaged_image_stops_the_work_and_a_mended_one_lets_it_go_on(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "photos")
    broken = tmp_path / "photos/red/07.png"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:60])
    run = Run(tmp_path, Encoder(ResNet18(width=2), 4), Inputs("images", size=8), VMFKernel(10.0), 0.5, "abc", {}, {})
    collection, output = read_collection(tmp_path / "photos"), tmp_path / "photos.safetensors"
    with pytest.raises(ValueError, match=r"red/07\.png.*damaged"):
        embed(run, collection, output, batch_size=10)
    assert not output.exists()
    assert (tmp_path / "photos.partial/part-0000.rows").stat().st_size == 40 * (4 * 5 + 8)  # four batches of ten
    broken.write_bytes(whole)
    assert len(load_file(embed(run, collection, output, batch_size=10))["kappa"]) == 60


def little_run(folder):
    torch.manual_seed(0)
    return Run(folder, Encoder(ResNet18(width=2), 4), Inputs("images", size=8), VMFKernel(10.0), 0.5, "abc", {}, {})


def turn(path):
    """Another image under the same name."""
    with Image.open(path) as image:
        image.rotate(180).save(path)


@pytest.mark.parametrize(("changed", "done"), [(range(20), 0), ([7], 12)])
def test_images_that_changed_while_work_was_stopped_are_embedded_again(photos, tmp_path, changed, done):
    """Stopped at a damaged image; then images are replaced under their names, and the same command is repeated."""
    shutil.copytree(photos / "red", tmp_path / "red")
    run, output, said = little_run(tmp_path), tmp_path / "red.safetensors", []
    names = sorted((tmp_path / "red").iterdir())
    whole = names[-1].read_bytes()
    names[-1].write_bytes(b"")
    with pytest.raises(ValueError, match=r"19\.png"):
        embed(run, read_collection(tmp_path / "red"), output, batch_size=4, device="cpu")
    names[-1].write_bytes(whole)
    for i in changed:
        turn(names[i])
    embed(run, read_collection(tmp_path / "red"), output, batch_size=4, device="cpu", log=said.append)
    fresh = embed(run, read_collection(tmp_path / "red"), tmp_path / "fresh.safetensors", batch_size=4, device="cpu")
    assert output.read_bytes() == fresh.read_bytes()
    assert output.with_suffix(".jsonl").read_bytes() == fresh.with_suffix(".jsonl").read_bytes()
    assert said[0] == f"goes on: {done} of 20 items are done"
    assert said[1].startswith(f"{min(len(changed), 16)} items have changed since")


def test_corrected_labels_are_written_again(photos, tmp_path):
    table, names = tmp_path / "items.csv", [f"{photos}/red/{i:02d}.png" for i in range(20)]

    def label_all(word):
        table.write_text("path,label\n" + "".join(f"{name},{word}{name[-5]}\n" for name in names))
        return read_collection(table)

    run, output, said = little_run(tmp_path), tmp_path / "red.safetensors", []
    beside = output.with_suffix(".jsonl")
    embed(run, label_all("wrong"), output, device="cpu")
    posteriors = load_file(output)
    corrected = label_all("right")
    embed(run, corrected, output, device="cpu", log=said.append)
    embedded = read_embedded(output)  # no warning that the file beside it was changed
    assert {record["label"] for record in embedded.records} == {f"right{i}" for i in range(10)}
    assert all(torch.equal(value, posteriors[name]) for name, value in load_file(output).items())
    assert "labels" in said[-1]
    made = output.stat().st_mtime_ns
    embed(run, corrected, output, device="cpu", log=said.append)
    assert (output.stat().st_mtime_ns, said[-1]) == (made, f"{output} is finished already")
    beside.unlink()  # lost: written again
    embed(run, corrected, output, device="cpu")
    assert len(read_embedded(output).records) == 20
    beside.write_text(beside.read_text().replace("right0", "mine"))  # by the user
    embed(run, corrected, output, device="cpu", log=said.append)
    with pytest.raises(ValueError, match=r"red\.jsonl'?: was changed after it was written"):
        embed(run, label_all("other"), output, device="cpu")
    assert "mine" in beside.read_text()


def test_a_file_of_the_user_among_unfinished_work_is_kept(run, features, tmp_path):
    output = tmp_path / "all.safetensors"
    stop_after(3, run, features, output)
    notes = tmp_path / "all.partial" / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(ValueError, match=r"notes\.txt'?: is not ours"):
        embed(run, read_collection(features / "x.npy"), output, batch_size=40, device="cpu")
    assert notes.read_text() == "mine"


def test_images_that_changed_under_their_names_are_not_taken_for_finished(photos, tmp_path):
    shutil.copytree(photos / "red", tmp_path / "red")
    run = Run(tmp_path, Encoder(ResNet18(width=2), 4), Inputs("images", size=8), VMFKernel(10.0), 0.5, "abc", {}, {})
    output = embed(run, read_collection(tmp_path / "red"), tmp_path / "red.safetensors")
    made = output.stat().st_mtime_ns
    os.utime(tmp_path / "red/07.png", (0, 0))
    assert embed(run, read_collection(tmp_path / "red"), output).stat().st_mtime_ns == made
    size = (tmp_path / "red/07.png").stat().st_size
    turn(tmp_path / "red/07.png")
    os.truncate(tmp_path / "red/07.png", size)  # of the same size
    with pytest.raises(ValueError, match=r"items that have changed since; name another output, or .*--replace"):
        embed(run, read_collection(tmp_path / "red"), output)
    assert embed(run, read_collection(tmp_path / "red"), output, replace=True).stat().st_mtime_ns > made


def test_images_text_and_features_do_not_mix(run, photos, tmp_path):
    with pytest.raises(ValueError, match="holds images, and the run was trained on features"):
        embed(run, read_collection(photos), tmp_path / "x.safetensors")
    np.save(tmp_path / "wide.npy", np.zeros((3, 7)))
    with pytest.raises(ValueError, match="has rows of 7, the run takes 6"):
        embed(run, read_collection(tmp_path / "wide.npy"), tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match=r"name it \.safetensors"):
        embed(run, read_collection(tmp_path / "wide.npy"), tmp_path / "x.npz")


@pytest.mark.parametrize("device", ["moon", "cuda:99", "cpu:x"])
def test_an_unknown_device_is_refused(run, features, tmp_path, device):
    with pytest.raises(ValueError, match="device"):
        embed(load_run(run.folder), read_collection(features / "x.npy"), tmp_path / "x.safetensors", device=device)


def stop_after(blocks: int, run, features, output):
    """Embed in batches of 40, and stop as if the process were killed."""
    append, done = RowFile.append, []

    def append_or_stop(self, rows, digests):
        if len(done) == blocks:
            raise KeyboardInterrupt
        done.append(len(rows))
        append(self, rows, digests)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowFile, "append", append_or_stop)
        with pytest.raises(KeyboardInterrupt):
            embed(run, read_collection(features / "x.npy"), output, batch_size=40, device="cpu")


def test_of_two_embeddings_into_one_file_the_second_is_told(run, features, tmp_path):
    output = tmp_path / "all.safetensors"
    stop_after(3, run, features, output)
    partial = {path.name: path.read_bytes() for path in (tmp_path / "all.partial").iterdir()}
    with only_process(lock_beside(output), "output", "embed"):  # as the first one holds it
        for replace in (False, True):
            with pytest.raises(ValueError, match=f"embed, process {os.getpid()} on .*; wait for it or stop it"):
                embed(run, read_collection(features / "x.npy"), output, replace=replace)
    assert {path.name: path.read_bytes() for path in (tmp_path / "all.partial").iterdir()} == partial
    embed(run, read_collection(features / "x.npy"), output, batch_size=40, device="cpu")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.jsonl", "all.safetensors"]


@pytest.mark.parametrize("record", [None, b"", b"{", b"[]", b"null"])
def test_unfinished_work_without_its_record_begins_again(run, features, tmp_path, record):
    parts = tmp_path / "all.partial"
    parts.mkdir()
    (parts / "part-0000.rows").write_bytes(b"\1" * 1000)
    (parts / ".embedding.json.123.partial").write_bytes(b"{")
    if record is not None:
        (parts / "embedding.json").write_bytes(record)
    made = embed(run, read_collection(features / "x.npy"), tmp_path / "all.safetensors", device="cpu")
    torch.testing.assert_close(read_embedded(made).q.mu, run.posteriors(blobs()[0]).mu)
    assert not parts.exists()


def test_unfinished_work_of_another_run_is_explained_and_can_be_replaced(run, features, tmp_path):
    parts, collection = tmp_path / "all.partial", read_collection(features / "x.npy")
    parts.mkdir()
    (parts / "embedding.json").write_text('{"model": "other", "names": "others", "processes": 1}')
    (parts / "part-0000.rows").write_bytes(b"\1" * 1000)
    with pytest.raises(ValueError, match="another run and collection; finish that first, or pass --replace"):
        embed(run, collection, tmp_path / "all.safetensors", device="cpu")
    made = embed(run, collection, tmp_path / "all.safetensors", device="cpu", replace=True)
    torch.testing.assert_close(read_embedded(made).q.mu, run.posteriors(blobs()[0]).mu)
    (parts).mkdir()
    (parts / "letters.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"letters\.txt.*is not ours"):
        embed(run, collection, tmp_path / "all.safetensors", device="cpu", replace=True)
    shutil.rmtree(parts)
    parts.write_text("a file")
    with pytest.raises(ValueError, match="is a file where the unfinished work belongs"):
        embed(run, collection, tmp_path / "all.safetensors", device="cpu", replace=True)


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_damaged_rows_of_unfinished_work_are_made_again(run, features, whole, tmp_path, damage):
    output = tmp_path / "all.safetensors"
    stop_after(4, run, features, output)
    rows = tmp_path / "all.partial" / "part-0000.rows"
    data = bytearray(rows.read_bytes())
    data[len(data) // 2] ^= 16
    rows.write_bytes(data if damage == "flip" else data[: len(data) // 2])
    embed(run, read_collection(features / "x.npy"), output, batch_size=40, device="cpu")
    torch.testing.assert_close(load_file(output)["mu"], load_file(whole)["mu"], rtol=1e-5, atol=1e-6)
