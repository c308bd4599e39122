"""The paper's figures and the rows of ours that they belong to."""

from aleator.experiments.paper import paper_figure


def test_beside_the_exact_loss_stands_the_one_it_replaces():
    assert paper_figure("recovery", "clear", "exact", "kappa_rank") == (0.64, 0.04)
    assert paper_figure("losses", "ambiguous", "elk", "kappa_rank") == (0.92, 0.00)
    assert paper_figure("recovery", "dim-3", "exact", "kappa_rank") is None
