"""`aleator index`: build, change, calibrate, check and repair an index."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.table import Table
from rich.text import Text

from aleator.cli.errors import plain_errors
from aleator.cli.index_options import (
    AsJson,
    Fingerprint,
    Items,
    Location,
    Posteriors,
    Prior,
    open_index,
)
from aleator.cli.terminal import Terminal, print_line, say

if TYPE_CHECKING:
    from aleator.retrieval import SetsOf

index_app = typer.Typer(no_args_is_help=True, help="Build, change and describe an index of posteriors.")


def _ids_and_metadata(posteriors: Path, items: Path | None) -> Any:
    """Ids and metadata of the posteriors. A file that names the same ids as `aleator embed` did is joined by id."""
    from aleator.retrieval import join_items, read_items, read_items_beside

    ids, metadata = read_items_beside(posteriors) if posteriors.suffix == ".safetensors" else (None, None)
    if items is None:
        return ids, metadata
    own_ids, own_metadata = read_items(items)
    if ids is None or not set(ids) & set(own_ids or []):  # other names for the same rows
        return own_ids, own_metadata
    return ids, join_items(ids, own_ids, own_metadata, str(items))


@index_app.command("build")
def index_build(
    location: Location,
    posteriors: Posteriors,
    items: Items = None,
    kappa_pos: Annotated[
        float | None, typer.Option(help="concentration of the kernel: how close matching latents are")
    ] = None,
    prior: Prior = None,
    fingerprint: Fingerprint = None,
    replace: Annotated[bool, typer.Option("--replace", help="replace an index that is already there")] = False,
) -> None:
    """Build an index of posteriors.

    Ids, metadata, fingerprint, kernel and calibration of match probabilities are taken from the files of `aleator
    embed`. The prior comes from the labels of the items if all have one. Options override them.

    Example: aleator index build gallery/ photos.safetensors
    """
    from aleator.retrieval import index_from_file

    with plain_errors():
        settings: dict[str, Any] = {"kappa_pos": kappa_pos, "prior": prior, "fingerprint": fingerprint}
        ids, metadata = _ids_and_metadata(posteriors, items)
        with index_from_file(posteriors, location, ids, metadata, replace=replace, **settings) as index:
            print_line(f"{len(index)} items")


@index_app.command("add")
def index_add(location: Location, posteriors: Posteriors, items: Items = None, fingerprint: Fingerprint = None) -> None:
    """Add items to an index.

    Example: aleator index add gallery/ more-photos.safetensors
    """
    from aleator.retrieval import read_header, read_posteriors

    with plain_errors():
        q, header = read_posteriors(posteriors), read_header(posteriors)
        ids, metadata = _ids_and_metadata(posteriors, items)
    with plain_errors(), open_index(location, fingerprint, header, posteriors) as index:
        added = index.add(q, ids, metadata)
        index.save()
        print_line(f"{len(added)} added, {len(index)} items")


@index_app.command("remove")
def index_remove(
    location: Location,
    ids: Annotated[list[str], typer.Argument(help="ids; a number means the integer id if no item has it as text")],
) -> None:
    """Remove items from an index.

    Example: aleator index remove gallery/ cat/0001.png
    """
    from aleator.retrieval import CredibleIndex

    with plain_errors(), CredibleIndex.open(location) as index:
        # 007 and -0 are no integers: such an id is a text, and what another text names must stay.
        index.remove([int(id) if id not in index and re.fullmatch("0|-?[1-9][0-9]*", id) else id for id in ids])
        index.save()
        print_line(f"{len(ids)} removed, {len(index)} items")


@index_app.command("calibrate")
def index_calibrate(
    location: Location,
    questions: Annotated[
        Path, typer.Argument(help="file of `aleator embed` with questions that the encoder was not trained on")
    ],
    items: Annotated[
        Path | None,
        typer.Option(
            help='right answers: a file with one line {"id": ..., "label": ...} or {"id": ..., "right": [ids]} per '
            "question; default: the file beside the questions"
        ),
    ] = None,
    coverage: Annotated[float, typer.Option(help="share of questions whose set must hold a right answer")] = 0.95,
    error: Annotated[
        float | None, typer.Option(help="largest share of wrong answers among the first answers that are given")
    ] = None,
    assurance: Annotated[float, typer.Option(help="probability that coverage and error are kept")] = 0.9,
    sets: Annotated[
        str | None, typer.Option(help="labels (one item of each possible label) or ranked (the nearest items)")
    ] = None,
    fingerprint: Fingerprint = None,
    as_json: AsJson = False,
) -> None:
    """Make a promise about answers, from questions whose right answers are known.

    `aleator query --promise` and the page then show sets that hold a right answer as often as promised.

    Example: aleator index calibrate gallery/ labelled.safetensors --coverage 0.95 --error 0.05
    """
    from aleator.retrieval import read_header, read_posteriors

    with plain_errors():
        q, header = read_posteriors(questions), read_header(questions)
        chosen, right = _right_answers(questions, items, len(q))
        with open_index(location, fingerprint, header, questions) as index:
            how = cast("SetsOf | None", sets)  # `calibrate` checks it
            promise = index.calibrate(q[chosen], right, coverage, error=error, assurance=assurance, sets=how)
    if as_json:
        print_line(json.dumps(promise.to_dict()))
        return
    low, high = promise.coverage_range
    print_line(f"Promise: {promise}.")
    print_line(f"A set holds {promise.mean_size:.2f} items on average.")
    print_line(
        f"For 90 % of calibrations with this many questions, sets hold it for {100 * low:.1f} to {100 * high:.1f} %."
    )
    if promise.rejection is not None:
        print_line(f"Sure enough to answer: {100 * promise.rejection.answered:.1f} % of the questions.")


def _right_answers(questions: Path, items: Path | None, count: int) -> "tuple[list[int], list[Any]]":
    """Numbers of the questions that may calibrate, and their right answers: "right" ids, or labels.

    Right answers of another file are joined by id. Questions that the encoder was trained on are left out.
    """
    from aleator.foundation import reject, require
    from aleator.retrieval import join_items, read_items, read_items_beside

    ids, beside = read_items_beside(questions) if questions.suffix == ".safetensors" else (None, None)
    metadata = beside if items is None else join_items(ids, *read_items(items), str(items))
    known = next((name for name in ("right", "label") if metadata and all(name in one for one in metadata)), None)
    if metadata is None or known is None:
        reject(
            "items",
            str(items or questions),
            "the right answers are not known",
            'pass --items with one line {"id": ..., "label": ...} or {"id": ..., "right": [ids]} per question',
        )
    problem, way_out = f"has {len(metadata)} lines for {count} questions", "write one line for each"
    require(len(metadata) == count, "items", str(items or questions), problem, way_out)
    used = [bool(one.get("used")) for one in (beside if beside is not None else metadata)]
    chosen = [number for number in range(count) if not used[number]]
    problem = "the encoder was trained or calibrated on all of them, so a promise from them would not hold"
    require(bool(chosen), "questions", str(questions), problem, "embed labelled items that it has not seen")
    if len(chosen) < count:
        left_out = f"{count - len(chosen)} questions are left out: the encoder was trained or calibrated on them"
        say(left_out)
    return chosen, [metadata[number][known] for number in chosen]


@index_app.command("info")
def index_info(location: Location, as_json: AsJson = False) -> None:
    """Show the size, settings and measured recall of an index.

    Example: aleator index info gallery/
    """
    from aleator.retrieval import CredibleIndex, encoder_name

    with plain_errors(), CredibleIndex.open(location) as index:
        report = index.recall_report
        description: dict[str, Any] = {
            "items": len(index),
            "dimensions": index.dim,
            "encoder": encoder_name(index.encoder),
            "fingerprint": index.fingerprint,
            "kernel": repr(index.kernel),
            "prior": index.prior,
            "calibrated": index.maps.calibrated,
            "recall": None if report is None else report.to_dict(),
            "promise": None if index.promise is None else index.promise.to_dict(),
            "promise_is_void": index.promise_is_void,
        }
        promised = "none; see `aleator index calibrate`" if index.promise is None else str(index.promise)
        if index.promise_is_void:
            promised = "void: items have changed since it was made; run `aleator index calibrate` again"
    if as_json:
        print_line(json.dumps(description))
        return
    table = Table(show_header=False)
    for name, value in description.items():
        shown = "exact search" if name == "recall" and value is None else promised if name == "promise" else value
        table.add_row(name, Text(str(shown)))
    Terminal().print(table)


@index_app.command("check")
def index_check(location: Location) -> None:
    """Verify everything in an index: every id, every kappa, every vector.

    Example: aleator index check gallery/
    """
    from aleator.retrieval import check_index

    with plain_errors():
        print_line(f"{check_index(location)} items, all whole")


@index_app.command("repair")
def index_repair(
    location: Annotated[str, typer.Argument(help="the folder of the index")],
    posteriors: Annotated[
        Path | None,
        typer.Option("--from", help="posteriors file that the index was built from: lost vectors are taken from it"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Repair a damaged index: keep what is whole, and say what is lost. The damaged folder is kept beside it.

    Example: aleator index repair gallery/ --from photos.safetensors
    """
    from aleator.retrieval import read_items_beside, read_posteriors, repair_index

    with plain_errors():
        q = None if posteriors is None else read_posteriors(posteriors)
        ids = None if posteriors is None else read_items_beside(posteriors)[0]
        numbers: list[Any] = [] if q is None else list(range(len(q)))
        repaired = repair_index(location, q, numbers if ids is None else ids)
    if as_json:
        print_line(json.dumps({**vars(repaired), "damaged": repaired.damaged and str(repaired.damaged)}))
        return
    if repaired.damaged is None:
        print_line(f"{repaired.kept} items, all whole: nothing to repair")
        return
    print_line(f"{repaired.kept} items kept, {repaired.made_again} of them made again from the posteriors file")
    for note in repaired.notes:
        print_line(f"Note: {note}")
    if repaired.nameless:
        print_line(f"Lost: {repaired.nameless} items whose id or metadata are damaged")
    if repaired.lost:
        shown = ", ".join(map(str, repaired.lost[:10])) + (", ..." if len(repaired.lost) > 10 else "")
        print_line(f"Lost: {len(repaired.lost)} items whose vector is damaged: {shown} (--json lists all)")
    print_line(f"The damaged index is now {repaired.damaged}")
