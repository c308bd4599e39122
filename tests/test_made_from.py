"""Everything that is made, against every source that can change: the answer is new, or it is refused by name.

In each cell a thing is made, or begun; then a source changes, and the same call is repeated. Its answer must be that of
a fresh start with the changed source, or an error. The table says which, or

    =    the source decides nothing here: the same call gives what it gave, and so does a fresh start
    -    the thing is not made from this source

The bytes of an image change without its size and time. "Begun" work was stopped in the middle.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import aleator as al
from aleator.data import Inputs
from aleator.encoders import MLP, Chain, Flatten
from aleator.evaluation import LabelModel
from aleator.own_data import (
    AleatorModel,
    Answers,
    Run,
    Settings,
    audit,
    embed,
    embed_into,
    evaluate_embedded,
    read_collection,
    read_embedded,
    train,
)
from aleator.own_data.auditing import files
from aleator.own_data.collection import contents
from aleator.own_data.collection.labels import named_labels
from aleator.own_data.collection.parts import Split
from aleator.own_data.collection.used_items import save_used_items
from aleator.own_data.embedding import embedded_evaluation
from aleator.own_data.embedding.rows import RowFile
from aleator.own_data.learning import learning
from aleator.own_data.measuring.baselines import fit_baselines, save_baselines
from aleator.retrieval import decode_id, index_from_file, read_items_beside, take_snapshot
from aleator.web.collection import CollectionView
from aleator.web.findings import Findings
from aleator.web.pictures import Pictures

# Only what is made with an index is made from one. The label model of a file and an ONNX file are made of a run alone,
# a thumbnail of one image. An evaluation is of the labels in the posteriors file, whose row is above, or of given ones.
TABLE = """
                              bytes    name     label    order    number   model    settings  index
    posteriors file           refused  refused  new      refused  refused  refused  refused   -
    posteriors file, begun    new      refused  new      refused  refused  refused  refused   -
    label model of the file   -        -        -        -        -        refused  -         -
    Parquet                   refused  refused  new      refused  refused  refused  refused   -
    Parquet, begun            new      refused  new      refused  refused  refused  refused   -
    Lance                     refused  refused  refused  refused  refused  refused  refused   refused
    Lance, begun              new      refused  new      refused  refused  refused  refused   -
    index                     refused  refused  refused  refused  refused  refused  -         refused
    guarantee                 refused  refused  refused  =        refused  refused  new       refused
    label model of the index  new      =        new      =        new      refused  -         new
    evaluation                refused  refused  -        =        refused  -        -         -
    audit                     refused  refused  refused  refused  refused  refused  refused   -
    audit, begun              new      refused  new      refused  refused  refused  new       -
    findings on the page      refused  refused  refused  =        refused  refused  -         refused
    thumbnail                 new      refused  -        -        -        -        new       -
    ONNX                      -        -        -        -        -        new      -         -
    run                       refused  =        refused  refused  refused  refused  refused   -
    run, begun                refused  =        refused  refused  refused  refused  refused   -
    run, not a step taken     new      =        new      new      new      new      new       -
