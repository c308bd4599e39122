"""Small collections, and one run that the tests of this folder share."""

import numpy as np
import pytest
from PIL import Image

from aleator.own_data import Settings, embed, read_collection, train
from aleator.own_data.learning.defaults import CompleteSettings
from aleator.own_data.runs import run as run_module

QUICK = Settings(steps=120, dim=4, width=32, batch_size=64)


def blobs(count: int = 400, classes: int = 4, features: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features around one centre per class; items 0, 4, 8, ... lie between two centres, of either class."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(classes, size=count)
    centres = 4 * np.eye(classes, features)
    rows = centres[labels] + 0.3 * generator.standard_normal((count, features))
    between = (centres[labels] + centres[(labels + 1) % classes]) / 2
    rows[::4] = between[::4] + 0.3 * generator.standard_normal((count, features))[::4]
    labels[::4] = (labels[::4] + generator.integers(2, size=len(labels[::4]))) % classes
    return rows.astype(np.float32), labels


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    """Runs that a test trains have none: they take a second. Those of the shared run below are looked at."""
    monkeypatch.setattr(run_module, "figures", lambda metrics: {})


@pytest.fixture(scope="session")
def features(tmp_path_factory):
    """x.npy and y.npy of 400 labelled items."""
    folder = tmp_path_factory.mktemp("features")
    rows, labels = blobs()
    np.save(folder / "x.npy", rows)
    np.save(folder / "y.npy", labels)
    return folder


@pytest.fixture(scope="session")
def run(features):
    """A run on those features."""
    return train(read_collection(features / "x.npy", features / "y.npy"), features / "run", QUICK, device="cpu")


@pytest.fixture(scope="session")
def whole(run, features, tmp_path_factory):
    """The features embedded in one go."""
    output = tmp_path_factory.mktemp("whole") / "all.safetensors"
    return embed(run, read_collection(features / "x.npy", features / "y.npy"), output, device="cpu")


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """A folder of 60 images in three classes that differ in colour."""
    folder = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for c, name in enumerate(("blue", "green", "red")):
        (folder / name).mkdir()
        for i in range(20):
            pixels = generator.integers(0, 80, (12, 10, 3), dtype=np.uint8)
            pixels[:, :, 2 - c] += 150
            Image.fromarray(pixels).save(folder / name / f"{i:02d}.png")
    return folder


@pytest.fixture
def pets(tmp_path):
    """A new folder of five images in two classes, with a file that is no image and a hidden file."""
    for name in ("cat/1.png", "cat/2.png", "cat/old/3.PNG", "dog/1.png", "dog/2.png"):
        image(tmp_path / "photos" / name)
    (tmp_path / "photos" / "notes.txt").write_text("not an image")
    (tmp_path / "photos" / ".hidden.png").write_text("hidden")
    return tmp_path / "photos"


def image(path, colour=0):
    """Write a small image of one colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (colour, colour, colour)).save(path)


def write(path, text):
    """Write a text file; returns its path."""
    path.write_text(text)
    return path


def complete_settings(**given):
    """All settings of a small training."""
    plain = {"backbone": "features", "dim": 4, "modes": 1, "kappa_pos": 10.0, "batch_size": 4, "learning_rate": 1e-3}
    return CompleteSettings(**plain | {"weight_decay": 0.0, "width": 4, "holdout": 0.2} | given)
