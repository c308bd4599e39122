"""The report results/README.md: tables made from the JSON files in results/, with the paper's figures beside ours."""

import json
import math
from pathlib import Path
from typing import Any

from aleator.experiments.catalogue import EXPERIMENTS
from aleator.experiments.outdated import note_on_changes
from aleator.experiments.paper import paper_figure
from aleator.experiments.settings import Preset

# Metrics that are shown, in this order, and their names in tables. Others are in the JSON files only.
COLUMNS = {
    "mu_rmse": "mu RMSE",
    "mu_mae": "mu MAE",
    "mu_rank": "mu rank",
    "kappa_rmse": "kappa RMSE",
    "kappa_mae": "kappa MAE",
    "kappa_rank": "kappa rank",
    "kappa_median": "kappa, median",
    "spread_mae": "spread MAE",
    "spread_rank": "spread rank",
    "coverage_95": "in the 95 % cap",
    "total_variation": "total variation",
    "posterior_entropy_rank": "rank of the posterior's entropy",
    "area_holding_95": "area that holds 95 %",
    "component_angle": "angle of components, degrees",
    "component_kappa_mae": "kappa MAE of components",
    "component_weight_mae": "weight MAE of components",
    "kappa_factor": "kappa asked for / true",
    "kappa_factor_error": "its error",
    "pull": "pull of mu",
    "pull_error": "its error",
    "steep": "steep curvature",
    "flat": "flat curvature",
    "anchors_for_one_percent": "anchors for 1 % of kappa",
    "entropy_rank": "entropy rank",
    "crop_rank": "crop rank",
    "recall_at_1": "Recall@1",
    "recall_at_1_surer_half": "Recall@1, surer half",
    "match_recall_at_1": "Recall@1 by match",
    "map_at_r": "MAP@R",
    "r_auroc": "R-AUROC",
    "label_entropy_rank": "entropy rank of P(label)",
    "label_crop_rank": "crop rank of P(label)",
    "label_r_auroc": "R-AUROC of P(label)",
    "match_label_r_auroc": "R-AUROC of P(label), by match",
    "label_log_likelihood": "label log-likelihood",
    "match_ece": "match ECE",
    "held_out_cross_entropy": "held-out cross-entropy",
    "set_hit": "right class in the 95 % set",
    "set_size": "images in the set",
    "set_size_of_99": "images in sets of which 99 % hold the right class",
}
_ORDER: tuple[Preset, ...] = ("best", "corrected", "paper", "quick")
_HEAD = """# Results

`aleator reproduce` makes this page from the JSON files in these folders. Every file says which command, commit and
device it came from. [Understanding](../docs/understanding.md) explains what came out,
[words](../docs/words.md#measuring) the terms.

- A cell reads *ours ± standard error over seeds* and, where the paper reports a figure, *(the paper's)*. Rows of the
  exact loss have the paper's figures for MCInfoNCE, the loss that it replaces.
- "mu" columns compare the cosines between directions with the true ones, "kappa" columns the certainties. "rank" is a
  rank correlation. RMSE and MAE are errors; what the paper calls RMSE is an MAE in its code, and stands in that column.
- In `modes`, "mu" and "kappa" columns are of the vMFs that are closest to the mixtures, "in the 95 % cap" is in the
  region of highest density, and "area that holds 95 %" is the share of the sphere that this region takes if its level
  is moved until it holds 95 % of the latents.
- The presets: `quick` takes minutes on two cores, `paper` follows the published code, `corrected` is the same with our
  corrections, `best` is our recommended setting. If a preset has changed since its runs were made, a note above the
  table says how.
"""

_GRIDS = ("tuning", "cifar-tuning")  # experiments that choose hyperparameters
# What their rows are chosen by. The true kappa of images is unknown, so the CIFAR experiments choose by crops, as the
# paper does.
_SCORES = {
    "kappa_rank": "rank correlation of kappa",
    "validation_crop_rank": "rank correlation of kappa with crop size, on validation images",
}


