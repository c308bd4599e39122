"""One run of the CIFAR-10H experiments: one fold of a `CifarSetting`.

A pretrained ResNet-18 gets new output layers, which turn its features into posteriors. The encoder is trained on three
fifths of the images that people labelled, selected on one fifth and measured on one fifth.

The pretrained classifier is the same for all folds. It is made once and cached in the folder ALEATOR_CACHE (default:
~/.cache/aleator). If several processes need it at the same time, one makes it and the others wait.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from aleator.data import (
    MEAN,
    STD,
    CifarImages,
    ImageAugmentation,
    LabelledBatches,
    LabelRowBatches,
    RolledNegatives,
    SoftLabelBatches,
    data_folder,
    to_unit,
)
from aleator.encoders import MLP, Beside, Chain, Encoder, Ensemble, ResNet18
from aleator.evaluation import LabelModel, label_entropy, neighbour_hits, r_auroc, rank_correlation, recall_at_1
from aleator.experiments.cifar.evaluation import (
    HeldOut,
    certainty_metrics,
    held_out_cross_entropy,
    image_network,
    match_hits,
    match_metrics,
    output_layers,
    posteriors,
    set_curve,
    set_metrics,
)
from aleator.experiments.cifar.folds import CifarSetting, held_out, test_set, train_set, training_data, vote_data
from aleator.experiments.cifar.gallery import gallery
from aleator.experiments.cifar.label_scores import (
    LabelProbabilities,
    fit_labels,
    fit_temperature,
    label_metrics,
    learned_labels,
)
from aleator.experiments.cifar.pretraining import (
    Classifier,
    Pretrained,
    PretrainingSetting,
    fast_convolutions,
    predictions,
    pretrain_cifar,
)
from aleator.experiments.runner import Outcome
from aleator.experiments.settings import make_kernel, make_loss
from aleator.foundation import derived_seed, require
from aleator.losses import PrototypeLoss
from aleator.own_data import certainty_score
from aleator.training import FitResult, Recipe, fit


def run_fold(
    setting: CifarSetting, fold: int, device: str = "cpu", folder: Path | None = None, progress: bool | None = None
) -> Outcome:
    """Train on folds f, f + 1, f + 2, select on f + 3, measure on f + 4 (modulo 5), as the paper does."""
    require(
        setting.loss == "softmax-entropy" or bool(setting.recipe) or setting.head_first is not None,
        "recipe",
        dict(setting.recipe),
        "nothing is trained",
        "pass head_first or a recipe",
    )
    validation, test = held_out(setting, fold + 3), held_out(setting, fold + 4)
    networks = (setting.network, *setting.beside)
    started = [starting_network(replace(setting, network=network), device) for network in networks]
    if setting.loss == "softmax-entropy":
        pretrained = [one for one in started if one is not None]
        assert len(pretrained) == len(started)
        return measure_classifier(pretrained, validation, test, fold)
    encoder = make_encoder(setting, fold, started, device)
    stages = []
    if setting.head_first is not None:
        stages.append(_train_head(setting, encoder, *training_data(setting, fold), fold, device, progress))
    if setting.recipe:
        stages.append(train(setting, fold, encoder, validation, device, progress))
    result, loss = stages[-1]
    outcome = measure(setting, encoder, training_data(setting, fold), validation, test, fold, learned_labels(loss))
    outcome.metrics.update(
        {f"validation_{name}": value for name, value in validator(setting, validation)(encoder).items()},
        best_step=float(result.best_step or result.steps),
        training_loss=result.history[-1]["loss"],
    )
    rows = [[value for name, value in row.items() if name != "phase"] for row in result.validations]
    outcome.arrays["validations"] = torch.tensor(rows)  # step, crop_rank, entropy_rank
    if folder is not None:
        encoder.save(folder / "encoder", overwrite=True)
    return outcome


# The network


def cache_folder() -> Path:
    """Folder of pretrained classifiers."""
    return Path(os.environ.get("ALEATOR_CACHE", "~/.cache/aleator")).expanduser()


def starting_network(setting: CifarSetting, device: str) -> Pretrained | None:
    """The pretrained classifier, trained now if it is not cached. None if the setting starts from scratch."""
    if not setting.pretrained:
        return None
    network = PretrainingSetting(**setting.network)
    folder = cache_folder() / "pretrained"
    if setting.pretraining_images is not None:
        folder = folder / f"of-{setting.pretraining_images}"
    test = test_set(data_folder())[0]
    with _one_at_a_time(folder / network.name()):
        if (folder / network.name() / "classifier.json").is_file():  # cached: the train images need not be read
            return pretrain_cifar(test, test, folder, network, device=device)
        train = train_set(data_folder())
        labels = train.labels if network.labels == "clean" else vote_data(replace(setting, images=None))[1]
        few = slice(setting.pretraining_images)
        return pretrain_cifar(CifarImages(train.images[few], labels[few]), test, folder, network, device=device)


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Let one process at a time work in the folder; the others wait."""
    import fcntl  # does not exist on Windows

    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # closing the file releases it, even if the process is killed
        yield


