"""Runs that are trained as one learn what each would learn by itself."""

import pytest
import torch

from aleator.data import SharedNegatives
from aleator.encoders import controlled_encoder
from aleator.experiments.controlled.stacked import StackedEncoder, StackedLoss
from aleator.losses import ELK, HIB
from aleator.training import Recipe, fit

B, D, RUNS = 4, 3, 3


def encoders(kappa_of="input"):
    """Three encoders with weights and ranges of kappa of their own."""
    torch.manual_seed(0)
    made = [controlled_encoder(D, kappa_of=kappa_of, initialisation="he", widths=(7, 6)) for _ in range(RUNS)]
    return [each.set_kappa_range(torch.rand(20, D), (8.0 + i, 30.0 + i)) for i, each in enumerate(made)]


def parts(generator):
    """Anchors, positives and five more inputs of each run."""
    return [[torch.rand(n, D, generator=generator) for _ in range(RUNS)] for n in (B, B, 5)]


@pytest.mark.parametrize("kappa_of", ["input", "features", "mu"])
def test_a_stack_has_the_posteriors_of_its_encoders(kappa_of):
    alone = encoders(kappa_of)
    drawn = parts(torch.Generator().manual_seed(1))
    stacked = StackedEncoder(alone, B)(torch.cat([each for part in drawn for each in part]))
    expected = [encoder(each) for part in drawn for encoder, each in zip(alone, part, strict=True)]
    torch.testing.assert_close(stacked.mu, torch.cat([q.mu for q in expected]))
    torch.testing.assert_close(stacked.kappa, torch.cat([q.kappa for q in expected]))


def test_a_batch_may_have_pairs_alone():
    alone = encoders()
    drawn = parts(torch.Generator().manual_seed(1))[:2]
    stacked = StackedEncoder(alone, B)(torch.cat([each for part in drawn for each in part]))
    expected = [encoder(each).mu for part in drawn for encoder, each in zip(alone, part, strict=True)]
    torch.testing.assert_close(stacked.mu, torch.cat(expected))


def together(step):
    """The batch of a step, for each run, and for all runs as one. Negatives are shared within a run."""
    generator = torch.Generator().manual_seed(step)
    anchors, positives, pools = parts(generator)
    chosen = [torch.randint(5, (B, 2), generator=generator) for _ in range(RUNS)]
    alone = [(x, y, SharedNegatives(p, c + B)) for x, y, p, c in zip(anchors, positives, pools, chosen, strict=True)]
    numbers = torch.cat([c + RUNS * B + 5 * run for run, c in enumerate(chosen)])
    return alone, (torch.cat(anchors), torch.cat(positives), SharedNegatives(torch.cat(pools), numbers))


@pytest.mark.parametrize("loss", [lambda: ELK(5.0), lambda: ELK(5.0, True)])
@pytest.mark.parametrize("phases", ["joint", "mu-then-kappa"])
def test_each_run_of_a_stack_is_trained_as_if_alone(loss, phases):
    recipe = Recipe(steps=12, learning_rate=0.01, phases=phases, mu_negatives="given")
    alone, others = encoders(), encoders()
    losses = [loss() for _ in range(RUNS)]
    for run, encoder in enumerate(alone):
        fit(encoder, losses[run], lambda step, _, run=run: together(step)[0][run], recipe, device="cpu")
    stack, summed = StackedEncoder(others, B), StackedLoss([loss() for _ in range(RUNS)])
    fit(stack, summed, lambda step, _: together(step)[1], recipe, device="cpu")
    stack.write_to(others)
    x = torch.rand(50, D)
    for start, encoder, other in zip(encoders(), alone, others, strict=True):
        torch.testing.assert_close(other(x).mu, encoder(x).mu, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(other(x).kappa, encoder(x).kappa, rtol=1e-3, atol=1e-4)
        assert (start(x).kappa - encoder(x).kappa).abs().max() > 0.1  # something was learned
    for own, mine in zip(losses, summed.losses, strict=False):  # one serves for all if nothing is learned
        for learned, expected in zip(mine.parameters(), own.parameters(), strict=True):
            torch.testing.assert_close(learned, expected, rtol=1e-3, atol=1e-4)


def test_the_loss_of_a_stack_is_the_sum_over_its_runs():
    alone, joined = together(0)
    made = encoders()
    stack = StackedEncoder(made, B)
    q = stack(torch.cat([joined[0], joined[1], joined[2].pool]))
    anchor, positive, _ = q.split((RUNS * B, RUNS * B, RUNS * 5))
    negative = q[RUNS * B :].index_select(0, joined[2].chosen.flatten()).unflatten(0, (RUNS * B, 2))
    expected = 0.0
    for encoder, (x, y, shared) in zip(made, alone, strict=True):
        own = encoder(shared.pool).index_select(0, (shared.chosen - B).flatten()).unflatten(0, (B, 2))
        expected += ELK(5.0)(encoder(x), encoder(y), own).item()
    for learnable in (False, True):
        loss = StackedLoss([ELK(5.0, learnable) for _ in range(RUNS)])
        assert len(loss.losses) == (RUNS if learnable else 1)
        assert loss(anchor, positive, negative).item() == pytest.approx(expected, rel=1e-4)
    assert StackedLoss([HIB(), HIB()]).capturable
