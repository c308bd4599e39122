"""What is special about Lance: versions, its vector index, many writers, and stores that fail."""

import builtins
import itertools
import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from aleator import VonMisesFisher
from aleator.retrieval import CredibleIndex, Items, check_index
from aleator.retrieval.filters import compile_filter
from aleator.retrieval.stores.base import IndexGoneError
from aleator.retrieval.stores.lance import store
from aleator.retrieval.stores.lance.store import LanceStore, partition_count
from tests.retrieval import brute_force, worker
from tests.retrieval.processes import read, wait_until
from tests.retrieval.stores.test_kills import everything_in, held_in, kill_often


@pytest.fixture
def place(tmp_path):
    return f"lance:{tmp_path / 'index'}"


@pytest.fixture
def few_questions(monkeypatch):
    """Recall is measured with few questions; a question of Lance takes milliseconds."""
    monkeypatch.setattr("aleator.retrieval.recall._QUERIES", 24)


def build(location, ids, **options) -> CredibleIndex:
    return CredibleIndex.build(worker.posterior_of(ids), ids, worker.metadata_of(ids), location=location, **options)


def add(index, ids) -> None:
    index.add(worker.posterior_of(ids), ids, worker.metadata_of(ids))


def cloud(n, dim=8, seed=0) -> VonMisesFisher:
    generator = torch.Generator().manual_seed(seed)
    mu = torch.nn.functional.normalize(torch.randn(n, dim, generator=generator), dim=-1)
    return VonMisesFisher(mu, 20 + 80 * torch.rand(n, generator=generator))


def ids_of(answers):
    return [[hit.id for hit in hits] for hits in answers]


# Versions


def test_an_older_version_is_opened_by_its_number_and_cannot_change(place):
    index = build(place, ["a", "b"])
    before = index.store.version
    add(index, ["c"])
    index.remove(["a"])
    with CredibleIndex.open(f"{place}#{before}") as old:
        assert set(everything_in(old)) == {"a", "b"}
        with pytest.raises(ValueError, match="an older version cannot change"):
            add(old, ["d"])
    assert set(everything_in(index)) == {"b", "c"}
    with pytest.raises(ValueError, match="the index has the versions 1 to"):
        CredibleIndex.open(f"{place}#999")


def test_another_reader_sees_each_change_and_a_search_sees_one_version(place):
    index = build(place, ["a"])
    with CredibleIndex.open(place) as reader:
        add(index, ["b"])
        assert set(held_in(reader)) == {"a", "b"}
        with reader.store.one_version():
            add(index, ["c"])
            assert len(reader) == 2
        assert len(reader) == 3


def test_a_replaced_index_is_seen_by_those_who_have_it_open(place):
    old = build(place, ["a", "b"])
    build(place, ["c"], replace=True).close()
    assert set(everything_in(old)) == {"c"}
    CredibleIndex.build(cloud(2, dim=3), location=place, replace=True).close()
    with pytest.raises(IndexGoneError, match="replaced by one of 3 dimensions"):
        old.search(worker.posterior_of(["a"]))


def test_an_index_whose_folder_was_removed_is_gone(place, tmp_path):
    index = build(place, ["a"])
    shutil.rmtree(tmp_path / "index")
    with pytest.raises((IndexGoneError, ValueError), match="index"):
        index.search(worker.posterior_of(["a"]))
    with pytest.raises(ValueError, match="holds no index"):
        CredibleIndex.open(place)


# The vector index