def make_encoder(setting: CifarSetting, fold: int, started: Sequence[Pretrained | None], device: str) -> Encoder:
    """An encoder from the classifiers' backbones and new output layers, with kappa around `kappa_start`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(fold))
        width = PretrainingSetting(**setting.network).width
        networks = [ResNet18(width=width) if one is None else one.classifier.backbone for one in started]
        backbone: Any = Beside(networks) if len(networks) > 1 else networks[0]
        if setting.hidden:
            backbone = Chain([backbone, _hidden_layers(setting, backbone.out_features)])
        options = {"kappa_hidden": setting.kappa_hidden, "modes": setting.modes, "main_weight": setting.main_weight}
        encoder = Encoder(backbone, setting.dim, setting.kappa, **options)  # type: ignore[arg-type]
    encoder.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    sample = training_data(setting, fold)[0][-500:]
    encoder.train(started[0] is None)  # from scratch there are no running statistics yet
    encoder.set_kappa_range(network_input(sample.to(device)), (setting.kappa_start / 2, setting.kappa_start * 2))
    return encoder.train()


def _hidden_layers(setting: CifarSetting, features: int) -> nn.Module:
    """The layers between the network's features and the output layer: one MLP, or an ensemble of them."""
    layers = [MLP(features, setting.hidden) for _ in range(setting.members)]
    return layers[0] if len(layers) == 1 else Ensemble(layers)


def network_input(images: Tensor) -> Tensor:
    """Bytes -> normalised floats, the input of the network."""
    return ImageAugmentation(mean=MEAN, std=STD).normalise(to_unit(images))


# Training


def train(
    setting: CifarSetting, fold: int, encoder: Encoder, validation: HeldOut, device: str, progress: bool | None
) -> tuple[FitResult, nn.Module]:
    """Train all layers on the fold's training data; the result, and the loss with what it has learned."""
    batches = image_batches(setting, *training_data(setting, fold), torch.device(device))
    recipe, watched = _recipe(setting.recipe, fold, device), validator(setting, validation)
    shared: dict[str, Any] = {"device": device, "loggers": (), "progress": progress}
    loss = training_loss(setting, batches, fold)
    with fast_convolutions(torch.device(device)):
        return fit(encoder, loss, batches, recipe, validate=watched, **shared), loss


def _recipe(options: Mapping[str, Any], fold: int, device: str) -> Recipe:
    """The recipe with the fold as seed, and in full precision on a CPU."""
    options = {"seed": fold, "checkpoint_every": None, **options}
    if not device.startswith("cuda"):
        options["precision"] = "32"
    return Recipe(**options)


def _train_head(
    setting: CifarSetting,
    encoder: Encoder,
    images: Tensor,
    labels: Tensor,
    fold: int,
    device: str,
    progress: bool | None,
) -> tuple[FitResult, nn.Module]:
    """Train the output layers on features of the frozen network, for plain, mirrored and augmented images.

    The gradients of untrained output layers would otherwise damage the pretrained features.
    """
    assert setting.head_first is not None
    network, augment = image_network(encoder), image_augmentation(setting)
    generator = Generator(device).manual_seed(derived_seed(fold))
    seen = [predictions(network, x) for x in (images, images.flip(-1))]
    seen += [predictions(network, images, lambda x: augment(x, generator)) for _ in range(setting.augmented)]
    features = torch.cat(seen).float()
    size = features.square().mean().sqrt()  # features of size 1, so that one learning rate suits every network
    head = output_layers(encoder)
    _scale_inputs(head, size)
    shown, known = features / size, torch.cat([labels] * len(seen))
    batches = (
        LabelledBatches(shown, known, setting.batch_size)
        if setting.targets == "drawn"
        else soft_batches(setting, shown, known)
    )
    recipe = _recipe({**setting.head_first, "precision": "32"}, fold, device)
    loss = training_loss(setting, batches, fold)
    result = fit(head, loss, batches, recipe, device=device, loggers=(), progress=progress)
    _scale_inputs(head, 1 / size)
    encoder.zero_grad()
    return result, loss


