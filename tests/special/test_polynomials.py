"""Gegenbauer polynomials and the number of harmonics by degree."""

import math

import numpy as np
import pytest
import torch
from scipy import special

from aleator.special.polynomials import gegenbauer, harmonic_dimension, log_harmonic_dimensions, recurrence
from tests import reference


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


class TestGegenbauer:
    t = torch.linspace(-1, 1, 41, dtype=torch.float64)

    def test_circle_and_sphere(self):
        """D = 2: cos(n theta). D = 3: Legendre's polynomials. D = 4: Chebyshev's of the second kind, over n + 1."""
        degree = torch.arange(30)
        circle = torch.cos(degree[:, None] * torch.acos(self.t))
        torch.testing.assert_close(gegenbauer(2, 30, self.t), circle, rtol=0, atol=1e-13)
        legendre = np.stack([special.eval_legendre(n, self.t.numpy()) for n in range(30)])
        torch.testing.assert_close(gegenbauer(3, 30, self.t), torch.as_tensor(legendre), rtol=0, atol=1e-13)
        second = np.stack([special.eval_chebyu(n, self.t.numpy()) / (n + 1) for n in range(30)])
        torch.testing.assert_close(gegenbauer(4, 30, self.t), torch.as_tensor(second), rtol=0, atol=1e-13)

    @pytest.mark.parametrize("dim", [5, 10, 64, 1024])
    def test_any_dimension_against_scipy(self, dim):
        nu = dim / 2 - 1
        for n, ours in enumerate(gegenbauer(dim, 12, self.t)):
            expected = special.eval_gegenbauer(n, nu, self.t.numpy()) / special.eval_gegenbauer(n, nu, 1.0)
            torch.testing.assert_close(ours, torch.as_tensor(expected), rtol=1e-9, atol=1e-13)

    @pytest.mark.parametrize("dim", [2, 3, 10, 500])
    def test_bounded_parity_and_one(self, dim):
        P = gegenbauer(dim, 60, self.t)
        assert P.abs().max() <= 1 + 1e-12
        torch.testing.assert_close(P[:, -1], torch.ones(60, dtype=torch.float64))
        sign = (-1.0) ** torch.arange(60)
        torch.testing.assert_close(P.flip(1), sign[:, None] * P, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("dim", [3, 4, 7, 20])
    def test_orthogonality(self, dim):
        """int P_m P_n w / int w = delta_mn / dim_n, by Gauss-Jacobi quadrature, exact for these degrees."""
        nodes, weights = special.roots_jacobi(40, (dim - 3) / 2, (dim - 3) / 2)
        P = gegenbauer(dim, 15, torch.as_tensor(nodes)).numpy()
        gram = (P * (weights / weights.sum())) @ P.T
        expected = np.diag([1 / harmonic_dimension(dim, n) for n in range(15)])
        np.testing.assert_allclose(gram, expected, atol=1e-14)

    @pytest.mark.parametrize("dim", [3, 5, 10])
    def test_addition_theorem(self, dim):
        """E P_n(z.x) P_n(z.y) over uniform z is P_n(x.y) / dim_n: the reproducing property of the harmonics."""
        rng = np.random.default_rng(0)
        x, y = (v / np.linalg.norm(v) for v in rng.standard_normal((2, dim)))
        z = rng.standard_normal((200_000, dim))
        z /= np.linalg.norm(z, axis=1, keepdims=True)
        Px, Py = (gegenbauer(dim, 5, torch.as_tensor(z @ v)).numpy() for v in (x, y))
        Pxy = gegenbauer(dim, 5, double(x @ y))[:, 0].numpy()
        for n in range(1, 5):
            product = Px[n] * Py[n]
            error = product.std() / math.sqrt(len(z))
            assert abs(product.mean() - Pxy[n] / harmonic_dimension(dim, n)) <= reference.STANDARD_ERRORS * error

    def test_derivative_is_a_polynomial_of_two_dimensions_more(self):
        """P_n' = n (n+D-2)/(D-1) P_{n-1} in D + 2 dimensions: what the fused pass uses for its slope in the cosine."""
        t = self.t.clone().requires_grad_()
        for dim in (2, 3, 10, 100):
            for n in (1, 2, 7, 20):
                (slope,) = torch.autograd.grad(gegenbauer(dim, n + 1, t)[n].sum(), t)
                expected = n * (n + dim - 2) / (dim - 1) * gegenbauer(dim + 2, n, self.t)[n - 1]
                torch.testing.assert_close(slope, expected, rtol=1e-9, atol=1e-9)

    def test_recurrence_starts_cleanly(self):
        assert recurrence(2, 0) == recurrence(9, 0) == (1.0, 0.0)
        assert recurrence(3, 1) == (1.5, 0.5)
        assert recurrence(2, 5) == (2.0, 1.0)


class TestDimensions:
    def test_known_values(self):
        assert [harmonic_dimension(2, n) for n in range(5)] == [1, 2, 2, 2, 2]
        assert [harmonic_dimension(3, n) for n in range(5)] == [1, 3, 5, 7, 9]
        assert [harmonic_dimension(4, n) for n in range(5)] == [1, 4, 9, 16, 25]
        assert [harmonic_dimension(10, n) for n in range(4)] == [1, 10, 54, 210]

    @pytest.mark.parametrize("dim", [3, 4, 6, 50])
    def test_harmonics_of_all_degrees_span_the_polynomials(self, dim):
        """Homogeneous polynomials of degree n are the harmonics of degrees n, n-2, ...: their number is a binomial."""
        for n in range(12):
            total = sum(harmonic_dimension(dim, k) for k in range(n, -1, -2))
            assert total == math.comb(n + dim - 1, n)

    @pytest.mark.parametrize("dim", [2, 3, 64, 1024, 4096])
    def test_logarithms_have_all_their_digits(self, dim):
        logs = log_harmonic_dimensions(dim, 50)
        expected = double(*(math.log(harmonic_dimension(dim, n)) for n in range(50)))
        torch.testing.assert_close(logs, expected, rtol=4e-16, atol=0)
