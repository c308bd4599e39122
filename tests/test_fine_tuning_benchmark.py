"""The experiment in benchmarks/fine_tuning.py: its rows are kept, and its memory is that of what is trained."""

import json

import torch
from benchmarks import fine_tuning


def test_a_finished_row_is_not_made_again(tmp_path):
    options = fine_tuning.parse(["--work", str(tmp_path), "--images", "10"])
    path = tmp_path / "rows" / "lora-10-default-passes-default-1.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"tune": "lora", "seed": 1}))
    assert fine_tuning.row("lora", 1, tmp_path, options, torch.device("cpu")) == {"tune": "lora", "seed": 1}


def test_the_table_has_means_over_seeds_and_shares_of_the_memory():
    names = ("recall_at_1", "r_auroc", "label_accuracy", "label_auroc", "seconds")
    rows = [
        {"tune": tune, "seed": seed, "step_mb": memory, **dict.fromkeys(names, float(seed))}
        for tune, memory in (("all", 100.0), ("lora", 9.0))
        for seed in (0, 1)
    ]
    table = fine_tuning.summary(rows, ["all", "lora"])
    assert [entry["recall_at_1"] for entry in table] == [0.5, 0.5]
    assert [entry["memory_share"] for entry in table] == [1.0, 0.09]


def test_memory_falls_with_what_is_trained():
    head, lora, everything = (
        fine_tuning.step_memory(tune, 32, torch.device("cpu")) for tune in ("head", "lora", "all")
    )
    assert head < lora < 0.3 * everything
