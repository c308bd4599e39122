"""The script of the guide "Sharded PostgreSQL": shards get the radius, the order and the limit; sets are whole."""

import glob
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import psycopg
import pytest
import torch

import aleator as al

ROOT = Path(__file__).parents[1]
ITEMS, DIM, SHARDS = 300, 8, 2


def load_script():
    spec = importlib.util.spec_from_file_location("sharded", ROOT / "docs" / "guides" / "sharded_postgres.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def server_programs() -> Path | None:
    """A folder with programs of PostgreSQL whose server has both extensions: ALEATOR_TEST_POSTGRES_BIN, or Debian's."""
    named = os.environ.get("ALEATOR_TEST_POSTGRES_BIN")
    for folder in [named] if named else sorted(glob.glob("/usr/lib/postgresql/*/bin")):
        shared = subprocess.run([f"{folder}/pg_config", "--sharedir"], capture_output=True, text=True).stdout.strip()
        if all(Path(shared, "extension", f"{name}.control").is_file() for name in ("vector", "postgres_fdw")):
            return Path(folder)
    return None


@pytest.fixture(scope="module")
def urls():
    """Locations of a coordinator and of two shards, which are databases of one server without a network."""
    programs = server_programs()
    if programs is None:
        pytest.skip("no PostgreSQL with both pgvector and postgres_fdw; ALEATOR_TEST_POSTGRES_BIN names its programs")
    owner = None
    if os.getuid() == 0:  # the server refuses to run as root
        owner = next((user.pw_name for user in pwd.getpwall() if user.pw_name in ("postgres", "nobody")), None)
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    if owner:
        shutil.chown(folder, owner)
    run = {"check": True, "user": owner, "cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    data = str(folder / "data")
    subprocess.run([programs / "initdb", "-D", data, "-U", "test", "-A", "trust", "--no-sync"], **run)
    options = f"-k {folder} -c listen_addresses='' -c fsync=off -c shared_buffers=16MB"
    subprocess.run([programs / "pg_ctl", "-D", data, "-w", "-o", options, "-l", folder / "log", "start"], **run)
    names = ["coordinator", *(f"shard{i}" for i in range(SHARDS))]
    place = f"postgresql:///{{}}?host={folder}&user=test"
    try:
        with psycopg.connect(place.format("postgres"), autocommit=True) as connection:
            for name in names:
                connection.execute(f"CREATE DATABASE {name}")
        yield [place.format(name) for name in names]
    finally:
        subprocess.run([programs / "pg_ctl", "-D", data, "-m", "immediate", "stop"], **run)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def sharded(urls):
    """The directions of all items, and a connection to the coordinator."""
    script, (coordinator, *shards) = load_script(), urls
    mu = torch.nn.functional.normalize(torch.randn(ITEMS, DIM, generator=torch.Generator().manual_seed(0)), dim=1)
    ids = [f"item-{i}" for i in range(ITEMS)]
    of = np.array([script.shard_of(id, SHARDS) for id in ids])
    assert set(of) == set(range(SHARDS))
    for number, url in enumerate(shards):
        mine = np.flatnonzero(of == number)
        q = al.VonMisesFisher(mu[mine], torch.full((len(mine),), 50.0))
        al.CredibleIndex.build(q, [ids[i] for i in mine], location=f"{url}#gallery").close()
    script.connect_shards("gallery", coordinator, shards)
    with psycopg.connect(coordinator, autocommit=True) as connection:
        yield mu.double().numpy(), connection


def ask(connection, query, bound, most=None, explain=False):
    vector = "[" + ",".join(map(repr, query.astype(np.float32).tolist())) + "]"
    start = "EXPLAIN (VERBOSE, COSTS OFF) " if explain else ""
    statement = f"{start}SELECT * FROM sharded_gallery.credible('{vector}', {float(bound)!r}, {most or 'NULL'})"
    return connection.execute(statement).fetchall()


def test_sets_are_those_of_brute_force(sharded):
    mu, connection = sharded
    sizes = []
    for i in range(20):
        cosines = np.sort(mu @ mu[i])[::-1]
        size = 1 + 7 * i
        between = (cosines[size - 1] + cosines[size]) / 2  # no item lies on the edge
        expected = {f"item-{j}" for j in np.flatnonzero(mu @ mu[i] >= between)}
        found = ask(connection, mu[i], -between)
        keys = [row[1].strip('"') for row in found]
        assert set(keys) == expected
        assert len(keys) == len(expected)
        distances = [row[4] for row in found]
        assert distances == sorted(distances)
        first = ask(connection, mu[i], -between, most=5)
        assert [row[4] for row in first] == distances[:5]
        sizes.append(len(keys))
    assert max(sizes) > 100


def test_radius_order_and_limit_are_sent_to_the_shards(sharded):
    mu, connection = sharded
    plan = [line for (line,) in ask(connection, mu[0], -0.5, most=10, explain=True)]
    remote = [line for line in plan if "Remote SQL" in line]
    assert len(remote) == SHARDS
    for line in remote:
        assert "FROM aleator_gallery.items" in line
        condition, order = line.split("WHERE")[1].split("ORDER BY")
        assert "<#>" in condition
        assert "<=" in condition
        assert "-0.5" in condition
        assert "<#>" in order
        assert "LIMIT 10" in order
    assert not any("Filter:" in line for line in plan)
    assert sum("Async Foreign Scan" in line for line in plan) == SHARDS  # all at the same time


def test_an_id_has_one_shard():
    script = load_script()
    assert script.shard_of("item-1", 8) == 1  # in every process
    counts = np.bincount([script.shard_of(f"item-{i}", 4) for i in range(4000)], minlength=4)
    assert counts.min() > 800
