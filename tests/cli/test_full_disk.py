"""`train`, `embed` and `audit` while files may not grow: one sentence with the file and the way out, and work goes on.

The limit is RLIMIT_FSIZE. What fails is a write of the operating system, also in libraries in C and in Rust.
"""

import contextlib
import resource

import pytest

from aleator.retrieval import check_index
from tests.cli.test_own_data import QUICK, run_command


@contextlib.contextmanager
def files_up_to(limit):
    """Files of this process may not grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="module")
def work(features, tmp_path_factory):
    """A run, and a folder for outputs."""
    folder = tmp_path_factory.mktemp("full")
    run_command("train", features / "x.npy", "--labels", features / "y.npy", "--output", folder / "run", *QUICK)
    return folder


def command(name, features, work, output):
    data = (features / "x.npy", "--labels", features / "y.npy", "--output", output)
    return {"train": ("train", *data, *QUICK), "embed": ("embed", work / "run", *data), "audit": ("audit", *data)}[name]


@pytest.mark.filterwarnings("ignore:checkpoint .* was never finished")
@pytest.mark.parametrize(
    ("name", "limits"),
    [("train", (0, 1500, 12_000)), ("embed", (0, 100, 1000, 6000, 12_000)), ("audit", (0, 6000))],
)
def test_a_file_that_may_not_grow_is_named_and_the_command_goes_on_later(name, limits, features, work):
    output = work / (f"{name}.safetensors" if name == "embed" else name)
    asked = command(name, features, work, output)
    for limit in limits:
        with files_up_to(limit):
            result = run_command(*asked, code=2)
        said = result.stderr.splitlines()[-1]
        file, _, why = said.partition(": ")
        assert file.startswith(str(work)), said
        assert name in file
        assert "may not grow that large; raise the limit (ulimit -f), or name another disk" in why
    run_command(*asked)


def test_an_index_on_lance_that_may_not_grow_is_named_and_is_built_later(features, work):
    pytest.importorskip("lancedb")
    run_command(*command("embed", features, work, work / "items.safetensors"))
    place = f"lance:{work / 'gallery'}"
    for limit in (0, 1000, 5000):
        with files_up_to(limit):
            said = run_command("index", "build", place, work / "items.safetensors", code=2).stderr.splitlines()[-1]
        assert said.startswith(f"{work / 'gallery'}: Lance cannot write it (")
        assert "File too large" in said
        assert "free some space" in said
    run_command("index", "build", place, work / "items.safetensors")
    with files_up_to(1000):
        result = run_command("index", "remove", place, "7", code=2)
    assert "File too large" in result.stderr
    assert check_index(place) == 400
    run_command("index", "remove", place, "7")
    assert check_index(place) == 399
