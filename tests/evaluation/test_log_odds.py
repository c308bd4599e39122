"""Fitted maps: known truths come back, few pairs change little, and a selection by rank needs a map of its own."""

import math

import pytest
import torch

from aleator import VMFKernel, VonMisesFisher, log_positivity
from aleator.evaluation import expected_calibration_error, fit_hit_map, fit_log_odds_map
from aleator.matching import LogOddsMap

SEEDED = torch.Generator().manual_seed


def drawn(log_odds: torch.Tensor, seed: int) -> torch.Tensor:
    return torch.rand(log_odds.shape, generator=SEEDED(seed), dtype=torch.float64) < torch.sigmoid(log_odds)


def test_a_bent_map_comes_back():
    truth = LogOddsMap((-2.0, 0.0, 2.0), (-4.0, -1.0, 0.0))
    x = 2 * torch.randn(40_000, generator=SEEDED(0), dtype=torch.float64)
    match = drawn(truth(x) + math.log(0.2 / 0.8), 1)
    fitted = fit_log_odds_map(x, match, 0.2)
    at = torch.linspace(-3, 3, 13, dtype=torch.float64)
    torch.testing.assert_close(fitted(at), truth(at), atol=0.35, rtol=0)
    assert expected_calibration_error(torch.sigmoid(fitted(x) + math.log(0.2 / 0.8)), match) < 0.01


def test_weights_stand_for_copies():
    x = torch.randn(3000, generator=SEEDED(2), dtype=torch.float64)
    match = drawn(x, 3)
    copies = torch.randint(1, 4, (3000,), generator=SEEDED(4))
    weighted = fit_log_odds_map(x, match, 0.5, weight=copies, observations=6000)
    repeated = fit_log_odds_map(x.repeat_interleave(copies), match.repeat_interleave(copies), 0.5, observations=6000)
    at = torch.linspace(-2, 2, 9, dtype=torch.float64)
    torch.testing.assert_close(weighted(at), repeated(at), atol=0.1, rtol=0)


def test_few_observations_leave_the_map_where_it_starts():
    start = LogOddsMap((-1.0, 1.0), (-3.0, 2.0))
    x = torch.randn(500, generator=SEEDED(5), dtype=torch.float64)
    kept = fit_log_odds_map(x, torch.ones(500), 0.5, observations=1e-6, start=start)
    at = torch.linspace(-0.9, 0.9, 7, dtype=torch.float64)
    torch.testing.assert_close(kept(at), start(at), atol=0.25, rtol=0)  # the knots differ, so not exactly


def test_pairs_that_all_match_are_not_taken_for_certain():
    x = 3 + torch.rand(400, generator=SEEDED(6), dtype=torch.float64)
    g = fit_log_odds_map(x, torch.ones(400), 0.1)
    p = torch.sigmoid(g(x) + math.log(0.1 / 0.9))
    assert 0.95 < p.min() < p.max() < 0.99999
    constant = fit_log_odds_map(torch.full((300,), 2.0), torch.arange(300) < 200, 0.5)
    assert torch.sigmoid(constant(torch.tensor(2.0))) == pytest.approx(2 / 3, abs=0.03)


