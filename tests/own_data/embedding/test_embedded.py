"""A posteriors file is read with its items, gives labels back, and is ranked by kappa."""

import numpy as np

from aleator.own_data import rank_by_kappa, read_embedded
from aleator.retrieval import CredibleIndex
from tests.own_data.conftest import blobs


def test_the_index_takes_it_from_there(whole):
    embedded = read_embedded(whole)
    index = CredibleIndex.build(embedded.q, [record["id"] for record in embedded.records], embedded.records)
    assert len(index) == 400
    assert embedded.labels().values.tolist() == blobs()[1].tolist()


def test_the_most_ambiguous_come_first(whole):
    embedded = read_embedded(whole)
    rows = list(rank_by_kappa(embedded))
    kappas = [row["kappa"] for row in rows]
    assert kappas == sorted(kappas)
    assert (rows[0]["percentile"], rows[100]["percentile"]) == (0, 0.25)
    assert np.mean([row["id"] % 4 == 0 for row in rows[:50]]) > 0.6  # a quarter of all lie between two classes
    surest = list(rank_by_kappa(embedded, 3, surest=True))
    assert [row["kappa"] for row in surest] == kappas[::-1][:3]
    assert surest[0]["percentile"] == 399 / 400
