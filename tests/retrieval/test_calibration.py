"""On a process whose posteriors are known: credible sets cover, and match probabilities mean what they say."""

import numpy as np
import pytest
import torch

from aleator import VMFKernel, VonMisesFisher, pairwise_log_positivity
from aleator.retrieval import CredibleIndex

KERNEL = VMFKernel(50.0)


def uniform(n: int, dim: int, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(noise, dim=-1)


def ambiguous(n: int, dim: int, generator: torch.Generator, low=1.0, high=300.0) -> VonMisesFisher:
    """Posteriors whose latents are uniform on the sphere, since their mus are: the controlled process."""
    spread = torch.rand(n, generator=generator, dtype=torch.float64)
    return VonMisesFisher(uniform(n, dim, generator), low * (high / low) ** spread)


@pytest.mark.parametrize(("dim", "p"), [(10, 0.95), (64, 0.95)])
def test_credible_sets_hold_the_latent_as_often_as_they_claim(dim, p):
    """Over 3,000 held-out queries the share has a standard error of 0.004."""
    generator = torch.Generator().manual_seed(dim)
    queries = ambiguous(3000, dim, generator)
    latents = queries.sample(generator=generator)
    held = 0
    for start in range(0, len(queries), 50):  # a gallery of its own for each 50: what else is in it does not matter
        block = slice(start, start + 50)
        gallery = CredibleIndex.build(VonMisesFisher(latents[block], torch.inf))
        answers = gallery.search(queries[block], p=p)
        held += sum(i in {hit.id for hit in hits} for i, hits in enumerate(answers))
    assert abs(held / len(queries) - p) < 0.012


def test_credible_sets_nest_as_the_level_grows():
    generator = torch.Generator().manual_seed(0)
    gallery = CredibleIndex.build(ambiguous(500, 8, generator))
    queries = ambiguous(40, 8, generator)
    before = [set() for _ in range(40)]
    for p in (0.05, 0.3, 0.6, 0.9, 0.99, 0.999):
        answers = [{hit.id for hit in hits} for hits in gallery.search(queries, p=p)]
        assert all(small <= large for small, large in zip(before, answers, strict=True))
        before = answers
    assert sum(map(len, before)) > 0


@pytest.fixture(scope="module")
def process():
    """Queries, a gallery, and each query's true partners in it, drawn in proportion to r: the pair-level process."""
    generator = torch.Generator().manual_seed(1)
    gallery = ambiguous(600, 10, generator, low=2.0, high=800.0)
    queries = ambiguous(300, 10, generator, low=2.0, high=800.0)
    log_r = pairwise_log_positivity(queries, gallery, KERNEL)
    partners = torch.multinomial(torch.softmax(log_r, dim=1), 5, replacement=True, generator=generator)
    return queries, gallery, partners


def scores_of(process, **options) -> tuple[np.ndarray, np.ndarray]:
    """Match probability and cosine of all pairs, (Q, n), from the index."""
    queries, gallery, _ = process
    index = CredibleIndex.build(gallery, kernel=KERNEL, **options)
    match, cosine = np.zeros((2, len(queries), len(gallery)))
    for i, hits in enumerate(index.search(queries, by="match", threshold=0.0)):
        ids = [hit.id for hit in hits]
        match[i, ids] = [hit.match_probability for hit in hits]
        cosine[i, ids] = [hit.cosine for hit in hits]
    return match, cosine


def average_precision(scores: np.ndarray, is_partner: np.ndarray) -> float:
    """The mean, over true partners, of the share of true partners among all that score as high."""
    hit = is_partner[np.argsort(-scores, kind="stable")]
    return float((np.cumsum(hit) / np.arange(1, len(hit) + 1))[hit].mean())


def test_match_ranks_partners_better_than_cosine_and_than_one_sided_caps(process):
    queries, gallery, partners = process
    match, cosine = scores_of(process)
    is_partner = np.zeros(match.shape, bool)
    np.put_along_axis(is_partner, partners.numpy(), True, axis=1)
    # The smallest level at which the cap of one posterior holds the other's mu.
    angle = torch.as_tensor(cosine).clamp(-1, 1).acos()
    query_cap = queries[:, None].cap_angle_probability(angle).numpy()
    item_cap = gallery[None].cap_angle_probability(angle).numpy()
    rivals = {"cosine": cosine, "query's cap": -query_cap, "item's cap": -item_cap}
    pooled = average_precision(match.ravel(), is_partner.ravel())
    own = np.array([average_precision(*pair) for pair in zip(match, is_partner, strict=True)])
    print(f"average precision of match: {pooled:.3f} over all pairs, {own.mean():.3f} by query")
    for name, scores in rivals.items():
        pooled_rival = average_precision(scores.ravel(), is_partner.ravel())
        rival = np.array([average_precision(*pair) for pair in zip(scores, is_partner, strict=True)])
        print(f"{name}: {pooled_rival:.3f} over all pairs, {rival.mean():.3f} by query")
        assert pooled > 1.3 * pooled_rival
        assert (own - rival).mean() > 5 * (own - rival).std() / np.sqrt(len(own))


def test_match_probabilities_are_calibrated(process):
    """Among pairs of probability about x, a share x are partners, whatever share of all pairs are."""
    queries, gallery, partners = process
    generator = torch.Generator().manual_seed(2)
    for prior in (0.2, 0.5):
        true = partners.numel()
        false = round(true * (1 - prior) / prior)
        left = torch.cat(
            [
                torch.arange(len(queries)).repeat_interleave(partners.shape[1]),
                torch.randint(len(queries), (false,), generator=generator),
            ]
        )
        right = torch.cat([partners.flatten(), torch.randint(len(gallery), (false,), generator=generator)])
        probability = scores_of(process, prior=prior)[0][left, right]
        is_match = np.arange(len(left)) < true
        bins = np.argsort(np.argsort(probability)) * 10 // len(left)
        gaps = [is_match[bins == b].mean() - probability[bins == b].mean() for b in range(10)]
        print(f"prior {prior}: expected calibration error {np.abs(gaps).mean():.4f}")
        # A bin of 400 pairs or more: the standard error of a share is 0.025 at most.
        assert np.abs(gaps).mean() < 0.02
        assert np.abs(gaps).max() < 0.1
