"""SOAP: what it is by definition (Adam in another basis), what it promises (rotations do not matter, a narrow valley is
no obstacle), and that it stops and goes on exactly."""

import copy

import pytest
import torch
from torch import nn

from aleator import Encoder, InfoNCE, Recipe, fit
from aleator.encoders.backbones import MLP
from aleator.training.optimisers import turn_bases
from aleator.training.soap import SOAP

NEVER = 10**9


def gradients(steps: int, *shape: int) -> list[torch.Tensor]:
    """Noise about a mean, correlated in rows and columns: no basis but their own makes its entries independent."""
    generator = torch.Generator().manual_seed(0)
    rows, columns = (torch.randn(n, n, generator=generator, dtype=torch.float64) for n in (shape[0], shape[-1]))
    mean = torch.randn(*shape, generator=generator, dtype=torch.float64)
    drawn = torch.randn(steps, *shape, generator=generator, dtype=torch.float64)
    return [mean + (rows @ one @ columns if len(shape) == 2 else one) for one in drawn]


def descend(optimiser, parameter, gradients):
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimiser.step()
    return parameter.detach()


def test_between_turns_it_is_adam_in_the_basis_of_the_first_gradient():
    first, *later = gradients(30, 4, 6)
    start = torch.randn(4, 6, dtype=torch.float64)
    weight = nn.Parameter(start.clone())
    weights = descend(SOAP([weight], lr=0.1, betas=(0.9, 0.99), every=NEVER), weight, [first, *later])
    left = torch.linalg.eigh(first @ first.T).eigenvectors
    right = torch.linalg.eigh(first.T @ first).eigenvectors
    turned = nn.Parameter(left.T @ start @ right)
    adam = torch.optim.Adam([turned], lr=0.1, betas=(0.9, 0.99))
    expected = left @ descend(adam, turned, [left.T @ one @ right for one in later]) @ right.T
    assert (weights - start).abs().max() > 0.1
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-5)  # steps are counted in float32


@pytest.mark.parametrize("shape", [(7,), (), (2, 3, 4)])
def test_what_is_no_matrix_is_left_to_adam(shape):
    first, *later = torch.randn(20, *shape, dtype=torch.float64)
    ours, theirs = (nn.Parameter(torch.ones(shape, dtype=torch.float64)) for _ in range(2))
    weights = descend(SOAP([ours], lr=0.1, betas=(0.9, 0.99), weight_decay=0.1), ours, [first, *later])
    expected = descend(torch.optim.AdamW([theirs], lr=0.1, betas=(0.9, 0.99), weight_decay=0.1), theirs, later)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-5)  # steps are counted in float32


def test_rotating_rows_and_columns_rotates_the_path():
    drawn = gradients(50, 5, 5)
    rows, columns = (torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64)).Q for _ in range(2))
    plain, turned = (nn.Parameter(torch.zeros(5, 5, dtype=torch.float64)) for _ in range(2))
    path = descend(SOAP([plain], lr=0.1, every=5), plain, drawn)
    rotated = descend(SOAP([turned], lr=0.1, every=5), turned, [rows @ one @ columns for one in drawn])
    torch.testing.assert_close(rotated, rows @ path @ columns)
    adam = nn.Parameter(torch.zeros(5, 5, dtype=torch.float64))
    adams = descend(torch.optim.Adam([adam], lr=0.1), adam, [rows @ one @ columns for one in drawn])
    assert (adams - rows @ path @ columns).abs().max() > 0.1, "the test can tell"


def test_the_bases_become_those_of_the_factors():
    weight = nn.Parameter(torch.zeros(4, 6, dtype=torch.float64))
    optimiser = SOAP([weight], lr=0.0, betas=(0.9, 0.999), every=1)
    descend(optimiser, weight, gradients(400, 4, 6))
    state = optimiser.state[weight]
    for side in ("left", "right"):
        basis = state[f"{side}_basis"]
        inside = basis.T @ state[side] @ basis
        torch.testing.assert_close(basis.T @ basis, torch.eye(len(basis), dtype=torch.float64))
        assert (inside - inside.diag().diag()).norm() < 0.02 * inside.norm()
        assert inside.diag().diff().max() < 1e-2 * inside.max()  # the largest first


def test_a_turn_moves_the_memory_with_the_basis():
    weight = nn.Parameter(torch.zeros(4, 6, dtype=torch.float64))
    optimiser = SOAP([weight], lr=0.1, every=NEVER)
    descend(optimiser, weight, gradients(30, 4, 6))
    state = optimiser.state[weight]

    def mean():
        return state["left_basis"] @ state["mean"] @ state["right_basis"].T

    before, basis, squares = mean(), state["left_basis"].clone(), state["square"].sum()
    optimiser.turn()
    assert (state["left_basis"] - basis).abs().max() > 0.01
    torch.testing.assert_close(mean(), before)
    torch.testing.assert_close(state["square"].sum(), squares)


def test_down_a_narrow_valley():
    """A quadratic in a matrix, a thousand times steeper in some rows and columns than in others, and turned."""
    scales = torch.logspace(0, -1.5, 8, dtype=torch.float64).diag()
    generator = torch.Generator().manual_seed(1)
    turns = [torch.linalg.qr(torch.randn(8, 8, generator=generator, dtype=torch.float64)).Q for _ in range(2)]
    rows, columns = (turn @ scales for turn in turns)

    def least(optimiser_class, steps=400):
        weight = nn.Parameter(torch.ones(8, 8, dtype=torch.float64))
        optimiser = optimiser_class([weight], lr=0.1)
        for step in range(steps):
            optimiser.param_groups[0]["lr"] = 0.1 * (1 - step / steps)
            optimiser.zero_grad()
            (rows.T @ weight @ columns).square().sum().backward()
            optimiser.step()
        return weight.detach().norm()

    assert least(SOAP) < 0.02 * least(torch.optim.Adam)


