"""A CIFAR-10 classifier to start from: the ResNet-18 of the paper's experiments, whose published weights cannot be had.

Trained on the 50,000 train images alone, with their own labels or with people's votes (CIFAR-10N); CIFAR-10H labels the
test images, which it never sees. The recipe is the usual short one: SGD with Nesterov momentum, a learning rate that
rises and falls linearly, flips, translations and cutout, mixed precision on a GPU. No label smoothing: it wipes out the
likeness of classes (Müller et al. 2019), which is what uncertainty is about.
"""

import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aleator.data import CLASSES, MEAN, STD, CifarImages, ImageAugmentation, to_unit
from aleator.encoders import ResNet18
from aleator.foundation import (
    derived_seed,
    pack_state,
    progress_bar,
    read_bundle,
    reject,
    require,
    resolve_device,
    unpack_state,
    write_bundle,
)

FORMAT_VERSION = 1
_EVALUATED_AT_ONCE = 2000


@dataclass(frozen=True)
class PretrainingSetting:
    """How to train the classifier.

    Args:
        labels: "clean" for CIFAR-10's own, "votes" for CIFAR-10N's as probabilities.
        width: of the ResNet-18; 64 is the usual one.
        rising: the share of the steps in which the learning rate rises.
        translate, zoom, cutout: see `ImageAugmentation`.
        mixup: the largest share of another image, and of its label, that is mixed into one (Zhang et al. 2018); the
            share is uniform below it.
    """

    labels: str = "clean"
    width: int = 64
    epochs: int = 60
    batch_size: int = 512
    learning_rate: float = 0.4
    rising: float = 0.2
    momentum: float = 0.9
    weight_decay: float = 5e-4
    label_smoothing: float = 0.0
    translate: int = 4
    zoom: float | None = None
    cutout: int = 8
    mixup: float = 0.0
    seed: int = 0

    def name(self) -> str:
        """A folder name that says which network this is."""
        changed = [f"{key}-{value}" for key, value in asdict(self).items() if value != getattr(_DEFAULT, key)]
        return "-".join(["resnet18", *changed]).replace("_", "-")


_DEFAULT = PretrainingSetting()