"""
HEADER, *ROWS = TABLE.strip().splitlines()
CELLS = {
    (" ".join(words[:-8]), source): said
    for words in map(str.split, ROWS)
    for source, said in zip(HEADER.split(), words[-8:], strict=True)
}
TESTED = [cell for cell, said in CELLS.items() if said != "-"]

COLOURS = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}
QUIET: dict[str, Any] = {"device": "cpu", "progress": False}
Make = Callable[["World", Path], Any]


class World:
    """The sources: 24 images and a damaged one, a table of them, a table of numbers; a run, and settings."""

    def __init__(self, folder: Path):
        self.folder, self.changed = folder, ""
        folder.mkdir(parents=True)
        labels = list(COLOURS) * 8
        self.items = [[f"{i:02d}.bmp", label, 4 * np.eye(3)[i % 3] + 0.1 * i] for i, label in enumerate(labels)]
        for i, (name, label, _) in enumerate(self.items):
            Image.fromarray(picture(label, i)).save(folder / name)
        (folder / "damaged.bmp").write_bytes(b"no image")
        self._write_tables()

    def _write_tables(self) -> None:
        lines = [f"{name},{label}" for name, label, _ in self.items]
        (self.folder / "items.csv").write_text("\n".join(["path,label", *lines, "damaged.bmp,red"]) + "\n")
        lines = [",".join([name, label, *map(str, row)]) for name, label, row in self.items]
        (self.folder / "table.csv").write_text("\n".join(["id,label,a,b,c", *lines]) + "\n")

    def change(self, source: str) -> None:
        """Change one source: of the fourth item, of all items, or of what else is used."""
        self.changed = source
        path, item = self.folder / "03.bmp", self.items[3]
        if source == "bytes":
            before, other = path.stat(), 255 - picture("red", 3)
            while path.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of some file systems is slow
                Image.fromarray(other).save(path)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            assert path.stat().st_size == before.st_size
            item[2] = -item[2]
        elif source == "name":
            item[0] = "03-renamed.bmp"
            path.rename(self.folder / item[0])
        elif source == "label":
            item[1] = "blue"
        elif source == "order":
            self.items.reverse()
        elif source == "number":
            self.items.remove(item)
        self._write_tables()

    @property
    def run(self) -> Run:
        return model("other" if self.changed == "model" else "first")

    @property
    def strict(self) -> bool:
        return self.changed == "settings"

    def images(self) -> al.own_data.Collection:
        return read_collection(self.folder / "items.csv", strict=False)


def picture(label: str, seed: int) -> np.ndarray:
    return (np.array(COLOURS[label]) + np.random.default_rng(seed).integers(0, 40, (8, 8, 3))).astype(np.uint8)


@cache
def model(name: str) -> Run:
    """A run on images of 8 x 8 that knows label probabilities. It is not trained."""
    torch.manual_seed(len(name))
    encoder = al.Encoder(Chain([Flatten(192), MLP(192, (5,))]), dim=4).eval()
    inputs, config = Inputs("images", size=8), {"settings": {"backbone": "hf:some/network"}}
    return Run(Path("run"), encoder, inputs, al.VMFKernel(), 0.5, name, config, {}, label_probabilities(torch.eye(3)))


def label_probabilities(weights: torch.Tensor) -> Answers:
    return Answers(LabelModel(al.VonMisesFisher(torch.eye(3, 4), 5.0), weights, tuple(COLOURS), al.VMFKernel(20.0)))


def posteriors(world: World, place: Path, **options: Any) -> Path:
    return embed(world.run, world.images(), place / "p.safetensors", **QUIET, **options)


def posteriors_file(world: World, place: Path) -> Any:
    path = posteriors(world, place, batch_size=4, strict=world.strict)
    return {name: tensor.tolist() for name, tensor in load_file(path).items()}, read_embedded(path).records


def label_model_of_file(world: World, place: Path) -> Any:
    """The encoder of the run is the same. Its label probabilities are others."""
    weights = torch.eye(3).flip(0) if world.changed else torch.eye(3)
    run = Run(**{**vars(model("first")), "answers": label_probabilities(weights)})
    found = read_embedded(embed(run, world.images(), place / "p.safetensors", strict=False, **QUIET)).label_model
    assert found is not None
    return found.weights.tolist()


def into(output: str, world: World) -> str:
    return embed_into(world.run, world.images(), output, batch_size=4, strict=world.strict, **QUIET)


def parquet_file(world: World, place: Path) -> Any:
    import pyarrow.parquet as parquet

    return parquet.read_table(into(f"{place}/p.parquet", world)).to_pydict()


def index_on_lance(world: World, place: Path) -> Any:
    if world.changed == "index" and (place / "index").exists():
        replace_an_item(f"lance:{place}/index/")
    with al.CredibleIndex.open(into(f"lance:{place}/index/", world)) as found:
        return contents_of(found)


def index(world: World, place: Path) -> Any:
    """Built of the posteriors of the items as they are."""
    if world.changed == "index" and (place / "index").exists():
        replace_an_item(place / "index")
    path = posteriors(world, place, strict=False, replace=True)
    with index_from_file(path, str(place / "index"), *read_items_beside(path)) as built:
        return contents_of(built)


def contents_of(found: al.CredibleIndex) -> Any:
    items = take_snapshot(found)
    return items.keys, items.mu.tolist(), items.kappa.tolist(), items.metadata_json


def replace_an_item(location: str | Path) -> None:
    """The number of items stays as it is."""
    with al.CredibleIndex.open(location) as found:
        found.remove(["03.bmp"])
        found.add(model("first").posteriors([picture("blue", 99)]), ["new"], [{"label": "blue"}])
        found.save()


def index_kept_up(world: World, place: Path) -> al.CredibleIndex:
    """The index, in which the items are replaced by the items as they are: a user's way to bring it up to date."""
    path = posteriors(world, place, strict=False, replace=True, batch_size=1)
    if not (place / "index").exists():
        index_from_file(path, str(place / "index"), *read_items_beside(path)).close()
    else:
        with al.CredibleIndex.open(place / "index") as found:
            found.remove([decode_id(key) for key in take_snapshot(found).keys])
            found.add(read_embedded(path).q, *read_items_beside(path), fingerprint=world.run.fingerprint)
            found.save()
    if world.changed == "index":
        replace_an_item(place / "index")
    return al.CredibleIndex.open(place / "index")


