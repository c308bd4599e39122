"""Progress is shown on a terminal, or when asked for, and by one process alone."""

from itertools import pairwise

import pytest

from aleator.foundation.progress import CountBar, ProgressLines, duration, progress_bar


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Wide enough for all columns."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize(
    ("show", "writing", "visible"),
    [(True, True, True), (True, False, False), (False, True, False), (None, True, False)],  # tests have no terminal
)
def test_who_shows_it(show, writing, visible):
    assert progress_bar(show, writing).disable is not visible


def test_a_count_goes_from_what_is_done_to_the_total(capsys):
    with CountBar("embedding", 10, 4, show=True) as bar:
        bar.advance(2)
        assert bar.progress.tasks[0].completed == 6
        bar.advance(4)
        assert bar.progress.finished
    shown = capsys.readouterr().err
    assert "embedding" in shown
    assert "10/10" in shown


class Clock:
    """A clock that the test moves."""

    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_lines_come_one_at_a_time_and_ever_less_often(capsys):
    clock = Clock()
    lines = ProgressLines("embedding", 5000, 1000, None, clock=clock)
    times = []
    for second in range(1, 2001):
        clock.now = 100.0 + second
        lines.at(1000 + 2 * second, ", loss 0.5")
        if (shown := capsys.readouterr().err) != "":
            times.append(second)
            assert shown.count("\n") == 1
            assert "\r" not in shown
            if second == 10:
                assert shown == "embedding: 1,020 of 5,000 (20 %), loss 0.5, about 33 min left\n"
    assert times[:4] == [10, 25, 48, 82]
    assert max(b - a for a, b in pairwise(times)) == 300


@pytest.mark.parametrize(
    ("show", "writing", "visible"), [(None, True, True), (False, True, False), (None, False, False)]
)
def test_who_writes_lines(show, writing, visible):
    assert ProgressLines("embedding", 10, 0, show, writing).visible is visible


def test_durations():
    assert [duration(seconds) for seconds in (5, 89, 100, 5000, 12600)] == ["5 s", "89 s", "2 min", "83 min", "3.5 h"]


def test_a_hidden_bar_prints_nothing(capsys):
    with CountBar("embedding", 10, 0, show=False) as bar:
        bar.advance(10)
    assert capsys.readouterr() == ("", "")


def test_columns(capsys):
    with progress_bar(True, bytes=True) as bar:
        bar.add_task("download", total=2_000_000, completed=2_000_000)
    assert "2.0 MB" in capsys.readouterr().err
    with progress_bar(True, loss=True, elapsed=True) as bar:
        bar.add_task("mu", total=3, completed=3, loss="0.1234")
    shown = capsys.readouterr().err
    assert "loss 0.1234" in shown
    assert "3/3 loss 0.1234 0:00:0" in shown
