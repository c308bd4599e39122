"""Clients of small collections."""

import pytest
from fastapi.testclient import TestClient

from aleator.web import create_app
from tests.web.browser import browsing
from tests.web.shapes import feature_run, image_run, shape_index, text_index, text_run, write_audit


@pytest.fixture(scope="module")
def browser():
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="session")
def audit_folder(tmp_path_factory):
    return write_audit(tmp_path_factory.mktemp("audit"))


@pytest.fixture(scope="session")
def run():
    return image_run()


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("photos")


@pytest.fixture(scope="session")
def index(root, run):
    with shape_index(root, run) as index:
        yield index


@pytest.fixture(scope="session")
def app(index, run, root):
    return create_app(index, run=run, root=root)


@pytest.fixture
def client(app):
    return TestClient(app)


@pytest.fixture(scope="session")
def text_client():
    run = text_run()
    return TestClient(create_app(text_index(run), run=run))


@pytest.fixture(scope="session")
def feature_client(index):
    return TestClient(create_app(index, run=feature_run()))
