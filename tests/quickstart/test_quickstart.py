"""The quickstart leaves a report that stands alone, and data in the form that the commands take."""

import json
import re

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from aleator.cli import app
from aleator.own_data import load_run
from aleator.quickstart import quickstart
from aleator.quickstart.report import write_report
from aleator.retrieval import CredibleIndex, certainty_in_words
from aleator.web import create_app


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quickstart") / "first-look"
    return folder, quickstart(folder, steps=25, progress=False)


@pytest.mark.slow
def test_the_report_stands_alone(result):
    folder, report = result
    page = (folder / "report.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!data:)', page)  # nothing is fetched, from here or elsewhere
    samples = report["digits"]["sample_questions"]
    pictures = [1 + len(sample["numerals"]) for sample in samples]  # the question, and an answer of each numeral
    either_or = (folder / "figures" / "either-or.png").exists()
    assert either_or == bool(report["modes"]["shown"])
    assert page.count("data:image/png;base64,") == 5 + either_or + sum(pictures)
    assert page.count('<article class="question">') == len(samples) == 3
    assert "{" not in re.sub(r"<style>.*?</style>", "", page, flags=re.S)  # every place was filled
    assert json.loads((folder / "report.json").read_text()) == report
    assert set(report) == {"circle", "digits", "modes", "provenance"}
    for name in ("mu_rank", "kappa_rank"):
        assert -1 <= report["circle"][name] <= 1


@pytest.mark.slow
def test_every_sample_question_has_an_answer_or_an_explanation(result):
    folder, report = result
    clear, degraded, _ = samples = report["digits"]["sample_questions"]
    assert clear["numeral"] == degraded["numeral"]
    for sample in samples:
        assert (folder / sample["image"]).is_file()
        assert (sample["nearest"] is None) == (not sample["numerals"])
        assert sample["nearest"] is not None or "set is empty" in sample["explanation"]
        assert sum(share["share"] for share in sample["numerals"]) == pytest.approx(1 if sample["numerals"] else 0)


@pytest.mark.slow
def test_report_and_page_say_the_same_of_the_same_image(result):
    folder, report = result
    run = load_run(folder / "run")
    with CredibleIndex.open(folder / "index", fingerprint=run.fingerprint) as index:
        client = TestClient(create_app(index, run=run, root=folder / "gallery"))
        for sample in report["digits"]["sample_questions"]:
            query = client.post("/api/query/image", content=(folder / sample["image"]).read_bytes()).json()["query"]
            said = {one["label"]: pytest.approx(one["probability"], abs=1e-3) for one in query["labels"]}
            assert sample["could_be"] == said
            assert sample["certainty"] == certainty_in_words(query["labels"][0]["probability"], 0.0)


@pytest.mark.slow
def test_even_a_short_run_learns_something(result):
    _, report = result
    assert report["digits"]["recall_at_1"] > 0.3
    assert report["digits"]["degradation_rank"] > 0.1


@pytest.mark.slow
def test_one_mode_and_two_are_compared_at_the_same_coverage(result):
    folder, report = result
    modes = report["modes"]
    assert abs(modes["one_mode"]["holds"] - modes["two_modes"]["holds"]) < 0.03
    assert modes["fewer"] == pytest.approx(modes["one_mode"]["size"] - modes["two_modes"]["size"])
    assert all(sentence in (folder / "report.html").read_text() for sentence in modes["sentences"])
    for shown in modes["shown"]:
        first, second = shown["groups"]
        assert first["numeral"] != second["numeral"]
        assert first["weight"] + second["weight"] == pytest.approx(1)
        assert first["weight"] >= second["weight"]


@pytest.mark.slow
def test_what_it_leaves_is_what_the_commands_take(result):
    folder, report = result
    run = load_run(folder / "run")
    question = next((folder / "questions").rglob("*.png"))
    with CredibleIndex.open(folder / "index", fingerprint=run.fingerprint) as index:
        assert len(index) == report["digits"]["gallery"] == 900
        (hits,) = index.search(run.posteriors([question]), by="nearest", limit=3)
    assert (folder / "gallery" / hits[0].metadata["path"]).is_file()
    ranked = CliRunner().invoke(app, ["rank", str(folder / "questions.safetensors"), "--json", "--limit", "3"])
    assert len(json.loads(ranked.stdout)) == 3


def test_numbers_that_print_alike_all_have_a_card(tmp_path):
    digits = {"gallery": 900, "questions": 600, "recall_at_1": 1.0, "recall_at_1_surer_half": 1.0}
    digits |= {"degradation_rank": 0.05, "match_ece_hits": 0.05, "sample_questions": [], "empty_credible_sets": 3}
    digits |= {"credible_set_holds_the_numeral": 0.95, "numerals_in_the_credible_set": {"low": 1.2, "high": 1.2}}
    circle = {"mu_rank": 0.999, "kappa_rank": 0.999, "coverage": {"0.95": 0.95}}
    provenance = {"wall_seconds": 1.0, "device": "cpu", "commit": None, "versions": {}}
    for name in ("circle", "digits-examples", "digits-kappa", "digits-reject-curve", "digits-reliability"):
        (tmp_path / f"{name}.png").write_bytes(b"")
    report = {"circle": circle, "digits": digits, "modes": {"sentences": []}, "provenance": provenance}
    write_report(tmp_path / "report.html", report, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert page.index("Which digits could this be?") < page.index("Known posteriors")  # it opens with what convinces
    assert page.count("<li><b>") == 3 + 4 + 3
    assert page.count("<li><b>0.999</b>") == page.count("<li><b>100.0%</b>") == page.count("<li><b>1.2</b>") == 2


def test_a_folder_that_is_in_use_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    done = CliRunner().invoke(app, ["quickstart", "--output", str(tmp_path)])
    assert done.exit_code == 2
    assert "is not empty" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
