"""How sharp posteriors a kernel's series resolves, and how many terms it needs."""

import math

import pytest
import torch

from aleator import AcceptanceKernel, VMFKernel, ZonalKernel
from aleator.matching import truncation
from aleator.special.bessel import log_ratios_and_slopes
from aleator.special.polynomials import log_harmonic_dimensions


def test_reach():
    for dim in (2, 10, 16, 1024):
        assert VMFKernel(200.0).reach(dim) == math.inf
    for dim in (2, 3, 8, 10, 16):
        assert AcceptanceKernel(20.0).reach(dim) == math.inf
    for dim in (2, 3, 10):
        assert ZonalKernel(lambda t: torch.exp(20 * t)).reach(dim) == math.inf
    assert 300 < AcceptanceKernel(20.0).reach(128) < 1e3
    # coefficients from quadrature resolve posteriors that are less sharp
    for dim in (16, 64, 256):
        assert 30 < AcceptanceKernel(20.0, requires_grad=True).reach(dim) < AcceptanceKernel(20.0).reach(dim)


@pytest.mark.parametrize("dim", [10, 64, 128])
def test_terms_of_sharp_posteriors(dim):
    """The series goes on where its coefficients are below the noise of quadrature, which is after 18 terms."""
    kernel = AcceptanceKernel(20.0)
    kappa = torch.tensor([min(kernel.reach(dim), 1e25)], dtype=torch.float64)
    count = kernel.terms(dim, 1e-10)
    log_lam, sign = kernel.log_abs_coefficients(dim, 3 * count)
    log_a = log_ratios_and_slopes(dim / 2 - 1, kappa, 3 * count)[0][0]
    terms = sign * torch.exp(log_harmonic_dimensions(dim, 3 * count) + log_lam + 2 * log_a)
    assert count > 60
    rounding = 1e-17 * terms.abs().sum()  # smaller than the rounding of the largest terms
    assert terms[count:].abs().sum() <= max(1e-10 * terms.sum(), rounding)
    assert kernel.terms(dim, 1e-10, 5.0, 30.0) < count / 2


@pytest.mark.parametrize("dim", [2, 10, 128])
def test_terms_bound_what_is_left_out(dim):
    for kernel in (VMFKernel(1.0), VMFKernel(20.0), VMFKernel(200.0)):
        few, many = kernel.terms(dim, 1e-6), kernel.terms(dim, 1e-12)
        assert 2 <= few < many
        all_terms = (log_harmonic_dimensions(dim, 3 * many) + kernel.coefficients(dim, 3 * many).log()).exp()
        assert all_terms[few:].sum() <= 1e-6 * all_terms.sum()
        assert all_terms[few - 1 :].sum() > 1e-6 * all_terms.sum()  # and not one term too many


def test_a_sharper_kernel_needs_more_terms():
    counts = [VMFKernel(k).terms(10, 1e-12) for k in (1.0, 5.0, 20.0, 100.0)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_searches_are_cached(monkeypatch):
    """A fixed kernel is searched once. A learned one is searched again only after kappa_pos has moved by a step."""
    searched = []
    find_terms = truncation.find_terms
    monkeypatch.setattr(truncation, "find_terms", lambda *args: searched.append(args) or find_terms(*args))
    fixed, learned = VMFKernel(5.125), VMFKernel(5.126, requires_grad=True)
    for kernel in (fixed, learned):
        for _ in range(3):
            kernel.terms(7, 1e-12)
    assert len(searched) == 2
    with torch.no_grad():
        learned.log_kappa_pos += 0.01
    learned.terms(7, 1e-12)
    assert len(searched) == 2
    with torch.no_grad():
        learned.log_kappa_pos += 1.0
    learned.terms(7, 1e-12)
    assert len(searched) == 3


def test_equal_kernels_share_what_is_found(monkeypatch):
    """An index decodes its kernel for every search: an equal kernel must not be searched again."""
    searched = []
    find_terms = truncation.find_terms
    monkeypatch.setattr(truncation, "find_terms", lambda *args: searched.append(args) or find_terms(*args))
    for kernel_type in (VMFKernel, AcceptanceKernel):
        searched.clear()
        first, again, other = kernel_type(3.127), kernel_type(3.127), kernel_type(3.128)
        assert first.terms(7, 1e-12) == again.terms(7, 1e-12)
        assert len(searched) == 1
        assert first.series(7, 9, torch.device("cpu"))[0] is again.series(7, 9, torch.device("cpu"))[0]
        assert not torch.equal(first.series(7, 9, torch.device("cpu"))[0], other.series(7, 9, torch.device("cpu"))[0])

    class Own(VMFKernel):  # it may differ in more than kappa_pos
        pass

    searched.clear()
    Own(3.127).terms(7, 1e-12), Own(3.127).terms(7, 1e-12)
    assert len(searched) == 2
