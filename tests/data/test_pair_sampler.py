"""Each way of drawing positives and negatives follows the law it says.

On the circle (D = 2) the laws are integrated by brute force: posteriors on a grid of inputs and angles, without the
series of expected positivity.
"""

import copy
import math
from functools import lru_cache
from typing import get_args

import pytest
import torch
from torch import Tensor

from aleator import AcceptanceKernel, VMFKernel, pairwise_log_positivity
from aleator.data.generative import Family, GenerativeProcess
from aleator.data.negatives import SharedNegatives
from aleator.data.pair_sampler import PositiveLaw
from aleator.encoders.backbones import MLP
from aleator.encoders.encoder import Encoder
from aleator.losses import ExactInfoNCE
from aleator.matching import NegativeLaw
from aleator.training.loop import fit
from aleator.training.objective import Objective
from aleator.training.recipe import Recipe

ANGLES, GRID, CELLS = 360, 24, 3
BATCHES = 70  # that a law is tested with


@lru_cache
def circle(family: str = "vmf") -> GenerativeProcess:
    """Few smoothing steps, so that the latents are far from uniform and the laws far from each other."""
    modes = 2 if family == "mixture" else 1
    return GenerativeProcess(2, (1.0, 10.0), "vmf" if modes > 1 else family, seed=5, smoothing_steps=40, modes=modes)


@pytest.fixture(scope="module")
def ten() -> GenerativeProcess:
    return GenerativeProcess(10, (16.0, 32.0), seed=4, smoothing_steps=300)


@pytest.mark.parametrize("positives", get_args(PositiveLaw))
@pytest.mark.parametrize("family", get_args(Family))
def test_batches_have_their_shapes_and_repeat(family, positives):
    process = circle(family)
    batches = process.batches(16, negatives=3, positives=positives)
    batch = batches(0, torch.Generator().manual_seed(1))
    assert [tuple(part.shape) for part in batch] == [(16, 2), (16, 2), (16, 3, 2)]
    assert all(((part >= 0) & (part <= 1)).all() for part in batch)
    again, other = (batches(0, torch.Generator().manual_seed(s)) for s in (1, 2))
    assert all(torch.equal(a, b) for a, b in zip(batch, again, strict=True))
    assert not torch.equal(batch[1], other[1])
    plain = process.batches(16, positives=positives, proposals=20)
    assert plain.proposals == 20
    assert len(plain()) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size = 0"),
        ({"batch_size": 4, "negatives": -1}, "negatives = -1"),
        ({"batch_size": 4, "proposals": 3}, "proposals = 3"),
        ({"batch_size": 4, "negatives": 2, "group": 3}, "group = 3"),
        ({"batch_size": 4, "positives": "forward"}, "'ratio', 'joint', 'partner'"),
        ({"batch_size": 4, "rule": "contrast"}, "'marginal', 'rejected-pair', 'rejected-latent'"),
        ({"batch_size": 4, "negatives": 1, "rule": "rejected-latent"}, "no latent of the anchor is drawn"),
    ],
)
def test_bad_batches_are_refused(ten, options, message):
    with pytest.raises(ValueError, match=message):
        ten.batches(**options)


def test_fit_takes_the_batches(ten):
    torch.manual_seed(0)
    encoder = Encoder(MLP(10, (8,)), 10, kappa="head")
    result = fit(encoder, ExactInfoNCE(ten.kernel), ten.batches(8), Recipe(steps=3), device="cpu", progress=False)
    assert result.steps == 3


# The laws


