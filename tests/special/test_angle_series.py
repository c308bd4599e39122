"""The series of angles against quantiles and against the table."""

import numpy as np
import pytest
import torch
from scipy import special

from aleator.special import LEAST_DIM, AngleTable, angle_quantile, angle_series, angle_table

KAPPAS = torch.tensor([0.0, 0.5, 5.0, 30.0, 200.0, 5e3, 1e6])


def lengths(dim: int, tail: float) -> torch.Tensor:
    """Lengths sigma that hold all but `tail` of the mass on either side."""
    a = (dim - 1) / 2
    probability = np.concatenate([np.geomspace(tail, 0.5, 60), 1 - np.geomspace(tail, 0.5, 60)])
    return torch.as_tensor(np.sqrt(2 * special.gammaincinv(a, probability)))


@pytest.mark.parametrize("dim", [LEAST_DIM, 10, 17, 64, 512])
def test_angles_have_the_probability_of_their_noise(dim):
    sigma = lengths(dim, 1e-8)
    series = angle_series(dim, torch.device("cpu"))
    value, _ = series.rows(KAPPAS, False)
    theta = (series.angle(sigma.float()[:, None].expand(-1, len(KAPPAS)), value, None)[0] * sigma[:, None]).double()
    a = (dim - 1) / 2
    below, above = (torch.as_tensor(f(a, sigma.numpy() ** 2 / 2)) for f in (special.gammainc, special.gammaincc))
    shape = (len(sigma), len(KAPPAS))
    expected = angle_quantile(
        dim, KAPPAS.double().expand(shape), below[:, None].expand(shape), above[:, None].expand(shape)
    )
    torch.testing.assert_close(theta, expected, rtol=2e-6, atol=0)


@pytest.mark.parametrize("dim", [LEAST_DIM, 33])
def test_slopes_are_those_of_the_table(dim):
    sigma = lengths(dim, 1e-6).float()[:, None].expand(-1, len(KAPPAS))
    slopes = []
    for angles in (angle_series(dim, torch.device("cpu")), angle_table(dim, torch.float32, torch.device("cpu"))):
        slopes.append(angles.angle(sigma.clone(), *angles.rows(KAPPAS, True))[1])
        assert isinstance(angles, AngleTable) == (len(slopes) == 2)
    torch.testing.assert_close(*slopes, rtol=2e-4, atol=1e-9)


def test_beyond_the_interval_the_ratio_is_constant():
    series = angle_series(10, torch.device("cpu"))
    value, _ = series.rows(KAPPAS, False)
    ends = torch.tensor([series.middle - series.half, series.middle + series.half]).clamp_min(0).sqrt()
    beyond = torch.stack([ends[0] * 0.5, ends[1] * 1.5])[:, None].expand(-1, len(KAPPAS))
    at_end, _ = series.angle(ends[:, None].expand(-1, len(KAPPAS)), value, None)
    torch.testing.assert_close(series.angle(beyond, value, None)[0], at_end, rtol=1e-5, atol=0)


def test_nan_gives_nan():
    """As in training that has diverged. Its error names the step; it must not be hidden by one about an index."""
    for angles in (angle_series(10, torch.device("cpu")), angle_table(10, torch.float32, torch.device("cpu"))):
        sigma = torch.tensor([[1.0, float("nan")]]).T
        found = angles.angle(sigma, *angles.rows(torch.tensor([3.0]), True))
        assert [part[:, 0].isnan().tolist() for part in found] == [[False, True], [False, True]]
