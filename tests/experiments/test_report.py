"""Results as files and tables: the schema, the paper's figures beside ours, errors that list what is known."""

import json
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from aleator.cli import app
from aleator.cli.reproduce import reproduce as reproduce_command
from aleator.experiments import EXPERIMENTS, reproduce
from aleator.experiments.report import cell, number, section, shown_rows, winners, write_report


def row(setting="ambiguous", loss="mcinfonce", **metrics):
    told = {name: {"mean": value, "stderr": 0.5, "values": [value]} for name, value in metrics.items()}
    return {"setting": setting, "loss": loss, "seeds": [4], "metrics": told}


def test_the_papers_figure_stands_beside_ours():
    assert cell("recovery", row(kappa_mae=2.0), "kappa_mae") == "2.000 ± 0.5000 (6.150)"
    assert cell("recovery", row(kappa_rmse=2.0), "kappa_rmse") == "2.000 ± 0.5000"  # the paper has no true RMSE
    assert cell("losses", row(loss="hib"), "kappa_mae") == "(1.0e+14)"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.12345, "0.1235"),
        (1.2345, "1.234"),
        (12.345, "12.3"),
        (12345.6, "12,346"),
        (2e14, "2.0e+14"),
        (float("nan"), "nan"),
    ],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


def test_a_grid_is_shown_by_its_winners():
    rows = [row(setting=str(i), loss=loss, kappa_rank=i / 20) for loss in ("hib", "elk") for i in range(15)]
    rows.append(row(setting="failed", loss="hib", kappa_rank=float("nan")))
    rows.append(row(setting="classifier", loss="softmax-entropy", entropy_rank=0.4))  # which has no kappa to rank
    assert [(r["loss"], r["setting"]) for r in winners(rows)] == [
        *((loss, setting) for loss in ("hib", "elk") for setting in ("14", "13", "12")),
        ("softmax-entropy", "classifier"),
    ]
    assert shown_rows({"experiment": "tuning", "rows": rows}) == winners(rows)
    assert shown_rows({"experiment": "tuning", "rows": rows[:25]}) == rows[:25]
    assert shown_rows({"experiment": "published", "rows": rows}) == rows


@pytest.mark.parametrize(
    ("experiment", "metric", "words"),
    [
        ("tuning", "kappa_rank", "rank correlation of kappa"),
        ("cifar-tuning", "validation_crop_rank", "rank correlation of kappa with crop size, on validation images"),
    ],
)
def test_a_grid_says_what_its_winners_were_chosen_by(experiment, metric, words, tmp_path):
    rows = [row(setting=str(i), loss="hib", **{metric: i / 30}) for i in range(26)]
    origin = {"device": "a machine", "wall_seconds": 1.0, "commit": "abc"}
    text = section({"experiment": experiment, "rows": rows, "provenance": origin}, "quick", tmp_path)
    assert f"commit `abc`; of 26 rows, the three of each loss with the best {words}\n" in text
    assert [f"| {name} | hib |" in text for name in ("25", "24", "23", "22")] == [True, True, True, False]


@pytest.fixture
def short(monkeypatch):
    """The experiment `circle`, quick, made of a few steps."""
    from aleator.experiments import catalogue
    from aleator.experiments.controlled import tables

    def rows(preset):
        (made,) = tables.circle(preset)
        recipe = {**made.setting.recipe, "steps": 5}
        return [
            replace(
                made,
                setting=replace(made.setting, batch_size=8, group=None, smoothing_steps=5, points=50, recipe=recipe),
            )
        ]

    changed = replace(catalogue.EXPERIMENTS["circle"], rows=rows)
    monkeypatch.setitem(catalogue.EXPERIMENTS, "circle", changed)


def test_a_result_has_the_schema_of_all_results(short, tmp_path):
    arguments = {"device": "cpu", "results": tmp_path / "results", "runs": tmp_path / "runs", "jobs": 1}
    reproduce("circle", "quick", **arguments)
    path = tmp_path / "results/circle/quick.json"
    found = json.loads(path.read_text())
    assert set(found) == {"experiment", "preset", "provenance", "rows"}
    assert {"command", "commit", "device", "versions", "wall_seconds"} <= set(found["provenance"])
    (only,) = found["rows"]
    assert (only["setting"], only["loss"], only["seeds"]) == ("dim-2", "exact", [4])
    assert {
        "mu_rmse",
        "mu_mae",
        "mu_rank",
        "kappa_rmse",
        "kappa_mae",
        "kappa_rank",
        "spread_rmse",
        "coverage_95",
    } <= set(only["metrics"])
    assert set(only["metrics"]["mu_rmse"]) == {"mean", "stderr", "values"}
    assert {p.name for p in (tmp_path / "results/circle/quick").iterdir()} == {"posteriors.png", "kappa.png"}
    report = (tmp_path / "results/README.md").read_text()
    assert "## circle" in report
    assert "(0.8200)" in report  # the paper's rank correlation
    before = path.read_text()
    reproduce("circle", "quick", **arguments)  # nothing left to run
    assert json.loads(path.read_text())["rows"] == json.loads(before)["rows"]
    assert json.loads(path.read_text())["provenance"]["sittings"] == 1


