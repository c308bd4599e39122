"""aleator index and aleator query."""

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
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def files(tmp_path):
    generator = torch.Generator().manual_seed(0)
    mu = torch.nn.functional.normalize(torch.randn(30, 5, generator=generator), dim=-1)
    kappa = torch.rand(30, generator=generator) * 100
    np.savez(tmp_path / "items.npz", mu=mu.numpy(), kappa=kappa.numpy())
    save_file({"mu": mu[:2].clone(), "kappa": torch.tensor([1e6, 2.0])}, tmp_path / "queries.safetensors")
    lines = [json.dumps({"id": f"[red]item {i}", "label": "even" if i % 2 == 0 else "odd"}) for i in range(30)]
    (tmp_path / "items.jsonl").write_text("\n".join(lines))
    return tmp_path


def test_an_index_from_files_to_hits(files, location):
    items = files / "items.npz"
    assert "30 items" in run("index", "build", location, items, "--items", files / "items.jsonl", "--fingerprint", "a")
    facts = json.loads(run("index", "info", location, "--json"))
    assert (facts["items"], facts["dimensions"], facts["fingerprint"]) == (30, 5, "a")
    assert "exact search" in run("index", "info", location)
    ask = ("query", location, files / "queries.safetensors")
    answers = json.loads(run(*ask, "--json"))
    assert [hit["id"] for hit in answers[0]["hits"]] == ["[red]item 0"]
    assert answers[0]["hits"][0]["metadata"] == {"label": "even"}
    assert len(answers[1]["hits"]) > 5
    odd = json.loads(run(*ask, "--json", "--by", "nearest", "--limit", 3, "--filter", '{"label": "odd"}'))
    assert {hit["metadata"]["label"] for answer in odd for hit in answer["hits"]} == {"odd"}
    text = run(*ask, "--figure", files / "hits.png")
    assert "[red]item" in text
    assert (files / "hits.png").read_bytes().startswith(b"\x89PNG")
    assert "1 removed, 29 items" in run("index", "remove", location, "[red]item 0")
    extra = files / "extra.npz"
    np.savez(extra, mu=np.eye(2, 5, dtype=np.float32), kappa=np.ones(2, np.float32))
    assert "2 added, 31 items" in run("index", "add", location, extra)
    with CredibleIndex.open(location) as index:
        (number,) = {hit.id for hit in index.search(index_query(), by="nearest", limit=1)[0]}
    assert "1 removed, 30 items" in run("index", "remove", location, number)


def test_only_a_number_as_it_is_written_means_an_integer_id(tmp_path):
    CredibleIndex.build(index_query()[[0] * 5], [0, 7, -3, "7", "x"], location=tmp_path / "index").close()
    for id in ("007", "-0", "--7", "\N{ARABIC-INDIC DIGIT SEVEN}"):
        assert "not in the index" in run("index", "remove", tmp_path / "index", "--", id, code=2)
    assert "1 removed, 4 items" in run("index", "remove", tmp_path / "index", "7")  # the text
    assert "3 removed, 1 items" in run("index", "remove", tmp_path / "index", "--", "7", "-3", "0")


def index_query():
    from aleator import VonMisesFisher

    return VonMisesFisher(torch.eye(1, 5), 10.0)


def test_mistakes_are_one_line(files, tmp_path):
    assert "holds no index" in run("query", tmp_path / "nowhere", files / "items.npz", code=2)
    assert "no such file" in run("index", "build", tmp_path / "new", tmp_path / "none.npz", code=2)
    assert "unknown ending" in run("index", "build", tmp_path / "new", files / "items.jsonl", code=2)
    (tmp_path / "items.parquet").touch()
    parquet = run("index", "build", tmp_path / "new", tmp_path / "items.parquet", code=2)
    assert "use .npz or .safetensors; .parquet is for other programs" in parquet
    (tmp_path / "bad.jsonl").write_text('{"label": 1}')
    output = run("index", "build", tmp_path / "new", files / "items.npz", "--items", tmp_path / "bad.jsonl", code=2)
    assert "not a JSON object with an id" in output
    run("index", "build", tmp_path / "new", files / "items.npz")
    assert "already holds an index" in run("index", "build", tmp_path / "new", files / "items.npz", code=2)
    assert "30 items" in run("index", "build", tmp_path / "new", files / "items.npz", "--replace")
    assert "Expecting" in run("query", tmp_path / "new", files / "items.npz", "--filter", "{", code=2)


