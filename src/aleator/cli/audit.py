"""`aleator audit`: find label errors, near duplicates, confused classes and odd items in a collection."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from aleator.cli.errors import kept_in, plain_errors
from aleator.cli.index_options import AsJson
from aleator.cli.own_data import Device, LabelFile, Strict
from aleator.cli.terminal import Terminal, print_line, say

if TYPE_CHECKING:
    from aleator.own_data import Audit

_SHOWN = 10  # suspicious labels on the terminal


def audit(
    source: Annotated[
        Path, typer.Argument(help="where features come from: run folder of `aleator train`, or .npy features")
    ],
    data: Annotated[
        Path | None, typer.Argument(help="the items, as for `aleator train`; left out, the features are the items")
    ] = None,
    output: Annotated[Path, typer.Option(help="new folder for the findings")] = Path("audit"),
    labels: LabelFile = None,
    folds: Annotated[int, typer.Option(help="folds of the cross-fitting")] = 5,
    seed: Annotated[int, typer.Option(help="seed of folds and heads")] = 0,
    as_json: AsJson = False,
    strict: Strict = False,
    device: Device = "auto",
) -> None:
    """Find label errors, near duplicates, confused classes and odd ones out; write them as CSV files and figures.

    A label is judged by models that did not see it. The same command resumes a stopped audit.

    Example: aleator audit features.npy --labels labels.npy --output audit/

    Example: aleator audit runs/photos photos/ --output audit/
    """
    from aleator.foundation import require
    from aleator.own_data import audit as run_audit
    from aleator.own_data import load_run, read_collection

    with plain_errors(lambda: kept_in(output, "the features that are done")):
        is_run = source.is_dir()
        way_out = "name a run folder of `aleator train`, or a .npy file"
        require(is_run or source.suffix == ".npy", "source", str(source), "is neither a run nor features", way_out)
        require(data is not None or not is_run, "data", None, "a run has no items of its own", "name the items too")
        items = source if data is None else data
        run = load_run(source) if is_run else None
        columns = None if run is None else run.columns
        collection = read_collection(items, labels, labels_optional=True, strict=strict, columns=columns)
        found = run_audit(
            collection,
            output,
            run=run,
            features=None if is_run or data is None else source,
            folds=folds,
            seed=seed,
            device=device,
            strict=strict,
            log=say,
        )
    if as_json:
        print_line(json.dumps(found.summary))
    else:
        _show(found, output)


def _show(found: "Audit", output: Path) -> None:
    """Print the counts and the most suspicious labels."""
    console, summary = Terminal(), found.summary
    errors, labels = found.label_errors, found.collection.labels
    if errors is not None and labels is not None:
        hard = labels.hard()
        assert hard is not None
        records = list(found.collection.records())
        table = Table("item", "given", "likelier", "P(given)", "P(likelier)")
        for i in errors.order()[: min(_SHOWN, summary["label_errors"]["likely"])].tolist():
            names = (str(records[i]["id"]), labels.names[hard[i]], labels.names[errors.likelier[i]])
            table.add_row(*map(Text, names), f"{errors.p_given[i]:.3f}", f"{errors.p_likelier[i]:.3f}")
        likely = summary["label_errors"]["likely"]
        if likely:
            console.print(table)
        first = f"; the first {_SHOWN} are shown" if likely > _SHOWN else ""
        print_line(f"{likely} labels are likely wrong: another one is at least 10 times as probable{first}")
    duplicates = summary["near_duplicates"]
    differ = duplicates.get("groups_with_different_labels")
    with_labels = "" if differ is None else f", {differ} of them with different labels"
    console.print(f"{duplicates['groups']} groups of near duplicates{with_labels}")
    odd = summary["odd_ones"]["more_than_twice_the_usual_distance"]
    print_line(f"{odd} odd ones: more than twice as far from their neighbours as usual")
    print_line(f"Findings: {output}")
