"""Label probabilities: against loops, Bayes' rule and limits."""

import json
import math

import pytest
import torch

import aleator as al
from aleator.evaluation import (
    LabelModel,
    label_certainty,
    label_entropy,
    label_log_likelihood,
    likely_labels,
    pack_label_model,
    unpack_label_model,
)

KERNEL = al.VMFKernel(12.0)
NAMES = ("ant", "bee", "cat")


def random_posteriors(count: int, seed: int, dim: int = 5) -> al.VonMisesFisher:
    generator = torch.Generator().manual_seed(seed)
    mu = torch.nn.functional.normalize(torch.randn(count, dim, generator=generator, dtype=torch.float64), dim=-1)
    return al.VonMisesFisher(mu, 1 + 40 * torch.rand(count, generator=generator, dtype=torch.float64))


def random_weights(count: int, seed: int = 3) -> torch.Tensor:
    return torch.rand(count, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class TestProbabilities:
    def test_equal_the_formula_in_a_loop(self):
        q, gallery, weights = random_posteriors(3, 0), random_posteriors(5, 1), random_weights(5)
        p = LabelModel(gallery, weights, NAMES, KERNEL, beta=1.7, floor=0.1).probabilities(q)
        total = weights.sum()
        for i in range(3):
            mass = [0.0, 0.0, 0.0]
            for j in range(5):
                r = math.exp(al.log_positivity(q[i], gallery[j], KERNEL).item())
                for c in range(3):
                    mass[c] += weights[j, c].item() * r**1.7
            for c in range(3):
                expected = 0.9 * mass[c] / sum(mass) + 0.1 * (weights[:, c].sum() / total).item()
                assert p[i, c].item() == pytest.approx(expected, rel=1e-9)

    def test_are_bayes_rule(self):
        """Latents of two classes, and what was seen of them: the share of the first class is as predicted."""
        torch.manual_seed(0)
        count, kappa, share = 8_000, 6.0, 0.7
        centres = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
        label = (torch.rand(count) > share).long()
        z = al.VonMisesFisher(centres[label], torch.tensor([9.0, 4.0], dtype=torch.float64)[label]).sample()
        seen = al.VonMisesFisher(z, kappa).sample()  # for uniform latents, the posterior of z is vMF(seen, kappa)
        classes = al.VonMisesFisher(centres, torch.tensor([9.0, 4.0], dtype=torch.float64))
        weights = torch.diag(torch.tensor([share, 1 - share], dtype=torch.float64))
        model = LabelModel(classes, weights, ("a", "b"), al.VMFKernel(math.inf))
        p = model.probabilities(al.VonMisesFisher(seen, kappa))[:, 0]
        for low in (0.0, 0.2, 0.4, 0.6, 0.8):
            inside = (p >= low) & (p < low + 0.2)
            error = 4 * 0.5 / math.sqrt(inside.sum())
            assert (label[inside] == 0).double().mean().item() == pytest.approx(p[inside].mean().item(), abs=error)

    def test_one_entry_for_two_items_at_one_place(self):
        """r is bilinear, so entries at one place add up."""
        q, gallery, weights = random_posteriors(4, 0), random_posteriors(3, 1), random_weights(3)
        twice = al.VonMisesFisher.cat([gallery, gallery])
        once = LabelModel(gallery, weights, NAMES, KERNEL, beta=0.6).probabilities(q)
        both = LabelModel(twice, torch.cat([weights / 4, 3 * weights / 4]), NAMES, KERNEL, beta=0.6).probabilities(q)
        torch.testing.assert_close(once, both)

    def test_limits_of_beta(self):
        q, gallery = random_posteriors(20, 0), random_posteriors(3, 1)
        weights = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
        sharp = LabelModel(gallery, weights, NAMES, KERNEL, beta=1e4).probabilities(q)
        nearest = al.pairwise_log_positivity(q, gallery, KERNEL).argmax(1)
        torch.testing.assert_close(sharp, torch.eye(3, dtype=torch.float64)[nearest], atol=1e-6, rtol=0)
        flat = LabelModel(gallery, weights, NAMES, KERNEL, beta=1e-9).probabilities(q)
        torch.testing.assert_close(flat, (weights.sum(0) / 6).expand(20, 3), atol=1e-6, rtol=0)

    def test_blocks_change_nothing(self, monkeypatch):
        q = random_posteriors(30, 0)
        model = LabelModel(random_posteriors(7, 1), random_weights(7), NAMES, KERNEL)
        whole = model.probabilities(q)
        monkeypatch.setattr("aleator.evaluation.label_model._PAIRS", 20)
        torch.testing.assert_close(model.probabilities(q), whole)

    def test_sum_to_one_for_points_and_far_queries(self):
        """Points that coincide have r = inf, and opposite points r = 0 in float64: the rows are still probabilities."""
        mu = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
        gallery = al.VonMisesFisher(mu[:1].expand(3, 3), torch.tensor([math.inf, 1e5, 1e6]))
        model = LabelModel(gallery, torch.eye(3), NAMES, al.VMFKernel(math.inf), floor=1e-3)
        p = model.probabilities(al.VonMisesFisher(mu, math.inf))
        torch.testing.assert_close(p.sum(1), torch.ones(2))
        assert p[0, 0] > 0.99

    def test_entries_without_mass_do_not_count(self):
        q, gallery, weights = random_posteriors(5, 0), random_posteriors(4, 1), random_weights(4)
        weights[2] = 0
        kept = torch.tensor([0, 1, 3])
        with_empty = LabelModel(gallery, weights, NAMES, KERNEL).probabilities(q)
        torch.testing.assert_close(with_empty, LabelModel(gallery[kept], weights[kept], NAMES, KERNEL).probabilities(q))

    def test_no_questions(self):
        model = LabelModel(random_posteriors(3, 1), torch.eye(3), NAMES, KERNEL)
        assert model.probabilities(random_posteriors(3, 0)[:0]).shape == (0, 3)

    def test_follow_the_dtype_of_the_question(self):
        model = LabelModel(random_posteriors(3, 1), torch.eye(3), NAMES, KERNEL)
        q = random_posteriors(4, 0)
        single = model.probabilities(q.float())
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), model.probabilities(q), atol=1e-5, rtol=1e-4)


