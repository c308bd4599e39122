"""Processes and servers killed in the middle of writing: the state before or the state after, never between."""

import random
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from aleator import VonMisesFisher
from aleator.retrieval import CredibleIndex
from tests.retrieval import worker
from tests.retrieval.conftest import start_server
from tests.retrieval.processes import kill, kill_within, read, wait_until


def held_in(index) -> dict:
    """Metadata by id, found by a query that could be anything."""
    hits = index.search(VonMisesFisher.uniform(worker.DIM, (1,)))[0]
    held = {hit.id: hit.metadata for hit in hits}
    assert len(held) == len(hits)
    return held


def everything_in(index) -> dict:
    """The same, of an index that nobody changes meanwhile; every item must find itself."""
    held = held_in(index)
    assert len(index) == len(held)
    ids = sorted(held)
    if ids:
        for id, hits in zip(ids, index.search(worker.posterior_of(ids), by="nearest", limit=1), strict=True):
            assert hits[0].id == id
    return held


def some_steps(draw: random.Random, ids: set[str], prefix: str):
    """Steps of adding, removing and saving, with the ids held after each."""
    held, states, steps = set(ids), [set(ids)], []
    for number in range(12):
        kind = draw.choice(["add", "add", "remove", "save", "build"] if number else ["add", "remove"])
        if kind == "remove" and held:
            chosen = draw.sample(sorted(held), draw.randint(1, len(held)))
            held -= set(chosen)
            steps.append(["remove", chosen])
        elif kind == "save":
            steps.append(["save"])
        else:
            chosen = [f"{prefix}-{number}-{i}" for i in range(draw.randint(1, 40))]
            held = (held if kind != "build" else set()) | set(chosen)
            steps.append(["build" if kind == "build" else "add", chosen])
        states.append(set(held))
    return steps, states


def kill_often(jobs, folder: Path | str, scratch: Path, rounds: int) -> int:
    """Kill a writer at a random moment, look, and go on from what is there; returns how many were caught at work."""
    draw = random.Random(0)
    CredibleIndex.build(worker.posterior_of([]), location=folder).close()
    held: set[str] = set()
    caught, usual = 0, 0.2
    for number in range(rounds):
        steps, states = some_steps(draw, held, str(number))
        report = scratch / f"report-{number}"
        started = time.monotonic()
        # At any moment up to the time that all steps took when nobody interfered.
        kill_within(jobs.start(folder, steps, report), draw.uniform(0, usual))
        lines = read(report)
        done = sum(line.startswith("done") for line in lines)
        begun = sum(line.startswith("begin") for line in lines)
        if lines[-1] == "end":
            usual = time.monotonic() - started
        with CredibleIndex.open(folder) as index:
            found = everything_in(index)
        assert all(metadata == {"id": id} for id, metadata in found.items())
        assert set(found) in (states[done], states[begun]), f"round {number}: neither before nor after {steps[done]}"
        caught += begun > done
        held = set(found)
    return caught


def test_a_folder_survives_killed_writers(jobs, tmp_path):
    assert kill_often(jobs, tmp_path / "index", tmp_path, rounds=20) >= 5


@pytest.mark.slow
def test_a_folder_survives_two_hundred_killed_writers(jobs, tmp_path):
    assert kill_often(jobs, tmp_path / "index", tmp_path, rounds=400) >= 200


def test_a_first_save_that_was_killed_leaves_no_index_and_can_be_repeated(jobs, tmp_path):
    draw = random.Random(1)
    ids = [f"item-{i}" for i in range(50)]
    for number in range(8):
        folder, report = tmp_path / str(number), tmp_path / f"report-{number}"
        kill_within(jobs.start(folder, [["build", ids]], report), draw.uniform(0, 0.03))
        try:
            index = CredibleIndex.open(folder)
        except ValueError as error:
            if "holds no index" not in str(error) or "end" in read(report):
                raise
            index = CredibleIndex.build(worker.posterior_of(ids), ids, location=folder)
        assert set(everything_in(index)) == set(ids)
        index.close()


def test_a_server_killed_under_four_writers_loses_and_doubles_nothing(jobs, tmp_path):
    each, clients = 30, 4
    folder = tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True)
    with folder as path, start_server(path) as server:
        location = f"{server.get_uri()}#shared"
        CredibleIndex.build(worker.posterior_of([]), location=location).close()
        reports = [tmp_path / f"client-{c}" for c in range(clients)]
        wanted = [[f"{c}-{i}" for i in range(each)] for c in range(clients)]
        for ids, report in zip(wanted, reports, strict=True):
            jobs.start(location, [["insist", [id]] for id in ids], report)

        def acknowledged():
            return sum(line.startswith("done") for report in reports for line in read(report))

        for share in (0.25, 0.5, 0.75):
            wait_until(lambda share=share: acknowledged() >= share * each * clients)
            kill_server(server.get_pid())
            before = {
                ids[i]
                for ids, report in zip(wanted, reports, strict=True)
                for i in range(sum(line.startswith("done") for line in read(report)))
            }
            start_again(server)
            with CredibleIndex.open(location) as index:
                assert before <= set(held_in(index))
        wait_until(lambda: all(read(report)[-1] == "end" for report in reports))
        with CredibleIndex.open(location) as index:
            assert len(index) == each * clients
            assert set(everything_in(index)) == {id for ids in wanted for id in ids}


def kill_server(postmaster: int) -> None:
    kill(postmaster, *(child.pid for child in psutil.Process(postmaster).children(recursive=True)))


def start_again(server) -> None:
    # All its processes are dead, but where nobody waits for orphans a number still looks alive to these locks.
    socket = server.get_postmaster_info().socket_path
    (server.pgdata / "postmaster.pid").unlink()
    socket.with_name(socket.name + ".lock").unlink()

    def started():
        try:
            server.ensure_postgres_running()
        except subprocess.SubprocessError:
            return False
        return True

    wait_until(started)
