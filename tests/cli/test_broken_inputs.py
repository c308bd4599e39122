"""Every command with every input broken in many ways: an error of a few lines, exit code 2, no traceback, no secret.

A new command must be added to COMMANDS.
"""

import json
import os
import shutil
import sys
import warnings

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

from aleator import Encoder, VonMisesFisher
from aleator.cli import app
from aleator.encoders import MLP
from aleator.retrieval import CredibleIndex, items_header, write_items, write_posteriors
from tests.web.shapes import feature_run

SECRET = "hunter2hunter2hunter2"
# For each command its arguments. A name in braces is an input of the fixture `inputs`, which is then broken.
COMMANDS = {
    ("train",): ["{photos}", "--output", "OUT"],
    ("train", "table"): ["{table.csv}", "--output", "OUT"],
    ("train", "features"): ["{x.npy}", "--labels", "{y.npy}", "--output", "OUT"],
    ("train", "labels"): ["{x.npy}", "--labels", "{y.csv}", "--output", "OUT"],
    ("train", "text"): ["{lines.txt}", "--output", "OUT"],
    ("embed",): ["{run}", "{x.npy}", "--output", "OUT.safetensors"],
    ("export",): ["{run}", "--onnx", "OUT.onnx"],
    ("evaluate",): ["{p.safetensors}", "--labels", "{ids.csv}", "--no-baselines"],
    ("evaluate", "npz"): ["{p.npz}", "--labels", "{y.npy}", "--data", "{x.npy}"],
    ("rank",): ["{p.safetensors}"],
    ("audit",): ["{x.npy}", "--labels", "{y.npy}", "--output", "OUT"],
    ("audit", "run"): ["{run}", "{x.npy}", "--output", "OUT"],
    ("index", "build"): ["OUT", "{p.safetensors}", "--items", "{items.jsonl}"],
    ("index", "add"): ["{index}", "{p.npz}"],
    ("index", "remove"): ["{index}", "i1"],
    ("index", "calibrate"): ["{index}", "{p.safetensors}", "--items", "{items.jsonl}", "--coverage", "0.5"],
    ("index", "info"): ["{index}"],
    ("index", "check"): ["{index}"],
    ("index", "repair"): ["{index}", "--from", "{p.safetensors}"],
    ("query",): ["{index}", "{p.safetensors}", "--limit", "2"],
    ("serve",): ["{index}", "--model", "{run}", "--root", "{photos}", "--port", "0", "--token", SECRET],
    ("serve", "audit"): ["{index}", "--audit", "{audit}", "--port", "0"],
}
NO_INPUTS = {("quickstart",), ("reproduce",)}


def all_commands(command=None, names=()):
    command = command or typer.main.get_command(app)
    if hasattr(command, "commands"):
        return {found for name, sub in command.commands.items() for found in all_commands(sub, (*names, name))}
    return {names}


def command_of(case):
    return max((names for names in all_commands() if case[: len(names)] == names), key=len)