def test_the_vector_index_reaches_its_recall_and_exact_search_is_exact(place, few_questions):
    items, queries = cloud(3000), cloud(20, seed=1)
    index = CredibleIndex.build(items, location=place, exact_below=1000, recall=0.9)
    assert index.store.efforts[-1] == partition_count(3000)
    assert index.recall_report.rungs[0].recall >= 0.9
    wanted = brute_force.credible(queries, items, 0.5)
    assert ids_of(index.search(queries, p=0.5, exact=True)) == wanted
    found = ids_of(index.search(queries, p=0.5))
    shares = [len(set(f) & set(w)) / len(w) for f, w in zip(found, wanted, strict=True) if w]
    assert all(set(f) <= set(w) for f, w in zip(found, wanted, strict=True))
    assert np.mean(shares) >= 0.85
    exact = ids_of(index.search(queries, by="nearest", limit=5, exact=True))
    assert exact == brute_force.nearest(queries, items, 5)


def test_items_added_after_the_vector_index_are_found(place, few_questions):
    index = CredibleIndex.build(cloud(1500), location=place, exact_below=1000, recall=0.9)
    later = cloud(5, seed=9)
    index.add(later, ["l0", "l1", "l2", "l3", "l4"])
    assert [row[0] for row in ids_of(index.search(later, by="nearest", limit=1))] == ["l0", "l1", "l2", "l3", "l4"]
    index.save()
    assert [row[0] for row in ids_of(index.search(later, by="nearest", limit=1))] == ["l0", "l1", "l2", "l3", "l4"]
    index.remove(["l3"])
    assert "l3" not in ids_of(index.search(later, by="nearest", limit=3))[3]
    assert check_index(place) == 1504


def test_a_collection_that_is_not_kept_in_memory_gives_the_same_answers(place, monkeypatch):
    items, queries = cloud(400), cloud(9, seed=1)
    index = CredibleIndex.build(items, location=place)
    monkeypatch.setattr("aleator.retrieval.stores.lance.store._MOST_IN_MEMORY", 0)
    monkeypatch.setattr("aleator.retrieval.stores.lance.store._MOST_KEPT", 1)
    monkeypatch.setattr("aleator.retrieval.stores.lance.store._BLOCK", 64)
    monkeypatch.setattr("aleator.retrieval.stores.lance.store._MOST_IN_LIST", 3)
    assert ids_of(index.search(queries, p=0.9)) == brute_force.credible(queries, items, 0.9)
    assert ids_of(index.search(queries, by="nearest", limit=7)) == brute_force.nearest(queries, items, 7)
    assert 9 <= len(index.store.sample_directions(10)) <= 10


def test_more_items_than_are_kept_are_described_alike_in_one_pass(place, monkeypatch):
    index = CredibleIndex.build(cloud(60), location=place)
    wanted = index.store.describe(np.arange(60))
    monkeypatch.setattr(store, "_MOST_DESCRIBED", 30)
    made = []

    def counted(rows):
        made.append(rows)
        return builtins.set(rows)

    monkeypatch.setattr(store, "set", counted, raising=False)
    with CredibleIndex.open(place) as fresh:
        for rows in (np.arange(20), np.arange(10, 50), np.arange(60)):
            made.clear()
            assert fresh.store.describe(rows) == {row: wanted[row] for row in rows.tolist()}
            assert len(made) <= 1  # not one for each row


# Filters

HOSTILE = [
    "a'b",
    "'; DROP TABLE items; --",
    "') OR true OR ('",
    "%",
    "_",
    "\\",
    "\\'",
    '"',
    '", "label": "cat',
    "\n\0",
    "é😀",
]
HOSTILE += ["''", "`x`", "$1", "?", "/*", "", "null", "x" * 3000]


