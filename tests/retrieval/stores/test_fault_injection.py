"""Every write, sync, rename and truncation fails once, and disks are full: the state before or after, never between."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from aleator import Encoder
from aleator.encoders import MLP
from aleator.foundation import DamagedFileError, write_bundle
from aleator.retrieval import CredibleIndex, check_index, write_items, write_posteriors
from aleator.training.checkpoints import Checkpoints
from tests.disk_faults import every_failure
from tests.retrieval.worker import metadata_of, posterior_of

IDS = [f"i{i}" for i in range(20)]


def test_an_index(tmp_path):
    whole = tmp_path / "whole"
    with CredibleIndex.build(posterior_of(IDS), IDS, metadata_of(IDS), location=whole) as index:
        index.add(posterior_of(["x"]), ["x"])

    def work(folder):
        with CredibleIndex.open(folder) as index:
            if "y" not in index:
                index.add(posterior_of(["y"]), ["y"])
                index.remove(["i3"])
            if "i3" in index:
                index.remove(["i3"])
            index.save()

    def state(folder):
        check_index(folder)
        with CredibleIndex.open(folder) as index:
            hits = index.search(posterior_of(["any"]), by="nearest", limit=100)[0]
        held = {hit.id: hit.cosine for hit in hits}
        return ("y" in held) and ("i3" not in held)

    assert every_failure(work, state, whole, tmp_path) >= 3


def test_bundles_posteriors_files_and_checkpoints(tmp_path):
    whole = tmp_path / "whole"
    Encoder(MLP(3, (4,)), 3).save(whole / "encoder")
    write_bundle(whole / "thing", "thing", 1, {"n": 1}, {"a": torch.zeros(3)})
    q = posterior_of(IDS)
    write_items(whole / "p.jsonl", [{"id": id} for id in IDS])
    write_posteriors(whole / "p.safetensors", 20, 8, [(q.mu.numpy(), q.kappa.numpy())], {"n": "1"})
    Checkpoints(whole).save(1, {"w": torch.ones(3)})

    def work(folder):
        write_bundle(folder / "thing", "thing", 1, {"n": 2}, {"a": torch.ones(3)}, overwrite=True)

    def state(folder):
        from aleator.foundation import read_bundle

        bundle = read_bundle(folder / "thing", "thing", 1)
        assert torch.equal(bundle.tensors["a"], torch.full((3,), bundle.metadata["n"] - 1.0))
        return bundle.metadata["n"]

    assert every_failure(work, state, whole, tmp_path / "bundle") >= 4

    def write_again(folder):
        kappa = np.full(20, 2.0, np.float32)
        write_posteriors(folder / "p.safetensors", 20, 8, [(q.mu.numpy(), kappa)], {"n": "2"})

    def kappas(folder):
        from aleator.retrieval import read_posteriors

        return read_posteriors(folder / "p.safetensors").kappa.tolist()

    assert every_failure(write_again, kappas, whole, tmp_path / "posteriors") >= 2

    def checkpoint(folder):
        Checkpoints(folder).save(2, {"w": torch.full((3,), 2.0)})

    def newest(folder):
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Checkpoints(folder).latest()["w"].tolist()

    assert every_failure(checkpoint, newest, whole, tmp_path / "checkpoints") >= 2


def test_an_index_cut_at_every_page(tmp_path):
    """Whatever is cut off a file, at every page of it: refused."""
    whole = tmp_path / "whole"
    CredibleIndex.build(posterior_of(IDS), IDS, metadata_of(IDS), location=whole).close()
    for file in ("ledger.sqlite", next(whole.glob("vectors-*")).name):
        size, step = (whole / file).stat().st_size, 4096 if file == "ledger.sqlite" else 50
        for length in range(0, size, step):
            copy = Path(shutil.copytree(whole, tmp_path / "copy"))
            os.truncate(copy / file, length)
            with pytest.raises((DamagedFileError, ValueError), match=r"damaged|holds no index"):
                CredibleIndex.open(copy)
            shutil.rmtree(copy)


FULL_DISK = """
import resource, signal, sys
from aleator.retrieval import CredibleIndex
from tests.retrieval.worker import metadata_of, posterior_of
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder, limits = sys.argv[1], [int(limit) for limit in sys.argv[2].split(",")]
for number, limit in enumerate(limits):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    ids = [f"n{number}-{i}" for i in range(200)]
    try:
        with CredibleIndex.open(folder) as index:
            index.add(posterior_of(ids), ids, metadata_of(ids))
            print("added", number, flush=True)
            index.save()
    except OSError as error:
        print("refused", number, error, file=sys.stderr)
"""


def test_a_full_disk_refuses_in_words_and_loses_nothing(tmp_path):
    folder = tmp_path / "index"
    CredibleIndex.build(posterior_of(IDS), IDS, metadata_of(IDS), location=folder).close()
    limits = ",".join(str(limit) for limit in (4096, 30_000, 60_000, 90_000, 120_000))
    result = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(folder), limits], capture_output=True, text=True, timeout=60
    )
    assert "Traceback" not in result.stderr, result.stderr
    assert "refused" in result.stderr
    added = [int(line.split()[1]) for line in result.stdout.splitlines()]
    assert check_index(folder) == 20 + 200 * len(added)