@torch.no_grad()
def _scale_inputs(head: Encoder, factor: Tensor) -> None:
    """Multiply the first weights by a factor, so that the layers take features that were divided by it."""
    members = list(head.backbone.parts) if isinstance(head.backbone, Ensemble) else [head.backbone]
    layers = [member for member in members if isinstance(member, MLP)]
    for member in layers:
        member.layers[0].weight.mul_(factor)  # type: ignore[operator]
    if layers:
        return
    head.mu_head.weight.mul_(factor)
    if head.weight_head is not None:
        head.weight_head.weight.mul_(factor)
    if head.kappa_head is not None:
        first = head.kappa_head.layers[0]
        assert isinstance(first, nn.Linear)
        first.weight.mul_(factor)


def image_batches(
    setting: CifarSetting, images: Tensor, labels: Tensor, device: torch.device
) -> Callable[[int, Generator], Any]:
    """Batches of pairs of images, with the negatives that the setting asks for; or of images with soft targets."""
    options: dict[str, Any] = {"augment": image_augmentation(setting), "device": device}
    if setting.targets != "drawn":
        return soft_batches(setting, images, labels, **options)
    if setting.negatives == "rolled":
        return RolledNegatives(LabelledBatches(images, labels, setting.batch_size, **options))
    if setting.negatives != "batch":
        # Anchors of one class share their negatives. Each has negatives of the same law, and a seventh of the images
        # have to be encoded.
        M = int(setting.negatives)
        options |= {"negatives": M, "rule": "rejected-latent", "share_negatives": M > 1}
    return LabelledBatches(images, labels, setting.batch_size, **options)


def soft_batches(
    setting: CifarSetting, inputs: Tensor, labels: Tensor, **options: Any
) -> SoftLabelBatches | LabelRowBatches:
    """Batches with soft targets, of as many inputs as the anchors and positives of a drawn batch."""
    if setting.targets == "classes":
        return LabelRowBatches(inputs, labels, 2 * setting.batch_size, **options)
    return SoftLabelBatches(inputs, labels, 2 * setting.batch_size, balanced=False, **options)


def training_loss(setting: CifarSetting, batches: Any, fold: int) -> nn.Module:
    """The setting's loss. Learned class posteriors start in random directions, the fold being the seed."""
    if setting.targets != "classes":
        return make_loss(setting)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(fold))
        return PrototypeLoss(setting.dim, batches.shares.cpu(), make_kernel(setting), setting.pairs, setting.terms)


def image_augmentation(setting: CifarSetting) -> ImageAugmentation:
    """The setting's augmentation: images in [0, 1] -> augmented and normalised, the input of the network."""
    return ImageAugmentation(**{"mean": MEAN, "std": STD, **(setting.augment or {"flip": False, "translate": 0})})


def validator(setting: CifarSetting, validation: HeldOut) -> Callable[[Encoder], dict[str, float]]:
    """Metrics that `fit` computes on the validation fold. The paper selects by crop_rank, which needs no labels."""
    cropped, views = validation.cropped(), setting.views

    def validate(encoder: Encoder) -> dict[str, float]:
        if setting.loss == "infonce":  # it learns no certainty
            return {"recall_at_1": recall_at_1(posteriors(encoder, validation.images, views).mode, validation.hard)}
        sure = certainty_score(posteriors(encoder, cropped, views))
        metrics = {"crop_rank": rank_correlation(sure, validation.crop_sizes)}
        if setting.watch:
            sure = certainty_score(posteriors(encoder, validation.images, views))
            metrics["entropy_rank"] = rank_correlation(-sure, validation.entropy)
        return metrics

    return validate


# Measuring