def guarantee(world: World, place: Path) -> Any:
    begun, labels = (place / "index").exists(), list(COLOURS) * 4
    asked = model("first").posteriors([picture(label, 100 + i) for i, label in enumerate(labels)])
    with index_kept_up(world, place) as found:
        if not begun or world.changed == "settings":
            coverage = 0.7 if world.changed == "settings" else 0.5
            found.calibrate(asked, labels, coverage, fingerprint=found.fingerprint)
            found.save()
        sets = found.answer_sets(asked, fingerprint=world.run.fingerprint)
        return [sorted(str(hit.id) for hit in answer.hits) for answer in sets], str(found.promise)


def label_model_of_index(world: World, place: Path) -> Any:
    with index_kept_up(world, place) as found:
        return found.label_model().probabilities(al.VonMisesFisher(torch.eye(3, 4), 9.0)).numpy().round(5).tolist()


def evaluation(world: World, place: Path) -> Any:
    run = replace(world.run, folder=place / "run")
    if not (place / "p.safetensors").exists():
        run.folder.mkdir()
        none, labels = np.empty(0, np.uint64), list(COLOURS)
        save_used_items(run.folder, none, Split(*[none] * 3))  # all items are new to the run
        learned = torch.from_numpy(np.stack([picture(label, 200) for label in labels])).permute(0, 3, 1, 2)
        save_baselines(
            run.folder, fit_baselines(learned, np.arange(3), named_labels(labels, "classes"), inputs="pixels")
        )
        embed(run, world.images(), place / "p.safetensors", strict=False, **QUIET)
    embedded = read_embedded(place / "p.safetensors")
    found = evaluate_embedded(embedded, embedded.labels(), run=run, data=world.images())
    return found["recall_at_1"], found["baselines"]


def raw_items(queries: Any, features: Any, *_: Any, **__: Any) -> Any:
    """In place of the comparison, which takes seconds: the items that it is made with, read anew, in any order."""
    return sorted(features.tolist())


def an_audit(world: World, place: Path) -> Any:
    folds = 4 if world.changed == "settings" else 5
    audit(world.images(), place / "audit", run=world.run, folds=folds, strict=False, **QUIET)
    return [path.read_text() for path in sorted((place / "audit").glob("*.csv"))]


def findings(world: World, place: Path) -> Any:
    """What the page shows of an audit that was made once. Nothing is shown about an item that has changed since."""
    if not (place / "audit").exists():
        an_audit(world, place)
    with index_kept_up(world, place) as found:
        shown = Findings(place / "audit", CollectionView(found))
    pages = [shown.page(kind, 0, 100, images=False) for kind in ("label-errors", "near-duplicates", "odd-ones")]
    about = [(one.id, one.given, one.distance) for page in pages for one in page.items]
    if pages[-1].left_out:
        assert "03.bmp" not in {id for id, *_ in about}
        raise ValueError(f"{pages[-1].left_out} odd ones are left out")
    return sorted(about, key=str)


def thumbnail(world: World, place: Path) -> Any:
    server = SERVERS.setdefault(place, Pictures(world.folder, 10**6, 10**6))
    return server.show("03.bmp", 4 if world.changed == "settings" else 6).data


SERVERS: dict[Path, Pictures] = {}


def onnx_file(world: World, place: Path) -> Any:
    import onnx

    written = onnx.load(AleatorModel(world.run).export_onnx(place / "m.onnx"))
    return [one.raw_data for one in written.graph.initializer], [one.value for one in written.metadata_props]


def a_run(world: World, place: Path) -> Any:
    settings = Settings(steps=2, dim=4, width=8, members=1, holdout=0.5, seed=1 if world.changed == "settings" else 0)
    if world.changed == "model":  # that the training starts from
        settings = Settings(steps=2, holdout=0.5, start=str(made(a_run) / "run"))
    table = read_collection(world.folder / "table.csv")
    return train(table, place / "run", settings, baselines=False, figures=False, **QUIET).digest()


