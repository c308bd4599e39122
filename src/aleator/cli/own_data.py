"""`aleator train`, `embed`, `evaluate` and `rank`: commands for your own data."""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from aleator.cli.errors import kept_in, plain_errors
from aleator.cli.index_options import AsJson
from aleator.cli.label_text import could_be
from aleator.cli.terminal import Terminal, print_csv, print_line, say
from aleator.foundation import percent, require, save_figure

Data = Annotated[
    Path,
    typer.Argument(
        help="folder with class folders of images, table (.csv, .tsv, .parquet), .npy features, .txt (a text per line)"
    ),
]
LabelFile = Annotated[
    Path | None,
    typer.Option(help="labels: .csv with a column id or path, or for .npy features one row per item (.npy or .csv)"),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="stop if items cannot be used; otherwise they are listed and left out"),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or auto")]
NoBaselines = Annotated[
    bool, typer.Option("--no-baselines", help="do not compare with neighbours by raw features and a linear head")
]


def train(
    data: Data,
    output: Annotated[Path, typer.Option(help="folder of the run; the same command resumes it")],
    labels: LabelFile = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="small-resnet, resnet18, features; pretrained: efficientnet-lite0 (from a package) or hf:NAME"
        ),
    ] = None,
    tune: Annotated[
        str | None,
        typer.Option(
            help="what of a pretrained network is trained: head (a head after it; the default), last (its last layers, "
            "too), all, or lora (small changes to all layers, in little memory)"
        ),
    ] = None,
    rank: Annotated[int | None, typer.Option(help="rank of the changes of --tune lora; default: 8")] = None,
    tune_steps: Annotated[
        int | None, typer.Option(help="most steps that train the pretrained network; default: ten passes")
    ] = None,
    tune_learning_rate: Annotated[float | None, typer.Option(help="highest learning rate of these steps")] = None,
    start: Annotated[
        Path | None, typer.Option("--from", help="run folder to continue, with new items or new classes")
    ] = None,
    dim: Annotated[int | None, typer.Option(help="dimension of the posteriors")] = None,
    modes: Annotated[
        str | None,
        typer.Option(help="modes of each posterior; 2: an item may be one of two things, not between; auto: 1 or 2"),
    ] = None,
    kappa_pos: Annotated[
        float | None, typer.Option(help="concentration of the kernel: how close matching latents are")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="items, or matching pairs, in a batch")] = None,
    steps: Annotated[int | None, typer.Option(help="most training steps; default: those that help")] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="most time for all of it; default: 5, to tune a network 10, for a head on features no limit"),
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="highest learning rate of the one-cycle schedule")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="weight decay of AdamW")] = None,
    dropout: Annotated[float | None, typer.Option(help="dropout in the hidden layers of a head on features")] = None,
    width: Annotated[int | None, typer.Option(help="width of the network, or of the head's hidden layers")] = None,
    members: Annotated[int | None, typer.Option(help="networks in a head on features, which answer together")] = None,
    size: Annotated[int | None, typer.Option(help="side of the images in pixels")] = None,
    augment: Annotated[
        str | None, typer.Option(help="change training images: flip (shift and mirror), crop (shift) or none")
    ] = None,
    holdout: Annotated[
        float | None,
        typer.Option(help="share of the items that is held out; default: about 600 items, 5 % to 20 %"),
    ] = None,
    seed: Annotated[int, typer.Option(help="seed of everything random")] = 0,
    no_baselines: NoBaselines = False,
    strict: Strict = False,
    device: Device = "auto",
) -> None:
    """Train an encoder on labelled data; write its metrics, and figures.

    The metrics are of held-out items, and a table compares ours with what the same features can do without it.

    Settings that are left out are chosen from the data, and the log says why. The same command resumes a stopped run.

    Example: aleator train photos/ --output runs/photos

    Example: aleator train features.npy --labels labels.npy --output runs/head
    """
    began = time.time()  # --minutes count from here, with the imports

    from aleator.own_data import Settings, load_run, read_collection
    from aleator.own_data import train as run_training

    settings = Settings(
        backbone=backbone,
        tune=tune,  # type: ignore[arg-type]  # checked when settings are chosen
        rank=rank,
        tune_steps=tune_steps,
        tune_learning_rate=tune_learning_rate,
        start=None if start is None else str(start),
        dim=dim,
        modes=int(modes) if modes is not None and modes.isdecimal() else modes,  # type: ignore[arg-type]  # as above
        kappa_pos=kappa_pos,
        batch_size=batch_size,
        steps=steps,
        minutes=minutes,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        dropout=dropout,
        width=width,
        members=members,
        size=size,
        augment=augment,  # type: ignore[arg-type]  # checked when settings are chosen
        holdout=holdout,
        seed=seed,
    )
    with plain_errors(lambda: _kept_of_training(output)):
        columns = None
        if start is not None and start.expanduser().is_dir():  # `train` says what is wrong with another
            columns = load_run(start).columns
        collection = read_collection(data, labels, strict=strict, columns=columns)
        run = run_training(
            collection,
            output,
            settings,
            device=device,
            baselines=not no_baselines,
            strict=strict,
            log=say,
            began=began,
        )
    if _first_process():
        _print_metrics(run.metrics, "held-out items")
        print_line(f"Run: {output}    Figures: {output / 'figures'}")


