"""`aleator train`, `embed`, `evaluate` and `rank`: a person's own data."""

import csv
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from aleator.cli.errors import plain_errors

Data = Annotated[Path, typer.Argument(help="folder of class folders, .csv, .npy features, or .txt (one text per line)")]
LabelFile = Annotated[Path | None, typer.Option(help="for .npy features: .npy or .csv, one row for each")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or auto")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]

_SHOWN = {
    "recall_at_1": "Recall@1",
    "recall_at_1_surer_half": "Recall@1 of the surer half",
    "r_auroc": "R-AUROC: does kappa tell hits from misses",
    "match_ece": "calibration error of match probabilities",
    "mean_kappa": "mean kappa",
}


def train(
    data: Data,
    output: Annotated[Path, typer.Option(help="the run's folder; the same command again goes on with it")],
    labels: LabelFile = None,
    backbone: Annotated[str | None, typer.Option(help="resnet18, features, or hf:NAME (frozen, with a head)")] = None,
    dim: Annotated[int | None, typer.Option(help="of the posteriors")] = None,
    kappa_pos: Annotated[float | None, typer.Option(help="of the kernel: how close a match is")] = None,
    batch_size: Annotated[int | None, typer.Option(help="pairs at a time")] = None,
    steps: Annotated[int | None, typer.Option(help="of training")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="at its highest")] = None,
    width: Annotated[int | None, typer.Option(help="of the ResNet, or of the head's hidden layers")] = None,
    size: Annotated[int | None, typer.Option(help="side of the images, in pixels")] = None,
    augment: Annotated[str | None, typer.Option(help="for images: flip, crop or none")] = None,
    holdout: Annotated[float, typer.Option(help="share of the items that is held out")] = 0.2,
    seed: Annotated[int, typer.Option(help="of everything that is drawn")] = 0,
    device: Device = "auto",
) -> None:
    """Learn posteriors from labelled data: an encoder, its metrics on held-out items, figures.

    What is not given is chosen from the data, and the log says why. A stopped run goes on with the same command.

    Example: aleator train photos/ --output runs/photos

    Example: aleator train features.npy --labels labels.npy --output runs/head
    """
    from aleator.own_data import Settings, read_collection
    from aleator.own_data import train as run_training

    settings = Settings(backbone, dim, kappa_pos, batch_size, steps, learning_rate, width, size, augment, holdout, seed)
    with plain_errors():
        collection = read_collection(data, labels)
        run = run_training(collection, output, settings, device=device, log=_say)
    if _first_process():
        _print_metrics(run.metrics)
        print(f"Run: {output}    Figures: {output / 'figures'}")


def embed(
    run: Annotated[Path, typer.Argument(help="a run of `aleator train`")],
    data: Data,
    output: Annotated[Path, typer.Option(help="a .safetensors file; a .jsonl with the items lies beside it")],
    labels: LabelFile = None,
    batch_size: Annotated[int | None, typer.Option(help="items at a time")] = None,
    threads: Annotated[int, typer.Option(help="that read items ahead")] = 2,
    replace: Annotated[bool, typer.Option("--replace", help="a file that is already there")] = False,
    device: Device = "auto",
) -> None:
    """Turn any collection into a posteriors file: ids, mu and kappa.

    The work is streamed and can be stopped: the same command goes on. Under torchrun, processes share the items.

    Example: aleator embed runs/photos photos/ --output photos.safetensors

    Example: torchrun --nproc-per-node 2 -m aleator embed runs/photos photos/ --output photos.safetensors
    """
    from aleator.own_data import embed as run_embedding
    from aleator.own_data import load_run, read_collection

    with plain_errors():
        collection = read_collection(data, labels, labels_optional=True)
        path = run_embedding(
            load_run(run),
            collection,
            output,
            batch_size=batch_size,
            device=device,
            threads=threads,
            replace=replace,
        )
    if _first_process():
        print(f"{len(collection)} items: {path} and {path.with_suffix('.jsonl').name}")


def evaluate(
    posteriors: Annotated[Path, typer.Argument(help="a posteriors file, or a run: its metrics are shown again")],
    labels: LabelFile = None,
    figures: Annotated[
        Path | None, typer.Option(help="write reject curve, reliability and kappa to this folder")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """How good posteriors are, given labels: those that the items carry, or a file of them.

    Example: aleator evaluate photos.safetensors --figures figures/
    """
    from aleator.own_data import evaluate as measure
    from aleator.own_data import figures as draw
    from aleator.own_data import load_run, read_embedded, read_labels

    with plain_errors():
        if posteriors.is_dir():
            metrics = load_run(posteriors).metrics
        else:
            embedded = read_embedded(posteriors)
            known = embedded.labels() if labels is None else read_labels(labels, len(embedded.q), str(posteriors))
            metrics = measure(embedded.q, known, embedded.kernel, embedded.prior)
        if figures is not None:
            figures.mkdir(parents=True, exist_ok=True)
            for name, figure in draw(metrics).items():
                figure.savefig(figures / f"{name}.png")
    if as_json:
        print(json.dumps(metrics))
    else:
        _print_metrics(metrics)


def rank(
    posteriors: Annotated[Path, typer.Argument(help="a posteriors file of `aleator embed`")],
    limit: Annotated[int, typer.Option(help="how many items; 0 for all")] = 20,
    surest: Annotated[bool, typer.Option("--surest", help="the surest first")] = False,
    as_json: AsJson = False,
    to_csv: Annotated[bool, typer.Option("--csv", help="print CSV")] = False,
) -> None:
    """The most ambiguous items first, for cleaning or labelling.

    Example: aleator rank photos.safetensors --limit 100 --csv > to-label.csv
    """
    from aleator.own_data import ranked, read_embedded

    with plain_errors():
        rows = list(ranked(read_embedded(posteriors), limit or None, surest))
    if as_json:
        print(json.dumps(rows, ensure_ascii=False))
        return
    columns = list({name: None for row in rows for name in row})
    if to_csv:
        writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return
    shown = [name for name in columns if name != "labels" and not (name == "path" and "id" in columns)]
    table = Table(*shown)
    for row in rows:
        table.add_row(*(Text(_cell(row.get(name))) for name in shown))
    Console().print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _print_metrics(metrics: dict[str, Any]) -> None:
    table = Table("held-out items" if "provenance" in metrics else "items", str(metrics["items"]))
    for name, shown in _SHOWN.items():
        table.add_row(shown, "-" if metrics[name] is None else f"{metrics[name]:.4g}")
    Console().print(table)


def _say(line: str) -> None:
    Console(stderr=True, soft_wrap=True).print(Text(line))


def _first_process() -> bool:
    from aleator.foundation import launched_process

    return launched_process().first
