"""The sums over negatives compile for a GPU, also on a machine without one; needs Triton, without its interpreter.

The interpreter does not see how Triton specialises a launch: an integer argument that equals 1 becomes a constant of
the program. Here the launcher itself binds the arguments and compiles, but nothing is launched.
"""

import os
from itertools import pairwise

import pytest
import torch

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

from aleator.fused import (  # noqa: E402
    interpolant,
    leaky_layers,
    mean_share,
    mean_sigmoid,
    network_posteriors,
    outputs,
    pairs,
    sampled_cosines,
    sampling,
    series,
    softmax_share,
    totals,
)
from aleator.matching.interpolant import COSINE_NODES, Classes, Interpolant  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")


class H100:
    """What a launcher asks of a driver before it compiles."""

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return -1  # nothing that runs later finds these programs

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.fixture
def compiled(monkeypatch):
    """Names of the kernels that were compiled."""
    from triton.runtime import JITFunction, driver

    names = []

    def without_a_launch(kernel, grid):
        def compile_only(*arguments, **options):
            assert kernel.run(*arguments, grid=grid, warmup=True, **options).asm["ptx"]
            names.append(kernel.fn.__name__)

        return compile_only

    monkeypatch.setattr(JITFunction, "__getitem__", without_a_launch)
    monkeypatch.setattr(driver, "_active", H100())
    return names


