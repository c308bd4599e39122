"""Promises: exact for few questions by counting, and by simulation for many."""

import math

import numpy as np
import pytest
from scipy.stats import beta, binom

from aleator.evaluation import conformal_quantile, coverage_range, questions_needed, rejection_threshold


class TestQuantile:
    def test_the_least_coverage_is_that_of_the_smallest_score(self):
        assert conformal_quantile([2.0, 1.0], 1e-12) == 1.0

    @pytest.mark.parametrize(
        ("n", "coverage"), [(1, 0.5), (4, 0.5), (4, 0.8), (9, 0.9), (19, 0.95), (20, 0.95), (37, 0.8), (99, 0.95)]
    )
    def test_coverage_is_exact_over_all_choices_of_the_new_question(self, n, coverage):
        """Each of n + 1 exchangeable questions is equally likely to be the new one, so counting gives the coverage."""
        scores = np.random.default_rng(n).standard_normal(n + 1)
        covered = [scores[i] <= conformal_quantile(np.delete(scores, i), coverage) for i in range(n + 1)]
        assert coverage - 1e-9 <= np.mean(covered) < coverage + 1 / (n + 1)

    def test_ties_only_cover_more(self):
        scores = np.repeat([1.0, 2.0, 3.0], 20)
        covered = [scores[i] <= conformal_quantile(np.delete(scores, i), 0.6) for i in range(60)]
        assert np.mean(covered) == 2 / 3

    def test_it_is_the_smallest_level_that_risk_control_accepts(self):
        """Angelopoulos et al. 2022: the least level with (sum of losses + 1) / (n + 1) <= 1 - coverage."""
        rng = np.random.default_rng(0)
        for n in (19, 30, 101):
            scores = rng.standard_normal(n)
            for coverage in (0.5, 0.77, 0.9, 0.95):
                accepted = [level for level in scores if ((scores > level).sum() + 1) / (n + 1) <= 1 - coverage + 1e-12]
                assert conformal_quantile(scores, coverage) == min(accepted)

    def test_it_grows_with_coverage_and_with_scores(self):
        scores = np.random.default_rng(1).standard_normal(200)
        levels = [conformal_quantile(scores, coverage) for coverage in np.linspace(0.05, 0.99, 50)]
        assert levels == sorted(levels)
        assert conformal_quantile(scores + np.abs(scores), 0.9) >= conformal_quantile(scores, 0.9)

    def test_questions_that_no_level_covers_count_as_misses(self):
        scores = np.append(np.arange(95.0), np.full(5, np.inf))
        assert conformal_quantile(scores, 0.9) == 90.0
        assert conformal_quantile(scores, 0.95) == math.inf

    def test_errors(self):
        assert [questions_needed(c) for c in (0.5, 0.9, 0.95, 0.99, 0.999)] == [1, 9, 19, 99, 999]
        with pytest.raises(ValueError, match="questions = 18: too few to promise"):
            conformal_quantile(np.zeros(18), 0.95)
        with pytest.raises(ValueError, match="coverage = 1"):
            conformal_quantile(np.zeros(18), 1.0)
        with pytest.raises(ValueError, match="scores = 'NaN'"):
            conformal_quantile(np.full(20, np.nan), 0.9)
        with pytest.raises(ValueError, match="one number for each question"):
            conformal_quantile(np.zeros((20, 2)), 0.9)


@pytest.mark.parametrize(("n", "coverage", "assurance"), [(45, 0.95, 0.9), (200, 0.9, 0.8), (1000, 0.95, 0.99)])
def test_an_assured_level_is_the_least_that_covers_in_so_many_calibrations(n, coverage, assurance):
    """Uniform scores: a level is its own coverage, and the k-th smallest of n has a Beta(k, n + 1 - k) distribution."""
    level = int(conformal_quantile(np.arange(1, n + 1), coverage, assurance))
    kept = [beta(k, n + 1 - k).sf(coverage) for k in (level - 1, level)]
    assert kept[0] < assurance <= kept[1]
    scores = np.random.default_rng(0).random((4000, n))
    covered = np.sort(scores, axis=1)[:, level - 1]
    assert np.mean(covered >= coverage) == pytest.approx(kept[1], abs=4 * np.sqrt(0.25 / 4000))
    low, high = coverage_range(n, coverage, assurance=assurance)
    assert np.mean((low <= covered) & (covered <= high)) == pytest.approx(0.9, abs=0.02)


def test_an_assurance_needs_so_many_questions_that_the_largest_score_keeps_it():
    needed = questions_needed(0.95, 0.9)
    assert 0.95**needed <= 0.1 < 0.95 ** (needed - 1)
    assert conformal_quantile(range(needed), 0.95, 0.9) == needed - 1
    with pytest.raises(ValueError, match=f"questions = {needed - 1}.*at least {needed}"):
        conformal_quantile(range(needed - 1), 0.95, 0.9)
    with pytest.raises(ValueError, match="assurance = 1"):
        questions_needed(0.95, 1.0)


