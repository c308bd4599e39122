"""Files of rows are resumed after a kill, and know which rows are no longer those of their items."""

import numpy as np

from aleator.own_data.embedding.rows import RowFile, map_rows, read_rows

DIGESTS = np.array([7, 8, 9, 10], np.uint64)


def test_rows_are_whole_whatever_a_kill_left(tmp_path):
    path = tmp_path / "rows"
    with RowFile(path, 3) as rows:
        rows.append(np.arange(6, dtype=np.float32).reshape(2, 3), DIGESTS[:2])
    with open(path, "ab") as file:
        file.write(b"12345")
    with RowFile(path, 3) as rows:
        assert rows.done == 2
        rows.append(np.full((1, 3), 9), DIGESTS[2:3])
        assert not rows.broken(DIGESTS).any()
    blocks = list(read_rows(path, 3, at_once=2))
    assert [len(block) for block in blocks] == [2, 1]
    assert np.concatenate(blocks).tolist() == [[0, 1, 2], [3, 4, 5], [9, 9, 9]]
    assert map_rows(path, 3).tolist() == np.concatenate(blocks).tolist()


def test_a_row_is_broken_if_it_or_its_item_has_changed(tmp_path):
    path = tmp_path / "rows"
    with RowFile(path, 3) as rows:
        rows.append(np.zeros((4, 3), np.float32), DIGESTS)
        assert rows.broken(DIGESTS[[0, 2, 1, 3]]).tolist() == [False, True, True, False]
        with open(path, "r+b") as file:  # a bit of the first row, and a row of zeros as a loss of power may leave
            file.seek(1)
            file.write(b"\1")
            file.seek(3 * rows.size)
            file.write(bytes(rows.size))
        assert rows.broken(DIGESTS).tolist() == [True, False, False, True]
        rows.write(0, np.ones((1, 3), np.float32), DIGESTS[:1])
        assert rows.broken(DIGESTS).tolist() == [False, False, False, True]