@pytest.mark.parametrize("kept", ["in memory", "on disk"])
def test_a_filter_is_evaluated_by_lance_and_gives_what_brute_force_gives(place, monkeypatch, kept):
    """Also with strings that look like SQL, as values and keys, and with equal numbers that look different."""
    values = [*HOSTILE, 1, 1.0, True, None, 10, 1e16, 10**16, -0.0, 0, 2**80, [1], {"label": "cat"}]
    n = 6 * len(values)
    metadata = [{"label": values[i % len(values)], "x'y": {"label": "cat"}, "n": i} for i in range(n)]
    items, query = cloud(n), cloud(1, seed=1)
    index = CredibleIndex.build(items, metadata=metadata, location=place)
    if kept == "on disk":
        monkeypatch.setattr("aleator.retrieval.stores.lance.store._MOST_IN_MEMORY", 0)
    monkeypatch.setattr("aleator.retrieval.stores.lance.store._FEW", 1)
    (order,) = brute_force.nearest(query, items, n)
    filters = [{"label": {"eq": value}} for value in values] + [{"label": {"in": HOSTILE}}, {"label": {"in": []}}]
    filters += [{value: "cat"} for value in HOSTILE]
    filters += [
        {"label": {"ne": 1}, "n": {"lt": 20}},
        {"n": {"in": list(range(0, n, 2))}},
        {"x'y": {"eq": {"label": "cat"}}},
    ]
    for filter in filters:
        passes = compile_filter(filter)
        wanted = [j for j in order if passes(metadata[j])]
        assert ids_of(index.search(query, by="nearest", limit=n, filter=filter)) == [wanted]
        assert ids_of(index.search(query, by="nearest", limit=2, filter=filter)) == [wanted[:2]]
        (found,) = ids_of(index.search(VonMisesFisher.uniform(8, (1,)), p=0.9, filter=filter))
        assert sorted(found) == sorted(wanted)
    assert len(index) == n


def test_lance_returns_only_items_that_may_pass(place, monkeypatch):
    index = CredibleIndex.build(cloud(50), metadata=[{"n": i, "half": i % 2 == 0} for i in range(50)], location=place)
    monkeypatch.setattr("aleator.retrieval.stores.lance.store._FEW", 1)
    everything = np.eye(1, 8, dtype=np.float32), np.array([-np.inf])
    for most in (2**24, 0):
        monkeypatch.setattr("aleator.retrieval.stores.lance.store._MOST_IN_MEMORY", most)
        index.add(cloud(1, seed=most), [f"new-{most}"], [{"half": True}])
        narrowed = index.store.narrowed(compile_filter({"half": True}).texts)
        assert len(narrowed.within(*everything, None)) == len(narrowed.closest(everything[0], 99, None)[0])
        assert len(narrowed.within(*everything, None)) == len(index) - 25
        assert len(index.store.narrowed((("no such text",),)).within(*everything, None)) == 0


# Many writers


def write_together(jobs, location, tmp_path, each, clients=4) -> None:
    """Every client adds its own items one by one, and an item that all of them want."""
    build(location, []).close()
    wanted = [[f"{c}-{i}" for i in range(each)] for c in range(clients)]
    reports = [tmp_path / f"client-{c}" for c in range(clients)]
    for ids, report in zip(wanted, reports, strict=True):
        jobs.start(location, [["insist", [id]] for id in ids], report)
    wait_until(lambda: all(read(report)[-1:] == ["end"] for report in reports), patience=60 + 5 * each)
    with CredibleIndex.open(location) as index:
        assert set(everything_in(index)) == {id for ids in wanted for id in ids}
        assert len(index) == each * clients


def test_four_processes_write_together(jobs, place, tmp_path):
    write_together(jobs, place, tmp_path, each=5)


@pytest.mark.slow
def test_four_processes_write_much_together(jobs, place, tmp_path):
    write_together(jobs, place, tmp_path, each=60)


def race(location, batches) -> list:
    """Writers add their batches at the same moment; the errors of those who were refused.

    A race takes about 220 requests of an object store, one after the other. On a machine that is busy with other work
    that took up to a minute, so writers get far more time than that.
    """
    start = threading.Barrier(len(batches))

    def work(index, ids):
        start.wait(60)
        try:
            add(index, ids)
        except Exception as error:  # also one that nobody expects: the assertion then shows it
            return error

    indexes = [CredibleIndex.open(location) for _ in batches]
    with ThreadPoolExecutor(len(batches)) as pool:
        outcomes = [
            writer.result(900) for writer in [pool.submit(work, *job) for job in zip(indexes, batches, strict=True)]
        ]
    return [error for error in outcomes if error is not None]