def write_report(folder: Path) -> Path:
    """Write README.md into a folder of results, and return its path."""
    parts = [_HEAD]
    for name, experiment in EXPERIMENTS.items():
        files = [(preset, folder / name / f"{preset}.json") for preset in _ORDER]
        files = [(preset, path) for preset, path in files if path.is_file()]
        if files:
            parts.append(f"## {name}: {experiment.title}\n")
            for preset, path in files:
                result = json.loads(path.read_text())
                note = note_on_changes(result, experiment.rows(preset))
                parts.append(section(result, preset, folder / name, note))
    path = folder / "README.md"
    path.write_text("\n".join(parts))
    return path


def section(result: dict[str, Any], preset: str, folder: Path, note: str = "") -> str:
    """The part of the report about one preset of an experiment: provenance, note, table and figures, in Markdown."""
    origin = result["provenance"]
    subtitle = f"`{origin['device']}`, {origin['wall_seconds']:,.0f} s, commit `{origin['commit']}`"
    rows = shown_rows(result)
    if len(rows) < len(result["rows"]):
        best = f"the three of each loss with the best {_chosen_by(result['rows'])}"
        subtitle += f"; of {len(result['rows'])} rows, {best}"
    notes = [each + "\n" for each in (origin.get("note"), note) if each]
    lines = [f"### Preset {preset}\n", subtitle + "\n", *notes]
    lines.append(table(result["experiment"], rows))
    pictures = sorted((folder / preset).glob("*.png"))
    lines += [
        "",
        " ".join(f'<img src="{folder.name}/{preset}/{p.name}" height="240" alt="{p.stem}">' for p in pictures),
    ]
    return "\n".join(lines).rstrip() + "\n"


def table(experiment: str, rows: list[dict[str, Any]]) -> str:
    """The rows of a result as a Markdown table."""
    metrics = [name for name in COLUMNS if any(name in row["metrics"] for row in rows)]
    lines = ["| setting | loss | runs | " + " | ".join(COLUMNS[name] for name in metrics) + " |"]
    lines.append("|---|---|---|" + "---|" * len(metrics))
    for row in rows:
        cells = [cell(experiment, row, name) for name in metrics]
        lines.append(f"| {row['setting']} | {row['loss']} | {len(row['seeds'])} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(experiment: str, row: dict[str, Any], metric: str) -> str:
    """One cell of the table: our mean and its error, and the paper's figure in brackets if there is one."""
    value = row["metrics"].get(metric)
    text = "" if value is None else with_error(value["mean"], value["stderr"])
    theirs = paper_figure(experiment, row["setting"], row["loss"], metric)
    return text if theirs is None else f"{text} ({number(theirs[0])})".strip()


def with_error(mean: float, error: float | None) -> str:
    """A mean and its standard error, for example "0.9900 ± 0.0012". Without an error, the mean alone."""
    return number(mean) if error is None else f"{number(mean)} ± {number(error)}"


def number(value: float) -> str:
    """A number in few characters: four decimals below 1, where most errors and correlations lie, and fewer above."""
    if not math.isfinite(value):
        return str(value)
    for bound, style in ((1, ".4f"), (10, ".3f"), (1000, ".1f"), (1e5, ",.0f")):
        if abs(value) < bound:
            return format(value, style)
    return f"{value:.1e}"


def shown_rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a result to show: all of a table, but only the winners of a large grid of hyperparameters."""
    rows: list[dict[str, Any]] = result["rows"]
    return winners(rows) if result["experiment"] in _GRIDS and len(rows) > 25 else rows


def winners(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The three rows of each loss with the best score, the first of `_SCORES` that a row has; without one, last."""

    def score(row: dict[str, Any]) -> float:
        rank = next((row["metrics"][name] for name in _SCORES if name in row["metrics"]), None)
        return rank["mean"] if rank is not None and math.isfinite(rank["mean"]) else -2.0

    chosen = []
    for loss in dict.fromkeys(row["loss"] for row in rows):
        chosen += sorted((row for row in rows if row["loss"] == loss), key=score, reverse=True)[:3]
    return chosen


def _chosen_by(rows: list[dict[str, Any]]) -> str:
    """The score that the rows of a grid are chosen by, in words."""
    return next((words for name, words in _SCORES.items() if any(name in row["metrics"] for row in rows)), "score")