def stopped(make: Make) -> Make:
    """The same work, stopped when twelve rows or more are done."""
    append = RowFile.append

    def append_and_stop(rows: RowFile, block: np.ndarray, digests: np.ndarray) -> None:
        append(rows, block, digests)
        if rows.done >= 12:
            raise KeyboardInterrupt

    def begin(world: World, place: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RowFile, "append", append_and_stop)
            with pytest.raises(KeyboardInterrupt):
                make(world, place)

    return begin


def trained_not_saved(world: World, place: Path) -> None:
    shutil.copytree(made(a_run), place, dirs_exist_ok=True)
    (place / "run" / "metrics.json").unlink()


def not_a_step_taken(world: World, place: Path) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning, "prepare", stop)
        with pytest.raises(KeyboardInterrupt):
            a_run(world, place)


THINGS: dict[str, tuple[Make, Make | None]] = {  # the call; and how it was begun, if it was not finished
    "posteriors file": (posteriors_file, None),
    "posteriors file, begun": (posteriors_file, stopped(posteriors_file)),
    "label model of the file": (label_model_of_file, None),
    "Parquet": (parquet_file, None),
    "Parquet, begun": (parquet_file, stopped(parquet_file)),
    "Lance": (index_on_lance, None),
    "Lance, begun": (index_on_lance, stopped(index_on_lance)),
    "index": (index, None),
    "guarantee": (guarantee, None),
    "label model of the index": (label_model_of_index, None),
    "evaluation": (evaluation, None),
    "audit": (an_audit, None),
    "audit, begun": (an_audit, stopped(an_audit)),
    "findings on the page": (findings, None),
    "thumbnail": (thumbnail, thumbnail),
    "ONNX": (onnx_file, None),
    "run": (a_run, None),
    "run, begun": (a_run, trained_not_saved),
    "run, not a step taken": (a_run, not_a_step_taken),
}
MADE: dict[Make, tuple[Path, Any]] = {}  # what was made once, of sources that have not changed; and what it answered
BASE: list[Path] = []


@pytest.fixture(scope="module", autouse=True)
def base(tmp_path_factory):
    BASE.append(tmp_path_factory.mktemp("made"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_figures", lambda *_: {})
        patch.setattr(files, "FAR", -1.0)  # every item is odd, so that there is a finding about each
        patch.setattr(embedded_evaluation, "compare_with_baselines", raw_items)
        yield
    BASE.clear()
    MADE.clear()


def made(make: Make) -> Path:
    """Where a thing was made once."""
    if make not in MADE:
        folder = BASE[-1] / make.__name__
        (folder / "place").mkdir(parents=True)
        MADE[make] = folder / "place", make(World(folder / "world"), folder / "place")
    return MADE[make][0]


def outcome(thing: str, source: str, folder: Path) -> str:
    """What happens if a source changes: "new", "refused" or "="; an AssertionError if the answer is old."""
    make, begin = THINGS[thing]
    world, place, fresh = World(folder / "world"), folder / "place", folder / "fresh"
    finished = made(make)
    if begin is None:
        shutil.copytree(finished, place)
    else:
        place.mkdir()
        begin(world, place)
    world.change(source)
    try:
        answer = make(world, place)
    except ValueError:
        return "refused"
    fresh.mkdir()
    expected = make(world, fresh)
    assert answer == expected, f"{thing}, {source}: the answer is neither new nor refused"
    return "=" if expected == MADE[make][1] else "new"


@pytest.mark.parametrize(("thing", "source"), TESTED, ids=map(" x ".join, TESTED))
def test_the_answer_is_new_or_refused(thing, source, tmp_path):
    assert outcome(thing, source, tmp_path) == CELLS[thing, source]


def test_every_thing_is_in_the_table_and_the_cells_are_counted():
    assert list(THINGS) == list(dict.fromkeys(thing for thing, _ in CELLS))
    page = (Path(__file__).parents[1] / "docs" / "reliability.md").read_text()
    assert f"{len(TESTED)} cells of {len(THINGS)} things" in page


@pytest.mark.parametrize("thing", ["posteriors file", "posteriors file, begun", "Parquet"])
def test_a_cell_turns_red_if_contents_do_not_count(thing, tmp_path, monkeypatch):
    """Broken on purpose: every item has the same digest, whatever it holds."""
    monkeypatch.setattr(contents, "_digest", lambda item, kind: b"12345678")
    monkeypatch.setattr(f"{__name__}.MADE", {})
    monkeypatch.setattr(f"{__name__}.BASE", [tmp_path / "base"])
    with pytest.raises(AssertionError, match="neither new nor refused"):
        outcome(thing, "bytes", tmp_path)
