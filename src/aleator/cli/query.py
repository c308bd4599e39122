"""`aleator query`: find the items that each query could be, and print them with their certainty and labels."""

import json
import secrets
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.table import Table
from rich.text import Text

from aleator.cli.errors import plain_errors
from aleator.cli.index_options import AsJson, Fingerprint, Location, Posteriors, Prior, open_index
from aleator.cli.label_text import could_be
from aleator.cli.terminal import Terminal, print_line, say
from aleator.foundation import percent, reject, require, save_figure

if TYPE_CHECKING:
    from aleator.posteriors import PosteriorBatch
    from aleator.retrieval import CredibleIndex, Hit, SearchBy

_COUNTED = 1000  # hits of a question that are counted, beyond those that are shown
_LABELS = 5  # labels of the hits that are named
_COLUMNS = ("id", "label", "match", "cosine", "kappa", "metadata")
_GROUPED = ("label", *(name for name in _COLUMNS if name != "label"))
_HIDDEN = {"label", "labels", "path", "used", "content"}  # metadata that a row shows elsewhere


def query(
    context: typer.Context,
    location: Location,
    posteriors: Posteriors,
    by: Annotated[
        str,
        typer.Option(
            help="which items to find: credible (those the query could be), match (likely matches) or nearest"
        ),
    ] = "credible",
    p: Annotated[float, typer.Option(help="level of the credible set, for --by credible")] = 0.95,
    limit: Annotated[int | None, typer.Option(min=0, help="most hits per query that are shown")] = None,
    threshold: Annotated[float, typer.Option(help="least match probability, for --by match")] = 0.5,
    prior: Prior = None,
    filter: Annotated[str | None, typer.Option(help='conditions on metadata as JSON, such as {"label": "cat"}')] = None,
    exact: Annotated[bool, typer.Option("--exact", help="search exactly, also in an approximate index")] = False,
    promise: Annotated[
        bool,
        typer.Option(
            "--promise", help="sets that keep the promise of `aleator index calibrate`; takes no other choice"
        ),
    ] = False,
    fingerprint: Fingerprint = None,
    as_json: AsJson = False,
    figure: Annotated[
        Path | None, typer.Option(help="image file: the pictures of queries and hits, or a chart if there are none")
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="folder of the pictures, for --figure; default: where they were embedded from")
    ] = None,
    labels: Annotated[bool, typer.Option("--labels", hidden=True)] = False,  # of an older release
) -> None:
    """Find the items that each posterior of a file could be.

    Of each query: its name, how certain it is, what it could be, how many items are in its set, and the hits by
    label, with the share that each label has of the set.

    Example: aleator query gallery/ queries.safetensors --p 0.95 --limit 5
    """
    from aleator.retrieval import group_by_mode, read_answers, read_header, read_items_beside, read_posteriors

    with plain_errors():
        if promise:
            _require_no_choice(context)
        _require_effect(context, by)
        if root is not None:
            require(root.is_dir(), "root", str(root), "there is no such folder", "name the folder with the pictures")
        if figure is not None:
            _require_kind_of_figure(figure)
        conditions = _conditions(filter)
        q, header = read_posteriors(posteriors), read_header(posteriors)
        ids, metadata = read_items_beside(posteriors) if posteriors.suffix == ".safetensors" else (None, None)
        answers_beside = read_answers(posteriors)
        with open_index(location, fingerprint, header, posteriors) as index:
            if promise:
                problem = "items have changed since it was calibrated" if index.promise_is_void else "is not calibrated"
                way_out = "run `aleator index calibrate` with labelled queries"
                require(index.promise is not None, "location", location, problem, way_out)
                _show_promised(index, q, ids, as_json)
                return
            how = cast("SearchBy", by)  # `search` checks it
            counted = limit if limit is None or by == "nearest" else max(limit, _COUNTED)
            found = index.search(q, p, counted, how, threshold=threshold, filter=conditions, prior=prior, exact=exact)
            passable = True
            if conditions and not any(found):
                _require_known_keys(index, q, conditions)
                passable = any(index.search(q[:1], limit=1, by="nearest", filter=conditions))
            surer_than = index.surer_than(_kappas(q)).tolist()
            sources = [_folder(facts.get("source")) for facts in (header, index.encoder)]
            questions = _describe_questions(q, *answers_beside)
            _name_labels_not_held(index, questions, found)
        for number, (question, hits) in enumerate(zip(questions, found, strict=True)):
            name = number if ids is None else ids[number]
            whole = counted is None or len(hits) < counted or by == "nearest"
            _describe_answer(question, number, name, surer_than[number], hits, whole, limit)
        answers = [hits if limit is None else hits[:limit] for hits in found]
        if figure is not None:
            _save_figure(figure, questions, metadata, answers, sources, root)
    if as_json:
        for question, hits in zip(questions, answers, strict=True):
            question["hits"] = [hit._asdict() for hit in hits]
        print_line(json.dumps(questions))
        return
    for question, hits in zip(questions, answers, strict=True):
        _print_question(question, by, p, threshold, passable)
        if hits:
            _print_hits(question, group_by_mode(hits), q.modes > 1)
    print_line(f"{sum(map(len, answers))} hits for {len(answers)} queries")
    if not passable:
        say(f"--filter {filter}: no item of the index passes it")