class TestPrior:
    def test_another_prior_multiplies_the_odds(self):
        q = random_posteriors(8, 0)
        model = LabelModel(random_posteriors(9, 1), random_weights(9), NAMES, KERNEL, beta=1.3)
        p, new = model.probabilities(q), torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
        moved = model.with_prior(new)
        expected = p * new / model.prior
        torch.testing.assert_close(moved.prior, new)
        torch.testing.assert_close(moved.probabilities(q), expected / expected.sum(1, keepdim=True))

    @pytest.mark.parametrize("prior", [torch.ones(2), torch.tensor([1.0, -1.0, 1.0]), torch.zeros(3)])
    def test_refuses_what_is_no_prior(self, prior):
        model = LabelModel(random_posteriors(3, 1), torch.eye(3), NAMES, KERNEL)
        with pytest.raises(ValueError, match="prior"):
            model.with_prior(prior)

    def test_refuses_mass_for_a_label_without_entries(self):
        model = LabelModel(random_posteriors(2, 1), torch.eye(2, 3), NAMES, KERNEL)
        with pytest.raises(ValueError, match="does not have"):
            model.with_prior(torch.ones(3))


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"weights": torch.eye(2)}, "weights"),
        ({"weights": -torch.eye(3)}, "weights"),
        ({"weights": torch.zeros(3, 3)}, "weights"),
        ({"beta": 0.0}, "beta"),
        ({"floor": 1.0}, "floor"),
    ],
)
def test_refuses(change, argument):
    arguments = {"weights": torch.eye(3), "beta": 1.0, "floor": 0.0} | change
    with pytest.raises(ValueError, match=argument):
        LabelModel(random_posteriors(3, 1), names=NAMES, kernel=KERNEL, **arguments)


class TestScores:
    def test_certainty_and_entropy(self):
        p = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.25] * 4, [0.5, 0.5, 0.0, 0.0]])
        torch.testing.assert_close(label_certainty(p), torch.tensor([1.0, 0.0, 0.5]))
        torch.testing.assert_close(label_entropy(p), torch.tensor([0.0, math.log(4), math.log(2)]))
        model = LabelModel(random_posteriors(3, 1), torch.eye(3), NAMES, KERNEL)
        q = random_posteriors(4, 0)
        torch.testing.assert_close(model.entropy(q), label_entropy(model.probabilities(q)))
        torch.testing.assert_close(model.certainty(q), label_certainty(model.probabilities(q)))
        certainty, likeliest, probability = model.certainty_and_label(q)
        assert torch.equal(certainty, model.certainty(q))
        assert torch.equal(likeliest, model.probabilities(q).argmax(1))
        assert torch.equal(probability, model.probabilities(q).amax(1))
        assert [each.shape for each in model.certainty_and_label(q[:0])] == [(0,)] * 3

    def test_certainty_needs_two_labels(self):
        with pytest.raises(ValueError, match="two labels"):
            label_certainty(torch.ones(2, 1))

    def test_log_likelihood_of_hard_and_soft_labels(self):
        p = torch.tensor([[0.2, 0.8], [0.6, 0.4]])
        hard = label_log_likelihood(p, torch.tensor([1, 0]))
        assert hard == pytest.approx((math.log(0.8) + math.log(0.6)) / 2)
        assert label_log_likelihood(p, torch.tensor([[0.0, 1.0], [1.0, 0.0]])) == pytest.approx(hard)
        soft = label_log_likelihood(p[:1], torch.tensor([[0.25, 0.75]]))
        assert soft == pytest.approx(0.25 * math.log(0.2) + 0.75 * math.log(0.8))
        assert math.isfinite(label_log_likelihood(torch.tensor([[1.0, 0.0]]), torch.tensor([1])))

    def test_likely_labels(self):
        p = torch.tensor([[0.005, 0.595, 0.4], [0.004, 0.003, 0.993]])
        assert [[name for name, _ in row] for row in likely_labels(p, NAMES)] == [["bee", "cat"], ["cat"]]
        assert [len(row) for row in likely_labels(p, NAMES, most=1)] == [1, 1]
        assert len(likely_labels(p, NAMES, least=0.0)[0]) == 3


@pytest.mark.parametrize("kappa_pos", [12.5, math.inf])
def test_packing_keeps_everything(kappa_pos):
    q = random_posteriors(4, 0)
    model = LabelModel(random_posteriors(3, 1), torch.eye(3), NAMES, al.VMFKernel(kappa_pos), beta=0.7, floor=0.01)
    facts, tensors = pack_label_model(model)
    copy = unpack_label_model(json.loads(json.dumps(facts, allow_nan=False)), tensors)
    torch.testing.assert_close(copy.probabilities(q), model.probabilities(q), rtol=0, atol=0)


def test_other_kernels_cannot_be_packed():
    with pytest.raises(ValueError, match="kernel"):
        pack_label_model(LabelModel(random_posteriors(3, 1), torch.eye(3), NAMES, al.AcceptanceKernel(5.0)))
