"""Figures of the CIFAR-10H experiments.

Each function takes the rows of a result and the arrays of each row's first run, and returns figures by name. `FIGURES`
says which function draws which experiment.
"""

from collections.abc import Callable
from itertools import cycle
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from aleator.data import CLASSES
from aleator.evaluation import neighbour_hits, plots, reject_curve
from aleator.experiments.cifar.evaluation import KEPT
from aleator.experiments.cifar.gallery import LEVEL
from aleator.experiments.plots import Arrays, Rows, grid_of_a_and_b, lines, point_style
from aleator.experiments.runner import file_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def losses(rows: Rows, arrays: Arrays) -> dict[str, "Figure"]:
    """For each loss: uncertainty against people's entropy, and a reliability diagram.

    For all: validations over time, and how large credible sets must be to hold the right class.
    """
    figures = {}
    for name, run in _named(rows, arrays):
        figures[f"entropy-{name}"] = entropy_figure(run)
        if "reliability" in run:
            figures[f"reliability-{name}"] = plots.reliability_diagram(*run["reliability"].T.tolist())
    curves = {name: run["validations"] for name, run in _named(rows, arrays) if _has_validations(run)}
    if curves:
        figures["training"] = training_figure(curves)
    titles = [f"{row['setting']} ({row['loss']})" for row in rows]  # several losses have a setting of one name
    sets = {title: run["set_curve"] for title, run in zip(titles, arrays, strict=True) if "set_curve" in run}
    if sets:
        figures["set-sizes"] = set_figure(sets)
    return figures


def labels(rows: Rows, arrays: Arrays) -> dict[str, "Figure"]:
    """Uncertainty against people's entropy for each row."""
    return {f"entropy-{name}": entropy_figure(run) for name, run in _named(rows, arrays)}


def rejection(rows: Rows, arrays: Arrays) -> dict[str, "Figure"]:
    """Recall@1 of the most certain images, against the share that is kept."""
    curves = {}
    for name, run in _named(rows, arrays):
        if name.endswith("-infonce"):  # it learns no certainty
            continue
        hits = neighbour_hits(run["mu"], run["label"]).double()
        curves[name] = reject_curve(run["kappa"], hits, KEPT)
    shares = [100 * share for share in KEPT]
    return {"reject": lines(shares, curves, "surest images kept, %", "Recall@1")}


def overfitting(rows: Rows, arrays: Arrays) -> dict[str, "Figure"]:
    """Correlations on validation images during training."""
    runs = {row["setting"]: run for row, run in zip(rows, arrays, strict=True)}
    curves = {name: run["validations"] for name, run in runs.items() if _has_validations(run)}
    return {"training": training_figure(curves)}


def retrieval(rows: Rows, arrays: Arrays) -> dict[str, "Figure"]:
    """Queries with their credible sets, for each row."""
    return {f"credible-sets-{name}": credible_sets(run) for name, run in _named(rows, arrays)}


def gallery(rows: Rows, arrays: Arrays) -> dict[str, "Figure"]:
    """The least and most certain images of each class, for each row."""
    return {f"gallery-{name}": gallery_figure(run) for name, run in _named(rows, arrays)}


def tuning(rows: Rows, arrays: Arrays) -> dict[str, "Figure"]:
    """Crop correlation on validation images, which the paper chooses by, over HIB's grid of a and b."""
    return {"hib": grid_of_a_and_b(rows, "validation_crop_rank", "validation crop rank")}


FIGURES: dict[str, Callable[[Rows, Arrays], dict[str, "Figure"]]] = {
    "cifar-losses": losses,
    "cifar-labels": labels,
    "cifar-rejection": rejection,
    "cifar-retrieval": retrieval,
    "cifar-gallery": gallery,
    "cifar-scratch": labels,
    "cifar-infonce": rejection,
    "cifar-tuning": tuning,
    "cifar-overfitting": overfitting,
}


def entropy_figure(arrays: dict[str, Tensor]) -> "Figure":
    """Uncertainty against people's entropy, with median and quartiles in eight groups of equal size."""
    uncertainty = -arrays["kappa"].double() if bool((arrays["kappa"] < 0).any()) else 1 / arrays["kappa"].double()
    entropy = arrays["entropy"].double()
    figure, (axis,) = plots.new_figure(1, 3.4, width=4.2)
    axis.scatter(entropy, uncertainty, s=5, alpha=0.25, color=plots.COLOURS[0], linewidths=0)
    groups = entropy.argsort(stable=True).tensor_split(8)
    middle = [entropy[group].mean().item() for group in groups]
    quartiles = torch.stack(
        [torch.quantile(uncertainty[group], torch.tensor([0.25, 0.5, 0.75]).double()) for group in groups]
    )
    axis.fill_between(middle, quartiles[:, 0], quartiles[:, 2], color=plots.COLOURS[1], alpha=0.3, linewidth=0)
    axis.plot(middle, quartiles[:, 1], color=plots.COLOURS[1], marker="o", markersize=4)
    axis.set(xlabel="entropy of the annotators, nats", ylabel="predicted uncertainty", yscale="log")
    return figure


