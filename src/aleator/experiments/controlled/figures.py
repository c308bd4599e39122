"""Figures of the controlled experiments.

Each function takes the rows of a result and the arrays of each row's first run, and returns figures by name. `FIGURES`
says which function draws which experiment.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from aleator.evaluation import aligning_rotation, plots
from aleator.experiments.controlled.run import LEVELS
from aleator.experiments.paper import paper_figure
from aleator.experiments.plots import Arrays, Rows, grid_of_a_and_b, lines, named_points
from aleator.posteriors import VonMisesFisher

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def recovery(rows: Rows, arrays: Arrays) -> dict[str, "Figure"]:
    """Learned against true kappa for each setting that has one, and the coverage of credible caps."""
    kept = [i for i, row in enumerate(rows) if "kappa_rmse" in row["metrics"]]
    figures = {f"kappa-{rows[i]['setting']}": _kappa(arrays[i]) for i in kept}
    shares = {
        rows[i]["setting"]: [rows[i]["metrics"][f"coverage_{round(100 * p)}"]["mean"] for p in LEVELS] for i in kept
    }
    figures["coverage"] = lines(
        LEVELS, shares, "level of the credible cap", "share of true latents inside", diagonal=True
    )
    return figures


def circle(rows: Rows, arrays: Arrays) -> dict[str, "Figure"]:
    """Five posteriors that lie far apart: true, learned, and learned after the aligning rotation."""
    first = arrays[0]
    true = VonMisesFisher(first["true_mu"], first["true_kappa"], validate_args=False)
    learned = VonMisesFisher(first["learned_mu"], first["learned_kappa"], validate_args=False)
    rotation = aligning_rotation(learned.mu, true.mu).to(learned.mu.dtype)
    turned = learned.rotate(rotation)
    five = plots.spread_out(true, 5)
    panels = {"true posteriors": true, "learned": learned, "learned, turned to match": turned}
    return {
        "posteriors": plots.circle({title: q[five] for title, q in panels.items()}),
        "kappa": _kappa(first),
    }


def samples(rows: Rows, arrays: Arrays) -> dict[str, "Figure"]:
    """Error and size of kappa against the number of Monte-Carlo samples, beside the paper's errors and the truth."""
    sampled = [row for row in rows if row["loss"] == "mcinfonce"]
    counts = [row["parameters"]["samples"] for row in sampled]
    errors = {"MCInfoNCE": [row["metrics"]["kappa_mae"] for row in sampled]}
    sizes = {"MCInfoNCE, median": [row["metrics"]["kappa_median"] for row in sampled]}
    if exact := [row for row in rows if row["loss"] == "exact"]:
        errors["exact, no samples"] = [exact[0]["metrics"]["kappa_mae"]] * len(counts)
        sizes["exact, no samples, median"] = [exact[0]["metrics"]["kappa_median"]] * len(counts)
    known = [paper_figure("samples", row["setting"], "mcinfonce", "kappa_mae") for row in sampled]
    if any(known):
        errors["the paper"] = [figure[0] if figure else math.nan for figure in known]
    for name, kappa in zip(("smallest", "largest"), sampled[0]["parameters"]["kappa_range"], strict=True):
        sizes[f"{name} true kappa"] = [kappa] * len(counts)
    label = "Monte-Carlo samples"
    return {
        "bias": lines(counts, errors, label, "mean error of kappa", log_x=True, log_y=True),
        "kappa": lines(counts, sizes, label, "learned kappa", log_x=True, log_y=True),
    }


def families(rows: Rows, arrays: Arrays) -> dict[str, "Figure"]:
    """Learned against true spread, for each family of posteriors."""
    return {
        f"spread-{row['setting']}": plots.agreement(run["true_spread"], run["learned_spread"], "spread")
        for row, run in zip(rows, arrays, strict=True)
    }


def losses(rows: Rows, arrays: Arrays) -> dict[str, "Figure"]:
    """Learned against true kappa, for each loss that learns kappa, with what its setting changes."""
    return {
        f"kappa-{row['setting'].replace('ambiguous', row['loss'])}": _kappa(run)
        for row, run in zip(rows, arrays, strict=True)
        if "kappa_rank" in row["metrics"]
    }


def over_dimensions(parameter: str, label: str) -> Callable[[Rows, Arrays], dict[str, "Figure"]]:
    """A function that draws rank correlations against a parameter of the setting.

    Rows with a comma in their name are curves of their own: what follows the comma says what they change.
    """

    def draw(rows: Rows, arrays: Arrays) -> dict[str, "Figure"]:
        dims = sorted({row["parameters"][parameter] for row in rows})
        by_change: dict[str, dict[int, Any]] = {}
        for row in rows:
            _, comma, change = row["setting"].partition(", ")
            by_change.setdefault(comma + change, {})[row["parameters"][parameter]] = row["metrics"]
        curves = {
            name + change: [known[dim][metric] if dim in known else math.nan for dim in dims]
            for change, known in by_change.items()
            for metric, name in _RANKS.items()
        }
        return {"ranks": lines(dims, curves, label, "rank correlation with the truth", log_x=True)}

    return draw


