"""Commands with inputs that are broken, missing or out of order: one sentence, exit code 2, no traceback, no secret."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from aleator.cli import app
from aleator.retrieval import CredibleIndex
from tests.retrieval.overlapping_labels import seen


def run(*arguments, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def posteriors(tmp_path):
    """Posteriors of embed's kind: items.safetensors and items.jsonl, 200 items of three labels that overlap."""
    q, labels = seen(200, torch.Generator().manual_seed(0))
    save_file({"mu": q.mu, "kappa": q.kappa.expand(200).contiguous()}, tmp_path / "items.safetensors")
    lines = [{"id": f"photo-{i}", "label": label} for i, label in enumerate(labels)]
    write_lines(tmp_path / "items.jsonl", lines)
    return tmp_path


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


URLS = [
    "postgresql://ann:hunter2@127.0.0.1:1/photos#index",
    "postgresql://ann:hunt%65r2@127.0.0.1:1/photos",
    "postgresql://127.0.0.1:1/photos?user=ann&password=hunter2",
    "postgresql://ann:hunter2@127.0.0.1:port/photos",
    "postgresql://ann:hunter2@[127.0.0.1/photos",
    "postgresql://ann:hunter2@127.0.0.1:1/photos?no_such_option=1",
]


@pytest.mark.parametrize("url", URLS, ids=range(len(URLS)))
@pytest.mark.parametrize("command", ["info", "build", "add", "remove", "calibrate", "query", "serve"])
def test_a_server_that_is_not_there_is_named_without_the_password(posteriors, url, command):
    file = posteriors / "items.safetensors"
    arguments = {
        "info": ("index", "info", url),
        "build": ("index", "build", url, file),
        "add": ("index", "add", url, file),
        "remove": ("index", "remove", url, "photo-1"),
        "calibrate": ("index", "calibrate", url, file),
        "query": ("query", url, file),
        "serve": ("serve", url, "--port", 0),
    }[command]
    text = run(*arguments, code=2)
    assert "postgresql://" in text
    assert "cannot be reached" in text
    for secret in ("hunter2", "hunt%65r2"):
        assert secret not in text
    assert len(text.strip().splitlines()) == 1


def test_calibration_joins_right_answers_by_id(posteriors):
    file = posteriors / "items.safetensors"
    run("index", "build", posteriors / "index", file)
    lines = [json.loads(line) for line in (posteriors / "items.jsonl").read_text().splitlines()]
    shuffled = write_lines(posteriors / "right.jsonl", reversed(lines))
    calibrate = ("index", "calibrate", posteriors / "index", file, "--coverage", 0.9, "--json")
    assert json.loads(run(*calibrate, "--items", shuffled)) == json.loads(run(*calibrate))
    others = write_lines(posteriors / "others.jsonl", [line | {"id": f"x{line['id']}"} for line in lines])
    assert "has no line for 'photo-0'" in run(*calibrate, "--items", others, code=2)
    twice = write_lines(posteriors / "twice.jsonl", [*lines, lines[0]])
    assert "'photo-0' is in line 1 too" in run(*calibrate, "--items", twice, code=2)


def test_calibration_leaves_out_what_the_encoder_has_seen(posteriors):
    file = posteriors / "items.safetensors"
    run("index", "build", posteriors / "index", file)
    lines = [json.loads(line) for line in (posteriors / "items.jsonl").read_text().splitlines()]
    calibrate = ("index", "calibrate", posteriors / "index", file, "--coverage", 0.9)
    write_lines(
        posteriors / "items.jsonl", [line | ({"used": "training"} if i < 80 else {}) for i, line in enumerate(lines)]
    )
    text = run(*calibrate)
    assert "80 questions are left out" in text
    assert "the 120 of the calibration" in text
    write_lines(posteriors / "items.jsonl", [line | {"used": "training"} for line in lines])
    assert "a promise from them would not hold" in run(*calibrate, code=2)


def test_metadata_of_a_second_file_is_joined_by_id(posteriors):
    file, index = posteriors / "items.safetensors", posteriors / "index"
    colours = [{"id": f"photo-{i}", "colour": i} for i in range(200)]
    run("index", "build", index, file, "--items", write_lines(posteriors / "colours.jsonl", reversed(colours)))
    with CredibleIndex.open(index) as opened:
        hits = opened.search(seen(1, torch.Generator())[0], by="nearest", limit=200)[0]
    assert all(hit.id == f"photo-{hit.metadata['colour']}" for hit in hits)
    some = write_lines(posteriors / "some.jsonl", colours[:100])
    assert "has no line for 'photo-100'" in run("index", "build", index, file, "--items", some, "--replace", code=2)
    names = write_lines(posteriors / "names.jsonl", [{"id": i} for i in range(200)])  # other names for the same rows
    run("index", "build", index, file, "--items", names, "--replace")


def test_evaluate_joins_labels_by_id(posteriors):
    file = posteriors / "items.safetensors"
    lines = [json.loads(line) for line in (posteriors / "items.jsonl").read_text().splitlines()]
    write_lines(posteriors / "items.jsonl", [{"id": line["id"]} for line in lines])
    rows = [f"{line['id']},{line['label']}" for line in reversed(lines)]
    table = posteriors / "labels.csv"
    table.write_text("id,label\n" + "\n".join(rows) + "\n")
    joined = json.loads(run("evaluate", file, "--labels", table, "--json"))["recall_at_1"]
    write_lines(posteriors / "items.jsonl", lines)
    assert joined == json.loads(run("evaluate", file, "--json"))["recall_at_1"]
    np.save(posteriors / "labels.npy", np.array([line["label"] for line in reversed(lines)]))
    assert "does not say which item" in run("evaluate", file, "--labels", posteriors / "labels.npy", code=2)


def test_check_and_repair(posteriors):
    file, index = posteriors / "items.safetensors", posteriors / "index"
    run("index", "build", index, file)
    assert "200 items, all whole" in run("index", "check", index)
    assert "nothing to repair" in run("index", "repair", index)
    (vectors,) = index.glob("vectors-*")
    vectors.write_bytes(vectors.read_bytes()[:-5])
    said = run("index", "check", index, code=2)
    assert vectors.name in said
    assert "aleator index repair" in said
    assert "no item is whole" in run("index", "repair", index, code=2)
    said = run("index", "repair", index, "--from", file)
    assert "200 items kept, 200 of them made again" in said
    assert "index.damaged-1" in said
    assert "200 items, all whole" in run("index", "check", index)
    assert "is on a server" in run("index", "repair", "postgresql://ann:hunter2@db/x", code=2)


def test_errors_name_what_was_typed(posteriors):
    file, rows = posteriors / "items.safetensors", posteriors / "rows.npy"
    said = run("rank", file, "--csv", "--json", code=2)
    assert said.startswith("--csv True: is another format than --json; leave out one of them")
    assert run("index", "repair", "lance:gallery", code=2).startswith("LOCATION 'lance:...': has versions instead")
    np.save(rows, np.full((9, 2), 0.2))
    np.save(posteriors / "x.npy", np.eye(9))
    said = run("train", posteriors / "x.npy", "--labels", rows, "--output", posteriors / "run", code=2)
    assert said.startswith(f"--labels 'row 0 of {rows}': sum to 0.4, not to 1")
