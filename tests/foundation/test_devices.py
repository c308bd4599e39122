"""Names of devices: what they mean, and what is said of those that are none."""

import pytest
import torch

from aleator.foundation.devices import resolve_device


def pretend(monkeypatch, gpus: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)


@pytest.mark.parametrize(
    ("gpus", "name", "device"),
    [(0, "auto", "cpu"), (2, "auto", "cuda:0"), (2, "cpu", "cpu"), (2, "cuda", "cuda"), (2, "cuda:1", "cuda:1")],
)
def test_known_names(monkeypatch, gpus, name, device):
    pretend(monkeypatch, gpus)
    assert resolve_device(name) == torch.device(device)


def test_each_process_of_a_machine_has_its_own_gpu(monkeypatch):
    pretend(monkeypatch, 2)
    indices = []
    for rank in range(3):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        indices.append(resolve_device("auto").index)
    assert indices == [0, 1, 0]


@pytest.mark.parametrize(
    ("gpus", "name", "message"),
    [
        (2, "tpu", "not known.*cpu.*cuda"),
        (2, "cpu:0", "not known"),
        (2, "cuda:x", "not known"),
        (0, "cuda", "no GPU"),
        (2, "cuda:2", "last GPU here is cuda:1"),
    ],
)
def test_what_is_no_device_is_refused(monkeypatch, gpus, name, message):
    pretend(monkeypatch, gpus)
    with pytest.raises(ValueError, match=f"device = '{name}'.*{message}"):
        resolve_device(name)