@pytest.mark.parametrize(("where", "rounds"), [("folder", 3), ("s3", 1)])
def test_of_four_writers_of_one_id_one_succeeds_with_its_whole_batch(where, rounds, place, request):
    location = place if where == "folder" else request.getfixturevalue("bucket_url")
    build(location, ["a"]).close()
    for number in range(rounds):
        batches = [[f"{number}-{writer}-{i}" for i in range(3)] + [f"{number}-shared"] for writer in range(4)]
        problems = race(location, batches)
        assert len(problems) == 3, problems
        assert all("already in the index" in str(error) for error in problems), problems
        with CredibleIndex.open(location) as index:
            found = {id for id in everything_in(index) if id.startswith(f"{number}-")}
        assert found in [set(batch) for batch in batches]


@pytest.mark.parametrize("gives_up", ["never", "before", "after"])
@pytest.mark.parametrize("call", ["add", "remove", "configure"])
def test_whoever_comes_in_between_a_change_happens_once_or_is_refused(call, gives_up, place, monkeypatch):
    """A rival makes the same change before each step of a writer that reads or changes the table.

    Lance may also give up the writer's commit, before or after it happened, as where an answer of an object store is
    lost. A change of an older state never happens, however old it is: the rival makes three.
    """
    from lancedb.merge import LanceMergeInsertBuilder

    changes = {
        "add": lambda index, name: add(index, [name, "shared"]),
        "remove": lambda index, name: index.remove(["shared", f"of {name}"]),
        "configure": lambda index, name: index.store.configure(**{name: True}),
    }
    start = ["a", "shared", "of mine", "of rival"] if call == "remove" else ["a"]
    outcomes = []
    for moment in itertools.count():
        place_now = f"{place}-{moment}"
        index = build(place_now, start)
        rival = Rival(place_now, moment, gives_up, changes[call])
        mine = None
        with monkeypatch.context() as patched:
            for owner, name in ((LanceStore, "_refresh"), (LanceStore, "_find"), (store, "_state_row")):
                patched.setattr(owner, name, rival.before(getattr(owner, name)))
            patched.setattr(LanceMergeInsertBuilder, "execute", rival.giving_up(LanceMergeInsertBuilder.execute))
            try:
                changes[call](index, "mine")
            except OSError:
                changes[call](index, "mine")  # Lance gave up, and nothing happened: repeat it, as the error says
            except ValueError as error:
                mine = error
        if not rival.came:
            break
        with CredibleIndex.open(place_now) as fresh:
            held, config = set(everything_in(fresh)), fresh.store.config
        done = {"mine": mine is None, "rival": rival.refused is None}
        outcomes.append(done["mine"])
        if call == "configure":
            assert done == {"mine": True, "rival": True}
            assert config["mine"]
            assert config["rival"]
        else:
            assert sum(done.values()) == 1
            (winner,) = (name for name in done if done[name])
            words = "already in the index" if call == "add" else "not in the index"
            assert f"'shared': {words}" in str(mine or rival.refused)
            assert held == ({"a", winner, "shared"} if call == "add" else set(start) - {"shared", f"of {winner}"}) | {
                "z"
            }
        assert check_index(place_now) == len(held)
    assert moment >= 3  # steps
    assert set(outcomes) == ({True} if call == "configure" else {True, False})


