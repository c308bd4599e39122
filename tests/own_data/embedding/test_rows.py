"""Files of rows are resumed after a kill."""

import numpy as np

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
