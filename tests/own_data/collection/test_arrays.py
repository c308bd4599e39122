"""Feature files that cannot be used are refused, with their name."""

import numpy as np
import pytest

from aleator.own_data import read_collection


def test_bad_arrays(tmp_path):
    x = tmp_path / "x.npy"
    np.save(x, np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match=r"x\.npy.*cannot be read.*Python objects"):
        read_collection(x)
    np.save(x, np.zeros(3))
    with pytest.raises(ValueError, match=r"shape \(3,\) is not a matrix"):
        read_collection(x)
    np.save(x, np.asfortranarray(np.zeros((3, 2))))
    with pytest.raises(ValueError, match="column by column"):
        read_collection(x)
    rows = np.zeros((3, 2))
    rows[1, 1] = np.inf
    np.save(x, rows)
    with pytest.raises(ValueError, match=r"row 1 of .*x\.npy': its number 1 .*not finite"):
        read_collection(x).raw(0, 3)
    x.write_text("damaged")
    with pytest.raises(ValueError, match="cannot be read"):
        read_collection(x)
