"""Every item read once, which finds the bad ones before training, and an encoder built for them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from aleator.data import Inputs
from aleator.encoders import MLP, Chain, Encoder, ResNet18, Standardise, UnitScale
from aleator.foundation import CountBar, ProcessGroup, resolve_device, writing_atomically
from aleator.own_data.collection import Collection
from aleator.own_data.pretrained import load_pretrained
from aleator.own_data.rows import RowFile, prefetched, spans, stream
from aleator.posteriors import VonMisesFisher

_IN_MEMORY = 2**30  # bytes of images; more lie in a file of the run
_SAMPLE = 20_000  # rows that say how features are distributed


class Job:
    """What is trained: an encoder and its inputs as one tensor; and the whole encoder, from raw items on."""

    def __init__(self, inputs: Inputs, encoder: Encoder, items: Tensor, network: nn.Module | None = None):
        self.inputs, self.encoder, self.items, self.network = inputs, encoder, items, network

    def part(self, chosen: np.ndarray) -> "Tensor | Part":
        """Some of the items: in memory, or where they lie if they are many."""
        large = self.items.numel() * self.items.element_size() > _IN_MEMORY
        return Part(self.items, chosen) if large else self.items[torch.as_tensor(chosen)]

    def complete(self) -> Encoder:
        """The encoder with the frozen network in front of its head, where there is one."""
        if self.network is None:
            return self.encoder
        head = self.encoder.backbone
        assert isinstance(head, Chain)
        return self.encoder.with_backbone(Chain([self.network, *head.parts])).eval()


class Part:
    """Some rows of a tensor that is too large to copy, as a dataset."""

    def __init__(self, items: Tensor, chosen: np.ndarray):
        self.items, self.chosen = items, chosen

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> Tensor:
        return self.items[int(self.chosen[index])]


def prepare(
    collection: Collection,
    values: dict[str, Any],
    folder: Path,
    group: ProcessGroup,
    device: str,
    progress: bool | None,
) -> Job:
    """Decode or read every item once, which finds the bad ones before training, and build the encoder."""
    torch.manual_seed(values["seed"])
    if values["backbone"] == "resnet18":
        inputs = Inputs("images", size=values["size"])
        images = _decoded(collection, inputs, folder / "cache", group, progress)
        mean, std = _colours(images)
        inputs = Inputs("images", size=values["size"], mean=mean, std=std)
        network = ResNet18(width=values["width"])
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # twice as fast on a CPU
        encoder = Encoder(network, values["dim"])
        _start_kappa(encoder, inputs.normalise(images[:: len(images) // 256 + 1]), values["dim"])
        return Job(inputs, encoder, images)
    if values["backbone"] == "features":
        frozen, inputs = None, Inputs("features", features=collection.features)
        rows = torch.from_numpy(np.concatenate([collection.raw(*s) for s in spans(0, len(collection), 65_536)]))
    else:
        frozen, inputs = load_pretrained(values["backbone"].removeprefix("hf:"), collection.kind)
        rows = _features(frozen, inputs, collection, folder / "cache", group, device, progress)
    width = rows.shape[1]
    hidden = MLP(width, [values["width"], values["width"]])
    head = Chain([Standardise(width).fit(_some(rows)), UnitScale(width), hidden])
    encoder = Encoder(head, values["dim"])
    _start_kappa(encoder, _some(rows)[:1024], values["dim"])
    return Job(inputs, encoder, rows, frozen)


def _start_kappa(encoder: Encoder, sample: Tensor, dim: int) -> None:
    """Begin where a posterior covers a good part of the sphere, so that certainty is earned."""
    encoder.set_kappa_range(sample, kappa_range=(0.5 * dim, 2.0 * dim))


def _decoded(collection: Collection, inputs: Inputs, cache: Path, group: ProcessGroup, progress: bool | None) -> Tensor:
    """All images (N, 3, S, S) uint8: in memory, or in a file of the run where they are many."""
    side = inputs.size or 0
    shape = (len(collection), 3, side, side)
    large = len(collection) * 3 * side * side > _IN_MEMORY
    path = cache / "images.npy"
    if large and path.is_file():
        return torch.from_numpy(np.load(path, mmap_mode="c"))

    def read_into(images: np.ndarray) -> None:
        with CountBar("reading images", len(collection), 0, progress, group.first) as bar:
            load = lambda span: torch.stack([inputs.load(item) for item in collection.raw(*span)])  # noqa: E731
            steps = list(spans(0, len(collection), 64))
            for (start, stop), batch in zip(steps, prefetched(load, steps), strict=True):
                images[start:stop] = batch.numpy()
                bar.advance(stop - start)

    if not large:
        images = np.empty(shape, np.uint8)
        read_into(images)
        return torch.from_numpy(images)
    if group.first:
        cache.mkdir(parents=True, exist_ok=True)
        with writing_atomically(path) as temporary:
            file = np.lib.format.open_memmap(temporary, "w+", np.uint8, shape)
            read_into(file)
            file.flush()
    group.wait()
    return torch.from_numpy(np.load(path, mmap_mode="c"))


def _features(
    network: nn.Module,
    inputs: Inputs,
    collection: Collection,
    cache: Path,
    group: ProcessGroup,
    device: str,
    progress: bool | None,
) -> Tensor:
    """What the frozen network makes of every item, (N, F), computed once; a stopped run goes on with it."""
    width = network.out_features
    assert isinstance(width, int)
    path = cache / "features.rows"
    if group.first:
        cache.mkdir(parents=True, exist_ok=True)
        with (
            RowFile(path, width) as rows,
            CountBar("features", len(collection), rows.done, progress) as bar,
        ):
            stream(
                network,
                lambda features: features,
                inputs,
                collection,
                rows,
                0,
                len(collection),
                batch_size=64,
                device=resolve_device(device),
                advance=bar.advance,
            )
    group.wait()
    return torch.from_numpy(np.memmap(path, np.float32, "c", shape=(len(collection), width)))


@torch.inference_mode()
def posteriors(job: Job, chosen: np.ndarray) -> VonMisesFisher:
    """Posteriors of some items, in evaluation mode, on the CPU."""
    here = next(job.encoder.parameters()).device
    found = []
    for start, stop in spans(0, len(chosen), 512):
        batch = job.items[torch.as_tensor(chosen[start:stop])]
        prepared = job.inputs.normalise(batch) if batch.dtype == torch.uint8 else batch
        found.append(job.encoder(prepared.to(here)).float().cpu())
    return VonMisesFisher.cat(found)


def _some(rows: Tensor) -> Tensor:
    return rows[:: max(1, len(rows) // _SAMPLE)]


def _colours(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each colour over a sample, in [0, 1]."""
    sample = images[:: max(1, len(images) // 2000)].double() / 255
    std, mean = torch.std_mean(sample, (0, 2, 3))
    return tuple(mean.tolist()), tuple(std.clamp_min(1e-3).tolist())