def test_coverage_range_holds_the_coverage_of_most_calibrations():
    """Of uniform scores, the coverage of a level is the level itself."""
    rng = np.random.default_rng(2)
    coverage = np.array([conformal_quantile(rng.uniform(size=150), 0.9) for _ in range(4000)])
    low, high = coverage_range(150, 0.9, share=0.8)
    assert np.quantile(coverage, [0.1, 0.9]) == pytest.approx([low, high], abs=0.003)
    assert coverage.mean() == pytest.approx(math.ceil(151 * 0.9) / 151, abs=0.002)
    with pytest.raises(ValueError, match="questions = 5"):
        coverage_range(5, 0.9)


# Probability of a wrong answer, as a function of the confidence.
RISKS = {
    "falls": lambda c: 0.3 * (1 - c),
    "same for all": lambda c: np.full_like(c, 0.101),
    "sure and wrong": lambda c: np.where(c > 0.9, 0.4, 0.02 + 0.1 * (c < 0.5)),
    "jumps": lambda c: np.where(c > 0.5, 0.05, 0.16),
}


class TestRejection:
    """Confidence is uniform, and an answer is wrong with a known probability that depends on it."""

    @staticmethod
    def draw(risk, n, seed):
        rng = np.random.default_rng(seed)
        confidence = rng.uniform(size=n)
        return confidence, rng.uniform(size=n) < risk(confidence)

    @staticmethod
    def true_error(risk, threshold):
        """Share of wrong answers above a threshold; 0 for an infinite one."""
        if threshold == math.inf:
            return 0.0
        return float(risk(np.linspace(threshold, 1, 20_001)).mean())

    @pytest.mark.parametrize("name", RISKS)
    def test_the_error_is_kept_as_often_as_promised(self, name):
        """Of 400 calibrations at most 20 % break the promise; the standard error is 2 %."""
        risk = RISKS[name]
        broken = 0
        for seed in range(400):
            found = rejection_threshold(*self.draw(risk, 400, seed), error=0.1, assurance=0.8, seed=seed)
            broken += self.true_error(risk, found.threshold) > 0.1
        assert broken / 400 < 0.2 + 3 * 0.02

    def test_with_many_questions_it_answers_nearly_all_that_it_may(self):
        """0.3 (1 - c) has a mean of 0.1 above c = 1/3."""
        found = [rejection_threshold(*self.draw(RISKS["falls"], 5000, s), error=0.1, seed=s) for s in range(20)]
        thresholds = np.array([f.threshold for f in found])
        assert np.median(thresholds) < 0.42
        assert np.median([f.answered for f in found]) > 0.58

    def test_threshold_reports_what_it_does_on_the_questions(self):
        confidence, wrong = self.draw(RISKS["falls"], 1000, 0)
        found = rejection_threshold(confidence, wrong, error=0.1)
        reached = confidence >= found.threshold
        assert found.threshold in confidence
        assert (found.answered, found.wrong) == (reached.mean(), wrong[reached].mean())

    def test_an_accepted_threshold_has_few_wrong_answers(self):
        """Even if the pilot were counted in, the binomial tail of the result must be small."""
        confidence, wrong = self.draw(RISKS["falls"], 2000, 3)
        found = rejection_threshold(confidence, wrong, error=0.1, assurance=0.9)
        reached = confidence >= found.threshold
        assert binom.cdf(wrong[reached].sum(), reached.sum(), 0.1) < 0.15

    def test_right_answers_are_all_given_and_hopeless_ones_never(self):
        confidence = np.random.default_rng(0).uniform(size=300)
        everything = rejection_threshold(confidence, np.zeros(300, bool), error=0.05)
        assert everything.answered > 0.95
        nothing = rejection_threshold(confidence, np.ones(300, bool), error=0.05)
        assert (nothing.threshold, nothing.answered, nothing.wrong) == (math.inf, 0.0, 0.0)

    def test_too_few_questions_promise_nothing(self):
        """0.95^n > 0.1 for n < 45, even if every answer is right."""
        assert rejection_threshold(np.linspace(0, 1, 50), np.zeros(50, bool), 0.05).threshold == math.inf
        assert rejection_threshold([], [], 0.05).threshold == math.inf
        assert rejection_threshold(np.linspace(0, 1, 70), np.zeros(70, bool), 0.05).threshold < math.inf

    def test_errors(self):
        with pytest.raises(ValueError, match="error = 0"):
            rejection_threshold([0.5], [True], 0.0)
        with pytest.raises(ValueError, match="assurance = 1"):
            rejection_threshold([0.5], [True], 0.1, 1.0)
        with pytest.raises(ValueError, match="wrong = 2: there are 1 confidences"):
            rejection_threshold([0.5], [True, False], 0.1)
