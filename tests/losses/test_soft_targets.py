"""Soft targets: the mean over drawn positives, the minimum, hard labels, rows without a match, bad input."""

import math

import pytest
import torch
from torch.nn import functional as F

from aleator import ELK, HIB, ContrastiveLoss, ExactInfoNCE, InfoNCE, MCInfoNCE, VMFKernel, VonMisesFisher
from aleator.losses import SimilarityLoss
from tests.losses.cases import SAMPLES, posteriors

LOSSES = {
    "InfoNCE": lambda: InfoNCE(20.0),
    "ExactInfoNCE": lambda: ExactInfoNCE(VMFKernel(20.0)),
    "ELK": lambda: ELK(3.0),
    "MCInfoNCE": lambda: MCInfoNCE(VMFKernel(20.0), SAMPLES),
}


@pytest.fixture(params=LOSSES)
def loss(request):
    return LOSSES[request.param]().double()


def noise_of(loss, *parts: VonMisesFisher | None):
    if not isinstance(loss, MCInfoNCE):
        return {}
    return {"noise": tuple(None if q is None else torch.randn(SAMPLES, len(q), q.dim, dtype=q.mu.dtype) for q in parts)}


def gradients(value, *parts):
    leaves = [leaf for q in parts for leaf in (q.mu, q.kappa)]
    return torch.autograd.grad(value, leaves, retain_graph=True, materialize_grads=True)


def constant(loss, candidates: int) -> float:
    """log M, which ELK and MCInfoNCE subtract from the loss of drawn positives and not from that of soft targets."""
    return math.log(candidates - 1) if isinstance(loss, ELK | MCInfoNCE) else 0.0


def rows_and_draws(loss, anchor, candidates, targets, noise):
    """The mean over j ~ W_i of the ordinary loss, whose negatives are the other candidates of i: every draw in turn."""
    total = torch.zeros((), dtype=torch.float64)
    rows = 0
    for i, row in enumerate(targets):
        places = [j for j in range(len(candidates)) if not (candidates is anchor and j == i)]
        mass = row[places].sum()
        rows += bool(mass > 0)
        for j in places:
            others = [k for k in places if k != j]
            options = {}
            if noise:
                first, second = noise["noise"]
                second = first if second is None else second
                options = {"noise": (first[:, [i]], second[:, [j]], second[:, None, others])}
            drawn = loss(anchor[[i]], candidates[[j]], candidates[None, others], **options)
            if row[j] > 0:
                total = total + row[j] / mass * (drawn + constant(loss, len(places)))
    return total / rows


class TestMeanOverDraws:
    @pytest.mark.parametrize("own", [True, False])
    def test_equals_the_mean_over_all_positives_that_the_row_could_draw(self, loss, own):
        anchor = posteriors(5)
        candidates = None if own else posteriors(4)
        targets = torch.rand(5, 5 if own else 4, dtype=torch.float64) * (torch.rand(5, 5 if own else 4) > 0.3)
        targets[2] = 0  # no match: does not count
        noise = noise_of(loss, anchor, candidates)
        value = loss.soft(anchor, targets, candidates, **noise)
        expected = rows_and_draws(loss, anchor, anchor if own else candidates, targets, noise)
        torch.testing.assert_close(value, expected)
        parts = [anchor] if own else [anchor, candidates]
        for a, b in zip(gradients(value, *parts), gradients(expected, *parts), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)

    def test_one_match_in_each_row_is_the_ordinary_loss(self):
        """Two views: the positive of anchor i is candidate i, and the other candidates are its negatives."""
        anchor, other = posteriors(6), posteriors(6)
        loss = ExactInfoNCE(VMFKernel(20.0))
        value = loss.soft(anchor, torch.eye(6, dtype=torch.float64), other)
        negative = VonMisesFisher.cat([other[[j for j in range(6) if j != i]][None] for i in range(6)], 0)
        torch.testing.assert_close(value, loss(anchor, other, negative))

    def test_draws_from_the_rows_average_to_it(self):
        torch.manual_seed(0)
        anchor, candidates = posteriors(4), posteriors(6)
        targets = torch.rand(4, 6, dtype=torch.float64)
        loss = ExactInfoNCE(VMFKernel(20.0))
        drawn = torch.multinomial(targets, 4000, replacement=True)  # (4, draws)
        log_shares = loss.log_shares(anchor, candidates, None)
        each = -log_shares.gather(1, drawn).detach()
        error = each.mean(0).std() / 4000**0.5
        assert abs(each.mean() - loss.soft(anchor, targets, candidates)) < 4 * error


