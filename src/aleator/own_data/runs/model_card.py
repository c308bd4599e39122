"""The model card of a run, RUN/README.md: what the model was trained on, how good it is, how to load it."""

import json
from pathlib import Path
from typing import Any

from aleator.foundation import replace_file
from aleator.own_data.measuring.comparison import COMPARISON_WORDS, with_interval
from aleator.own_data.measuring.evaluation import METRIC_WORDS

_NOT_SHOWN = ("unlike", "mean_kappa")  # they say little about how good a model is
_TASKS = {"images": "image-feature-extraction", "text": "sentence-similarity", "features": "feature-extraction"}
_EXAMPLES = {
    "images": '["a.jpg", "b.jpg"]',
    "text": '["The bank was closed.", "It starts at nine."]',
    "features": "features",
}
_MOST_CLASSES = 40  # more are not listed


def model_card(name: str, inputs: dict[str, Any], config: dict[str, Any], metrics: dict[str, Any]) -> str:
    """The model card of a run, as Markdown with the header that the Hugging Face hub reads.

    Args:
        name: Name of the model.
        inputs: Contents of inputs.json.
        config: Contents of config.json.
        metrics: Contents of metrics.json.

    Returns:
        The text.
    """
    kind = inputs["kind"]
    settings, data = config.get("settings", {}), config.get("data", {})
    header = ["---", "library_name: aleator", f"pipeline_tag: {_TASKS[kind]}", "tags:"]
    header += [f"- {tag}" for tag in ("aleator", "probabilistic-embeddings", "uncertainty", "von-mises-fisher")]
    modes = settings.get("modes", 1)
    posterior = "a von Mises-Fisher posterior" if modes == 1 else f"a mixture of {modes} von Mises-Fisher posteriors"
    what = {"images": "an image", "text": "a text", "features": "a row of features"}[kind]
    parts = [
        "\n".join([*header, "---"]),
        f"# {name}",
        f"It maps {what} to {posterior} on the sphere in {settings.get('dim', '?')} dimensions: a direction mu, and a "
        "certainty kappa. Items that match have similar directions. An ambiguous item has a small kappa. "
        "Made with aleator.",
        _use(kind, inputs, data),
        _data(inputs, settings, data, metrics),
        _figures(metrics),
        _limits(data, metrics.get("notes", [])),
        _training(settings, metrics),
    ]
    return "\n\n".join(parts) + "\n"


def write_model_card(
    folder: Path, inputs: dict[str, Any], config: dict[str, Any], metrics: dict[str, Any], name: str | None = None
) -> None:
    """Write RUN/README.md, unless someone wrote another one there."""
    path = folder / "README.md"
    if path.is_file() and "library_name: aleator" not in path.read_text(errors="replace"):
        return
    replace_file(path, model_card(name or folder.absolute().name, inputs, config, metrics).encode())


def _use(kind: str, inputs: dict[str, Any], data: dict[str, Any]) -> str:
    items = _EXAMPLES[kind]
    note = f"  # an array (N, {inputs.get('features')})" if kind == "features" else ""
    lines = [
        "import aleator as al",
        "",
        'model = al.AleatorModel.from_pretrained(".")  # this folder, or its name on the hub',
        f"q = model.encode({items}){note}",
        "q.mu, q.kappa  # directions and certainties",
    ]
    if data.get("labels") in ("classes", "soft"):
        lines.append(f"model.label_probabilities({items})  # in the order of model.label_names")
    return "## Use\n\n```python\n" + "\n".join(lines) + "\n```"


def _data(inputs: dict[str, Any], settings: dict[str, Any], data: dict[str, Any], metrics: dict[str, Any]) -> str:
    classes = data.get("classes")
    rows = [("data", Path(str(data.get("source", "not recorded"))).name), ("items", data.get("items", "not recorded"))]
    if isinstance(classes, list) and classes:
        shown = ", ".join(map(str, classes[:_MOST_CLASSES])) + (", ..." if len(classes) > _MOST_CLASSES else "")
        rows.append((f"{len(classes)} classes", shown))
    elif isinstance(classes, int):
        rows.append(("groups", classes))
    rows.append(("labels", data.get("labels", "not recorded")))
    if inputs["kind"] == "images":
        rows.append(("image size", f"{inputs['size']} x {inputs['size']}, cropped to a square around the centre"))
    halves = "one half for calibration, one half for these figures"
    rows.append(("held out", f"{settings['holdout']:.0%}: {halves}" if settings.get("holdout") else "not recorded"))
    rows.append(("items behind the figures", metrics.get("items", "not recorded")))
    return "## Data\n\n" + _table(["", ""], [[name, _cell(value)] for name, value in rows])


def _figures(metrics: dict[str, Any]) -> str:
    text = "## Figures on held-out items"
    comparison = metrics.get("baselines")
    if comparison:
        methods = comparison["rows"]
        measured = [name for name in COMPARISON_WORDS if any(method.get(name) for method in methods)]
        rows = [
            [COMPARISON_WORDS[name][0].strip(), *(with_interval(method.get(name)) for method in methods)]
            for name in measured
        ]
        meanings = [meaning for name in measured if (meaning := COMPARISON_WORDS[name][1])]
        text += f"\n\n{comparison['precondition'].capitalize()}; they compare {comparison['inputs']}. "
        text += "With half the width of the 95 % interval.\n\n"
        text += _table(["", *(f"{_cell(method['method'])}: {_cell(method['score'])}" for method in methods)], rows)
        text += "\n\n" + ". ".join(meanings) + "."
        text += "\n\n" + "\n".join(f"- {line}" for line in comparison["verdicts"])
    alone = [
        [shown, f"{metrics[name]:.4g}"]
        for name, shown in METRIC_WORDS.items()
        if metrics.get(name) is not None and name not in _NOT_SHOWN
    ]
    return text + ("\n\n" + _table(["", ""], alone) if alone else "")


def _limits(data: dict[str, Any], notes: list[str]) -> str:
    changed = "A changed camera, language or mixture of classes changes them."
    usual = f"kappa and the match probabilities were calibrated on held-out items of the same data. {changed}"
    lines = [
        "The figures hold for items like those of the data above. For other items neither mu nor kappa is tested; "
        "`model.unlike` flags those that resemble nothing seen in training.",
        next((note for note in notes if note.startswith("NOT CALIBRATED")), usual),
        "What the labels get wrong, the model has learned.",
    ]
    if data.get("labels") in ("classes", "soft"):
        lines.insert(1, "Every item gets probabilities of the classes above, also one that belongs to none of them.")
    return "## Limits\n\n" + "\n".join(f"- {line}" for line in lines)


def _training(settings: dict[str, Any], metrics: dict[str, Any]) -> str:
    origin = metrics.get("provenance", {})
    versions = origin.get("versions", {})
    by = ", ".join(f"{name} {versions[name]}" for name in ("aleator", "torch") if name in versions)
    made = f"{origin.get('finished', '')} on {origin['device']}, with {by}.\n\n" if "device" in origin else ""
    given = {name: value for name, value in settings.items() if value is not None}
    if isinstance(given.get("backbone"), str):  # the folder of a network is nobody's business
        prefix, _, path = given["backbone"].partition(":")
        given["backbone"] = f"{prefix}:{Path(path).name}" if Path(path).is_absolute() else given["backbone"]
    if given.get("start"):
        given["start"] = Path(given["start"]).name
    return f"## Training\n\n{made}```json\n{json.dumps(given, indent=2)}\n```"


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
