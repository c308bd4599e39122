"""Questions against a gallery: pairs by brute force, and match probabilities that are right where they are shown."""

import numpy as np
import pytest
import torch

from aleator.evaluation import fit_log_odds_map
from aleator.matching import LogOddsMap, VMFKernel, pairwise_log_positivity
from aleator.own_data.collection.labels import Labels
from aleator.own_data.measuring.evaluation import evaluate
from aleator.own_data.measuring.questions import Questions, fit_match_maps, held_out_questions, ranks
from aleator.posteriors import VonMisesFisher

SOFT = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.2, 0.0, 0.8], [0.0, 0.4, 0.6]], np.float32)


def random_posteriors(n: int, dim: int = 5, kappa: float = 30.0, seed: int = 0) -> VonMisesFisher:
    mu = torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))
    return VonMisesFisher(torch.nn.functional.normalize(mu, dim=-1), torch.full((n,), kappa))


def hard(values) -> Labels:
    return Labels("classes", np.asarray(values), tuple("abcdefghij"[: max(values) + 1]))


def test_the_prior_is_the_share_of_all_pairs():
    q, gallery = random_posteriors(4), random_posteriors(6)
    soft = Labels("soft", SOFT, ("a", "b", "c"))
    apart = Questions(q, soft, gallery[:4], soft, np.full(4, -1))
    assert apart.prior == pytest.approx((SOFT @ SOFT.T).mean())
    together = Questions(q, soft, q, soft, np.arange(4))
    off_diagonal = ~np.eye(4, dtype=bool)
    assert together.prior == pytest.approx((SOFT @ SOFT.T)[off_diagonal].mean())


def test_labels_are_compared_by_name():
    q = random_posteriors(2)
    asked, items = Labels("classes", np.array([0, 1]), ("b", "c")), Labels("classes", np.array([0, 1]), ("a", "b"))
    questions = Questions(q, asked, q, items, np.full(2, -1))
    assert questions.prior == 1 / 4
    pairs = questions.hits(2)
    assert [(int(i), int(j)) for i, j, m in zip(pairs.first, pairs.second, pairs.match, strict=True) if m] == [(0, 1)]


def test_hits_are_the_nearest_other_items():
    q = random_posteriors(40)
    labels = hard(np.arange(40) % 3)
    own = np.where(np.arange(15) % 2 == 0, np.arange(15), -1)
    asked = Labels("classes", labels.values[:15], labels.names)
    pairs = Questions(q[:15], asked, q, labels, own).hits(4)
    for i in range(15):
        cosine = (q.mu[i] @ q.mu.T).numpy()
        expected = [j for j in np.argsort(-cosine) if j != own[i]][:4]
        found = pairs.second[pairs.first == i].tolist()
        assert found == expected
        assert pairs.match[pairs.first == i].tolist() == [float(j % 3 == i % 3) for j in found]


def test_the_likeliest_items_have_the_largest_r():
    kappa = torch.linspace(1, 80, 40)
    q, labels, kernel = VonMisesFisher(random_posteriors(40).mu, kappa), hard(np.arange(40) % 3), VMFKernel(10.0)
    questions = Questions(q, labels, q, labels, own=np.arange(40))
    pairs = questions.likeliest(kernel, 4)
    log_r = pairwise_log_positivity(q, q, kernel).fill_diagonal_(-torch.inf)
    assert torch.equal(pairs.second.view(40, 4), log_r.topk(4, 1).indices)
    assert torch.equal(pairs.match.bool(), pairs.first % 3 == pairs.second % 3)


def test_matching_pairs_come_up_as_often_as_they_match():
    soft = Labels("soft", SOFT, ("a", "b", "c"))
    q = random_posteriors(4)
    pairs = Questions(q, soft, q, soft, np.arange(4)).matching_pairs(seed=0, count=60_000)
    counts = np.zeros((4, 4))
    np.add.at(counts, (pairs.first.numpy(), pairs.second.numpy()), 1)
    expected = (SOFT @ SOFT.T) * ~np.eye(4, dtype=bool)
    np.testing.assert_allclose(counts / counts.sum(), expected / expected.sum(), atol=0.01)


def test_held_out_groups_are_asked_against_each_other_too():
    q, labels = random_posteriors(10), np.repeat(np.arange(5), 2)
    groups = Labels("groups", labels, tuple("vwxyz"))
    train, held_out = np.arange(6), np.arange(6, 10)
    questions = held_out_questions(q[6:], held_out, q[:6], train, groups)
    assert len(questions.gallery) == 10
    assert questions.prior == pytest.approx(4 / (4 * 9))
    classes = held_out_questions(q[6:], held_out, q[:6], train, Labels("classes", labels % 2, ("a", "b")))
    assert len(classes.gallery) == 6
    assert (classes.own == -1).all()