class TestMinimum:
    def test_shares_in_proportion_to_the_weights_are_the_minimum(self):
        """With free similarities, gradient descent ends at the rows of W divided by their sums."""

        class Table(SimilarityLoss):
            def __init__(self):
                super().__init__()
                self.logits = torch.nn.Parameter(torch.zeros(5, 5, dtype=torch.float64))

            def similarity(self, q1, q2):
                return self.logits

        torch.manual_seed(1)
        targets = torch.rand(5, 5, dtype=torch.float64)
        targets[0, 1] = 0.0
        loss, anchor = Table(), posteriors(5)
        optimiser = torch.optim.LBFGS(
            loss.parameters(), max_iter=500, tolerance_grad=1e-12, line_search_fn="strong_wolfe"
        )

        def closure():
            optimiser.zero_grad()
            value = loss.soft(anchor, targets)
            value.backward()
            return value

        optimiser.step(closure)
        eye = torch.eye(5, dtype=torch.bool)
        expected = targets.masked_fill(eye, 0.0)
        expected = expected / expected.sum(1, keepdim=True)
        learned = loss.logits.detach().masked_fill(eye, -math.inf).softmax(1)
        torch.testing.assert_close(learned, expected, atol=1e-4, rtol=1e-4)
        entropy = -torch.special.xlogy(expected, expected).sum(1).mean()
        assert loss.soft(anchor, targets).item() == pytest.approx(entropy.item(), abs=1e-6)

    def test_true_positivities_beat_every_other_kappa(self):
        """W is r of known posteriors: the loss of these posteriors is the entropy of W, and no change lowers it."""
        loss = ExactInfoNCE(VMFKernel(20.0))
        truth = posteriors(7)
        targets = loss.log_shares(truth, truth, None).exp().detach()
        value = loss.soft(truth, targets, truth)
        for gradient in gradients(value, truth):
            assert gradient.abs().max() < 1e-7
        for factor in (0.5, 0.9, 1.1, 2.0):
            other = VonMisesFisher(truth.mu, truth.kappa * factor, validate_args=False)
            assert loss.soft(other, targets, other) > value + 1e-6