def test_pairs_and_hits_are_right_in_a_world_whose_posteriors_are_known():
    """Latents are uniform, pairs match by the kernel. The encoder doubts itself too little: it gives four times the
    kappa of the right posteriors, which also have an error in mu."""
    generator, prior, kernel = SEEDED(7), 0.02, VMFKernel(20.0)
    logit_prior = math.log(prior / (1 - prior))

    def posteriors(count: int) -> tuple[VonMisesFisher, VonMisesFisher]:
        mu = torch.nn.functional.normalize(torch.randn(count, 5, generator=generator, dtype=torch.float64), dim=-1)
        kappa = 5 + 60 * torch.rand(count, generator=generator, dtype=torch.float64)
        seen = VonMisesFisher(mu, 5 * kappa).sample(generator=generator)
        return VonMisesFisher(mu, kappa), VonMisesFisher(seen, 4 * kappa)

    right_gallery, gallery = posteriors(1000)

    def ask(seed: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        right, asked = posteriors(800)
        top = (asked.mu @ gallery.mu.T).topk(10, 1).indices
        anyone = torch.randint(1000, (800, 10), generator=generator)
        pairs = {}
        for name, chosen in (("hits", top), ("random", anyone)):
            log_r = log_positivity(asked[:, None], gallery[chosen], kernel).flatten()
            true_log_r = log_positivity(right[:, None], right_gallery[chosen], kernel).flatten()
            pairs[name] = log_r, drawn(true_log_r + logit_prior, seed)
        return pairs

    calibration, test = ask(8), ask(9)
    pair = fit_log_odds_map(*calibration["random"], prior)
    hit = fit_log_odds_map(*calibration["hits"], prior, observations=800, start=pair)

    def error(name: str, g: LogOddsMap) -> float:
        return expected_calibration_error(torch.sigmoid(g(test[name][0]) + logit_prior), test[name][1])

    assert error("random", pair) < 0.01
    assert error("hits", hit) < 0.02
    assert error("hits", LogOddsMap()) > 0.1


def test_a_ranked_map_comes_back():
    truth = LogOddsMap((-4.0, 0.0, 4.0), (-6.0, -1.0, 2.0), rank_slope=0.6)
    x = 2 * torch.randn(30_000, generator=SEEDED(10), dtype=torch.float64)
    rank = torch.randint(1, 11, (30_000,), generator=SEEDED(11))
    fitted = fit_hit_map(x, rank, drawn(truth(x, rank) + math.log(0.3 / 0.7), 12), 0.3)
    assert fitted.rank_slope == pytest.approx(0.6, abs=0.08)
    at = torch.linspace(-3, 3, 13, dtype=torch.float64)
    for k in (1, 4, 10):
        torch.testing.assert_close(fitted(at, torch.tensor(k)), truth(at, torch.tensor(k)), atol=0.3, rtol=0)


def selected(questions: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ten of 200 items with the largest noisy log r, in its order; their ranks; and whether the true ones match."""
    truth = torch.randn(questions, 200, generator=SEEDED(seed), dtype=torch.float64) - 1.5
    log_r, order = (truth + torch.randn(truth.shape, generator=SEEDED(seed + 1), dtype=torch.float64)).topk(10, 1)
    match = drawn(2 * truth.gather(1, order), seed + 2)
    return log_r.flatten(), torch.arange(1, 11).repeat(questions), match.flatten()


def test_hits_of_each_rank_are_right_although_the_first_gained_most_by_chance():
    log_r, rank, match = selected(600, 20)
    start = fit_log_odds_map(log_r, match, 0.5, observations=600)
    ranked = fit_hit_map(log_r, rank, match, 0.5, observations=600, start=start)
    test_log_r, test_rank, test_match = selected(4000, 30)

    def bias(p: torch.Tensor, k: int) -> float:
        return (p - test_match.double())[test_rank == k].mean().item()

    p = torch.sigmoid(ranked(test_log_r, test_rank))
    assert max(abs(bias(p, k)) for k in range(1, 11)) < 0.04
    for k in (1, 10):
        assert expected_calibration_error(p[test_rank == k], test_match[test_rank == k]) < 0.04


def test_few_questions_leave_the_map_of_hits_on_the_line_of_its_start():
    start = LogOddsMap((-1.0, 1.0), (-3.0, 2.0))
    x = torch.linspace(-0.9, 0.9, 50, dtype=torch.float64)
    kept = fit_hit_map(x, torch.ones(50), torch.ones(50), 0.5, observations=1e-6, start=start)
    inside = x[1:-1]
    torch.testing.assert_close(kept(inside), start(inside), atol=0.1, rtol=0)
    assert kept.rank_slope == pytest.approx(0, abs=1e-3)


def test_a_rank_below_one_is_refused():
    with pytest.raises(ValueError, match="rank = 0"):
        fit_hit_map([0.0, 1.0], [1, 0], [1.0, 0.0], 0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.0], [1.0, 0.0], 0.5), "match"),
        (([], [], 0.5), "empty"),
        (([math.inf], [1.0], 0.5), "log_r = inf"),
        (([0.0], [1.0], 1.0), "prior = 1.0"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        fit_log_odds_map(*arguments)
