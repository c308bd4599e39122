"""Match probability: Bayes' rule on expected positivity."""

import pytest
import torch

from aleator import VMFKernel, log_positivity, match_probability
from tests.matching.posterior_pairs import at_cosines, some_posteriors


def test_it_is_the_rule_of_bayes():
    q1, q2 = some_posteriors(6, 5), some_posteriors(6, 5, seed=1)
    r = log_positivity(q1, q2, VMFKernel(10.0)).exp()
    for prior in (0.5, 0.01, 0.9):
        expected = prior * r / (prior * r + 1 - prior)
        torch.testing.assert_close(match_probability(q1, q2, VMFKernel(10.0), prior), expected)
    priors = torch.linspace(0.1, 0.9, 6, dtype=torch.float64)
    torch.testing.assert_close(
        match_probability(q1, q2, VMFKernel(10.0), priors), priors * r / (priors * r + 1 - priors)
    )


def test_a_uniform_posterior_leaves_the_prior():
    q1, q2 = at_cosines(10, [0.9], 0.0, 30.0)
    assert match_probability(q1, q2, VMFKernel(10.0), 0.3).item() == pytest.approx(0.3)


@pytest.mark.parametrize("prior", [1e-50, 1e-8, 1 - 1e-8, 1 - 1e-15])
def test_float32_keeps_a_prior_close_to_0_or_1(prior):
    q1, q2 = at_cosines(10, [-0.9], 300.0, 300.0)  # they hardly match, so such a prior decides nothing by itself
    for share in (prior, torch.tensor(prior, dtype=torch.float64)):
        exact = match_probability(q1, q2, VMFKernel(10.0), share)
        torch.testing.assert_close(match_probability(q1.float(), q2.float(), VMFKernel(10.0), share), exact.float())


@pytest.mark.parametrize("prior", [0.0, torch.ones(6)], ids=["zero", "one"])
def test_a_prior_outside_the_open_interval_is_refused(prior):
    q = some_posteriors(6, 5)
    with pytest.raises(ValueError, match=f"prior = {float(torch.as_tensor(prior).max())}"):
        match_probability(q, q, VMFKernel(), prior)
