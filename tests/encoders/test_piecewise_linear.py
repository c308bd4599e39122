"""Features in bins: the shares against a slow twin, what happens outside of the sample, and what they are for."""

import pytest
import torch

from aleator.encoders import Chain, Encoder, Features, PiecewiseLinear, load_encoder


def columns(count: int = 300) -> torch.Tensor:
    """Columns of several kinds: normal, heavy tails, counts, two values, one value, a tiny unit."""
    g = torch.Generator().manual_seed(0)
    normal = torch.randn(count, 4, generator=g, dtype=torch.float64)
    kinds = [
        normal[:, 0],
        normal[:, 1].exp() ** 3,
        (3 * normal[:, 2]).abs().round(),
        (normal[:, 3] > 1.5).double(),
        torch.full((count,), 7.0, dtype=torch.float64),
        1e-12 * normal[:, 3],
    ]
    return torch.stack(kinds, 1)


def slow_edges(column: torch.Tensor, bins: int) -> list[float]:
    values = sorted(column.tolist())
    values = sorted(set(values)) if len(set(values)) <= 4 * bins else values
    edges = []
    for t in range(bins + 1):
        place = t / bins * (len(values) - 1)
        below = min(int(place), len(values) - 2) if len(values) > 1 else 0
        above = min(below + 1, len(values) - 1)
        edges.append(values[below] + (place - below) * (values[above] - values[below]))
    return sorted(set(edges))


@pytest.mark.parametrize("bins", [1, 3, 8])
def test_the_shares_are_those_of_the_bins(bins):
    sample = columns().float().double()
    layer = PiecewiseLinear(6, bins).double().fit(sample)
    x = torch.cat([sample[:20], 3 * sample[20:40], -sample[40:60]])
    shares = layer.shares(x).unflatten(1, (6, bins))
    for j in range(6):
        edges = slow_edges(sample[:, j], bins)
        for i in range(len(x)):
            for t in range(bins):
                if t >= len(edges) - 1:
                    expected = 0.0
                else:
                    expected = min(1.0, max(0.0, (float(x[i, j]) - edges[t]) / (edges[t + 1] - edges[t])))
                assert abs(float(shares[i, j, t]) - expected) < 1e-7


def test_the_bins_are_filled_one_after_the_other():
    layer = PiecewiseLinear(1, 5).fit(columns()[:, :1].float())
    x = torch.linspace(-6, 6, 500).unsqueeze(1)
    shares = layer.shares(x)
    assert (shares.diff(dim=0) >= 0).all()  # in x
    assert (shares.diff(dim=1) <= 0).all()  # a bin begins when the one below it is full
    assert ((shares > 0) & (shares < 1)).sum(1).max() == 1


def test_outside_of_the_sample_a_value_counts_like_the_nearest_inside():
    sample = columns().float()
    layer = PiecewiseLinear(6).fit(sample)
    far = torch.full((1, 6), 1e30)
    assert torch.equal(layer(far), layer(sample.max(0, keepdim=True).values))
    assert torch.equal(layer(-far), layer(sample.min(0, keepdim=True).values))
    assert torch.equal(layer(torch.full((1, 6), torch.inf)), layer(far))


def test_a_number_that_is_far_too_large_leaves_the_bins_of_the_others():
    sample = columns().float()[:, :1]
    spoilt = torch.cat([sample, torch.tensor([[1e30]])])
    shares, expected = (PiecewiseLinear(1).fit(rows).shares(sample) for rows in (spoilt, sample))
    torch.testing.assert_close(shares[:, :7], expected[:, :7], atol=0.1, rtol=0)  # the last bin ends there now


def test_the_output_is_centred_and_of_ordinary_size():
    sample = columns().float()
    out = PiecewiseLinear(6).fit(sample)(sample).unflatten(1, (6, 8))
    torch.testing.assert_close(out.mean(0), torch.zeros(6, 8), atol=1e-5, rtol=0)
    assert (out.std(0, correction=0) <= 1 + 1e-5).all()
    torch.testing.assert_close(out[:, 0, 1:-1].std(0, correction=0), torch.ones(6), atol=1e-4, rtol=0)
    assert out.abs().max() <= 1 / 0.3
    assert (out[:, 4] == 0).all()  # one value


def test_the_unit_of_a_column_does_not_matter():
    sample = columns()[:, [0, 5]].float()
    layer, other = (PiecewiseLinear(2).fit(sample * unit)(sample * unit) for unit in (1.0, 2.0**20))
    assert torch.equal(layer, other)


def test_a_step_is_a_weight():
    """What a linear layer cannot learn of a number, it learns of its bins."""
    x = torch.rand(2000, 1, generator=torch.Generator().manual_seed(0))
    steps = ((8 * x) % 2 < 1).float()  # four stripes

    def error(features: torch.Tensor) -> float:
        features = torch.cat([features, torch.ones(len(x), 1)], 1)
        return float((features @ torch.linalg.lstsq(features, steps).solution - steps).square().mean())

    assert error(x) > 0.2  # the variance of the stripes is 0.25
    assert error(PiecewiseLinear(1, 64).fit(x)(x)) < 0.03


def test_its_slope():
    layer = PiecewiseLinear(6).double().fit(columns())
    inside = columns(7) * 0.9 + 0.013  # on no edge
    inside[:, 5] = 1e-3  # far outside: in its unit, finite differences have no digits
    assert torch.autograd.gradcheck(layer, inside.requires_grad_())


def test_fitting_again_forgets_the_first_sample():
    sample = columns().float()
    again = PiecewiseLinear(6).fit(sample).fit(sample[:, [4, 3, 2, 1, 0, 5]])
    assert torch.equal(again(sample), PiecewiseLinear(6).fit(sample[:, [4, 3, 2, 1, 0, 5]])(sample))


def test_it_is_saved_with_its_bins(tmp_path):
    sample = columns().float()
    encoder = Encoder(Chain([Features(6), PiecewiseLinear(6, 3).fit(sample)]), 4).eval()
    encoder.save(tmp_path / "model")
    assert torch.equal(load_encoder(tmp_path / "model")(sample).mu, encoder(sample).mu)


@pytest.mark.parametrize("shape", [(5, 1), (5, 4), (3,), (0, 3)])
def test_refuses_a_sample_of_another_shape(shape):
    with pytest.raises(ValueError, match=r"sample = .*is not the shape of features; pass features \(N, 3\)"):
        PiecewiseLinear(3).fit(torch.zeros(shape))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_refuses_a_sample_that_is_not_finite(value):
    with pytest.raises(ValueError, match="sample = 'NaN or inf': not a finite number"):
        PiecewiseLinear(1).fit(torch.tensor([[1.0], [value]]))


@pytest.mark.parametrize(("arguments", "name"), [((0, 8), "features"), ((3, 0), "bins")])
def test_refuses_no_features_and_no_bins(arguments, name):
    with pytest.raises(ValueError, match=name):
        PiecewiseLinear(*arguments)
