"""Files of rows are resumed after a kill; items are loaded ahead, in order, a few at a time."""

import numpy as np
import pytest

from aleator.own_data.collection.reading_ahead import prefetched
from aleator.own_data.embedding.rows import RowFile, read_rows


def test_rows_are_whole_whatever_a_kill_left(tmp_path):
    path = tmp_path / "rows"
    with RowFile(path, 3) as rows:
        rows.append(np.arange(6, dtype=np.float32).reshape(2, 3))
    with open(path, "ab") as file:
        file.write(b"12345")
    with RowFile(path, 3) as rows:
        assert rows.done == 2
        rows.append(np.full((1, 3), 9))
    blocks = list(read_rows(path, 3, at_once=2))
    assert [len(block) for block in blocks] == [2, 1]
    assert np.concatenate(blocks).tolist() == [[0, 1, 2], [3, 4, 5], [9, 9, 9]]


def test_prefetching_keeps_order_and_hands_on_errors():
    assert list(prefetched(lambda i: i * i, range(50), 3)) == [i * i for i in range(50)]

    def failing(i):
        if i == 5:
            raise ValueError("item 5")
        return i

    stream = prefetched(failing, range(50), 2)
    assert [next(stream) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="item 5"):
        next(stream)


def test_prefetching_is_bounded():
    """However large the collection: few items are loaded ahead."""
    loaded = []
    stream = prefetched(lambda i: loaded.append(i) or i, range(10_000), 2)
    for _ in range(10):
        next(stream)
    stream.close()
    assert len(loaded) <= 10 + 2 * 2 + 1