def clustered(count: int, generator: torch.Generator) -> tuple[VonMisesFisher, Labels]:
    """Items of ten classes: latents around the centre of the class, and kappas three times too large."""
    centres = torch.nn.functional.normalize(torch.randn(10, 6, generator=torch.Generator().manual_seed(0)), dim=-1)
    label = torch.randint(10, (count,), generator=generator)
    kappa = 3 + 40 * torch.rand(count, generator=generator)
    latent = VonMisesFisher(centres[label], 40.0).sample(generator=generator)
    seen = VonMisesFisher(latent, kappa).sample(generator=generator)
    return VonMisesFisher(seen, 3 * kappa), hard(label.numpy())


def clustered_questions(seed: int, items: int, *counts: int) -> list[Questions]:
    """So many questions each, about one gallery of clustered posteriors."""
    generator = torch.Generator().manual_seed(seed)
    gallery, labels = clustered(items, generator)
    return [Questions(*clustered(count, generator), gallery, labels, np.full(count, -1)) for count in counts]


def test_match_probabilities_are_right_on_hits_and_on_random_pairs():
    kernel, (calibration, test) = VMFKernel(10.0), clustered_questions(1, 2000, 800, 800)
    maps = fit_match_maps(calibration, kernel)

    def errors(prior: float, **how) -> tuple[float, float]:
        metrics = evaluate(test.q, test.labels, kernel, prior, questions=test, **how)
        return metrics["match_ece_hits"], metrics["match_ece_random"]

    hits, random = errors(calibration.prior, maps=maps)
    assert hits < 0.03
    assert random < 0.01
    before = errors(0.5)
    assert min(before) > 0.05


def test_hits_of_each_rank_and_of_each_search_are_right():
    kernel, (calibration, test) = VMFKernel(10.0), clustered_questions(2, 3000, 600, 2000)
    maps = fit_match_maps(calibration, kernel)
    for hits, own_map in ((test.hits(), maps.hit), (test.likeliest(kernel), maps.likeliest)):
        rank, log_r = ranks(hits), test.log_r(hits, kernel)
        p = torch.sigmoid(own_map(log_r, rank) + torch.logit(torch.tensor(calibration.prior)))
        for k in (1, 3, 10):
            assert abs((p - hits.match)[rank == k].mean()) < 0.04  # 600 questions are a sample, too
    assert maps.likeliest.rank_slope > 0.05  # the first hit by match is the one that gained most by chance


def test_ranks_count_the_hits_of_each_question():
    q, labels = random_posteriors(5), hard([0, 0, 1, 1, 1])
    hits = Questions(q[:2], hard([0, 0]), q, labels, np.array([0, -1])).hits(3)
    assert ranks(hits).tolist() == [1, 2, 3, 1, 2, 3]


def test_pairs_of_few_questions_are_few_observations():
    """Eight questions have thousands of pairs. A map that took these for independent would know the questions by
    heart; what counts is how likely the pairs of new questions are."""
    generator = torch.Generator().manual_seed(3)
    kernel, (gallery, gallery_labels) = VMFKernel(10.0), clustered(1000, generator)

    def ask(count: int) -> Questions:
        return Questions(*clustered(count, generator), gallery, gallery_labels, np.full(count, -1))

    new = ask(1000)
    pairs = new.random_pairs(0)
    log_r = new.log_r(pairs, kernel).double()

    def log_likelihood(g: LogOddsMap, prior: float) -> float:
        log_odds = g(log_r) + torch.logit(torch.tensor(prior, dtype=torch.float64))
        return -torch.nn.functional.binary_cross_entropy_with_logits(log_odds, pairs.match).item()

    gains = []
    for _ in range(5):
        few = ask(8)
        matching, random = few.matching_pairs(0), few.random_pairs(1)
        by_heart = fit_log_odds_map(
            torch.cat([few.log_r(matching, kernel), few.log_r(random, kernel)]),
            torch.cat([matching.match, torch.zeros(len(random))]),
            few.prior,
            weight=torch.cat(
                [
                    torch.full((len(matching),), few.prior / len(matching)),
                    (1 - random.match) * (1 - few.prior) / (1 - random.match).sum(),
                ]
            ),
        )
        fitted = fit_match_maps(few, kernel).pair
        gains.append(log_likelihood(fitted, few.prior) - log_likelihood(by_heart, few.prior))
    assert np.mean(gains) > 0


def test_labels_that_say_nothing_are_refused():
    q = random_posteriors(6)
    labels = hard([0] * 6)
    with pytest.raises(ValueError, match="share of matches"):
        fit_match_maps(Questions(q, labels, q, labels, np.arange(6)), VMFKernel(10.0))
