"""The quickstart leaves a report that stands alone, and data in the form that the commands take."""

import json
import re

import pytest
import torch
from typer.testing import CliRunner

from aleator.cli import app
from aleator.own_data import load_run
from aleator.quickstart import quickstart
from aleator.quickstart.degradation import KINDS, degrade
from aleator.retrieval import CredibleIndex


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quickstart") / "first-look"
    return folder, quickstart(folder, steps=25, progress=False)


@pytest.mark.slow
def test_the_report_stands_alone(result):
    folder, report = result
    page = (folder / "report.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!data:)', page)  # nothing is fetched, from here or elsewhere
    assert page.count("data:image/png;base64,") == 6
    assert "{" not in re.sub(r"<style>.*?</style>", "", page, flags=re.S)  # every place was filled
    assert json.loads((folder / "report.json").read_text()) == report
    assert set(report) == {"circle", "digits", "provenance"}
    for name in ("mu_rank", "kappa_rank"):
        assert -1 <= report["circle"][name] <= 1


@pytest.mark.slow
def test_even_a_short_run_learns_something(result):
    _, report = result
    assert report["digits"]["recall_at_1"] > 0.3
    assert report["digits"]["degradation_rank"] > 0.1


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


def test_a_folder_that_is_in_use_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    done = CliRunner().invoke(app, ["quickstart", "--output", str(tmp_path)])
    assert done.exit_code == 2
    assert "is not empty" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_degradation_grows_with_its_strength_and_begins_at_nothing(kind):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(400, 1, 8, 8, generator=generator).expand(-1, 3, -1, -1)
    change = []
    for strength in (0.0, 0.3, 0.6, 1.0):
        worse = degrade(images, torch.full((400,), kind), torch.full((400,), strength), generator)
        assert worse.min() >= 0
        assert worse.max() <= 1
        assert torch.equal(worse[:, 0], worse[:, 2])  # grey stays grey
        change.append((worse - images).abs().mean().item())
    assert change[0] < 1e-6
    assert change == sorted(change)
    assert change[3] > 0.1
