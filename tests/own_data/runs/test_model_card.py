"""The model card says what the run's files say, and its example runs."""

import re

import numpy as np
import yaml

from aleator.own_data.runs.model_card import model_card, write_model_card
from tests.own_data.conftest import blobs


def parts(run):
    return run.inputs.to_dict(), run.config, run.metrics


def test_train_writes_a_card_with_data_figures_baselines_and_limits(run, features):
    text = (features / "run" / "README.md").read_text()
    header = yaml.safe_load(text.split("---")[1])
    assert header["library_name"] == "aleator"
    assert header["pipeline_tag"] == "feature-extraction"
    for heading in ("Use", "Data", "Figures on held-out items", "Limits", "Training"):
        assert f"\n## {heading}\n" in text
    ours = next(row for row in run.metrics["baselines"]["rows"] if row["method"] == "ours")
    assert f"{ours['recall_at_1']['value']:.3f} ±" in text
    assert "raw cosine" in text
    assert "Recall@1: share of queries whose nearest item, or likeliest label, is right. surer half: " in text
    assert all(line in text for line in run.metrics["baselines"]["verdicts"])
    assert "| items | 400 |" in text


def test_the_example_of_the_card_runs(run, features, monkeypatch):
    monkeypatch.chdir(features / "run")
    code = re.search(r"```python\n(.*?)```", (features / "run" / "README.md").read_text(), re.S)[1]
    names = {"features": blobs()[0][:5]}
    exec(code, names)
    assert names["q"].batch_shape == (5,)


def test_the_folder_of_the_data_is_not_told(run, features):
    assert str(features) not in (features / "run" / "README.md").read_text()
    inputs, config, metrics = parts(run)
    settings = config["settings"] | {"backbone": "hf:/home/me/networks/vit"}
    assert "/home/me" not in model_card("name", inputs, config | {"settings": settings}, metrics)


def test_a_card_without_baselines(run):
    inputs, _, metrics = parts(run)
    alone = {name: value for name, value in metrics.items() if name not in ("baselines", "provenance")}
    text = model_card("name", inputs, {"settings": {}}, alone)
    assert "raw cosine" not in text
    assert "Recall@1" in text


def test_the_names_of_classes_cannot_break_the_table(run):
    inputs, config, metrics = parts(run)
    data = config["data"] | {"classes": ["a|b", "c\nd"]}
    text = model_card("name", inputs, config | {"data": data}, metrics)
    assert "| 2 classes | a\\|b, c d |" in text
    many = model_card("name", inputs, config | {"data": data | {"classes": list(map(str, np.arange(900)))}}, metrics)
    assert "900 classes" in many
    assert len(many) < 6000


def test_a_card_that_a_person_wrote_stays(run, tmp_path):
    (tmp_path / "README.md").write_text("My own words.")
    write_model_card(tmp_path, *parts(run))
    assert (tmp_path / "README.md").read_text() == "My own words."