def test_a_large_side_has_no_basis(monkeypatch):
    monkeypatch.setattr("aleator.training.soap._LARGEST", 5)
    weight = nn.Parameter(torch.zeros(4, 6, dtype=torch.float64))
    optimiser = SOAP([weight], lr=0.1, every=2)
    descend(optimiser, weight, gradients(10, 4, 6))
    assert {"left", "left_basis"} < optimiser.state[weight].keys()
    assert not {"right", "right_basis"} & optimiser.state[weight].keys()
    assert weight.abs().min() > 0


def test_turning_from_outside_is_the_same():
    """A CUDA graph needs this."""
    drawn = gradients(21, 4, 6)
    own, outside = (nn.Parameter(torch.zeros(4, 6, dtype=torch.float64)) for _ in range(2))
    expected = descend(SOAP([own], lr=0.1, every=5), own, drawn)
    optimiser = SOAP([outside], lr=torch.tensor(0.1, dtype=torch.float64), every=5, capturable=True)
    for step, gradient in enumerate(drawn):
        descend(optimiser, outside, [gradient])
        turn_bases(optimiser, step)
    torch.testing.assert_close(outside.detach(), expected)


def test_parameters_without_a_gradient_stay():
    one, other = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.ones(2, 2))
    optimiser = SOAP([one, other], lr=0.1)
    descend(optimiser, one, [torch.eye(2)] * 3)
    assert (other == 1).all()
    assert one.abs().max() > 0


def test_parameters_together_move_as_each_would_alone():
    """Whatever their shapes, and though one of them gets its first gradient later."""
    shapes, late = [(4, 6), (4, 6), (6, 4), (1, 5), (5,), (4, 6)], 5
    drawn = [gradients(20, *shape) for shape in shapes]
    drawn[late] = drawn[late][:12]
    alone = []
    for shape, own in zip(shapes, drawn, strict=True):
        weight = nn.Parameter(torch.ones(shape, dtype=torch.float64))
        alone.append(descend(SOAP([weight], lr=0.1, every=NEVER, weight_decay=0.1), weight, own))
    weights = [nn.Parameter(torch.ones(shape, dtype=torch.float64)) for shape in shapes]
    together = SOAP(weights, lr=0.1, every=NEVER, weight_decay=0.1)
    for step in range(20):
        for weight, own in zip(weights, drawn, strict=True):
            weight.grad = own[step - 20 + len(own)].clone() if step >= 20 - len(own) else None
        together.step()
    for weight, expected in zip(weights, alone, strict=True):
        torch.testing.assert_close(weight.detach(), expected)


@pytest.mark.parametrize("options", [{"every": 0}, {"betas": (0.9, 1.0)}, {"betas": (-0.1, 0.9)}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        SOAP([nn.Parameter(torch.zeros(2, 2))], **options)


def test_a_closure_gives_the_loss():
    weight = nn.Parameter(torch.ones(2, 2))

    def closure():
        weight.grad = None
        loss = weight.square().sum()
        loss.backward()
        return loss

    optimiser = SOAP([weight], lr=0.1)
    losses = [optimiser.step(closure).item() for _ in range(3)]
    assert losses[0] == losses[1] == 4.0  # the first gradient chooses the bases
    assert losses[2] < 4.0


def batches(step, generator):
    x = torch.randn(16, 4, generator=generator)
    return x, x + 0.1 * torch.randn(16, 4, generator=generator)


def train(folder, steps, stop=None):
    torch.manual_seed(0)
    encoder = Encoder(MLP(4, (8, 8)), 3)
    recipe = Recipe(
        steps=steps, optimiser="soap", learning_rate=1e-2, optimiser_options={"every": 3}, checkpoint_every=5
    )

    def broken(step, generator):
        if step == stop:
            raise KeyboardInterrupt
        return batches(step, generator)

    result = fit(encoder, InfoNCE(10.0), broken, recipe, folder=folder, device="cpu", loggers=())
    return result, copy.deepcopy(encoder.state_dict())


def test_fit_with_soap_stops_and_goes_on_exactly(tmp_path):
    whole, expected = train(tmp_path / "whole", 22)
    assert whole.history[-1]["loss"] < 2.5  # log 16 = 2.77 is chance
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "broken", 22, stop=13)
    result, weights = train(tmp_path / "broken", 22)
    assert result.resumed_from == 10
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.mark.gpu
def test_a_cuda_graph_takes_the_same_path():
    paths = []
    for capture in (False, True):
        torch.manual_seed(0)
        encoder = Encoder(MLP(4, (32, 32)), 3).cuda()

        class Drawn:
            capturable, device = True, torch.device("cuda")

            def __call__(self, step, generator):
                x = torch.randn(16, 4, generator=generator, device="cuda")
                return x, x + 0.1 * torch.randn(16, 4, generator=generator, device="cuda")

        # More steps would make more of the rounding, which differs between the two.
        recipe = Recipe(steps=25, optimiser="soap", learning_rate=1e-3, capture=capture)
        fit(encoder, InfoNCE(10.0), Drawn(), recipe, device="cuda", loggers=())
        paths.append(torch.cat([parameter.flatten() for parameter in encoder.parameters()]))
    torch.testing.assert_close(*paths, rtol=1e-3, atol=1e-4)
