"""Progress is shown on a terminal, or when asked for, and by one process alone."""

import pytest

from aleator.foundation.progress import CountBar, progress_bar


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