def embed(
    run: Annotated[Path, typer.Argument(help="run folder of `aleator train`")],
    data: Annotated[
        str,
        typer.Argument(help="as of `train`; a folder of images or a .parquet file may be on an object store, s3://..."),
    ],
    output: Annotated[
        str,
        typer.Option(
            help="new .safetensors file (with a .jsonl file of the items beside it) or .parquet file, or an index: "
            "lance:folder/ or s3://bucket/name"
        ),
    ],
    labels: LabelFile = None,
    batch_size: Annotated[int | None, typer.Option(help="items in a batch")] = None,
    threads: Annotated[int, typer.Option(help="threads that load items ahead")] = 2,
    replace: Annotated[bool, typer.Option("--replace", help="replace a file that exists")] = False,
    strict: Strict = False,
    device: Device = "auto",
    engine: Annotated[str, typer.Option(help="local, or ray: workers of a Ray cluster")] = "local",
    workers: Annotated[
        int | None, typer.Option(help="of --engine ray: workers; default: as many as the cluster has GPUs, or cores")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="of --engine ray: address of the cluster; default: RAY_ADDRESS, or this machine")
    ] = None,
) -> None:
    """Embed a collection: write the mu and kappa of every item to a posteriors file.

    The collection may be larger than memory. The same command resumes stopped work. Under torchrun, processes share
    the items. With --engine ray, the workers of a cluster do; they read the items under the same paths.

    Example: aleator embed runs/photos photos/ --output photos.safetensors

    Example: aleator embed runs/photos photos/ --output photos.safetensors --engine ray --address 10.0.0.1:6379

    Example: aleator embed runs/photos s3://bucket/photos --output s3://bucket/gallery --engine ray

    Example: torchrun --nproc-per-node 2 -m aleator embed runs/photos photos/ --output photos.safetensors
    """
    from aleator.own_data import embed_into, load_run, read_collection, unfinished_work
    from aleator.retrieval import read_header

    with plain_errors(lambda: kept_in(unfinished_work(output), "the items that are done")):
        trained = load_run(run)
        columns = trained.columns
        collection = read_collection(data, labels, labels_optional=True, strict=strict, columns=columns)
        written = embed_into(
            trained,
            collection,
            output,
            batch_size=batch_size,
            device=device,
            threads=threads,
            replace=replace,
            strict=strict,
            log=say,
            engine=engine,
            workers=workers,
            address=address,
        )
        path = Path(written)
        if path.suffix != ".safetensors":
            print_line(f"Posteriors: {written}")
            return
        left_out = len(json.loads(read_header(path).get("left_out", "[]")))
    if _first_process():
        count = len(collection) + len(collection.problems) - left_out
        without = f", {left_out} left out" if left_out else ""
        print_line(f"{count} items{without}: {path} and {path.with_suffix('.jsonl').name}")


