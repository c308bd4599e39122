"""A result says what was typed, and nothing of where a machine keeps its programs."""

import sys

import pytest

from aleator.foundation.provenance import command, describe_run


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["/opt/env/bin/python", "/opt/env/bin/aleator", "reproduce", "recovery"], "aleator reproduce recovery"),
        (["/opt/env/bin/python3", "-m", "benchmarks", "core"], "python3 -m benchmarks core"),
        (["python", "/home/me/run.py", "two words"], "python run.py 'two words'"),
        (["python", "run.py"], "python run.py"),
    ],
)
def test_the_command_is_told_without_the_machine(typed, told, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", typed)
    assert command() == told


def test_a_given_commit_stands_in_where_there_is_no_history(monkeypatch):
    monkeypatch.setenv("ALEATOR_COMMIT", "abc123")
    assert describe_run(0.0, "cpu")["commit"] == "abc123"
