"""Every reader of files reads what it gets, or refuses it in words of our own: kept cases, and mutations of them.

`make test` tries a few mutations, the same each time. `make test-all` tries 2,000 of each reader; ALEATOR_FUZZED sets
another number. `python -m tests.fuzzing` looks for new ones and keeps what it finds in tests/fuzzing/corpus.
"""

import os
import sys
import warnings

import pytest
from typer.testing import CliRunner

from aleator.cli import app
from tests.fuzzing.mutations import copied
from tests.fuzzing.readers import CORPUS, READERS, outcome
from tests.fuzzing.search import cases_of, search

FEW, MANY = 25, int(os.environ.get("ALEATOR_FUZZED", "2000"))
# What a person types with such a file. CASE is the case, FILE the posteriors file in it.
COMMANDS = {
    "audits": ["serve", str(CORPUS / "indexes" / "two-modes"), "--audit", "CASE", "--port", "0"],
    "data": ["audit", "CASE", "--output", "OUT"],
    "indexes": ["index", "check", "CASE"],
    "labels": ["audit", str(CORPUS / "data" / "x.npy"), "--labels", "CASE", "--output", "OUT"],
    "posteriors": ["rank", "FILE"],
    "runs": ["embed", "CASE", str(CORPUS / "data" / "x.npy"), "--output", "OUT.safetensors"],
}


@pytest.mark.parametrize("reader", READERS)
def test_kept_cases_are_read_or_refused_in_words(reader, tmp_path):
    for case in cases_of(reader):
        problem = outcome(reader, copied(case, tmp_path))
        assert problem is None, f"{case.name}: {problem}"


@pytest.mark.parametrize("reader", READERS)
def test_valid_cases_are_read(reader, tmp_path):
    """Otherwise the mutations of a case would all end at its first error."""
    valid = [case for case in cases_of(reader) if "-found-" not in case.name]
    assert valid
    for case in valid:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                READERS[reader](copied(case, tmp_path))
        except ValueError as error:
            if "since the last save" not in str(error):  # an index that was changed cannot be memory-mapped
                raise


@pytest.mark.parametrize("reader", READERS)
def test_mutations_are_read_or_refused_in_words(reader, tmp_path):
    assert search(reader, "short", tmp_path, count=FEW) == (FEW, {})


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_many_mutations_are_read_or_refused_in_words(reader, tmp_path):
    assert search(reader, "long", tmp_path, count=MANY) == (MANY, {})


@pytest.mark.parametrize("reader", COMMANDS)
def test_findings_are_plain_errors_of_the_command(reader, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["aleator.cli.serve"], "_run", lambda *_: None)
    found = [case for case in cases_of(reader) if "-found-" in case.name] or cases_of(reader)[:1]
    for number, case in enumerate(found):
        copy = copied(case, tmp_path)
        files = [path for path in copy.iterdir() if path.suffix in (".safetensors", ".npz")] if copy.is_dir() else []
        words = {"CASE": str(copy), "FILE": str(files[0]) if files else ""}
        arguments = [words.get(word, word.replace("OUT", str(tmp_path / f"out-{number}"))) for word in COMMANDS[reader]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = CliRunner().invoke(app, arguments)
        assert result.exit_code in (0, 2), f"{case.name}: {result.exception!r}"
        assert "Traceback" not in result.output


def test_the_corpus_is_small():
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 500_000