class TestProperties:
    def test_hard_labels_average_over_the_class(self, loss):
        """SupCon's form: the mean of -log share over the other members of the class, by hand."""
        classes = [0, 0, 0, 1, 1, 2]
        anchor = posteriors(6)
        noise = noise_of(loss, anchor, None)
        labels = torch.tensor(classes)
        targets = (labels[:, None] == labels).double()
        mask = ~torch.eye(6, dtype=torch.bool)
        log_shares = loss.log_shares(anchor, None, mask, **noise)
        rows = [
            -sum(log_shares[i, j] for j in range(6) if j != i and classes[j] == classes[i]) / (classes.count(c) - 1)
            for i, c in enumerate(classes)
            if classes.count(c) > 1
        ]
        torch.testing.assert_close(loss.soft(anchor, targets, **noise), sum(rows) / 5)

    def test_shares_sum_to_one_over_the_candidates_that_count(self, loss):
        anchor, candidates = posteriors(4), posteriors(5)
        compared = torch.rand(4, 5) > 0.3
        compared[:, 0] = True
        shares = loss.log_shares(anchor, candidates, compared, **noise_of(loss, anchor, candidates)).exp()
        torch.testing.assert_close((shares * compared).sum(1), torch.ones(4, dtype=torch.float64))

    def test_order_and_scale_of_the_weights_do_not_matter(self, loss):
        anchor, targets = posteriors(6), torch.rand(6, 6, dtype=torch.float64)
        noise = noise_of(loss, anchor, None)
        value = loss.soft(anchor, targets, **noise)
        order = torch.randperm(6)
        moved = {"noise": (noise["noise"][0][:, order], None)} if noise else {}
        torch.testing.assert_close(loss.soft(anchor[order], targets[order][:, order], **moved), value)
        torch.testing.assert_close(loss.soft(anchor, targets * torch.rand(6, 1).double(), **noise), value)
        changed = targets + torch.diag(torch.rand(6).double())
        torch.testing.assert_close(loss.soft(anchor, changed, **noise), value)

    def test_a_candidate_left_out_is_as_if_it_were_not_there(self, loss):
        anchor, candidates, targets = posteriors(4), posteriors(6), torch.rand(4, 6, dtype=torch.float64)
        noise = noise_of(loss, anchor, candidates)
        compared = torch.ones(4, 6, dtype=torch.bool)
        compared[:, [1, 4]] = False
        value = loss.soft(anchor, targets, candidates, compared, **noise)
        left = [0, 2, 3, 5]
        shorter = {"noise": (noise["noise"][0], noise["noise"][1][:, left])} if noise else {}
        torch.testing.assert_close(value, loss.soft(anchor, targets[:, left], candidates[left], **shorter))

    def test_booleans_and_whole_numbers_are_weights_too(self, loss):
        anchor, same = posteriors(4), torch.tensor([0, 1, 0, 1])[:, None] == torch.tensor([0, 1, 0, 1])
        noise = noise_of(loss, anchor, None)
        for dtype in (torch.bool, torch.int64, torch.float16, torch.float32):
            value = loss.soft(anchor, same.to(dtype), **noise)
            assert torch.equal(value, loss.soft(anchor, same.double(), **noise))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_rows_without_a_match_or_a_candidate_count_nothing(self, loss, dtype):
        loss.to(dtype)
        anchor = posteriors(5, dtype=dtype)
        targets, compared = torch.rand(5, 5), torch.ones(5, 5, dtype=torch.bool)
        targets[0] = 0.0  # no match
        compared[1] = False  # no candidate
        value = loss.soft(anchor, targets, compared=compared)
        assert torch.isfinite(value)
        assert value.dtype == dtype
        assert all(torch.isfinite(g).all() for g in gradients(value, anchor))
        if not isinstance(loss, MCInfoNCE):  # without samples: the mean of the other rows
            rows = [loss.soft(anchor[[i]], targets[[i]][:, k], anchor[k]) for i in (2, 3, 4) for k in [_without(i)]]
            torch.testing.assert_close(value, sum(rows) / 3)
        nothing = loss.soft(anchor, torch.zeros(5, 5))
        assert nothing == 0
        assert all((g == 0).all() for g in gradients(nothing, anchor))

    @pytest.mark.parametrize("kappa", [1e-3, 1e6])
    def test_finite_at_the_extremes(self, loss, kappa):
        loss.float()
        mu = F.normalize(torch.randn(4, 3), dim=-1)
        mu[1], mu[3] = mu[0], -mu[2]
        q = VonMisesFisher(mu.requires_grad_(), torch.full((4,), kappa).requires_grad_())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = loss.soft(q, torch.rand(4, 4))
        assert value.dtype == torch.float32
        assert torch.isfinite(value)
        assert all(torch.isfinite(g).all() for g in gradients(value, q))


def _without(i: int) -> list[int]:
    return [k for k in range(5) if k != i]


class TestBadInput:
    @pytest.mark.parametrize(
        ("targets", "options", "message"),
        [
            (torch.rand(3, 4), {}, r"targets = \(3, 4\): expected shape \(3, 3\)"),
            ([[1.0, 0.0, 0.0]], {}, r"targets = 'list': not a Tensor; pass torch.as_tensor\(targets\)"),
            (torch.full((3, 3), -0.5), {}, "targets = -0.5: not a finite weight"),
            (torch.full((3, 3), math.nan), {}, "targets = nan: not a finite weight"),
            (torch.rand(3, 3), {"compared": torch.ones(3, 3)}, "compared.*expected booleans"),
            (torch.rand(3, 2), {"candidates": posteriors(2, dim=5)}, "candidates = 'dimension 5'"),
            (torch.rand(3, 2), {"candidates": posteriors(3, 2)}, r"candidates = \(3, 2\): expected batch shape"),
            (torch.rand(3, 2), {"candidates": torch.rand(2, 4)}, "candidates = 'Tensor': not a posterior"),
        ],
    )
    def test_what_does_not_fit_is_named(self, targets, options, message):
        with pytest.raises(ValueError, match=message):
            InfoNCE().soft(posteriors(3), targets, **options)

    def test_a_loss_without_shares_says_so(self):
        class Alignment(ContrastiveLoss):
            pass

        for loss in (HIB(), Alignment()):
            with pytest.raises(ValueError, match="takes no soft targets"):
                loss.soft(posteriors(3), torch.rand(3, 3))