@lru_cache
def brute_force(process: GenerativeProcess) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs on a grid (n, 2), P(z|x) at angles (n, angles), P(match|z, x') (angles, n), P(match|x, x') (n, n)."""
    ticks = (torch.arange(GRID) + 0.5) / GRID
    x = torch.cartesian_prod(ticks, ticks)  # (n, 2)
    theta = 2 * math.pi * torch.arange(ANGLES) / ANGLES
    z = torch.stack([theta.cos(), theta.sin()], -1).double()
    q = process.posterior(x)
    if process.family == "vmf":
        parts = q.components.double()
        log_parts = parts.kappa.unsqueeze(-1) * (parts.mu @ z.T)  # (n, K, angles)
        density = (q.log_weights.double().exp().unsqueeze(-1) * torch.softmax(log_parts, -1)).sum(1)
    else:  # the projected normal on the circle
        cosine, kappa = q.mode.double() @ z.T, q.kappa.double()[:, None]
        a = kappa.sqrt() * cosine
        tail = math.sqrt(2 * math.pi) * torch.special.ndtr(a) * torch.exp(a.square() / 2)
        density = torch.exp(-kappa / 2) * (1 + a * tail) / ANGLES
        torch.testing.assert_close(density.sum(1), torch.ones(len(x)).double(), atol=1e-5, rtol=0)
    g = process.kernel.log_values(2, (z @ z.T).clamp(-1, 1)).exp()
    match = g @ density.T  # (angles, n): E g of a latent with the latents of x+
    r = density @ match
    return x, density, match, r


def brute_force_laws(process: GenerativeProcess) -> dict[str, Tensor]:
    """For each law of positives, the probability of every pair of cells (x, x+) of the square; (CELLS^4,)."""
    x, density, match, r = brute_force(process)
    laws = {
        "joint": r / r.sum(),
        "ratio": r / r.sum(1, keepdim=True) / len(x),
        "partner": density @ (match / match.sum(1, keepdim=True)) / len(x),
    }
    return {name: of_cells(x, law) for name, law in laws.items()}


def of_cells(x: Tensor, law: Tensor) -> Tensor:
    """Probabilities of pairs of grid points (n, n) -> of pairs of cells (CELLS^4,)."""
    member = torch.nn.functional.one_hot(cell_of(x), CELLS**2).double()
    return (member.T @ law @ member).flatten()


def negative_laws(process: GenerativeProcess) -> dict[tuple[str, str], Tensor]:
    """For each law of positives and negatives, the probability of every pair of cells (x, x-); (CELLS^4,)."""
    x, density, match, rho = brute_force(process)
    n = len(x)
    by_latent = (1 - match) / (1 - match).sum(1, keepdim=True)  # P(x-|z)
    return {
        ("ratio", "marginal"): of_cells(x, torch.full((n, n), 1 / n**2).double()),
        ("ratio", "rejected-pair"): of_cells(x, (1 - rho) / (1 - rho).sum(1, keepdim=True) / n),
        ("partner", "rejected-latent"): of_cells(x, density @ by_latent / n),
        # An accepted pair has the latent z of its anchor in proportion to P(z|x) P(match|z).
        ("joint", "rejected-latent"): of_cells(x, (density * match.sum(1)) / rho.sum() @ by_latent),
    }


def cell_of(x: Tensor) -> Tensor:
    place = (x * CELLS).long().clamp_max(CELLS - 1)
    return place[..., 0] * CELLS + place[..., 1]


@lru_cache
def drawn_cells(family: str, positives: str, rule: str, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Cells of the anchors, positives and negatives of many batches: (batches, B), (batches, B), (batches, B, M)."""
    batches = circle(family).batches(128, 4, positives, rule=rule, group=group)
    generator = torch.Generator().manual_seed(11)
    drawn = []
    for step in range(BATCHES):
        x, positive, negative = batches(step, generator)
        if isinstance(negative, SharedNegatives):
            negative = torch.cat([positive, negative.pool])[negative.chosen]
        elif len(negative) < len(x):
            negative = negative.repeat_interleave(len(x) // len(negative), 0)
        drawn.append([cell_of(part) for part in (x, positive, negative)])
    first, second, third = (torch.stack(part) for part in zip(*drawn, strict=True))
    return first, second, third


def frequencies_of(first: Tensor, second: Tensor) -> Tensor:
    """How often each batch falls into each pair of cells; (batches, n) and (batches, n) -> (batches, CELLS^4)."""
    pairs = first * CELLS**2 + second
    return torch.stack([torch.bincount(row, minlength=CELLS**4) for row in pairs]).double() / pairs.shape[1]


def misfit(frequencies: Tensor, law: Tensor) -> float:
    """The mean over cells of the squared error in standard errors, which are those between batches: 1 if law is right.

    Anchors of a batch share candidates, so single pairs are not independent; batches are. Cells are not independent
    either: the mean over the 81 cells scatters by about 0.25.
    """
    variance = frequencies.var(0) / len(frequencies)
    seen = law * 128 * len(frequencies) > 5
    z2 = (frequencies.mean(0) - law).square() / variance.clamp_min(1e-12)
    return z2[seen].mean().item()


def distance(frequencies: Tensor, law: Tensor, other: Tensor) -> float:
    """How far the draws are from another law towards their own, in standard errors of the log likelihood ratio."""
    log_ratio = (law / other).clamp(1e-9, 1e9).log()
    values = frequencies @ log_ratio
    return ((values.mean() - other @ log_ratio) / (values.std() / math.sqrt(len(values)))).item()


LAWS = [("ratio", "rejected-pair"), ("partner", "rejected-latent"), ("joint", "rejected-latent")]
# Families, and the number of anchors that share the candidates of their negatives.
FAMILIES = [("vmf", 8), ("gaussian", 1), ("mixture", 8)]


@pytest.mark.parametrize(("family", "group"), FAMILIES)
@pytest.mark.parametrize(("positives", "rule"), LAWS)
def test_positives_follow_their_law_and_no_other(positives, rule, family, group):
    anchor, positive, _ = drawn_cells(family, positives, rule, group)
    frequencies = frequencies_of(anchor, positive)
    others = brute_force_laws(circle(family))
    law = others.pop(positives)
    assert misfit(frequencies, law) < 2
    far = {name: distance(frequencies, law, other) for name, other in others.items()}
    assert all(value > 4.5 for value in far.values()), far


ALIKE = {("ratio", "rejected-pair"), ("partner", "rejected-latent")}  # but see the next test


@pytest.mark.parametrize(("family", "group"), FAMILIES)
@pytest.mark.parametrize("law", LAWS)
def test_negatives_follow_their_law_and_no_other(law, family, group):
    anchor, _, negative = drawn_cells(family, *law, group)
    frequencies = frequencies_of(anchor.repeat_interleave(4, 1), negative.flatten(1))
    others = negative_laws(circle(family))
    own = others.pop(law)
    assert misfit(frequencies, own) < 2
    far = {name: distance(frequencies, own, other) for name, other in others.items() if {law, name} != ALIKE}
    assert all(value > 4.5 for value in far.values()), far


def test_a_latent_finds_the_positive_and_rejects_the_negatives():
    """Given x, positive and negatives hang together by the latent: their joint law is a mean over latents."""
    x, density, match, _ = brute_force(circle())
    found, rejected = (law / law.sum(1, keepdim=True) for law in (match, 1 - match))
    together = torch.einsum("xz,zp,zn->pn", density, found, rejected) / len(x)  # of (x+, x-)
    apart = torch.einsum("xp,xn->pn", density @ found, density @ rejected) / len(x)
    _, positive, negative = drawn_cells("vmf", "partner", "rejected-latent", 8)
    frequencies = frequencies_of(positive.repeat_interleave(4, 1), negative.flatten(1))
    own, other = of_cells(x, together), of_cells(x, apart)
    assert misfit(frequencies, own) < 2
    assert distance(frequencies, own, other) > 4.5


@pytest.mark.parametrize("group", [1, 8])
def test_negatives_from_the_marginal_depend_on_nothing(group):
    """(x, x-) and (x+, x-) are independent."""
    anchor, positive, negative = drawn_cells("gaussian", "joint", "marginal", group)
    negative = negative.flatten(1)
    for other in (anchor, positive):
        share = torch.bincount(other.flatten(), minlength=CELLS**2).double() / other.numel()
        law = (share[:, None] / CELLS**2).expand(-1, CELLS**2).flatten()
        assert misfit(frequencies_of(other.repeat_interleave(4, 1), negative), law) < 2


@pytest.mark.parametrize("group", [1, 16])
@pytest.mark.parametrize(("positives", "rule"), LAWS)
def test_rejected_negatives_have_their_shapes_and_there_are_enough(ten, positives, rule, group):
    batches = ten.batches(64, 32, positives, rule=rule, group=group)
    x, positive, negative = batches(0, torch.Generator().manual_seed(1))
    if group == 1:
        assert negative.shape == (64, 32, 10)
        assert negative.flatten(0, 1).unique(dim=0).shape == (64 * 32, 10)
    else:
        assert negative.pool.shape == (4 * batches.candidates, 10)
        assert negative.chosen.shape == (64, 32)
        assert all(len(row.unique()) == 32 for row in negative.chosen)
        place = negative.chosen - 64
        assert torch.equal(place // batches.candidates, torch.arange(4).repeat_interleave(16)[:, None].expand(-1, 32))
    assert 32 < batches.candidates < 96
    encoder = Encoder(MLP(10, (8,)), 10, kappa="head")
    value = Objective(encoder, ExactInfoNCE(ten.kernel, rule=rule), "joint", "given")((x, positive, negative))
    assert torch.isfinite(value)
    # Every anchor rejects 32 candidates or more: the keys u/w of the chosen ones lie below 1.
    generator = torch.Generator().manual_seed(5)
    for _ in range(5):
        x, _, z = (batches._accepted_pairs if positives == "joint" else batches._chosen_matches)(generator)
        candidate = ten.inputs(64, batches.candidates, generator=generator)
        log_w = batches._log_mismatch(x[:, None], None if z is None else z[:, None], candidate, generator)
        assert (log_w <= 0).all()
        assert (torch.rand(log_w.shape, generator=generator) < log_w.exp()).sum(-1).min() >= 32


def test_groups_share_their_negatives(ten):
    """Four anchors have the same five, drawn from P(x); the loss sees what it would with each anchor's written out."""
    batches = ten.batches(12, negatives=5, group=4)
    x, positive, negative = batches(0, torch.Generator().manual_seed(1))
    assert negative.shape == (3, 5, 10)
    assert negative.flatten(0, 1).unique(dim=0).shape == (15, 10)
    encoder = Encoder(MLP(10, (8,)), 10, kappa="head")
    objective = Objective(encoder, ExactInfoNCE(ten.kernel), "joint", "given")
    written_out = negative.repeat_interleave(4, 0)
    torch.testing.assert_close(objective((x, positive, negative)), objective((x, positive, written_out)))


def test_a_batch_of_several_groups_follows_the_same_law():
    process = circle("gaussian")
    batches, generator = process.batches(333), torch.Generator().manual_seed(11)
    assert batches._groups == 3
    drawn = [[cell_of(part) for part in batches(step, generator)] for step in range(40)]
    anchor, positive = (torch.stack(part) for part in zip(*drawn, strict=True))
    assert anchor.shape == positive.shape == (40, 333)
    assert misfit(frequencies_of(anchor, positive), brute_force_laws(process)["ratio"]) < 2


@pytest.mark.parametrize("kernel", [AcceptanceKernel(20.0), VMFKernel(4.0)], ids=["acceptance", "vmf"])
def test_means_in_ten_dimensions(ten, kernel):
    """E f under the laws from tables of r between inputs, against draws, within four standard errors."""
    process = copy.copy(ten)
    process.kernel = kernel
    generator = torch.Generator().manual_seed(2)
    functions = {
        "cosine": lambda q, p: torch.linalg.vecdot(q.mu, p.mu),
        "kappa": lambda q, p: q.kappa,
        "kappa+": lambda q, p: p.kappa,
    }
    draws = {name: [] for name in ("ratio", "joint")}
    for name in draws:
        batches = process.batches(64, positives=name)
        for step in range(30):
            q, p = (process.posterior(part) for part in batches(step, generator))
            draws[name].append(torch.stack([f(q, p).mean() for f in functions.values()]))

    tables = {name: [] for name in draws}
    for _ in range(6):
        x, candidate = process.inputs(2, 300, generator=generator)
        q, p = process.posterior(x), process.posterior(candidate)
        r = pairwise_log_positivity(q, p, kernel).exp()
        for name, weight in (("ratio", r / r.mean(1, keepdim=True)), ("joint", r / r.mean())):
            values = [weight * f(q[:, None], p[None]) for f in functions.values()]
            tables[name].append(torch.stack([v.mean() for v in values]))
    for name in draws:
        drawn, table = torch.stack(draws[name]), torch.stack(tables[name])
        error = (drawn.var(0) / len(drawn) + table.var(0) / len(table)).sqrt()
        assert ((drawn.mean(0) - table.mean(0)).abs() < 4 * error).all(), name


@pytest.mark.parametrize("positives", get_args(PositiveLaw))
def test_enough_proposals_are_made(ten, positives):
    """The key u/w of the chosen one lies below 1/bound, that is, it was accepted: for every anchor of 10 batches."""
    batches = ten.batches(64, positives=positives)
    generator = torch.Generator().manual_seed(5)
    for _ in range(10):
        if positives == "joint":
            q = ten.posterior(ten.inputs(2, batches.proposals, generator=generator))
            log_g = batches._log_matching(torch.linalg.vecdot(*q.sample((), generator)))
            log_w = log_g - batches._log_bound(q[0])
            accepted = torch.rand(log_w.shape, generator=generator) < log_w.exp()
            assert accepted.sum() >= 64
        else:
            x, candidate = batches._inputs(64, batches.proposals, generator=generator)
            log_w = batches._log_weights(x, candidate, generator)[0]
            log_w -= batches._log_bound(ten.posterior(x))[..., None]
            assert log_w.max() <= 1e-5
            accepted = torch.rand(log_w.shape, generator=generator) < log_w.exp()
            assert accepted.any(-1).all()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("rule", get_args(NegativeLaw))
@pytest.mark.parametrize("positives", get_args(PositiveLaw))
@pytest.mark.parametrize("family", get_args(Family))
def test_a_draw_is_captured_in_a_graph_without_synchronisation(family, positives, rule):
    if (positives, rule) == ("ratio", "rejected-latent"):
        pytest.skip("no latent is drawn")
    process = GenerativeProcess(10, family=family, smoothing_steps=300, device="cuda")
    batches = process.batches(64, negatives=2, positives=positives, group=4, rule=rule)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            batches()
        torch.cuda.set_sync_debug_mode("error")
        try:
            batches()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch = batches()
    seen = []
    for _ in range(3):
        graph.replay()
        seen.append(batch[1].clone())
    assert not torch.equal(seen[0], seen[1])
    # The same process as on the CPU.
    x = process.inputs(5).cpu()
    twin = GenerativeProcess(10, family=family, smoothing_steps=300)
    torch.testing.assert_close(process.posterior(x.cuda()).mode.cpu(), twin.posterior(x).mode, atol=1e-4, rtol=0)