def set_figure(curves: dict[str, Tensor]) -> "Figure":
    """Share of credible sets without the right class against the number of images in a set, level by level.

    `curves`: name -> (levels, 3), as `set_curve` returns it.
    """
    figure, (axis,) = plots.new_figure(1, 3.4, width=5.0)
    for n, (name, curve) in enumerate(curves.items()):
        axis.plot(curve[:, 2], 100 * (1 - curve[:, 1]), **point_style(n), markersize=3, label=name)
    axis.set(xlabel="images in a set", ylabel="sets without the right class, %")
    axis.legend(frameon=False, fontsize=8)
    return figure


def training_figure(curves: dict[str, Tensor]) -> "Figure":
    """Correlations on validation images during training: with crop size and, if it was computed, with entropy.

    `curves`: name -> (validations, 2 or 3), with columns step, crop_rank and entropy_rank.
    """
    figure, (axis,) = plots.new_figure(1, 3.4, width=5.0)
    for colour, (name, rows) in zip(cycle(plots.COLOURS), curves.items(), strict=False):
        has_entropy = rows.shape[1] > 2
        if has_entropy:
            axis.plot(rows[:, 0], rows[:, 2], color=colour, label=f"{name}, entropy")
        style = {"linestyle": "--"} if has_entropy else {"linewidth": 0.8}
        axis.plot(rows[:, 0], rows[:, 1], color=colour, label=f"{name}, crop", **style)
    axis.set(xlabel="step", ylabel="rank correlation, validation images")
    axis.legend(frameon=False, fontsize=8)
    return figure


def credible_sets(arrays: dict[str, Tensor]) -> "Figure":
    """Each query with the images of its credible set, nearest first. Green frames: the same class."""
    from matplotlib.figure import Figure

    answers, shown = arrays["answer_images"], arrays["answer_label"] >= 0
    queries, places = shown.shape
    figure = Figure(figsize=(0.62 * (places + 2), 0.92 * queries), layout="constrained", dpi=150)
    axes = figure.subplots(queries, places + 1, squeeze=False)
    for row in range(queries):
        label = int(arrays["query_label"][row])
        _show(axes[row, 0], arrays["query_images"][row])
        axes[row, 0].set_title(f"{CLASSES[label]}\nκ = {arrays['query_kappa'][row]:.0f}", fontsize=6)
        for place in range(places):
            axis = axes[row, place + 1]
            if not bool(shown[row, place]):
                axis.axis("off")
                continue
            same = int(arrays["answer_label"][row, place]) == label
            _show(axis, answers[row, place], plots.COLOURS[2] if same else plots.COLOURS[1])
        axes[row, 1].set_title(f"{int(arrays['answer_count'][row])} in the {LEVEL:.0%} set", fontsize=6, loc="left")
    return figure


def gallery_figure(arrays: dict[str, Tensor]) -> "Figure":
    """For every class, the least certain images on the left and the most certain on the right, with kappa."""
    from matplotlib.figure import Figure

    count = arrays["surest_images"].shape[1]
    figure = Figure(figsize=(0.62 * (2 * count + 2), 0.72 * len(CLASSES)), layout="constrained", dpi=150)
    axes = figure.subplots(len(CLASSES), 2 * count + 1, squeeze=False)
    for row, name in enumerate(CLASSES):
        axes[row, count].axis("off")
        axes[row, count].text(0.5, 0.5, name, ha="center", va="center", fontsize=6)
        for side, start in (("least_sure", 0), ("surest", count + 1)):
            for place in range(count):
                axis, kappa = axes[row, start + place], float(arrays[f"{side}_kappa"][row, place])
                if kappa != kappa:  # NaN: the class has fewer images
                    axis.axis("off")
                    continue
                _show(axis, arrays[f"{side}_images"][row, place])
                axis.set_title(f"{kappa:.0f}" if kappa >= 10 else f"{kappa:.1f}", fontsize=5, pad=1)
    figure.suptitle("least sure" + " " * 60 + "surest", fontsize=8)
    return figure


def _named(rows: Rows, arrays: Arrays) -> list[tuple[str, dict[str, Tensor]]]:
    """The arrays of each row with a name for files."""
    names = [file_name(f"{row['setting']}-{row['loss']}") for row in rows]
    return list(zip(names, arrays, strict=True))


def _has_validations(run: dict[str, Tensor]) -> bool:
    """Whether a run has at least two validations, enough for a curve."""
    rows = run.get("validations")
    return rows is not None and rows.dim() == 2 and rows.shape[1] >= 2 and len(rows) > 1


def _show(axis: Any, image: Tensor, frame: str | None = None) -> None:
    """Draw an image (3, H, W), with a frame of a colour."""
    axis.imshow(image.permute(1, 2, 0).numpy(), interpolation="nearest")
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set_visible(frame is not None)
        if frame is not None:
            spine.set(color=frame, linewidth=1.5)
