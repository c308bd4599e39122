"""CUDA graphs: the same path as ordinary steps, and the reasons where there can be none."""

import pytest
import torch

from aleator.encoders.backbones import MLP
from aleator.encoders.encoder import Encoder
from aleator.losses import ExactInfoNCE
from aleator.matching.kernels import AcceptanceKernel, VMFKernel
from aleator.training.cuda_graph import CudaGraphStep
from aleator.training.loop import fit
from aleator.training.recipe import Recipe
from tests.training.training_cases import pairs


@pytest.mark.parametrize(
    ("loss", "refused"),
    [
        (lambda: ExactInfoNCE(VMFKernel(10.0, True)), True),
        (lambda: ExactInfoNCE(AcceptanceKernel(10.0, True), terms=16), True),
        (lambda: ExactInfoNCE(VMFKernel(10.0, True), terms=16), False),
        (lambda: ExactInfoNCE(VMFKernel(10.0)), False),
    ],
)
def test_a_graph_that_is_not_possible_says_why(loss, refused):
    encoder = Encoder(MLP(4, (8,)), 3)
    with pytest.raises(ValueError, match="not a GPU") as error:
        fit(encoder, loss(), pairs, Recipe(steps=2, capture=True), device="cpu")
    assert ("pass terms" in str(error.value)) == refused


@pytest.mark.gpu
def test_a_graph_takes_the_same_steps():
    def run(cuda_graph: bool) -> torch.Tensor:
        generator = torch.Generator("cuda")
        weight = torch.zeros(10, device="cuda", requires_grad=True)
        optimiser = torch.optim.Adam([weight], lr=torch.tensor(0.1, device="cuda"), capturable=True, fused=True)

        def step() -> torch.Tensor:
            x = torch.randn(10, generator=generator, device="cuda")
            loss = (weight - x).square().sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            return loss.detach()

        runner = CudaGraphStep(step, [generator]) if cuda_graph else step
        values = []
        for i in range(10):
            generator.manual_seed(1000 + i)
            values.append(runner().clone())
        return torch.stack([*values, weight.detach().sum()])

    torch.testing.assert_close(run(True), run(False))
