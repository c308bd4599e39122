"""Items are loaded ahead, in order, a few at a time."""

import pytest

from aleator.own_data.collection.reading_ahead import prefetched


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