class Classifier(nn.Module):
    """A ResNet-18 and a linear layer on its features; images normalised (B, 3, 32, 32) -> logits (B, 10)."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.backbone = ResNet18(width=width)
        self.head = nn.Linear(self.backbone.out_features, len(CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(images).float())


@dataclass
class Pretrained:
    """The classifier, its accuracy on the test images, how long it took, and its fingerprint."""

    classifier: Classifier
    accuracy: float
    seconds: float
    fingerprint: str


def pretrain_cifar(
    train: CifarImages,
    test: CifarImages,
    folder: str | Path,
    setting: PretrainingSetting = _DEFAULT,
    *,
    device: str = "auto",
    progress: bool | None = None,
) -> Pretrained:
    """The classifier of this setting, from `folder` if it is there, else trained and kept there.

    Labels of the train images are classes (N,) or probabilities (N, 10). Interrupted training goes on from its last
    whole epochs.
    """
    place = resolve_device(device)
    folder = Path(folder).expanduser() / setting.name()
    if (folder / "classifier.json").is_file():
        return load_pretrained(folder, setting, place)
    require(
        len(train) >= setting.batch_size,
        "batch_size",
        setting.batch_size,
        f"there are {len(train)} images",
        "pass a smaller one",
    )
    began = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setting.seed)
        classifier = Classifier(setting.width)
    classifier.to(place).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    earlier = _train(classifier, train, setting, place, folder / "unfinished", progress)
    accuracy = (predictions(classifier, test.images).argmax(1).cpu() == test.labels).double().mean().item()
    seconds = earlier + time.perf_counter() - began
    facts = {"setting": asdict(setting), "accuracy": accuracy, "seconds": seconds}
    fingerprint = write_bundle(folder, "classifier", FORMAT_VERSION, facts, classifier.state_dict(), overwrite=True)
    shutil.rmtree(folder / "unfinished", ignore_errors=True)
    return Pretrained(classifier, accuracy, seconds, fingerprint)


def load_pretrained(folder: str | Path, setting: PretrainingSetting, device: str | torch.device = "cpu") -> Pretrained:
    """What `pretrain_cifar` kept."""
    bundle = read_bundle(folder, "classifier", FORMAT_VERSION)
    facts = bundle.metadata
    if {**asdict(_DEFAULT), **facts["setting"]} != asdict(setting):
        reject("folder", str(folder), "holds a classifier of another setting", "name another folder")
    with torch.random.fork_rng(devices=[]):
        classifier = Classifier(setting.width)
    classifier.load_state_dict(bundle.tensors)
    classifier.to(device).to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    return Pretrained(classifier, facts["accuracy"], facts["seconds"], bundle.fingerprint)


@torch.no_grad()
def predictions(network: nn.Module, images: Tensor, prepare: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """The network's output for uint8 images (N, 3, 32, 32), in evaluation mode and full precision; (N, ...).

    `prepare` makes of images in [0, 1] what the network is given; by default they are only normalised.
    """
    device = next(network.parameters()).device
    was_training = network.training
    network.eval()
    prepare = prepare or ImageAugmentation(mean=MEAN, std=STD).normalise
    parts = [
        network(prepare(to_unit(part.to(device))).contiguous(memory_format=torch.channels_last))
        for part in images.split(_EVALUATED_AT_ONCE)
    ]
    network.train(was_training)
    return torch.cat(parts)


def _train(
    classifier: Classifier,
    train: CifarImages,
    setting: PretrainingSetting,
    device: torch.device,
    unfinished: Path,
    progress: bool | None,
) -> float:
    """All epochs, from the last checkpoint on; returns the seconds spent before it."""
    images, labels = train.images.to(device), train.labels.to(device)
    labels = labels.float() if labels.is_floating_point() else F.one_hot(labels, len(CLASSES)).float()
    own = {"translate": setting.translate, "zoom": setting.zoom, "cutout": setting.cutout}
    augment = ImageAugmentation(**own, mean=MEAN, std=STD)  # type: ignore[arg-type]
    steps = len(images) // setting.batch_size
    optimiser = _optimiser(classifier, setting)
    first, earlier = _resume(unfinished, classifier, optimiser)
    began = time.perf_counter()
    classifier.train()
    with fast_convolutions(device), _bar(setting.epochs, first, progress) as advance:
        for epoch in range(first, setting.epochs):
            # Seeded by the epoch, so that going on is exact.
            generator = torch.Generator(device).manual_seed(derived_seed(setting.seed, epoch))
            order = torch.randperm(len(images), generator=generator, device=device)
            total = torch.zeros((), device=device)
            for step in range(steps):
                now = (epoch * steps + step + 1) / (setting.epochs * steps)
                factor = min(now / setting.rising, (1 - now) / (1 - setting.rising))
                for group in optimiser.param_groups:
                    group["lr"] = setting.learning_rate * factor
                index = order[step * setting.batch_size : (step + 1) * setting.batch_size]
                batch, target = augment(to_unit(images[index]), generator), labels[index]
                if setting.mixup:
                    batch, target = _mixed(batch, target, setting.mixup, generator)
                with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                    logits = classifier(batch.contiguous(memory_format=torch.channels_last))
                loss = F.cross_entropy(logits.float(), target, label_smoothing=setting.label_smoothing)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                total += loss.detach()
            mean = total.item() / steps
            require(math.isfinite(mean), "loss", mean, f"not finite in epoch {epoch}", "lower learning_rate")
            advance(mean)
            if (epoch + 1) % 5 == 0:
                tensors: dict[str, Tensor] = {}
                state = {
                    "epoch": epoch + 1,
                    "seconds": earlier + time.perf_counter() - began,
                    "classifier": dict(classifier.state_dict()),
                    "optimiser": optimiser.state_dict(),
                }
                facts = {"state": pack_state(state, tensors)}
                write_bundle(unfinished, "pretraining", FORMAT_VERSION, facts, tensors, overwrite=True)
    classifier.zero_grad()  # or whoever trains it next would begin with the last gradients
    classifier.eval()
    return earlier


def _mixed(images: Tensor, labels: Tensor, largest: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Each image and its label (probabilities) with a share of another of the batch."""
    share = largest * torch.rand(len(images), 1, generator=generator, device=images.device)
    other = torch.randperm(len(images), generator=generator, device=images.device)
    return torch.lerp(images, images[other], share[:, :, None, None]), torch.lerp(labels, labels[other], share)


def _optimiser(classifier: Classifier, setting: PretrainingSetting) -> torch.optim.Optimizer:
    """Weights decay; biases and what normalises do not."""
    weights = [p for p in classifier.parameters() if p.dim() > 1]
    others = [p for p in classifier.parameters() if p.dim() <= 1]
    groups = [{"params": weights, "weight_decay": setting.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=setting.learning_rate, momentum=setting.momentum, nesterov=True, foreach=True)


def _resume(unfinished: Path, classifier: Classifier, optimiser: torch.optim.Optimizer) -> tuple[int, float]:
    """(epochs done, seconds spent) by an earlier sitting."""
    if not (unfinished / "pretraining.json").is_file():
        return 0, 0.0
    bundle = read_bundle(unfinished, "pretraining", FORMAT_VERSION)
    state = unpack_state(bundle.metadata["state"], bundle.tensors)
    classifier.load_state_dict(state["classifier"])
    optimiser.load_state_dict(state["optimiser"])
    return state["epoch"], state["seconds"]


@contextmanager
def fast_convolutions(device: torch.device) -> Iterator[None]:
    """On a GPU, the fastest algorithm for each shape, found by trying: worth it where shapes stay the same."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = device.type == "cuda"
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def _bar(epochs: int, first: int, progress: bool | None) -> Iterator:
    with progress_bar(progress, loss=True) as bar:
        task = bar.add_task("pretraining, epoch", total=epochs, completed=first, loss="-")
        yield lambda loss: bar.update(task, advance=1, loss=f"{loss:.3f}")