def test_rows_can_be_run_one_by_one_and_nothing_is_lost(short, tmp_path):
    arguments = {"device": "cpu", "results": tmp_path / "results", "runs": tmp_path / "runs", "jobs": 1}
    with pytest.raises(ValueError, match=r"^runs = .*: holds no finished run of circle, preset quick; name a row"):
        reproduce("circle", "quick", only=[], **arguments)
    with pytest.raises(ValueError, match=r"only = 'dim-3'.*dim-2"):
        reproduce("circle", "quick", only=["dim-3"], **arguments)
    assert not (tmp_path / "results").exists()
    one = reproduce("circle", "quick", only=["dim-2"], seeds=[5], **arguments)
    assert [row["seeds"] for row in one["rows"]] == [[5]]
    shown = reproduce("circle", "quick", only=[], seeds=[4, 5], **arguments)  # seed 4 has not been run
    assert shown["rows"] == one["rows"]

    path = tmp_path / "results/circle/quick.json"
    elsewhere = json.loads(path.read_text())
    (row,) = elsewhere["rows"]
    two = {name: {"mean": 0.0, "stderr": 0.0, "values": [0.25, 0.5]} for name in row["metrics"]}
    row |= {"seeds": [5, 6], "metrics": two, "run_seconds": [1.0, 2.0]}
    elsewhere["rows"].append({**row, "setting": "of an earlier preset"})
    elsewhere["provenance"] |= {"commit": "abc", "device": "a GPU", "wall_seconds": 50.0, "sittings": 3}
    path.write_text(json.dumps(elsewhere))
    joined = reproduce("circle", "quick", only=["dim-2"], seeds=[4], **arguments)
    first, other = joined["rows"]
    assert other == elsewhere["rows"][1]
    assert first["seeds"] == [5, 6, 4]
    here, stored, fresh = first["metrics"]["mu_rank"]["values"]
    assert [here] == one["rows"][0]["metrics"]["mu_rank"]["values"]  # the run that is here counts
    assert stored == 0.5
    assert first["metrics"]["mu_rank"]["mean"] == pytest.approx((here + stored + fresh) / 3)
    assert first["run_seconds"][1] == 2.0
    provenance = joined["provenance"]
    assert provenance["device"].startswith("a GPU, ")
    assert provenance["commit"].startswith("abc, ")
    assert (provenance["runs"], provenance["sittings"]) == (5, 4)
    assert 50.0 < provenance["wall_seconds"] < 100.0
    again = reproduce("circle", "quick", only=[], **arguments)  # nothing is counted twice
    assert json.dumps(again["rows"]) == json.dumps(joined["rows"])  # NaN is not equal to itself
    assert again["provenance"]["wall_seconds"] == provenance["wall_seconds"]

    first["parameters"]["kappa_pos"] = 7.0
    path.write_text(before := json.dumps(joined))
    with pytest.raises(ValueError, match=r"^results = .*runs of dim-2 with other settings \(kappa_pos\); name another"):
        reproduce("circle", "quick", only=[], **arguments)
    assert path.read_text() == before


def test_a_part_of_a_table_has_no_figures_that_compare_its_rows(short, tmp_path, monkeypatch):
    rows = EXPERIMENTS["circle"].rows("quick")
    rows.append(replace(rows[0], setting=replace(rows[0].setting, name="b")))
    monkeypatch.setitem(EXPERIMENTS, "circle", replace(EXPERIMENTS["circle"], rows=lambda preset: rows))
    arguments = {"device": "cpu", "results": tmp_path / "results", "runs": tmp_path / "runs", "jobs": 1}
    assert len(reproduce("circle", "quick", only=["dim-2"], **arguments)["rows"]) == 1
    assert not (tmp_path / "results/circle/quick").exists()
    assert 'Not run yet: "b".' in (tmp_path / "results/README.md").read_text()
    assert len(reproduce("circle", "quick", only=["b"], **arguments)["rows"]) == 2  # both are finished now
    assert (tmp_path / "results/circle/quick/kappa.png").is_file()


def test_the_command_shows_what_is_finished(short, tmp_path):
    where = ["--results", str(tmp_path / "r"), "--runs", str(tmp_path / "w")]
    line = ["reproduce", "circle", "--device", "cpu", "--jobs", "1", *where]
    assert CliRunner().invoke(app, [*line, "--only", "dim-2"]).exit_code == 0
    made = sorted((tmp_path / "w").rglob("outcome.json"))
    done = CliRunner().invoke(app, [*line, "--finished"])
    assert done.exit_code == 0, done.output
    assert "dim-2" in done.output
    assert sorted((tmp_path / "w").rglob("outcome.json")) == made
    both = CliRunner().invoke(app, [*line, "--finished", "--only", "dim-2"])
    assert both.exit_code == 2
    assert "nothing is run with --finished" in both.output


def test_the_command_prints_both(short, tmp_path):
    line = ["reproduce", "circle", "--device", "cpu", "--jobs", "1", "--seeds", "4"]
    done = CliRunner().invoke(app, [*line, "--results", str(tmp_path / "r"), "--runs", str(tmp_path / "w")])
    assert done.exit_code == 0, done.output
    assert "dim-2" in done.output
    assert "0.8200 ± 0.0500" in done.output  # the paper's rank correlation of kappa


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "recovery"),
        (["circle", "--preset", "fast"], "best"),
        (["circle", "--device", "tpu"], "cuda"),
        (["circle", "--seeds", "4,x"], "seeds"),
    ],
)
def test_an_unknown_name_gets_the_known_ones(arguments, message, tmp_path):
    done = CliRunner().invoke(app, ["reproduce", *arguments, "--results", str(tmp_path), "--runs", str(tmp_path)])
    assert done.exit_code == 2
    assert message in done.output
    assert len(done.output.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_help_lists_all_experiments():
    help_text = " ".join((reproduce_command.__doc__ or "").split())
    listed = re.findall(r"(?<=: )[\w-]+(?:, [\w-]+)*(?=\.)", help_text)
    assert {name for part in listed for name in part.split(", ")} == set(EXPERIMENTS)


def test_a_folder_without_results_has_an_empty_report(tmp_path):
    assert write_report(tmp_path).read_text().startswith("# Results")
