"""aleator query: who asks, how certain it is, what is in its set, with pictures."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from aleator import CredibleIndex, VMFMixture, VonMisesFisher
from aleator.foundation import percent
from aleator.retrieval import encoder_name
from aleator.retrieval.encoder_names import encoder_facts
from tests.cli.test_own_data import run_command

HEADER = {"fingerprint": "0123456789", "run": "photos", "trained": "2026-11-16"}


@pytest.fixture
def asked(tmp_path):
    """An index of 40 items of two labels, and two questions: a clear one and one between the labels."""
    mu = torch.eye(2, 4).repeat_interleave(20, 0) + 0.05 * torch.randn(
        40, 4, generator=torch.Generator().manual_seed(0)
    )
    items = VonMisesFisher(torch.nn.functional.normalize(mu, dim=1), torch.linspace(10, 400, 40))
    between = torch.nn.functional.normalize(torch.tensor([[1.0, 0, 0, 0], [1.0, 1.0, 0, 0]]), dim=1)
    questions = VonMisesFisher(between, torch.tensor([300.0, 4.0]))
    for name, q, labels in (("items", items, ["cat"] * 20 + ["dog"] * 20), ("questions", questions, [None, None])):
        folder = tmp_path / name
        folder.mkdir()
        header = {**HEADER, "source": str(folder)}
        save_file({"mu": q.mu.contiguous(), "kappa": q.kappa.contiguous()}, tmp_path / f"{name}.safetensors", header)
        records = []
        for i, label in enumerate(labels):
            path = f"{name[0]}{i}.png"
            Image.fromarray(np.full((8, 8, 3), 5 * i, np.uint8)).save(folder / path)
            records.append({"id": path, "path": path} | ({} if label is None else {"label": label}))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)))
    run_command("index", "build", tmp_path / "index", tmp_path / "items.safetensors")
    return tmp_path


def test_json_says_what_the_text_says(asked):
    command = ("query", asked / "index", asked / "questions.safetensors", "--limit", 3)
    clear, unsure = json.loads(run_command(*command, "--json").stdout)
    assert (clear["id"], clear["certainty_in_words"]) == ("q0.png", "above 72 % of the items")
    assert clear["surer_than"] == pytest.approx(29 / 40, abs=0.03)
    assert (unsure["certainty_in_words"], unsure["surer_than"]) == ("above 0 % of the items", 0)
    assert [entry["label"] for entry in clear["labels"]] == ["cat"]
    assert {entry["label"] for entry in unsure["labels"]} == {"cat", "dog"}
    assert sum(entry["share"] for entry in unsure["labels"]) == pytest.approx(1)
    with CredibleIndex.open(asked / "index") as index:
        whole = index.search(VonMisesFisher(torch.eye(1, 4), 300.0))[0]
    assert clear["size"] == len(whole) > len(clear["hits"]) == 3
    text = run_command(*command).stdout
    assert "query 0: q0.png   certainty above 72 % of the items; kappa 300" in text
    assert "certainty above 0 % of the items; kappa 4" in text
    assert f"{len(whole)} items in its 95 % credible set (cat: 100 %)" in text
    assert "6 hits for 2 queries" in text
    assert "metadata" not in text  # there is nothing that the other columns do not show


def test_hits_are_grouped_by_label_with_shares(asked):
    command = ("query", asked / "index", asked / "questions.safetensors")
    _, unsure = json.loads(run_command(*command, "--limit", 6, "--json").stdout)
    shown = {hit["id"]: hit["metadata"]["label"] for hit in unsure["hits"]}
    assert len(shown) == 6
    assert [id for entry in unsure["labels"] for id in entry["hits"]] == sorted(
        shown, key=lambda id: [entry["label"] for entry in unsure["labels"]].index(shown[id])
    )
    lines = run_command(*command, "--limit", 40).stdout.split("query 1")[1].splitlines()
    rows = [[cell.strip() for cell in line.split("│")[1:3]] for line in lines if line.count("│") > 3]
    first = [row[0] for row in rows if row[0]]
    assert [name.split(":")[0] for name in first] == [entry["label"] for entry in unsure["labels"]]  # each once
    shares = [f"{entry['label']}: {entry['share']:.0%}".replace("%", " %") for entry in unsure["labels"]]
    assert first == shares
    label = None
    for name, id in rows:
        label = name.split(":")[0] if name else label
        assert label == ("cat" if int(id[1:].split(".")[0]) < 20 else "dog")  # its own group


def test_labels_that_are_the_same_number_are_one_group(tmp_path):
    metadata = [{"label": label} for label in (1, 1.0, 2)]
    q = VonMisesFisher(torch.eye(3), 1.0)
    CredibleIndex.build(q, metadata=metadata, location=tmp_path / "index").close()
    save_file({"mu": q.mu[:1].clone(), "kappa": q.kappa[:1].clone()}, tmp_path / "question.safetensors")
    (answer,) = json.loads(
        run_command("query", tmp_path / "index", tmp_path / "question.safetensors", "--json", "--by", "nearest").stdout
    )
    assert {entry["label"]: entry["items"] for entry in answer["labels"]} == {"1": 2, "2": 1}


def test_an_empty_set_says_how_to_see_more(asked):
    command = ("query", asked / "index", asked / "questions.safetensors")
    text = run_command(*command, "--p", 0.0001).stdout
    assert "no items in its <1 % credible set; a larger --p finds more, and --by nearest shows" in text
    text = run_command(*command, "--by", "match", "--threshold", 0.999999).stdout
    assert "no items that match with >99 % or more; a smaller --threshold finds more" in text


def test_a_filter_on_a_key_that_no_item_has_is_refused(asked):
    command = ("query", asked / "index", asked / "questions.safetensors", "--filter")
    refused = run_command(*command, '{"labels": "cat"}', code=2).stderr
    assert "no item has the key 'labels'" in refused
    assert refused.rstrip().endswith("choose among path, label")
    assert "0 hits" in run_command(*command, '{"label": "cow"}').stdout  # a key that is known may have other values


def test_only_0_and_1_are_shown_as_0_and_100_percent():
    assert [percent(share) for share in (0.0, 1.0)] == ["0 %", "100 %"]
    assert {percent(share) for share in (1e-9, 0.004, 0.005)} == {"<1 %"}
    assert {percent(share) for share in (0.995, 0.996, 1 - 1e-9)} == {">99 %"}
    assert [percent(share) for share in (0.006, 0.994)] == ["1 %", "99 %"]


def test_only_certainty_is_shown_as_100_percent(asked):
    """A match of 0.9996 is not certain; the page and the command say it in the same way."""
    command = ("query", asked / "index", asked / "items.safetensors", "--limit", 1, "--prior", 0.99)
    text = run_command(*command).stdout
    matches = [
        hit["match_probability"] for one in json.loads(run_command(*command, "--json").stdout) for hit in one["hits"]
    ]
    assert any(0.995 < match < 1 for match in matches)
    assert ">99 %" in text
    assert "100.0%" not in text


def test_other_ways_to_search(asked):
    command = ("query", asked / "index", asked / "questions.safetensors", "--limit", 2)
    assert "2 items nearest to it" in run_command(*command, "--by", "nearest").stdout
    assert "that match with 1 % or more" in run_command(*command, "--by", "match", "--threshold", 0.01).stdout


def test_the_figure_shows_the_pictures(asked, monkeypatch):
    from aleator.evaluation import plots

    drawn = []
    original = plots.image_rows
    monkeypatch.setattr(plots, "image_rows", lambda rows, **how: drawn.append(rows) or original(rows, **how))
    command = ("query", asked / "index", asked / "questions.safetensors", "--limit", 2, "--figure", asked / "a.png")
    answers = json.loads(run_command(*command, "--json").stdout)
    ((first, second),) = [rows.values() for rows in drawn]
    assert first[0][0][0, 0].tolist() == [0, 0, 0]  # the picture of question 0
    assert second[0][0][0, 0].tolist() == [5, 5, 5]
    for row, answer in zip((first, second), answers, strict=True):
        for (picture, caption), hit in zip(row[1:], answer["hits"], strict=True):
            assert picture[0, 0, 0] == 5 * int(hit["id"][1:-4])
            assert caption.startswith(hit["metadata"]["label"])
    with Image.open(asked / "a.png") as image:
        assert min(image.size) > 100
    drawn.clear()
    for name in ("items", "questions"):
        (asked / name).rename(asked / f"other-{name}")
    run_command(*command)  # no pictures: a chart
    assert drawn == []


def test_encoders_are_named_by_run_and_date(asked):
    assert "photos of 2026-11-16 (01234567)" in run_command("index", "info", asked / "index").stdout
    other = {**HEADER, "fingerprint": "9876543210", "run": "newer"}
    save_file({"mu": torch.eye(1, 4), "kappa": torch.ones(1)}, asked / "other.safetensors", other)
    for command in ("query",), ("index", "add"):
        error = run_command(*command, asked / "index", asked / "other.safetensors", code=2).stderr
        assert "made by the encoder newer of 2026-11-16 (98765432)" in error
        assert "the index by photos of 2026-11-16 (01234567)" in error


def test_names_of_encoders():
    assert encoder_name({}) == "unknown"
    assert encoder_name({"fingerprint": "0123456789", "run": "a"}) == "a (01234567)"
    assert encoder_facts({**HEADER, "prior": "0.5"}) == {"run": "photos", "trained": "2026-11-16"}


@pytest.mark.parametrize("modes", [1, 2])
def test_items_that_are_less_certain(location, modes):
    """Of several modes the heaviest counts."""
    generator = torch.Generator().manual_seed(0)
    mu = torch.nn.functional.normalize(torch.randn(30, modes, 4, generator=generator), dim=-1)
    kappa = 10 * torch.rand(30, modes, generator=generator)
    if modes == 1:
        q, heaviest = VonMisesFisher(mu[:, 0], kappa[:, 0]), kappa[:, 0]
    else:
        weights = torch.tensor([[0.3, 0.7]]).expand(30, 2)
        q, heaviest = VMFMixture(weights.log(), VonMisesFisher(mu, kappa)), kappa[:, 1]
    with CredibleIndex.build(q, location=location) as index:
        index.remove([0, 7])
        left = np.delete(heaviest.numpy(), [0, 7])
        asked = np.array([0.0, 2.5, left[3], 100.0])
        expected = [(left < np.float32(value)).mean() for value in asked]
        assert index.surer_than(asked).tolist() == pytest.approx(expected)


def test_a_fingerprint_that_a_person_gave_is_shown_whole():
    assert encoder_name({"fingerprint": "encoder-b"}) == "encoder-b"
    assert encoder_name({"fingerprint": "1a2b3c4d5e6f"}) == "1a2b3c4d"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--by", "match", "--p", 0.9), "--p 0.9: has no effect with --by match; leave it out"),
        (("--by", "nearest", "--threshold", 0.1), "--threshold 0.1: has no effect with --by nearest"),
        (("--root", "."), "--root '.': has no effect without --figure; leave it out"),
        (("--figure", "a.png", "--root", "/nowhere"), "--root '/nowhere': there is no such folder"),
        (("--figure", "a.png", "--root", "index"), "--root 'index': holds no picture of a query or a hit"),
        (("--figure", "a.foo"), "--figure 'a.foo': has an unknown ending; use one of "),
        (("--filter", '{"label": {"foo": 1}}'), "--filter['label'] 'foo': not known"),
        (("--promise",), "LOCATION 'index': is not calibrated; run `aleator index calibrate`"),
    ],
)
def test_options_without_effect_and_wrong_ones_are_named(asked, monkeypatch, options, message):
    monkeypatch.chdir(asked)
    said = run_command("query", "index", "questions.safetensors", *options, code=2)
    assert said.stderr.startswith(message)
    assert not (asked / "a.png").exists()


def test_pictures_lie_in_the_root_or_where_they_were_embedded_from(asked):
    (asked / "items").rename(asked / "moved")
    command = ("query", asked / "index", asked / "questions.safetensors", "--limit", 2, "--figure")
    run_command(*command, asked / "blank.png")
    run_command(*command, asked / "both.png", "--root", asked / "moved")
    assert (asked / "both.png").read_bytes() != (asked / "blank.png").read_bytes()
    (asked / "moved").rename(asked / "items")
    run_command(*command, asked / "before.png")
    assert (asked / "both.png").read_bytes() == (asked / "before.png").read_bytes()


def test_a_filter_that_no_item_passes_is_told_of(asked):
    command = ("query", asked / "index", asked / "questions.safetensors", "--filter")
    none = run_command(*command, '{"label": "zebra"}')
    assert 'label": "zebra"}: no item of the index passes it' in none.stderr
    assert "a larger --p" not in none.output
    some = run_command(*command, '{"label": "dog"}', "--p", 0.01)
    assert "passes it" not in some.stderr
    assert "no items in its 1 % credible set; a larger --p finds more" in some.stdout


def test_items_that_are_there_already_are_named_with_their_file(asked):
    said = run_command("index", "add", asked / "index", asked / "items.safetensors", code=2)
    assert said.stderr.startswith("POSTERIORS 'i0.png': already in the index")