def by_setting(rows: Rows, arrays: Arrays) -> dict[str, "Figure"]:
    """Learned against true kappa, for each setting."""
    return {f"kappa-{row['setting']}": _kappa(run) for row, run in zip(rows, arrays, strict=True)}


def tuning(rows: Rows, arrays: Arrays) -> dict[str, "Figure"]:
    """Rank correlation of kappa over HIB's grid of a and b."""
    return {"hib": grid_of_a_and_b(rows, "kappa_rank", "rank correlation of kappa")}


def infonce(rows: Rows, arrays: Arrays) -> dict[str, "Figure"]:
    """Learned against true cosines between the first 60 directions, for each loss."""
    panels = {}
    for row, run in zip(rows, arrays, strict=True):
        few = slice(0, 60)
        i, j = torch.triu_indices(60, 60, 1)
        true, learned = run["true_mu"][few], run["learned_mu"][few]
        panels[f"cosine-{row['loss']}"] = plots.agreement((true @ true.T)[i, j], (learned @ learned.T)[i, j], "cosine")
    return panels


def optimisers(rows: Rows, arrays: Arrays) -> dict[str, "Figure"]:
    """Errors of kappa and mu against the number of pairs seen, for each optimiser."""
    by_name: dict[str, dict[int, Any]] = {}
    for row in rows:
        recipe = row["parameters"]["recipe"]
        thousands = recipe["steps"] * row["parameters"]["batch_size"] // 1000
        by_name.setdefault(recipe["optimiser"], {})[thousands] = row["metrics"]
    counts = sorted(next(iter(by_name.values())))
    labels = {"kappa_rmse": "RMSE of kappa", "mu_rmse": "RMSE of cosines between mu"}
    return {
        metric.replace("_", "-"): lines(
            counts,
            {_OPTIMISERS[name]: [metrics[n][metric] for n in counts] for name, metrics in by_name.items()},
            "thousands of pairs seen",
            label,
            log_x=True,
            log_y=True,
        )
        for metric, label in labels.items()
    }


def walk(rows: Rows, arrays: Arrays) -> dict[str, "Figure"]:
    """What each change of `published` does to mu and kappa, one change below the other; and for ELK, seed by seed."""
    by_name = {row["setting"]: row["metrics"] for row in rows}
    clear = [name for name in by_name if name.endswith(", clear")]
    elk = [row for row in rows if row["setting"].endswith(", ELK")]
    names = [name for name in by_name if not name.endswith((", clear", ", ELK"))]
    settings = {"Ambiguous": names} | ({"Clear": clear} if clear else {})

    def draw(names: list[str], panels: dict[str, Any]) -> "Figure":
        return named_points(names, panels, log=[_WALK["mu_mae"], _WALK["kappa_mae"]])

    means = {
        label: {title: [by_name[name][metric] for name in kept] for title, kept in settings.items()}
        for metric, label in _WALK.items()
    }
    figures = {"walk": draw(names, means)}
    if elk:  # it can end in two places, and a mean would lie between them
        seeds = [seed for seed in elk[0]["seeds"] if all(seed in row["seeds"] for row in elk)]
        values = {
            label: {
                f"seed {seed}": [row["metrics"][metric]["values"][row["seeds"].index(seed)] for row in elk]
                for seed in seeds
            }
            for metric, label in _WALK.items()
        }
        figures["walk-elk"] = draw([row["setting"].removesuffix(", ELK") for row in elk], values)
    return figures


def modes(rows: Rows, arrays: Arrays) -> dict[str, "Figure"]:
    """Learned against true entropy, for each setting in which truth or encoder has several modes."""
    return {
        f"entropy-{row['setting']}": plots.agreement(run["true_entropy"], run["learned_entropy"], "entropy")
        for row, run in zip(rows, arrays, strict=True)
        if "true_entropy" in run
    }


FIGURES: dict[str, Callable[[Rows, Arrays], dict[str, "Figure"]]] = {
    "recovery": recovery,
    "circle": circle,
    "samples": samples,
    "families": families,
    "losses": losses,
    "encoder-dim": over_dimensions("encoder_dim", "dimension of the encoder; the truth has ten"),
    "high-dim": over_dimensions("dim", "dimension of truth and encoder"),
    "shared-backbone": by_setting,
    "tuning": tuning,
    "infonce": infonce,
    "optimisers": optimisers,
    "phases": by_setting,
    "published": walk,
    "laws": by_setting,
    "modes": modes,
}
_OPTIMISERS = {"adam": "Adam", "soap": "SOAP"}
_WALK = {
    "mu_mae": "mean error of cosines",
    "kappa_mae": "mean error of kappa",
    "kappa_rank": "rank correlation of kappa",
    "coverage_95": "latents in 95 % caps",
}
_RANKS = {"kappa_rank": "kappa", "mu_rank": "mu"}


def _kappa(arrays: dict[str, Tensor]) -> "Figure":
    """Learned against true kappa."""
    return plots.agreement(arrays["true_kappa"], arrays["learned_kappa"])