def measure(
    setting: CifarSetting,
    encoder: Encoder,
    training: tuple[Tensor, Tensor],
    validation: HeldOut,
    test: HeldOut,
    fold: int,
    learned: LabelModel | None = None,
) -> Outcome:
    """All metrics and arrays of an encoder on its test fold.

    Match and label probabilities are fitted on validation. The latter compare with `training`, images and labels, or
    with class posteriors that were `learned` with the encoder, whichever makes the labels of validation likelier.
    """
    random_images, random_sizes = test.randomly_cropped(fold)
    q, cropped, randomly_cropped, q_validation = (
        posteriors(encoder, images, setting.views)
        for images in (test.images, test.cropped(), random_images, validation.images)
    )
    randomly = certainty_score(randomly_cropped), random_sizes
    metrics = certainty_metrics(q.mode, certainty_score(q), certainty_score(cropped), randomly, test)
    arrays = {
        "number": test.number,
        "label": test.hard,
        "mu": q.mode.float(),
        "kappa": certainty_score(q).float(),
        "entropy": test.entropy,
        "crop_size": test.crop_sizes,
        "crop_kappa": certainty_score(cropped).float(),
    }
    if setting.loss == "infonce":  # its kappa is not learned
        metrics = {name: metrics[name] for name in ("recall_at_1", "map_at_r")}
        return Outcome(metrics, arrays)
    kernel = make_kernel(setting)
    # One view of each training image is enough: their posteriors are merged into a few for each class.
    model = fit_labels(posteriors(encoder, training[0]), training[1], q_validation, validation, kernel, learned)
    p = LabelProbabilities(*(model.probabilities(each) for each in (q, cropped, randomly_cropped)))
    metrics |= label_metrics(p, random_sizes, neighbour_hits(q.mode, test.hard).double(), test)
    matched = match_hits(q, test, kernel)
    metrics["match_recall_at_1"] = matched.mean().item()
    if (area := r_auroc(-label_entropy(p.whole), matched)) is not None:
        metrics["match_label_r_auroc"] = area
    arrays |= {"label_probability": p.whole.float(), "crop_label_probability": p.cropped.float()}
    matches, diagram, calibration = match_metrics(q, test, q_validation, validation, kernel, fold)
    arrays["reliability"] = torch.stack([diagram.predicted, diagram.observed, diagram.count], 1)
    arrays |= gallery(q, test, calibration)
    metrics |= matches
    arrays["set_curve"] = set_curve(q.scale_kappa(calibration.kappa_scale), test)
    metrics |= {
        "kappa_median": q.components.kappa.median().item(),
        "held_out_cross_entropy": held_out_cross_entropy(q, test, kernel),
        **set_metrics(arrays["set_curve"]),
    }
    if q.modes > 1:
        metrics["main_weight"] = q.log_weights.exp().amax(-1).mean().item()
    return Outcome(metrics, arrays)


def measure_classifier(started: Sequence[Pretrained], validation: HeldOut, test: HeldOut, fold: int) -> Outcome:
    """Metrics of classifiers: negative softmax entropy is the certainty, the last features are the embedding.

    Several classifiers have the mean of their log probabilities, and their features side by side. The metrics of labels
    are those of their probabilities with a temperature that is fitted on validation.
    """
    classifiers: list[Classifier] = [one.classifier for one in started]

    def log_probabilities(images: Tensor) -> Tensor:
        each = [predictions(classifier, images).double().cpu().log_softmax(1) for classifier in classifiers]
        return torch.stack(each).mean(0)

    random_images, random_sizes = test.randomly_cropped(fold)
    shown = [log_probabilities(images) for images in (test.images, test.cropped(), random_images)]
    sure, cropped, randomly_cropped = (-label_entropy(each.softmax(1)) for each in shown)
    features = torch.cat([predictions(each.backbone, test.images).cpu() for each in classifiers], 1)
    metrics = certainty_metrics(features, sure, cropped, (randomly_cropped, random_sizes), test)
    scaled = fit_temperature(log_probabilities(validation.images), validation.labels)
    p = LabelProbabilities(*map(scaled, shown))
    metrics |= label_metrics(p, random_sizes, neighbour_hits(features, test.hard).double(), test)
    metrics["accuracy"] = sum(one.accuracy for one in started) / len(started)
    metrics["pretraining_seconds"] = sum(one.seconds for one in started)
    prints = ", ".join(one.fingerprint for one in started)
    require(metrics["recall_at_1"] > 0, "classifier", prints, "has learned nothing", "pretrain it again")
    return Outcome(metrics, {"number": test.number, "label": test.hard, "kappa": sure, "entropy": test.entropy})