class Rival:
    """Makes a change in the middle of another's call, once: before the step with a number."""

    def __init__(self, place, moment, gives_up, change):
        self.place, self.left, self.came, self.refused = place, moment, False, None
        self.gives_up, self.change = gives_up, change

    def before(self, really):
        def step(*arguments, **options):
            self.left -= 1
            if self.left < 0 and not self.came:
                self.came = True
                gives_up, self.gives_up = self.gives_up, "never"
                with CredibleIndex.open(self.place) as index:
                    index.store.configure(recall=0.5)
                    add(index, ["z"])
                    try:
                        self.change(index, "rival")
                    except ValueError as error:
                        self.refused = error
                self.gives_up = gives_up
            return really(*arguments, **options)

        return step

    def giving_up(self, really):
        """A commit that Lance gives up, once, after the rival came."""

        def change(*arguments, **options):
            gives_up = self.gives_up if self.came else "never"
            if gives_up != "never":
                self.gives_up = "never"
            done = really(*arguments, **options) if gives_up != "before" else None
            if gives_up != "never":
                raise RuntimeError("lance error: Too many concurrent writers. Attempted 2 times.")
            return done

        return change


def test_of_those_who_build_at_one_place_one_succeeds(place, monkeypatch):
    really = store._find_table

    def overtaken(place):
        monkeypatch.setattr(store, "_find_table", really)
        found = really(place)
        build(place.location, ["first"]).close()
        return found

    monkeypatch.setattr(store, "_find_table", overtaken)
    with pytest.raises(ValueError, match="already holds an index; add to it, or pass replace=True"):
        build(place, ["second"])
    assert set(everything_in(CredibleIndex.open(place))) == {"first"}


def test_a_writer_of_an_index_that_was_replaced_meanwhile_is_told(place, monkeypatch):
    index, really = build(place, ["a"]), LanceStore._find

    def overtaken(self, *arguments):
        monkeypatch.setattr(LanceStore, "_find", really)
        build(place, ["b"], replace=True).close()
        return really(self, *arguments)

    monkeypatch.setattr(LanceStore, "_find", overtaken)
    with pytest.raises(IndexGoneError, match="was replaced while items were added"):
        index.store.insert(index_items("c"))
    assert set(everything_in(CredibleIndex.open(place))) == {"b"}


def index_items(name):
    q = worker.posterior_of([name])
    return Items([f'"{name}"'], q.mu.numpy(), q.kappa.numpy(), ["{}"])


def test_a_version_of_many_changes_and_removals_is_whole(place):
    """Also where more items are removed than a condition lists one by one."""
    index = build(place, [])
    ids = [f"i{i}" for i in range(3000)]
    index.add(cloud(3000, dim=worker.DIM), ids)
    index.remove(ids[::2])
    assert check_index(place) == 1500
    assert index.store.existing(['"i0"', '"i1"']) == {'"i1"'}
    index.save()
    assert check_index(place) == 1500


def test_of_two_who_remove_an_item_one_is_told_that_it_is_gone(place):
    first = build(place, ["a", "b", "c"])
    with CredibleIndex.open(place) as second:
        first.remove(["a", "b"])
        with pytest.raises(ValueError, match="'b': not in the index"):
            second.remove(["b", "c"])
        assert set(everything_in(second)) == {"c"}


# Faults


def test_a_place_survives_killed_writers(jobs, place, tmp_path):
    kill_often(jobs, place, tmp_path, rounds=5)


@pytest.mark.slow
def test_a_place_survives_two_hundred_killed_writers(jobs, place, tmp_path):
    assert kill_often(jobs, place, tmp_path, rounds=300) >= 200


def insist_through_faults(location, object_store, rounds, **shares) -> int:
    """Add and remove whole batches while answers fail; repeat a call that may or may not have happened."""
    draw, held, interrupted = random.Random(0), set(), 0
    build(location, []).close()

    def until_done(change, is_done):
        nonlocal interrupted
        for _ in range(50):
            try:
                with CredibleIndex.open(location) as index:
                    if is_done(index):
                        return
                    change(index)
                return
            except ConnectionError:
                interrupted += 1
        raise AssertionError("it never succeeded")

    for number in range(rounds):
        ids = [f"{number}-{i}" for i in range(draw.randint(1, 5))]
        with object_store.disturbed(**shares):
            until_done(lambda index, ids=ids: add(index, ids), lambda index, ids=ids: ids[0] in index)
        held |= set(ids)
        if number % 3 == 2:
            gone = draw.sample(sorted(held), 2)
            with object_store.disturbed(**shares):
                until_done(lambda index, gone=gone: index.remove(gone), lambda index, gone=gone: gone[0] not in index)
            held -= set(gone)
        with CredibleIndex.open(location) as index:
            assert set(everything_in(index)) == held
    return interrupted


