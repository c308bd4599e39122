"""A pretrained network with a frozen head, and tuned: its last layers, all of it, by changes of low rank (LoRA).

EfficientNet-Lite0 learns from 2,000 images of CIFAR-10 (`--images`). Questions are images of CIFAR-10's test part. They
are asked against the training images.

    python -m benchmarks.fine_tuning --data data/cifar10                      # everything: a GPU, or hours on a CPU
    python -m benchmarks.fine_tuning --data data/cifar10 --images 200 --questions 100 --size 64 --seeds 0 --tune-steps 4

recall_at_1     share of questions whose nearest training image, by mu, has their class
r_auroc         how well kappa tells these hits from misses
label_accuracy  share of questions whose likeliest label is right
label_auroc     how well the certainty of the label tells right from wrong
step_mb         memory of one step with 64 images: weights, gradients, states of AdamW, activations. On a GPU it is the
                peak that torch reports; on a CPU the sum of these tensors.

Stopped work is resumed by the same command: finished rows are kept in `--work`, and a run goes on from its checkpoint.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from aleator.data import load_cifar10
from aleator.encoders import Chain, EfficientNetLite0, Encoder
from aleator.evaluation import auroc, label_certainty
from aleator.foundation import describe_run, resolve_device, write_json
from aleator.own_data import AleatorModel, Settings, read_collection, train
from aleator.own_data.learning.tuning import _Steady, choose_parameters

TUNING = ("head", "last", "all", "lora")
BATCH, RANK = 64, 8


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Make the rows that are missing, print the table and write the results."""
    options = parse(arguments)
    began, device = time.time(), resolve_device(options.device)
    images = write_images(options.data, options.images, options.work / f"images-{options.images}")
    rows = [row(tune, seed, images, options, device) for seed in options.seeds for tune in options.tune]
    table = summary(rows, options.tune)
    show(table)
    result = {
        "benchmark": "fine-tuning",
        "setting": {name: getattr(options, name) for name in ("images", "questions", "size", "tune_steps", "seeds")},
        "provenance": describe_run(began, device),
        "rows": rows,
        "table": table,
    }
    write_json(options.output / "fine-tuning.json", result)
    return result


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fine_tuning", description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("ALEATOR_DATA", "data")) / "cifar10")
    parser.add_argument("--images", type=int, default=2000, help="training images, with those that are held out")
    parser.add_argument("--questions", type=int, default=2000, help="test images")
    parser.add_argument("--size", type=int, default=None, help="side of the images; default: 224 on a GPU, else 128")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tune", nargs="+", choices=TUNING, default=list(TUNING))
    parser.add_argument("--tune-steps", type=int, default=None, help="default: ten passes over the images")
    parser.add_argument("--tune-rate", type=float, default=None, help="highest learning rate; default: that of train")
    parser.add_argument("--steps", type=int, default=None, help="steps of the head; default: chosen from the data")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--work", type=Path, default=Path(".cache/fine-tuning"))
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks"))
    return parser.parse_args(arguments)