def _was_typed(context: typer.Context, name: str) -> bool:
    """Whether an option is on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _require_effect(context: typer.Context, by: str) -> None:
    """Raise if an option was passed that changes nothing."""
    given = context.params
    for name, without, has_effect in (
        ("p", f"with --by {by}", by == "credible"),
        ("threshold", f"with --by {by}", by == "match"),
        ("root", "without --figure", given["figure"] is not None),
    ):
        if _was_typed(context, name) and not has_effect:
            value = str(given[name]) if name == "root" else given[name]
            reject(name, value, f"has no effect {without}", "leave it out")


def _require_kind_of_figure(figure: Path) -> None:
    """Raise unless a figure can be written with this ending."""
    from matplotlib.backend_bases import FigureCanvasBase

    endings = sorted(f".{ending}" for ending in FigureCanvasBase.get_supported_filetypes())
    way_out = f"use one of {' '.join(endings)}"
    require(figure.suffix.lower() in endings, "figure", str(figure), "has an unknown ending", way_out)


def _require_no_choice(context: typer.Context) -> None:
    """Raise if an option was passed that changes which items are found or shown: a promise has decided that."""
    for name in ("by", "p", "limit", "threshold", "prior", "filter", "exact", "figure", "root"):
        if _was_typed(context, name):
            problem = "has no effect together with --promise, which has its own way to search"
            reject(name, context.params[name], problem, f"leave out --{name} or --promise")


def _conditions(filter: str | None) -> Any:
    """The conditions of --filter."""
    if not filter:
        return None
    try:
        return json.loads(filter)
    except json.JSONDecodeError as error:
        reject("filter", filter, f"is not JSON ({error})", """write for example --filter '{"label": "cat"}'""")


def _require_known_keys(index: "CredibleIndex", q: "PosteriorBatch", conditions: dict[str, Any]) -> None:
    """Raise if no item has a key of the conditions. The error names keys of items near the first query."""
    for key in conditions:
        any_value = {key: {"ne": secrets.token_hex()}}  # which no item has
        if len(index) and len(q) and not index.search(q[:1], limit=1, by="nearest", filter=any_value)[0]:
            (near,) = index.search(q[:1], limit=_COUNTED, by="nearest")
            known = ", ".join(dict.fromkeys(name for hit in near for name in hit.metadata))
            way_out = f"choose among {known}" if known else "the items have no metadata: leave it out"
            reject("filter", json.dumps(conditions), f"no item has the key {key!r}", way_out)


def _kappas(q: Any) -> Any:
    from aleator.own_data import one_mode

    return one_mode(q).kappa.double().numpy()


def _describe_questions(q: Any, model: Any, novelty: Any) -> list[dict[str, Any]]:
    """For each query its kappa and weights, and what its file says: "could_be", "certainty" and "unlike"."""
    from aleator.evaluation import label_certainty, likely_labels

    questions: list[dict[str, Any]] = [{"kappa": kappa} for kappa in _kappas(q).tolist()]
    if q.modes > 1:
        for question, weights in zip(questions, q.log_weights.exp().tolist(), strict=True):
            question["modes"] = [round(weight, 4) for weight in weights]
    if model is not None:
        probabilities = model.probabilities(q)
        likely = likely_labels(probabilities, model.names)
        for question, labels, sure in zip(questions, likely, label_certainty(probabilities).tolist(), strict=True):
            question |= {"could_be": {name: round(p, 4) for name, p in labels}, "certainty": sure}
    if novelty is not None:
        for question, excess in zip(questions, novelty.tolist(), strict=True):
            question["unlike"] = excess > 0
    return questions


def _name_labels_not_held(
    index: "CredibleIndex", questions: list[dict[str, Any]], found: "Sequence[Sequence[Hit]]"
) -> None:
    """Add "not_held" to questions with "could_be": its labels that no item has. The encoder learned them elsewhere."""
    from aleator.retrieval import labels_of, take_snapshot

    unknown = {label for question in questions for label in question.get("could_be", ())}
    unknown -= {label for hits in found for hit in hits for label in labels_of(hit.metadata)}
    if unknown:  # only now, because all items are read
        unknown -= {label for text in take_snapshot(index).metadata_json for label in labels_of(json.loads(text))}
    for question in questions:
        if "could_be" in question:
            question["not_held"] = [label for label in question["could_be"] if label in unknown]


def _describe_answer(
    question: dict[str, Any],
    number: int,
    name: Any,
    surer_than: float,
    hits: "list[Hit]",
    whole: bool,
    limit: int | None,
) -> None:
    """Add to a question its name, its certainty in words, the size of its set and the labels in it.

    Each label has its share of the whole set, and those of its hits that are shown.
    """
    from aleator.retrieval import certainty_in_words

    counted = Counter(label for hit in hits if (label := _label_of(hit)) is not None)
    shown = hits[:limit]
    likeliest = max(question["could_be"].values(), default=None) if "could_be" in question else None
    question |= {
        "query": number,
        "id": name,
        "surer_than": round(surer_than, 4),
        "certainty_in_words": certainty_in_words(likeliest, surer_than),
        "size": len(hits),
        "size_is_exact": whole,
        "labels": [
            {
                "label": label,
                "items": items,
                "share": round(items / len(hits), 4),
                "hits": [hit.id for hit in shown if _label_of(hit) == label],
            }
            for label, items in counted.most_common()
        ],
    }


def _print_question(question: dict[str, Any], by: str, p: float, threshold: float, passable: bool) -> None:
    """What is known about a question and its set, in three lines. If no item is `passable`, a wider set has none."""
    number, id = question["query"], question["id"]
    name = f"query {number}" if id == number else f"query {number}: {id}"
    certainty = f"certainty {question['certainty_in_words']}; kappa {question['kappa']:.4g}"
    print_line()
    console = Terminal(soft_wrap=True)
    console.print(Text.assemble((name, "bold"), f"   {certainty}"))
    words = [f"could be: {could_be(question['could_be'])}"] if "could_be" in question else []
    if question.get("not_held"):
        words.append(f"the index has no item of {', '.join(question['not_held'])}")
    words += ["unlike anything seen"] if question.get("unlike") else []
    if words:
        console.print(Text("; ".join(words)))
    sets = {
        "credible": f"in its {percent(p)} credible set",
        "match": f"that match with {percent(threshold)} or more",
        "nearest": "nearest to it",
    }
    size = question["size"]
    shares = [f"{entry['label']}: {percent(entry['share'])}" for entry in question["labels"][:_LABELS]]
    more = len(question["labels"]) - len(shares)
    named = f" ({', '.join(shares)}{f' and {more} more labels' if more else ''})" if shares else ""
    items = "item" if size == 1 else "items"
    if not size:
        nearest = "--by nearest shows the items that are nearest to it"
        wider = {
            "credible": f"a larger --p finds more, and {nearest}",
            "match": f"a smaller --threshold finds more, and {nearest}",
        }
        console.print(Text(f"no items {sets[by]}{f'; {wider[by]}' if by in wider and passable else ''}"))
        return
    console.print(Text(f"{size:,}{'' if question['size_is_exact'] else ' or more'} {items} {sets[by]}{named}"))


def _print_hits(question: dict[str, Any], groups: "list[tuple[int, list[Hit]]]", several: bool) -> None:
    """A table of hits, grouped by mode and then by label, with the share that a label has of the set."""
    share = {entry["label"]: f"{entry['label']}: {percent(entry['share'])}" for entry in question["labels"]}
    described = any(_rest_of(hit) for _, group in groups for hit in group)
    needed = {"label": bool(share), "metadata": described}
    columns = [name for name in _GROUPED if needed.get(name, True)]
    table = Table(*(["either"] if several else []), *columns)
    for mode, group in groups:
        either = [percent(question["modes"][mode])] if several else []
        for label in [*share, None]:
            name = share.get(label or "", "")
            for hit in (hit for hit in group if _label_of(hit) == label):
                cells: dict[str, Any] = dict(zip(_COLUMNS, _hit_cells(hit), strict=True)) | {"label": Text(name)}
                table.add_row(*either, *(cells[column] for column in columns))
                either, name = [""] * len(either), ""
            table.add_section()
    Terminal().print(table)


def _show_promised(index: "CredibleIndex", queries: "PosteriorBatch", ids: list[Any] | None, as_json: bool) -> None:
    """Print the answer sets of queries, and what the index promises about them."""
    answers = index.answer_sets(queries)
    promise = index.promise
    names = range(len(answers)) if ids is None else ids
    judged = promise is not None and promise.rejection is not None
    if as_json:
        sets = [
            {
                "id": name,
                **answer._asdict(),
                "sure": answer.sure if judged else None,
                "hits": [hit._asdict() for hit in answer.hits],
            }
            for name, answer in zip(names, answers, strict=True)
        ]
        print_line(json.dumps(sets))
        return
    table = Table("query", "answer", *_COLUMNS)
    for name, answer in zip(names, answers, strict=True):
        state = "" if answer.sure else "not sure enough"
        for hit in answer.hits:
            table.add_row(Text(str(name)), state, *_hit_cells(hit))
            state = ""
        if not answer.hits:
            table.add_row(Text(str(name)), state or "no items", *[""] * 6)
    Terminal().print(table)
    unsure = sum(not answer.sure for answer in answers)
    print_line(f"{sum(len(a.hits) for a in answers)} hits for {len(answers)} queries, {unsure} of them not sure enough")
    print_line(f"Promise: {promise}.")


def _rest_of(hit: "Hit") -> dict[str, Any]:
    """The metadata of a hit that no other column shows."""
    return {name: value for name, value in hit.metadata.items() if name not in _HIDDEN}


def _label_of(hit: "Hit") -> str | None:
    from aleator.retrieval import label_text

    label = hit.metadata.get("label")
    return None if label is None else label_text(label)


def _hit_cells(hit: "Hit") -> tuple[str | Text, ...]:
    rest = _rest_of(hit)
    return (
        Text(str(hit.id)),
        Text(_label_of(hit) or ""),
        percent(hit.match_probability),
        f"{hit.cosine:.3f}",
        f"{hit.kappa:.4g}",
        Text(json.dumps(rest, ensure_ascii=False) if rest else ""),
    )


def _folder(source: str | None) -> Path | None:
    """The folder that the paths of a collection start from."""
    if source is None:
        return None
    path = Path(source)
    return path if path.is_dir() else path.parent


def _save_figure(
    path: Path,
    questions: list[dict[str, Any]],
    metadata: "list[Any] | None",
    answers: "list[list[Hit]]",
    sources: list[Path | None],
    root: Path | None,
) -> None:
    """Write the figure of the answers: pictures where there are any, otherwise a chart.

    Pictures of questions and of items are looked for in `root`, and those that are not there in their own source.
    """
    from aleator.own_data import plot_answers
    from aleator.retrieval import plot_hits

    pictured_items = (metadata or [], [hit.metadata for hits in answers for hit in hits])
    folders = [root if _holds(root, some) else own for some, own in zip(pictured_items, sources, strict=True)]
    if root is not None:
        problem = "holds no picture of a query or a hit"
        require(root in folders, "root", str(root), problem, "name the folder that their paths start from")
    pictured = plot_answers(questions, metadata, answers, *folders)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # of a script that the font does not have
        save_figure(plot_hits(answers) if pictured is None else pictured, path)


def _holds(root: Path | None, described: "Sequence[Mapping[str, Any]]") -> bool:
    """Whether one of the pictures is in a folder."""
    return root is not None and any((root / str(one["path"])).is_file() for one in described if one.get("path"))