@pytest.mark.parametrize("shares", [{"before": 0.2}, {"after": 0.1}, {"late": 0.3, "before": 0.1, "after": 0.05}])
def test_a_store_that_answers_with_errors_and_delays_loses_and_doubles_nothing(bucket_url, object_store, shares):
    before = object_store.faults
    insist_through_faults(bucket_url, object_store, rounds=3, **shares)
    assert object_store.faults > before


@pytest.mark.slow
def test_a_store_that_fails_often_loses_and_doubles_nothing(bucket_url, object_store):
    insist_through_faults(bucket_url, object_store, rounds=40, before=0.25, after=0.15, late=0.3)


# Errors


def test_a_bucket_that_is_not_there(object_store):
    with pytest.raises(ConnectionError, match="check the bucket"):
        CredibleIndex.open("s3://no-such-bucket/name")


def test_a_store_that_cannot_be_reached(monkeypatch):
    options = {"aws_endpoint": "http://127.0.0.1:1", "allow_http": "true", "client_max_retries": "0"}
    secret = {"aws_access_key_id": "ann-the-user", "aws_secret_access_key": "hunter2hunter2", "aws_region": "us-east-1"}
    with pytest.raises(ConnectionError, match="check the bucket") as caught:
        CredibleIndex.open("s3://bucket/name", storage_options={**options, **secret})
    assert "hunter2" not in str(caught.value)


def test_credentials_may_be_passed_as_options(object_store, bucket_url, monkeypatch):
    options = {name.lower(): value for name, value in object_store.environment.items()}
    for name in object_store.environment:
        monkeypatch.delenv(name)
    options = {**options, "aws_endpoint": options.pop("aws_endpoint_url"), "allow_http": "true"}
    build(bucket_url, ["a"], storage_options=options).close()
    with CredibleIndex.open(bucket_url, storage_options=options) as index:
        assert "a" in index


def test_options_are_for_object_stores(tmp_path):
    with pytest.raises(ValueError, match="are for object stores"):
        build(str(tmp_path / "x"), ["a"], storage_options={"a": "b"})


def test_without_lancedb_the_error_names_the_extra(monkeypatch, place):
    real = builtins.__import__

    def missing(name, *rest):
        if name == "lancedb":
            raise ModuleNotFoundError("No module named 'lancedb'", name="lancedb")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ValueError, match=r"needs lancedb; pip install 'aleator\[lance\]'"):
        CredibleIndex.open(place)


def test_an_index_elsewhere_is_not_saved_as_a_folder(place):
    index = CredibleIndex.build(cloud(3))
    with pytest.raises(ValueError, match="build one there"):
        index.save(place)


def test_a_first_build_that_did_not_finish_leaves_no_index_and_can_be_repeated(place, tmp_path, monkeypatch):
    def stops(*_):
        raise RuntimeError("stopped")

    with monkeypatch.context() as patched:
        patched.setattr(store, "_batches", stops)
        with pytest.raises(OSError, match="Lance cannot write it"):
            build(place, ["a"])
    (tmp_path / "index" / "items.lance" / "data").mkdir(parents=True, exist_ok=True)  # as a killed process leaves it
    with pytest.raises(ValueError, match="holds no index"):
        CredibleIndex.open(place)
    assert set(everything_in(build(place, ["a"]))) == {"a"}
