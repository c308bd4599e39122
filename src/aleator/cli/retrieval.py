"""`aleator index` and `aleator query`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .errors import plain_errors

index_app = typer.Typer(no_args_is_help=True, help="Build and change an index of posteriors.")

Location = Annotated[str, typer.Argument(help="a folder, or postgresql://host/database#name")]
Posteriors = Annotated[Path, typer.Argument(help=".npz or .safetensors with mu (N, D) and kappa (N,)")]
Items = Annotated[Path | None, typer.Option(help='JSON lines {"id": ..., "any": "metadata"}, one for each item')]
Fingerprint = Annotated[str | None, typer.Option(help="of the encoder that made the posteriors")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


@index_app.command("build")
def index_build(
    location: Location,
    posteriors: Posteriors,
    items: Items = None,
    kappa_pos: Annotated[float, typer.Option(help="of the kernel for match probabilities")] = 20.0,
    prior: Annotated[float, typer.Option(help="share of matches among all pairs")] = 0.5,
    fingerprint: Fingerprint = None,
    replace: Annotated[bool, typer.Option("--replace", help="an index that is already there")] = False,
) -> None:
    """Make an index of posteriors."""
    from aleator.harmonics import VMFKernel
    from aleator.retrieval import CredibleIndex
    from aleator.retrieval.files import read_items, read_posteriors

    with plain_errors():
        ids, metadata = read_items(items)
        with CredibleIndex.build(
            read_posteriors(posteriors),
            ids,
            metadata,
            location=location,
            kernel=VMFKernel(kappa_pos),
            prior=prior,
            fingerprint=fingerprint,
            replace=replace,
        ) as index:
            print(f"{len(index)} items")


@index_app.command("add")
def index_add(location: Location, posteriors: Posteriors, items: Items = None, fingerprint: Fingerprint = None) -> None:
    """Add items to an index."""
    from aleator.retrieval import CredibleIndex
    from aleator.retrieval.files import read_items, read_posteriors

    with plain_errors(), CredibleIndex.open(location, fingerprint=fingerprint) as index:
        added = index.add(read_posteriors(posteriors), *read_items(items))
        index.save()
        print(f"{len(added)} added, {len(index)} items")


@index_app.command("remove")
def index_remove(
    location: Location, ids: Annotated[list[str], typer.Argument(help="a number is an integer id if there is one")]
) -> None:
    """Remove items from an index."""
    from aleator.retrieval import CredibleIndex

    with plain_errors(), CredibleIndex.open(location) as index:
        index.remove([int(id) if id not in index and id.lstrip("-").isdecimal() else id for id in ids])
        index.save()
        print(f"{len(ids)} removed, {len(index)} items")


@index_app.command("info")
def index_info(location: Location, as_json: AsJson = False) -> None:
    """What an index holds, and the recall it measured of itself."""
    from aleator.retrieval import CredibleIndex

    with plain_errors(), CredibleIndex.open(location) as index:
        report = index.recall_report
        facts: dict[str, Any] = {
            "items": len(index),
            "dimensions": index.dim,
            "fingerprint": index.fingerprint,
            "kernel": repr(index.kernel),
            "recall": None if report is None else report.to_dict(),
        }
    if as_json:
        print(json.dumps(facts))
        return
    table = Table(show_header=False)
    for name, value in facts.items():
        shown = "exact search" if name == "recall" and value is None else value
        table.add_row(name, Text(str(shown)))
    Console().print(table)


def query(
    location: Location,
    posteriors: Posteriors,
    by: Annotated[str, typer.Option(help="credible, match or nearest")] = "credible",
    p: Annotated[float, typer.Option(help="level of the credible set")] = 0.95,
    limit: Annotated[int | None, typer.Option(help="most hits for each query")] = None,
    threshold: Annotated[float, typer.Option(help="least match probability, for --by match")] = 0.5,
    filter: Annotated[str | None, typer.Option(help='conditions, as JSON: {"label": "cat"}')] = None,
    exact: Annotated[bool, typer.Option("--exact", help="search everything")] = False,
    fingerprint: Fingerprint = None,
    as_json: AsJson = False,
    figure: Annotated[Path | None, typer.Option(help="write a picture of the hits")] = None,
) -> None:
    """Which items could each of these posteriors be?"""
    from aleator.retrieval import CredibleIndex
    from aleator.retrieval.files import read_posteriors

    with plain_errors():
        conditions = json.loads(filter) if filter else None
        with CredibleIndex.open(location, fingerprint=fingerprint) as index:
            answers = index.search(
                read_posteriors(posteriors), p, limit, by, threshold=threshold, filter=conditions, exact=exact
            )
    if figure is not None:
        from aleator.retrieval.picture import picture

        picture(answers).savefig(figure)
    if as_json:
        print(json.dumps([[hit._asdict() for hit in hits] for hits in answers]))
        return
    table = Table("query", "id", "cosine", "kappa", "match", "metadata")
    for number, hits in enumerate(answers):
        for hit in hits:
            numbers = (f"{hit.cosine:.3f}", f"{hit.kappa:.4g}", f"{hit.match_probability:.3f}")
            table.add_row(str(number), Text(str(hit.id)), *numbers, Text(json.dumps(hit.metadata, ensure_ascii=False)))
    Console().print(table)
    print(f"{sum(map(len, answers))} hits for {len(answers)} queries")
