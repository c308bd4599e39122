"""Train the CIFAR-10 classifier that the encoders of the experiments start from.

It is the ResNet-18 of the paper's experiments, trained here because the published weights are no longer available. It
sees only the 50,000 train images, with their own labels or with people's votes (CIFAR-10N). CIFAR-10H labels the test
images, which it never sees.

The recipe is a common short one: SGD with Nesterov momentum, a learning rate that rises and falls linearly, flips,
translations and cutout, mixed precision on a GPU. Without label smoothing, because that erases how similar classes are
(Müller et al. 2019), and uncertainty depends on it.
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
        labels: "clean": CIFAR-10's own. "votes": CIFAR-10N's, as probabilities.
        width: Width of the ResNet-18; 64 is the standard.
        epochs: Number of passes over the train images.
        batch_size: Number of images in a batch.
        learning_rate: Highest learning rate.
        rising: Share of the steps in which the learning rate rises; then it falls to 0.
        momentum: Of SGD.
        weight_decay: Of weights; biases and normalisation layers have none.
        label_smoothing: Share of the label that is spread over all classes.
        translate: See `ImageAugmentation`, also for zoom and cutout.
        zoom: See `ImageAugmentation`.
        cutout: See `ImageAugmentation`.
        mixup: Largest share of another image, and of its label, that is mixed into an image (Zhang et al. 2018). The
            share is drawn uniformly below it.
        seed: Decides weights, order and augmentation.
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
        """Folder name: all values that are not the default."""
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
    """A trained classifier.

    Args:
        classifier: In evaluation mode.
        accuracy: On the test images.
        seconds: Training time.
        fingerprint: Hash of the weights.
    """

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
    """Load the classifier of a setting from `folder`, or train it and save it there.

    Interrupted training continues from its last checkpoint.

    Args:
        train: Train images, with classes (N,) or probabilities (N, 10) as labels.
        test: Test images, for the accuracy.
        folder: Folder of classifiers. Each setting has its own folder in it.
        setting: How to train.
        device: "cpu", "cuda" or "auto".
        progress: Whether to show a progress bar. Default: on a terminal.

    Returns:
        The classifier.
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
    metadata = {"setting": asdict(setting), "accuracy": accuracy, "seconds": seconds}
    fingerprint = write_bundle(folder, "classifier", FORMAT_VERSION, metadata, classifier.state_dict(), overwrite=True)
    shutil.rmtree(folder / "unfinished", ignore_errors=True)
    return Pretrained(classifier, accuracy, seconds, fingerprint)


def load_pretrained(folder: str | Path, setting: PretrainingSetting, device: str | torch.device = "cpu") -> Pretrained:
    """Load a classifier that `pretrain_cifar` saved."""
    bundle = read_bundle(folder, "classifier", FORMAT_VERSION)
    metadata = bundle.metadata
    if {**asdict(_DEFAULT), **metadata["setting"]} != asdict(setting):
        reject("folder", str(folder), "holds a classifier of another setting", "name another folder")
    with torch.random.fork_rng(devices=[]):
        classifier = Classifier(setting.width)
    classifier.load_state_dict(bundle.tensors)
    classifier.to(device).to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    return Pretrained(classifier, metadata["accuracy"], metadata["seconds"], bundle.fingerprint)


@torch.no_grad()
def predictions(network: nn.Module, images: Tensor, prepare: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Outputs (N, ...) of a network for uint8 images (N, 3, 32, 32), in evaluation mode and full precision.

    `prepare` turns images in [0, 1] into the input of the network. Default: normalisation.
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
    """Train for all epochs, from the last checkpoint if there is one. Returns the seconds spent before it."""
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
            # Each epoch has its own seed, so that interrupted training continues exactly.
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
                metadata = {"state": pack_state(state, tensors)}
                write_bundle(unfinished, "pretraining", FORMAT_VERSION, metadata, tensors, overwrite=True)
    classifier.zero_grad()  # else the next training would start with the last gradients
    classifier.eval()
    return earlier


def _mixed(images: Tensor, labels: Tensor, largest: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mixup: each image and its label (probabilities), mixed with another of the batch."""
    share = largest * torch.rand(len(images), 1, generator=generator, device=images.device)
    other = torch.randperm(len(images), generator=generator, device=images.device)
    return torch.lerp(images, images[other], share[:, :, None, None]), torch.lerp(labels, labels[other], share)


def _optimiser(classifier: Classifier, setting: PretrainingSetting) -> torch.optim.Optimizer:
    """SGD; weights decay, biases and normalisation layers do not."""
    weights = [p for p in classifier.parameters() if p.dim() > 1]
    others = [p for p in classifier.parameters() if p.dim() <= 1]
    groups = [{"params": weights, "weight_decay": setting.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=setting.learning_rate, momentum=setting.momentum, nesterov=True, foreach=True)


def _resume(unfinished: Path, classifier: Classifier, optimiser: torch.optim.Optimizer) -> tuple[int, float]:
    """Load the last checkpoint, if there is one. Returns the number of finished epochs and the seconds they took."""
    if not (unfinished / "pretraining.json").is_file():
        return 0, 0.0
    bundle = read_bundle(unfinished, "pretraining", FORMAT_VERSION)
    state = unpack_state(bundle.metadata["state"], bundle.tensors)
    classifier.load_state_dict(state["classifier"])
    optimiser.load_state_dict(state["optimiser"])
    return state["epoch"], state["seconds"]


@contextmanager
def fast_convolutions(device: torch.device) -> Iterator[None]:
    """Let cuDNN time its convolution algorithms and use the fastest. Pays off if shapes stay the same."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = device.type == "cuda"
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def _bar(epochs: int, first: int, progress: bool | None) -> Iterator:
    """A progress bar over epochs; yields a function that advances it and shows the loss."""
    with progress_bar(progress, loss=True) as bar:
        task = bar.add_task("pretraining, epoch", total=epochs, completed=first, loss="-")
        yield lambda loss: bar.update(task, advance=1, loss=f"{loss:.3f}")