def evaluate(
    posteriors: Annotated[
        Path, typer.Argument(help="posteriors file, or run folder, whose metrics are then shown again")
    ],
    labels: Annotated[
        Path | None,
        typer.Option(help="labels: .csv with the columns id (or path) and label; .npy where ids are row numbers"),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="the items, for the baselines; default: where they were embedded from")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="the run, for the baselines that it keeps; default: where it was then")
    ] = None,
    no_baselines: NoBaselines = False,
    figures: Annotated[
        Path | None, typer.Option(help="write figures to this folder: reject curve, reliability diagram, kappa")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate posteriors against labels: those that were embedded with the items, or those of a file.

    Items that the run was trained on are left out. The others are asked against training items that the run keeps; a
    table compares ours with baselines that learned from the same items, on the same features.

    Example: aleator evaluate photos.safetensors --figures figures/
    """
    from aleator.own_data import evaluate_embedded, load_run, read_collection, read_embedded, read_labels_of
    from aleator.own_data import figures as draw

    with plain_errors():
        if posteriors.is_dir():
            problem = f"{posteriors} is a run folder: it has the metrics of its own items, with their labels"
            for name, given in (("labels", labels), ("data", data), ("run", run)):
                way_out = "leave it out, or embed the items and name the posteriors file"
                require(given is None, name, str(given), problem, way_out)
            own = load_run(posteriors)
            metrics, measured_on = own.metrics, "held-out items"
        else:
            embedded = read_embedded(posteriors)
            records = embedded.records
            item_labels = embedded.labels() if labels is None else read_labels_of(labels, records, str(posteriors))
            items = None if data is None else read_collection(data, labels_optional=True, strict=False)
            by = None if run is None else load_run(run)
            metrics = evaluate_embedded(embedded, item_labels, data=items, run=by, baselines=not no_baselines)
            measured_on = "items"
        if figures is not None:
            figures.mkdir(parents=True, exist_ok=True)
            for name, figure in draw(metrics).items():
                save_figure(figure, figures / f"{name}.png")
    if as_json:
        print_line(json.dumps(metrics))
    else:
        _print_metrics(metrics, measured_on)


def rank(
    posteriors: Annotated[Path, typer.Argument(help="posteriors file of `aleator embed`")],
    limit: Annotated[int, typer.Option(min=0, help="number of items; 0 lists all")] = 20,
    surest: Annotated[bool, typer.Option("--surest", help="list the most certain items first")] = False,
    by: Annotated[
        str | None,
        typer.Option(help="labels (how sure the label is; the default where labels are known) or kappa"),
    ] = None,
    as_json: AsJson = False,
    to_csv: Annotated[bool, typer.Option("--csv", help="print CSV")] = False,
) -> None:
    """List the most ambiguous items first, for cleaning or labelling.

    Example: aleator rank photos.safetensors --limit 100 --csv > to-label.csv
    """
    from aleator.stored import rank_stored

    with plain_errors():
        require(not (as_json and to_csv), "to_csv", True, "is another format than --json", "leave out one of them")
        score: Any = by  # checked there
        rows = rank_stored(posteriors, limit or None, surest, score)
        if rows is None:  # they must be computed, with torch, which takes seconds to import
            from aleator.own_data import rank_by_certainty, read_embedded

            rows = list(rank_by_certainty(read_embedded(posteriors), limit or None, surest, score))
    if as_json:
        print_line(json.dumps(rows, ensure_ascii=False))
        return
    columns = list({name: None for row in rows for name in row})
    if to_csv:
        print_csv(columns, ([_text(row.get(name), name) for name in columns] for row in rows))
        return
    # JSON and CSV have every column. The table has those that a person reads first.
    hidden = {"labels", "used", "content"} | ({"path"} if "id" in columns else set())
    shown = [name for name in columns if name not in hidden]
    table = Table(*(_RANK_HEADINGS.get(name, name) for name in shown))
    for row in rows:
        table.add_row(*(Text(_cell(row.get(name), name)) for name in shown))
    Terminal().print(table)
    if rows:
        print_line("\n".join(line for name, line in _RANK_WORDS.items() if name in shown))


# What the table of `rank` calls the columns of JSON and CSV, and what they mean.
_RANK_HEADINGS = {"percentile": "surer than", "could_be": "could be"}
_RANK_WORDS = {
    "kappa": "kappa: how certain the model is about an item; small for ambiguous ones",
    "certainty": "certainty: how sure its label is, from 0 (any label) to 1 (one label)",
    "percentile": "surer than: the share of all items that are less certain",
    "unlike": "unlike: yes if it is unlike anything seen in training",
}


def _cell(value: Any, name: str = "") -> str:
    if name == "percentile":
        return percent(value)
    if value is True:
        return "yes"
    if value is None or value is False:
        return ""
    if name == "modes" and isinstance(value, list) and _are_numbers(value):
        return " or ".join(map(percent, value))
    return f"{value:.4g}" if isinstance(value, float) else str(_text(value, name))


def _text(value: Any, name: str) -> Any:
    """A value as a cell holds it: lists and dicts, which may come from metadata of any kind, as text."""
    if name == "could_be" and isinstance(value, dict) and _are_numbers(value.values()):
        return could_be(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) for value in values)


def _print_metrics(metrics: dict[str, Any], measured_on: str) -> None:
    from aleator.own_data import COMPARISON_WORDS, METRIC_WORDS

    for note in metrics.get("notes", []):  # first: they say what the numbers are of
        print_line(note)
    comparison = metrics.get("baselines")
    if comparison:
        _print_comparison(comparison)
    table = Table(measured_on, str(metrics["items"]))
    for name, shown in METRIC_WORDS.items():
        if name not in metrics or (comparison and name in COMPARISON_WORDS):  # of an older release, or shown above
            continue
        table.add_row(shown, "-" if metrics[name] is None else f"{metrics[name]:.4g}")
    Terminal().print(table)


def _print_comparison(comparison: dict[str, Any]) -> None:
    """One table of ours and the baselines, and who wins."""
    from aleator.own_data import COMPARISON_WORDS, with_interval

    rows = comparison["rows"]
    table = Table("", *(f"{row['method']}\n{row['score']}" for row in rows))
    table.title = f"ours compared with baselines on {comparison['inputs']}"
    measured = [name for name in COMPARISON_WORDS if any(row.get(name) for row in rows)]
    for name in measured:
        table.add_row(COMPARISON_WORDS[name][0], *(with_interval(row.get(name)) for row in rows))
    Terminal().print(table)
    print_line("\n".join(meaning for name in measured if (meaning := COMPARISON_WORDS[name][1])))
    for line in (comparison["precondition"], *comparison["verdicts"]):
        print_line(line)


def _kept_of_training(folder: Path) -> str:
    """What a training keeps when it is stopped."""
    from aleator.training import last_saved_step

    step = last_saved_step(folder / "training")
    if step is None:
        return "Nothing is saved yet. The same command starts again."
    return f"{folder} keeps the training up to step {step}. The same command goes on from there."


def _first_process() -> bool:
    from aleator.foundation import launched_process

    return launched_process().first