@pytest.fixture
def labelled(tmp_path):
    """An index of items with labels, and questions with labels and fingerprint, as `aleator embed` writes them."""
    generator = torch.Generator().manual_seed(0)
    paths = {}
    for name, count in (("items", 80), ("questions", 120), ("one", 1)):
        q, labels = seen(count, generator)
        paths[name] = tmp_path / f"{name}.safetensors"
        save_file({"mu": q.mu, "kappa": q.kappa}, paths[name], {"fingerprint": "a"})
        lines = [json.dumps({"id": f"{name} {i}", "label": label}) for i, label in enumerate(labels)]
        paths[name].with_suffix(".jsonl").write_text("\n".join(lines))
    run("index", "build", tmp_path / "index", paths["items"])
    return tmp_path / "index", paths["questions"]


def test_a_promise_from_questions_to_sets(labelled):
    index, questions = labelled
    refused = run("query", index, questions, "--promise", code=2)
    assert "is not calibrated" in refused
    assert "None" not in refused
    assert "aleator index calibrate" in run("index", "info", index)
    text = run("index", "calibrate", index, questions, "--coverage", "0.9", "--error", "0.5")
    assert "Promise: sets hold a right answer for 90 % of questions" in text
    assert "Sure enough to answer" in text
    stored = json.loads(run("index", "info", index, "--json"))["promise"]
    assert (stored["coverage"], stored["rejection"]["error"], stored["sets"]) == (0.9, 0.5, "labels")
    answers = json.loads(run("query", index, questions, "--promise", "--json"))
    labels = [json.loads(line)["label"] for line in questions.with_suffix(".jsonl").read_text().splitlines()]
    held = [any(hit["metadata"]["label"] == r for hit in a["hits"]) for a, r in zip(answers, labels, strict=True)]
    assert np.mean(held) >= 0.9
    assert {answer["sure"] for answer in answers} <= {True, False}
    for option, value in (("--p", "0.5"), ("--by", "match"), ("--filter", "{}"), ("--limit", "3")):
        assert "leave out " + option in run("query", index, questions, "--promise", option, value, code=2)
    shown = run("query", index, questions, "--promise")
    assert "Promise: sets hold a right answer for 90 % of questions like the 120 of the calibration" in shown
    run("index", "remove", index, "items 0")
    run("index", "add", index, questions.with_name("one.safetensors"))
    for options in ((), ("--json",)):
        void = run("query", index, questions, "--promise", *options, code=2)
        assert "items have changed since it was calibrated; run `aleator index calibrate`" in void
    about = json.loads(run("index", "info", index, "--json"))
    assert (about["items"], about["promise"], about["promise_is_void"]) == (80, None, True)
    assert "void: items have changed" in run("index", "info", index)


def test_promises_that_cannot_be_made_are_one_line(labelled, tmp_path):
    index, questions = labelled
    calibrate = ("index", "calibrate", index, questions)
    assert "pass at least 199" in run(*calibrate, "--coverage", "0.995", code=2)
    assert "made by the encoder" in run(*calibrate, "--fingerprint", "b", code=2)
    assert "--sets 'x'" in run(*calibrate, "--sets", "x", code=2)
    (tmp_path / "none.jsonl").write_text("\n".join(json.dumps({"id": f"questions {i}"}) for i in range(120)))
    assert "the right answers are not known" in run(*calibrate, "--items", tmp_path / "none.jsonl", code=2)
    rights = [json.dumps({"id": f"questions {i}", "right": [f"items {j}" for j in range(80)]}) for i in range(120)]
    (tmp_path / "ids.jsonl").write_text("\n".join(rights))
    assert json.loads(run(*calibrate, "--items", tmp_path / "ids.jsonl", "--json"))["sets"] == "ranked"