def row(tune: str, seed: int, images: Path, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Figures of one run, which is made or resumed if they are not there yet."""
    steps, rate = options.tune_steps or "passes", options.tune_rate or "default"
    name = f"{tune}-{options.images}-{options.size or 'default'}-{steps}-{rate}-{seed}"
    path = options.work / "rows" / f"{name}.json"
    if path.is_file():
        return json.loads(path.read_text())
    print(f"{tune}, seed {seed}", flush=True)
    began = time.time()
    settings = Settings(
        backbone="efficientnet-lite0",
        tune=tune,  # type: ignore[arg-type]
        rank=RANK if tune == "lora" else None,
        size=options.size,
        steps=options.steps,
        tune_steps=options.tune_steps if tune != "head" else None,
        tune_learning_rate=options.tune_rate if tune != "head" else None,
        minutes=None if tune == "head" else 120.0,
        seed=seed,
    )
    folder = options.work / "runs" / name
    run = train(
        read_collection(images), folder, settings, device=options.device, baselines=False, figures=False, log=print
    )
    model = AleatorModel.from_pretrained(folder, device=options.device)
    found = {
        "tune": tune,
        "seed": seed,
        **figures(model, images, options.data, options.questions),
        "step_mb": step_memory(tune, run.inputs.size or 224, device),
        "size": run.inputs.size,
        "seconds": time.time() - began,
    }
    write_json(path, found)
    return found


def write_images(data: Path, count: int, folder: Path) -> Path:
    """The first training images as PNG files in class folders."""
    if not (folder / "complete").is_file():
        cifar = load_cifar10("train", data, verify=False)
        for i in range(count):
            place = folder / "images" / str(int(cifar.labels[i]))
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.asarray(cifar.images[i]).transpose(1, 2, 0)).save(place / f"{i:05d}.png")
        (folder / "complete").touch()
    return folder / "images"


def figures(model: AleatorModel, images: Path, data: Path, count: int) -> dict[str, float]:
    """Questions from the test part against the training images of the run."""
    collection = read_collection(images)
    assert collection.labels is not None
    gallery = model.encode(collection.raw(0, len(collection)))
    names = collection.labels.names
    gallery_labels = torch.as_tensor([int(names[value]) for value in collection.labels.values])
    test = load_cifar10("test", data, verify=False)
    asked = model.encode([np.asarray(image).transpose(1, 2, 0) for image in test.images[:count]])
    labels = torch.as_tensor(test.labels[:count]).long()
    hits = gallery_labels[(asked.mu @ gallery.mu.mT).argmax(1)] == labels
    assert model.run.answers.labels is not None
    probabilities = model.run.answers.labels.probabilities(asked)
    right = torch.as_tensor([int(name) for name in model.label_names])[probabilities.argmax(1)] == labels
    return {
        "recall_at_1": hits.double().mean().item(),
        "r_auroc": auroc(asked.kappa, hits),
        "label_accuracy": right.double().mean().item(),
        "label_auroc": auroc(label_certainty(probabilities), right),
    }


def step_memory(tune: str, size: int, device: torch.device, batch: int = BATCH) -> float:
    """Megabytes of one training step. With the head alone, the network gives features without gradients."""
    torch.manual_seed(0)
    encoder = Encoder(Chain([_Steady(EfficientNetLite0())]), dim=16)
    if tune == "head":
        encoder.backbone.requires_grad_(False)
    else:
        choose_parameters(encoder, tune, RANK)  # type: ignore[arg-type]
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    encoder.to(device).train()
    trained = [p for p in encoder.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=1e-6)
    # On a CPU the activations of two items are counted, for as many items as have them at the same time.
    front = encoder.backbone.parts[0]
    at_once = min(front.at_once or batch, batch)
    front.at_once = front.at_once if on_gpu else None
    kept: dict[int, tuple[torch.Tensor, int]] = {}

    def remember(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, nn.Parameter):
            kept[tensor.data_ptr()] = (tensor, tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        q = encoder(torch.rand(batch if on_gpu else 2, 3, size, size, device=device))
    activations = sum(size for _, size in kept.values()) * (1 if on_gpu else at_once / 2)
    kept.clear()
    (q.mu.square().sum() + q.kappa.sum()).backward()
    optimiser.step()
    if on_gpu:
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    weights = sum(p.numel() for p in encoder.parameters()) * 4
    return (weights + 3 * 4 * sum(p.numel() for p in trained) + activations) / 2**20


def summary(rows: list[dict[str, Any]], tunings: list[str]) -> list[dict[str, Any]]:
    """Means over the seeds, and the memory as a share of that of "all"."""
    table = []
    for tune in tunings:
        own = [row for row in rows if row["tune"] == tune]
        means = {
            name: float(np.mean([row[name] for row in own]))
            for name in ("recall_at_1", "r_auroc", "label_accuracy", "label_auroc", "step_mb", "seconds")
        }
        table.append({"tune": tune, "seeds": len(own), **means})
    everything = next((entry["step_mb"] for entry in table if entry["tune"] == "all"), None)
    return [entry | ({"memory_share": entry["step_mb"] / everything} if everything else {}) for entry in table]


def show(table: list[dict[str, Any]]) -> None:
    names = [name for name in table[0] if name != "tune"]
    print(f"{'tune':6s}" + "".join(f"{name:>16s}" for name in names))
    for entry in table:
        print(f"{entry['tune']:6s}" + "".join(f"{entry[name]:16.4g}" for name in names))


if __name__ == "__main__":
    main()
