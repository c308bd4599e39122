"""Checksums of rows: whatever changes in a row changes its checksum, and no other."""

import numpy as np

from aleator.retrieval.stores.checksums import row_digest, vector_checks


def test_every_bit_of_a_vector_counts():
    draw = np.random.default_rng(0)
    row, mu = np.arange(3), draw.normal(size=(3, 5)).astype(np.float32)
    kappa, weight = np.ones(3, np.float32), np.ones(3, np.float32)
    whole = vector_checks(row, mu, kappa, weight)
    for values in (row, mu, kappa, weight):
        bits = values.view(np.uint8).reshape(-1)
        for place in range(bits.size):
            bits[place] ^= 1 << place % 8
            changed = vector_checks(row, mu, kappa, weight) != whole
            assert changed.tolist() == [i == place * 3 // bits.size for i in range(3)]
            bits[place] ^= 1 << place % 8


def test_texts_count_with_their_letters_and_places():
    texts = [("", ""), ("ab", ""), ("ba", ""), ("a", "b"), ("b", "a"), ("", "ab")]
    assert len({row_digest(0, *pair) for pair in texts}) == len(texts)
    assert row_digest(1, "a", "b") != row_digest(0, "a", "b")
    assert row_digest(b"ab") == row_digest("ab")
