"""Worker processes make the same batches and continue where they stopped."""

import pytest
import torch

from aleator.data.batches import LabelledBatches
from tests.data.cases import HARD, Listed


def test_workers_give_the_same_batches_and_go_on_where_they_stopped():
    batches = LabelledBatches(Listed(torch.randn(8, 3)), HARD, 6)
    loader = batches.loader(workers=1, seed=5)
    straight = [batch for _, batch in zip(range(4), loader, strict=False)]
    assert loader.state_dict()["taken"] == 4
    resumed = batches.loader(workers=0, seed=5)
    resumed.load_state_dict({"taken": 2, "seed": 5})
    for old, new in zip(straight[2:], resumed, strict=False):
        assert all(torch.equal(a, b) for a, b in zip(old, new, strict=True))
    with pytest.raises(ValueError, match="began with 4"):
        resumed.load_state_dict({"taken": 2, "seed": 4})
