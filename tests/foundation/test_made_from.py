"""The rule for what is made from something: sources are told apart, and the one that changed is named."""

import numpy as np
import pytest

from aleator.foundation import changed_sources, digest, require_made_from


def test_parts_do_not_run_into_each_other_and_kinds_differ():
    parts = [("ab", "c"), ("a", "bc"), ("abc",), (b"abc",), (["a"],), (None,), (), (1,), ("1",), ({"b": 1, "a": 2},)]
    parts += [(np.arange(4.0),), (np.arange(4.0, dtype=np.float32),), (np.arange(4.0).reshape(2, 2),)]
    assert len({digest(*each) for each in parts}) == len(parts)
    assert digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1})


NOW = {"model": "m", "names": "n", "contents": "c"}


@pytest.mark.parametrize(
    ("before", "found", "said"),
    [
        (NOW, [], None),
        (NOW | {"labels": "l"}, [], None),
        (NOW | {"contents": "x"}, ["contents"], "was made from items that have changed since; do this"),
        (NOW | {"names": "x", "contents": "x"}, ["names"], "was made from other items, or items in another order; do"),
        (NOW | {"model": "x", "contents": "x"}, ["model", "contents"], "from another run and items that have changed"),
        ({"model": "m"}, None, "holds something else; do this"),
        (None, None, "holds something else"),
        ([], None, "holds something else"),
    ],
)
def test_sources_that_changed_are_named(before, found, said):
    assert changed_sources(before, NOW) == found
    if said is None:
        require_made_from(before, NOW, "output", "x", "do this")
        return
    with pytest.raises(ValueError, match=said):
        require_made_from(before, NOW, "output", "x", "do this")
