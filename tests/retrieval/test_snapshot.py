"""A snapshot holds all items of an index."""

import json

import numpy as np
import torch

from aleator import CredibleIndex, VonMisesFisher
from aleator.retrieval import take_snapshot


def test_a_snapshot_holds_what_was_added(location):
    mu = torch.nn.functional.normalize(torch.randn(300, 5), dim=-1)
    kappa = torch.cat([torch.tensor([0.0, torch.inf]), torch.rand(298) * 100])
    ids = [i if i % 2 else f"item {i}" for i in range(300)]
    notes = [{"label": i % 7} for i in range(300)]
    with CredibleIndex.build(VonMisesFisher(mu, kappa), ids, notes, location=location) as index:
        index.remove(["item 4"])
        index.add(VonMisesFisher(mu[:1], kappa[2:3]), ["late"])
        snapshot = take_snapshot(index)
    kept = [i for i in range(300) if i != 4]
    assert [json.loads(key) for key in snapshot.keys] == [*(ids[i] for i in kept), "late"]
    assert [json.loads(note) for note in snapshot.metadata_json] == [*(notes[i] for i in kept), {}]
    assert np.array_equal(snapshot.kappa, torch.cat([kappa[kept], kappa[2:3]]).numpy())
    assert np.allclose(snapshot.mu, torch.cat([mu[kept], mu[:1]]).numpy(), atol=1e-6)