def test_the_walk_knows_every_command():
    assert {command_of(case) for case in COMMANDS} | NO_INPUTS == all_commands()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One whole input of each kind."""
    folder = tmp_path_factory.mktemp("inputs")
    generator = np.random.default_rng(0)
    mu = generator.standard_normal((12, 4)).astype(np.float32)
    mu /= np.linalg.norm(mu, axis=1, keepdims=True)
    kappa, classes = np.arange(1, 13, dtype=np.float32), np.arange(12) % 2
    np.save(folder / "x.npy", generator.standard_normal((12, 5)).astype(np.float32))
    np.save(folder / "y.npy", classes)
    (folder / "y.csv").write_text("label\n" + "\n".join(f"c{c}" for c in classes) + "\n")
    (folder / "ids.csv").write_text("id,label\n" + "\n".join(f"i{i},c{c}" for i, c in enumerate(classes)) + "\n")
    (folder / "lines.txt").write_text("one text\nand another\n")
    for i, c in enumerate(classes):
        (folder / "photos" / f"c{c}").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (i, i, i)).save(folder / "photos" / f"c{c}" / f"{i}.png")
    (folder / "table.csv").write_text("path,label\nphotos/c0/0.png,a\nphotos/c1/1.png,b\n")
    records = [{"id": f"i{i}", "label": f"c{c}"} for i, c in enumerate(classes)]
    for name in ("p.jsonl", "items.jsonl"):
        write_items(folder / name, records)
    header = {"fingerprint": "f"} | items_header(records)
    write_posteriors(folder / "p.safetensors", 12, 4, [(mu, kappa)], header)
    np.savez(folder / "p.npz", mu=mu, kappa=kappa)
    q = VonMisesFisher(torch.from_numpy(mu), torch.from_numpy(kappa))
    ids, notes = [record["id"] for record in records], [{"label": record["label"]} for record in records]
    CredibleIndex.build(q, ids, notes, location=folder / "index").close()
    Encoder(MLP(5, (8,)), 4).save(folder / "run" / "encoder")
    (folder / "run" / "inputs.json").write_text(json.dumps(feature_run().inputs.to_dict()))
    (folder / "run" / "config.json").write_text(json.dumps({"match": {"kappa_pos": 20.0, "prior": 0.5}}))
    (folder / "run" / "metrics.json").write_text("{}")
    (folder / "audit").mkdir()
    (folder / "audit" / "audit.json").write_text("{}")
    return folder


def broken_files(path, whole):
    """Ways to break a file; each writes it and says what it did."""
    data = whole.read_bytes()
    flipped = bytearray(data)
    for place in range(len(data) // 3, len(data), max(1, len(data) // 5)):
        flipped[place] ^= 255
    for name, content in {
        "empty": b"",
        "cut": data[: len(data) // 2],
        "flipped": bytes(flipped),
        "random": np.random.default_rng(1).bytes(300),
        "zeros": bytes(len(data)),
        "text": b"this is not what it says it is\n" * 5,
        "json": b'{"mu": [1, 2], "a": {}}',
        "latin": "naïve,ünd\n".encode("latin-1") * 4,
    }.items():
        path.write_bytes(content)
        yield name
    path.unlink()
    yield "missing"
    path.unlink(missing_ok=True)  # a command may write it again
    path.mkdir()
    yield "folder"
    path.rmdir()
    path.symlink_to(path)
    yield "link to itself"
    path.unlink()


def broken_folders(path, whole):
    """The same for a folder: it is missing or empty, a file, or one of its files is broken."""
    shutil.rmtree(path)
    yield "missing"
    path.mkdir()
    yield "empty"
    path.rmdir()
    path.write_text("a file")
    yield "a file"
    path.unlink()
    files = sorted(file for file in whole.rglob("*") if file.is_file())
    for file in files[: 1 if whole.name == "photos" else 6]:
        shutil.copytree(whole, path)
        inner = path / file.relative_to(whole)
        for name in broken_files(inner, file):
            if name in ("empty", "cut", "flipped", "missing", "folder"):
                yield f"{inner.name} {name}"
        shutil.rmtree(path)


@pytest.mark.parametrize("case", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_broken_input_is_one_plain_error(case, every, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["aleator.cli.serve"], "_run", lambda *_: None)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    slots = [argument.strip("{}") for argument in COMMANDS[case] if argument.startswith("{")]
    tried, number = 0, list(COMMANDS).index(case)  # so that the cases try different damages
    for slot in slots:
        work = tmp_path / slot
        shutil.copytree(whole, work, symlinks=True)
        path = work / slot
        breaking = broken_folders if path.is_dir() else broken_files
        for damage in breaking(path, whole / slot):
            number += 1
            if number % every:
                continue
            arguments = [
                str(work / argument.strip("{}"))
                if argument.startswith("{")
                else argument.replace("OUT", str(work / "out"))
                for argument in COMMANDS[case]
            ]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = CliRunner().invoke(app, [*command_of(case), *arguments])
            where = f"{' '.join(case)}: {slot} {damage}: {result.output[-500:]}"
            plain = result.exception is None or isinstance(result.exception, SystemExit)
            assert plain, f"{where} {result.exception!r}"
            assert result.exit_code in (0, 2), where
            assert "Traceback" not in result.output, where
            assert SECRET not in result.output or result.exit_code == 0, where
            if result.exit_code == 2:
                assert result.output.strip(), where
            tried += 1
            for left in work.glob("out*"):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            for left in work.glob("index.damaged-*"):
                shutil.rmtree(left)
        assert os.listdir(work)
    assert tried >= 2