def side(groups: int, count: int, dim: int, terms: int) -> totals.FusedRows:
    tables = (torch.zeros(terms, groups * count, dtype=torch.float64) for _ in range(3))
    rows = (torch.zeros(groups * count, dtype=torch.float64) for _ in range(3))
    return totals.FusedRows(torch.zeros(groups, count, dim), *tables, *rows)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("groups", "count", "others", "dim", "tail"), [(1, 32, None, 64, True), (1, 1, 1, 2, False), (3, 5, 1, 10, True)]
)
def test_every_launch_compiles(groups, count, others, dim, tail, weighted, compiled):
    terms, own = 6, others is None
    first = side(groups, count, dim, terms)
    second = first if own else side(groups, others, dim, terms)
    options = (own, torch.zeros(terms, dtype=torch.float64), (0.5, 2.0, 3.0, 1e-7, 1.0, tail), 1e-10)
    owner = torch.zeros(count, dtype=torch.int32) if weighted and own else None
    result, _ = totals.fused_log_totals(first.mu, first, second, *options, None, owner)
    totals.fused_log_totals_backward(result, result, result, first, second, *options, False, None, owner, weighted)
    if not own:
        totals.fused_log_totals_backward(result, result, result, second, first, *options, True, None, owner, weighted)
    assert set(compiled) == {"_rest_kernel", "_totals_kernel", "_splits_kernel", "_totals_backward_kernel"}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("count", "others", "dim", "tail"), [(70, None, 64, True), (65, 1, 3, False), (64, None, 300, True)]
)
def test_the_polynomials_compile(count, others, dim, tail, weighted, compiled):
    def classes(members: int, nodes: int) -> Classes:
        number = -(-members // 64)
        zeros = torch.zeros(number, dtype=torch.float64)
        return Classes(64, zeros, zeros, zeros[:, None].expand(-1, nodes + 1))

    own = others is None
    sides = [interpolant.sorted_side(torch.zeros(n, dim), torch.zeros(n).double()) for n in (count, others or count)]
    if weighted:
        sides = [x._replace(log_weights=torch.zeros(len(x.mu)), owner=torch.zeros(len(x.mu)).int()) for x in sides]
    rows, columns = classes(count, 8), classes(others or count, 4)
    flags = torch.zeros(len(rows.middle), len(columns.middle), dtype=torch.int32)
    coefficients = torch.zeros(
        COSINE_NODES + 1 + tail, len(rows.middle), 9, len(columns.middle), 5, dtype=torch.float64
    )
    polynomials = Interpolant(rows, columns, coefficients, flags.double(), flags.double(), flags, flags)
    options = (polynomials, own, 52.0, 14.0 if tail else 0.0)
    interpolant.fused_interpolated_totals(sides[0].mu, *sides, *options)
    numbers = torch.zeros(count)
    interpolant.fused_interpolated_backward(sides[0].mu, numbers, numbers, *sides, *options, False)
    assert set(compiled) == {
        "_halves_kernel",
        "_places_kernel",
        "_interpolated_kernel",
        "_splits_kernel",
        "_interpolated_backward_kernel",
    }


def test_rows_that_may_be_unused_compile(compiled):
    kappa, scale = torch.ones(20, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    series.fused_row_weights(4.0, kappa, scale, None, 40.0, 36, (0.1, 0.2), torch.zeros((), dtype=torch.int32))
    assert compiled == ["_rows_kernel"]


def test_pairs_compile(compiled):
    mu, numbers = torch.zeros(3, 5), torch.zeros(3, dtype=torch.float64)
    pairs.fused_pair_cosines(mu, mu)
    pairs.fused_pair_gradients(numbers, (numbers, numbers, numbers), mu, mu)
    assert compiled == ["_cosines_kernel", "_gradients_kernel"]


@pytest.mark.parametrize(
    ("dim", "anchors", "negatives"), [(10, 16, 32), (10, 64, 32), (2, 1, 1), (64, 40, 7), (3, 5, 40)]
)
def test_shared_negatives_compile(dim, anchors, negatives, compiled):
    z, shared = torch.zeros(3, 2 * anchors, dim), torch.zeros(3, 2, negatives, dim)
    to_positive = torch.zeros(3, 2 * anchors)
    for log_linear in ((20.0, 8.0, True), (20.0, 8.0, False)):
        _, total = softmax_share.fused_shared_log_softmax_share(to_positive, z, shared, log_linear)
        softmax_share.fused_shared_log_softmax_share_backward(to_positive, to_positive, z, shared, total, log_linear)
    assert {"_shared_kernel", "_shared_anchors_kernel"} <= set(compiled)
    assert ("_shared_negatives_kernel" in compiled) == (negatives > 32)


@pytest.mark.parametrize(("count", "inputs", "dim"), [(100, 10, 10), (1, 2, 2), (7, 100, 64)])
@pytest.mark.parametrize("kappa_of_mu", [False, True])
def test_networks_of_a_process_compile(count, inputs, dim, kappa_of_mu, compiled):
    sizes = [(inputs, 10), (10, 10), (10, dim), (dim if kappa_of_mu else inputs, 10), (10, 1)]
    layers = [(torch.zeros(out, into), torch.zeros(out)) for into, out in sizes]
    network_posteriors.fused_network_posteriors(
        torch.zeros(count, inputs), layers[:3], layers[3:], (1.0, 2.0), kappa_of_mu
    )
    assert compiled == ["_posterior_networks_kernel"]


@pytest.mark.parametrize(("count", "sizes"), [(100, (10, 10, 50, 50, 10)), (1, (2, 1)), (65, (64, 64, 3))])
@pytest.mark.parametrize("precise", [False, True])
def test_narrow_layers_compile(count, sizes, precise, compiled):
    x, row = torch.zeros(count, sizes[0]), torch.zeros(sum((i + 1) * o for i, o in pairwise(sizes)))
    output, hidden = leaky_layers.fused_leaky_layers(x, row, sizes, precise, True)
    leaky_layers.fused_leaky_layers_backward(output, x, row, output, hidden, sizes, precise, precise)
    leaky_layers.fused_leaky_layer_backward(output, output)
    assert compiled == ["_layers_kernel", "_layers_backward_kernel", "_leaky_kernel"]


@pytest.mark.parametrize(("samples", "batch", "dim"), [(512, 512, 10), (3, 1, 2)])
def test_another_layout_of_samples_compiles(samples, batch, dim, compiled):
    sampled_cosines._samples_last(torch.zeros(samples, batch, dim))
    assert compiled == ["_samples_last_kernel"]


@pytest.mark.parametrize("averaged", [1, 32])
@pytest.mark.parametrize(
    "share", [torch.zeros(512, 512), torch.zeros(512, 512).mT, torch.zeros(1, 1)], ids=["first", "last", "one"]
)
def test_mean_shares_compile(share, averaged, compiled):
    mean = mean_share.fused_log_mean_share(share, averaged)
    mean_share.fused_log_mean_share_backward(mean, share, mean, averaged)
    assert compiled == ["_mean_share_kernel", "_mean_share_backward_kernel"]


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize(
    "cosines",
    [torch.zeros(512, 512, 33), torch.zeros(512, 33, 512).permute(2, 0, 1), torch.zeros(1, 1, 1)],
    ids=["first", "last", "one"],
)
def test_mean_sigmoids_compile(cosines, learned, compiled):
    a = torch.ones(())
    mean = mean_sigmoid.fused_log_mean_sigmoid(cosines, a, a, 1)
    mean_sigmoid.fused_log_mean_sigmoid_backward(mean, cosines, a, a, mean, 1, learned)
    assert compiled == ["_mean_sigmoid_kernel", "_mean_sigmoid_backward_kernel"]


@pytest.mark.parametrize("dim", [1, 10, 1024])
def test_outputs_compile(dim, compiled):
    e, number = torch.zeros(5, 1, dim), torch.ones(())
    mu, norm = outputs.fused_directions(e, torch.zeros(dim), 1e-12, 1e18)
    outputs.fused_directions_backward(mu, norm, e, 1e-12, 1e18)
    outputs.fused_bounded_kappa(norm, number, number, 2.0, 3.0)
    assert compiled == ["_directions_kernel", "_directions_backward_kernel", "_kappa_kernel"]


@pytest.mark.parametrize("need_mu", [False, True])
def test_samples_compile(need_mu, compiled):
    z, mu, rows = torch.zeros(512, 3, 10), torch.zeros(3, 10), torch.zeros(3, 5, 4)
    slope = sampling.fused_sample(z, mu, rows, None if need_mu else rows, 0.0, 0.1)
    sampling.fused_sample_backward(z, z, mu, slope, need_mu)
    assert compiled == ["_sample_kernel", "_sample_backward_kernel"]


def test_numbers_of_rows_are_not_compiled_apart(compiled):
    """A kernel of rows is compiled once for one input, for a number that 16 divides, and for any other."""
    outputs._directions_kernel.device_caches.clear()  # of other tests
    for count in (7, 1, 32):
        outputs.fused_directions(torch.zeros(count, 10), torch.zeros(10), 1e-6, 1e6)
    kernels, *_ = outputs._directions_kernel.device_caches[-1]
    assert len(compiled) == 3
    assert len(kernels) == 1
