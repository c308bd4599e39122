"""A folder of CIFAR-10 images goes through the guide's commands as they are printed."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from aleator.cli import app

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "own-data.md"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def printed_commands() -> list[list[str]]:
    """The commands of the section on folders, without the server and the network that must be downloaded."""
    section = GUIDE.read_text().split("## A folder of images")[1].split("\n## ")[0]
    lines = re.findall(r"^    (aleator .*)$", section, re.M)
    return [shlex.split(line)[1:] for line in lines if " serve " not in line and "hf:" not in line]


def write_images(folder: Path, images: np.ndarray, labels: np.ndarray, in_classes: bool) -> None:
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / (f"{CLASSES[label]}/{i:05d}.png" if in_classes else f"{i:05d}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


@pytest.mark.slow
@pytest.mark.data
def test_the_guide_on_real_images(data_folder, tmp_path, monkeypatch):
    with np.load(data_folder / "cifar10" / "train_1.npz") as part:
        images, labels = part["images"], part["labels"]
    for folder, numbers in (("photos", slice(200)), ("more-photos", slice(200, 250))):
        chosen = np.concatenate([np.flatnonzero(labels == c)[numbers] for c in range(10)])
        write_images(tmp_path / folder, images[chosen], labels[chosen], in_classes=True)
    with np.load(data_folder / "cifar10" / "test.npz") as part:
        write_images(tmp_path / "new-photos", part["images"][:20], part["labels"][:20], in_classes=False)
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(2)
    printed = {}
    for command in printed_commands():
        shorter = ["--minutes", "0.5"] if command[0] == "train" else []
        result = CliRunner().invoke(app, command + shorter)
        assert result.exit_code == 0, (command, result.output)
        printed[" ".join(command[:2])] = result.stdout
    torch.set_num_threads(1)
    assert {line.split()[0] for line in printed} == {"train", "embed", "evaluate", "rank", "index", "query"}
    metrics = json.loads((tmp_path / "runs/photos/metrics.json").read_text())
    print(json.dumps({name: value for name, value in metrics.items() if isinstance(value, float)}))
    assert metrics["recall_at_1"] > 0.2  # chance is 0.1
    assert metrics["recall_at_1_surer_half"] > metrics["recall_at_1"]
    assert metrics["match_ece"] < 0.1
    assert "2000 items" in printed["index build"]
    assert "hits for 20 queries" in printed["query photos-index/"]
    assert (tmp_path / "queries.jsonl").read_text().count("\n") == 20
    pretrained = json.loads((tmp_path / "runs/photos-pretrained/metrics.json").read_text())
    assert pretrained["recall_at_1"] > 0.6
    assert (tmp_path / "runs/photos-2/metrics.json").is_file()
