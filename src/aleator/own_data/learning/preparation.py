"""Prepare training: read every item once, which finds bad ones before training, and build an encoder for them."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from aleator.data import Inputs, measure_levels, to_unit
from aleator.encoders import (
    MLP,
    AveragedViews,
    BoundedScale,
    Chain,
    DirectionAndLength,
    Encoder,
    Ensemble,
    ResNet18,
    SmallResNet,
    Standardise,
)
from aleator.foundation import (
    CountBar,
    ProcessGroup,
    even_sample,
    read_json,
    resolve_device,
    using_contents,
    write_json,
    writing_atomically,
)
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.contents import item_digests
from aleator.own_data.collection.problems import Problem, problem_of, stop_at
from aleator.own_data.collection.reading_ahead import prefetched, spans
from aleator.own_data.embedding.rows import map_rows, stream_rows
from aleator.own_data.learning.defaults import AUTO, FROM_SCRATCH, CompleteSettings, compares_with_classes
from aleator.own_data.runs.pretrained import load_pretrained
from aleator.posteriors import PosteriorBatch

_MEMORY_LIMIT = 2**30  # bytes of images that are kept in memory; more are kept in a file of the run
_SMALL_IMAGE = 3 * 64 * 64  # numbers of an image; of larger ones, fewer go through a network at a time
_RENEW = "remove the folder cache of the run, and start again"
_FEW_FEATURES = 9
_AT_ONCE = 512  # items that go through a network at a time
_SAMPLE = 20_000  # rows from which the distribution of features is estimated


@dataclass(frozen=True)
class Job:
    """Where and how a training runs.

    Args:
        folder: The run folder. Large intermediate results are stored in its cache/.
        group: The processes of this training.
        device: As the user named it: "auto", "cpu" or "cuda:1", for example.
        progress: Whether to show progress bars. None: on a terminal.
        log: Called with each line of the log.
        strict: Whether items that cannot be read are an error. Otherwise they are left out.
        began: When the command began, by `time.time`.
    """

    folder: Path
    group: ProcessGroup
    device: str = "auto"
    progress: bool | None = None
    log: Callable[[str], None] = lambda line: None
    strict: bool = True
    began: float = field(default_factory=time.time)

    @property
    def torch_device(self) -> torch.device:
        """The device itself."""
        return resolve_device(self.device)


# From almost no certainty, the class probabilities start out linear in the embedding, like a softmax layer.
_FIRST_KAPPA = 1 / 16


class PreparedTraining:
    """The items of a collection as one tensor, and the encoder to be trained on them.

    Args:
        inputs: How raw items are prepared.
        encoder: The encoder to be trained. It takes rows of `items`, normalised.
        items: Images (N, 3, S, S) uint8, or features (N, F) float32. It may be mapped from a file.
        frozen: Pretrained network that turned raw items into features, if there is one.
        problems: What is wrong with items of the collection that could not be read, by their number. `items` is
            without them.
    """

    def __init__(
        self,
        inputs: Inputs,
        encoder: Encoder,
        items: Tensor,
        frozen: nn.Module | None = None,
        problems: Mapping[int, Problem] | None = None,
    ):
        self.inputs, self.encoder, self.items, self.frozen = inputs, encoder, items, frozen
        self.problems = dict(problems or {})

    @property
    def learns_from_pixels(self) -> bool:
        """Whether the encoder is trained on images, and not on features of a frozen network."""
        return self.inputs.kind == "images" and self.frozen is None

    def select(self, numbers: np.ndarray) -> "Tensor | RowSubset":
        """Some of the items: a copy in memory, or a view if they are large."""
        large = self.items.numel() * self.items.element_size() > _MEMORY_LIMIT
        return RowSubset(self.items, numbers) if large else self.items[torch.as_tensor(numbers)]

    @torch.inference_mode()
    def posteriors(self, numbers: np.ndarray) -> PosteriorBatch:
        """Posteriors of some items, batch shape (n,), in evaluation mode, on the CPU."""
        return PosteriorBatch.cat([self.encoder(batch).float().cpu() for batch in self.batches(numbers)])

    def batches(self, numbers: np.ndarray) -> Iterator[Tensor]:
        """Some items in their order, as the encoder takes them, in batches on its device."""
        device = next(self.encoder.parameters()).device
        large = self.items.dim() == 4 and self.items[0].numel() > _SMALL_IMAGE
        for start, stop in spans(0, len(numbers), 64 if large else _AT_ONCE):
            batch = self.items[torch.as_tensor(numbers[start:stop])]
            yield (self.inputs.normalise(batch) if batch.dtype == torch.uint8 else batch).to(device)

    def complete_encoder(self) -> Encoder:
        """The encoder from raw inputs on: with the frozen network in front, if there is one."""
        if self.frozen is None:
            return self.encoder
        head = self.encoder.backbone
        assert isinstance(head, Chain)
        return self.encoder.with_backbone(Chain([self.frozen, *head.parts])).eval()


class RowSubset:
    """Some rows of a tensor that is too large to copy, as a dataset."""

    def __init__(self, rows: Tensor, numbers: np.ndarray):
        self.rows, self.numbers = rows, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Tensor:
        return self.rows[int(self.numbers[index])]


def prepare(
    collection: Collection, settings: CompleteSettings, job: Job, start: tuple[Encoder, Inputs] | None = None
) -> PreparedTraining:
    """Read every item once and build the encoder.

    Args:
        collection: The items.
        settings: All settings; see `choose_settings`.
        job: Where it runs.
        start: Encoder and inputs of the run that is continued, if there is one. The encoder is changed.
    """
    torch.manual_seed(settings.seed)
    backbone = settings.backbone
    problems: dict[int, Problem] = {}
    if start is not None:
        return _prepare_from(*start, collection, settings, job)
    if backbone in FROM_SCRATCH:
        return _prepare_images(collection, settings, job)
    if backbone == "features":
        frozen, inputs = None, Inputs("features", features=collection.features)
        features = _all_features(collection)
    else:
        frozen, inputs = load_pretrained(backbone, collection.kind, settings.size)
        inputs = with_levels(inputs, collection, job)
        features, problems = _network_features(frozen, inputs, collection, job)
    with_classes = collection.labels is not None and compares_with_classes(collection.labels)
    encoder = _head_encoder(features, settings, first_kappa=_FIRST_KAPPA if with_classes else 1.0)
    return PreparedTraining(inputs, encoder, features, frozen, problems)


def with_modes(training: PreparedTraining, settings: CompleteSettings) -> PreparedTraining:
    """The same items with an untrained head for classes that has as many modes as the settings say."""
    torch.manual_seed(settings.seed)
    encoder = _head_encoder(training.items, settings, _FIRST_KAPPA)
    return PreparedTraining(training.inputs, encoder, training.items, training.frozen, training.problems)


def _prepare_images(collection: Collection, settings: CompleteSettings, job: Job) -> PreparedTraining:
    """Images in memory or in a file, and a network that learns from them."""
    assert settings.size is not None
    assert settings.modes != AUTO
    inputs = with_levels(Inputs("images", size=settings.size), collection, job)
    images, problems = decoded_images(collection, inputs, job)
    mean, std = _colour_statistics(images)
    inputs = replace(inputs, mean=mean, std=std)
    network = (SmallResNet if settings.backbone == "small-resnet" else ResNet18)(width=settings.width)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # twice as fast on a CPU
    shift = 0 if settings.augment == "none" else settings.size // 16
    encoder = Encoder(AveragedViews(network, settings.augment == "flip", shift), settings.dim, modes=settings.modes)
    _set_initial_kappa(encoder, inputs.normalise(images[:: len(images) // 256 + 1]))
    return PreparedTraining(inputs, encoder, images, None, problems)


def _prepare_from(
    encoder: Encoder, inputs: Inputs, collection: Collection, settings: CompleteSettings, job: Job
) -> PreparedTraining:
    """The items for an encoder that has been trained before, and the part of it that is trained further."""
    encoder.requires_grad_(True)
    if settings.backbone in FROM_SCRATCH:
        images, problems = decoded_images(collection, inputs, job)
        return PreparedTraining(inputs, encoder, images, None, problems)
    if settings.backbone == "features":
        return PreparedTraining(inputs, encoder, _all_features(collection))
    assert isinstance(encoder.backbone, Chain)
    frozen, *head = encoder.backbone.parts
    features, problems = _network_features(frozen.requires_grad_(False).eval(), inputs, collection, job)
    return PreparedTraining(inputs, encoder.with_backbone(Chain(head)), features, frozen, problems)


def _all_features(collection: Collection) -> Tensor:
    """Features (N, F) of a whole collection."""
    return torch.from_numpy(np.concatenate([collection.raw(*span) for span in spans(0, len(collection), 65_536)]))


def with_levels(inputs: Inputs, collection: Collection, job: Job) -> Inputs:
    """The inputs, with one black and white for all images of more than eight bits, if there are any."""
    if collection.kind != "images":
        return inputs
    levels = measure_levels(collection.raw(0, len(collection)), inputs.most_pixels)
    if levels.images and job.group.first:
        job.log(f"images of more than 8 bits are scaled to 8: {levels}")
    return replace(inputs, whole_levels=levels.whole, float_levels=levels.float)


def _head_encoder(features: Tensor, settings: CompleteSettings, first_kappa: float) -> Encoder:
    """An encoder with two hidden layers, for features (N, F). kappa starts at `first_kappa` x D."""
    sample = features[even_sample(len(features), _SAMPLE)]
    width = features.shape[1]
    standardise = Standardise(width).fit(sample)
    # Of few features, the length of a row tells as much as its direction. Of many, a long row may just be a noisy one.
    few = width <= _FEW_FEATURES
    scale = BoundedScale(width) if few else DirectionAndLength(width).fit(standardise(sample))

    assert settings.modes != AUTO
    hidden, dropout = [settings.width, settings.width], settings.dropout or 0.0
    members = [MLP(scale.out_features, hidden, dropout=dropout) for _ in range(settings.members or 1)]
    networks = members[0] if len(members) == 1 else Ensemble(members)
    encoder = Encoder(Chain([standardise, scale, networks]), settings.dim, modes=settings.modes)
    _set_initial_kappa(encoder, sample[:1024], first_kappa)
    return encoder


def _set_initial_kappa(encoder: Encoder, sample: Tensor, middle: float = 1.0) -> None:
    """Start with wide posteriors, about `middle` x D: training should raise kappa where the data support it."""
    encoder.eval().set_kappa_range(sample, kappa_range=(0.5 * middle * encoder.dim, 2.0 * middle * encoder.dim))


def decoded_images(collection: Collection, inputs: Inputs, job: Job) -> tuple[Tensor, dict[int, Problem]]:
    """All images that can be read, (N, 3, S, S) uint8: in memory, or mapped from a file if they are large.

    The others are returned by their number, with what is wrong with them.
    """
    side = inputs.size or 0
    shape = (len(collection), 3, side, side)
    problems: dict[int, Problem] = {}

    def load(span: tuple[int, int]) -> tuple[list[Tensor], dict[int, Problem]]:
        images, bad = [], {}
        for number, item in enumerate(collection.raw(*span), span[0]):
            try:
                images.append(inputs.load(item))
            except ValueError as error:
                bad[number] = problem_of(str(item), error)
        return images, bad

    def read_into(images: np.ndarray) -> None:
        done = 0
        with CountBar("reading images", len(collection), 0, job.progress, job.group.first) as bar:
            for batch, bad in prefetched(load, spans(0, len(collection), 64)):
                problems.update(bad)
                if batch:
                    images[done : done + len(batch)] = torch.stack(batch).numpy()
                done += len(batch)
                bar.advance(len(batch) + len(bad))
        if job.strict or not done:
            stop_at(list(problems.values()), len(collection))

    if np.prod(shape) <= _MEMORY_LIMIT:
        images = np.empty(shape, np.uint8)
        read_into(images)
        return torch.from_numpy(images)[: len(collection) - len(problems)], problems
    path = job.folder / "cache" / "images.npy"
    beside = _problems_beside(path)
    if job.group.first and not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing_atomically(path) as temporary:
            file = np.lib.format.open_memmap(temporary, "w+", np.uint8, shape)
            read_into(file)
            file.flush()
            write_json(beside, {number: asdict(problem) for number, problem in problems.items()})
    job.group.wait()
    problems = _read_problems(beside)
    with using_contents(path, _RENEW):
        images = np.load(path, mmap_mode="c")
    return torch.from_numpy(images)[: len(collection) - len(problems)], problems


def _network_features(
    network: nn.Module, inputs: Inputs, collection: Collection, job: Job
) -> tuple[Tensor, dict[int, Problem]]:
    """Features (N, F) of every item that can be read from a frozen network, mapped from a file.

    They are computed once for each run. Items that cannot be read are returned by their number, with what is wrong.
    """
    width = network.out_features
    assert isinstance(width, int)
    path = job.folder / "cache" / "features.rows"
    beside = _problems_beside(path)
    if job.group.first:
        path.parent.mkdir(parents=True, exist_ok=True)
        problems = stream_rows(
            path,
            width,
            network,
            lambda features: features,
            inputs,
            collection,
            (0, len(collection)),
            digests=item_digests(collection),
            title="features",
            batch_size=64,
            device=job.torch_device,
            progress=job.progress,
            strict=job.strict,
            log=job.log,
        )
        write_json(beside, {number: asdict(problem) for number, problem in problems.items()})
    job.group.wait()
    problems = _read_problems(beside)
    if len(problems) == len(collection):
        stop_at(list(problems.values()), len(collection))
    rows = torch.from_numpy(map_rows(path, width))
    kept = [i for i in range(len(collection)) if i not in problems]
    return (rows[kept] if problems else rows), problems


def _problems_beside(path: Path) -> Path:
    """Where the items are listed that are missing in a file of the cache."""
    return path.with_suffix(".problems.json")


def _read_problems(path: Path) -> dict[int, Problem]:
    """The items that could not be read, by number, as they were written to the cache."""
    with using_contents(path, _RENEW):
        return {int(number): Problem(**facts) for number, facts in read_json(path, _RENEW).items()}


def _colour_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each colour in [0, 1], over a sample of images (N, 3, S, S) uint8."""
    sample = to_unit(images[even_sample(len(images), 2000)], torch.float64)
    std, mean = torch.std_mean(sample, (0, 2, 3))
    return tuple(mean.tolist()), tuple(std.clamp_min(1e-3).tolist())
