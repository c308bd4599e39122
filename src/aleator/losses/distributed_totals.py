r"""Sums over the anchors of all processes, without gathering them: blocks of anchors are passed round in a ring.

For each anchor

    total_i = log sum_{j != i} exp s(x_i, x_j).

Each process keeps its own anchors, and the blocks of anchors are passed round in a ring (as in Inf-CL, Cheng et al.
2024), so memory does not grow with the number of processes. A process compares its anchors with the block that it
holds, some rows at a time, and passes the block on.

The backward pass goes round once more and computes each part again. The gradient of a block travels with the block and
gathers what every process's loss adds to it, until it is back where the block came from. As for `gather_batch`, that is
the gradient of the sum of all processes' losses.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from aleator.foundation import Backward, Saved, matmul_precision, pass_on, process_count, with_gradient
from aleator.posteriors import PosteriorBatch

# log sum_j exp s(x_i, x_j) of some rows with a block, (rows,). The number is that of the first row in the block if the
# block holds the rows themselves, which are then left out of their own sums. Else it is None.
Part = Callable[[PosteriorBatch, PosteriorBatch, int | None], Tensor]

PAIRS = 2**24  # in one part, if it is a table
LARGEST_TABLE = 2**28  # pairs: a process alone compares more of them part by part


def log_totals_in_parts(anchor: PosteriorBatch, part: Part, rows: int, parameters: Iterable[Tensor]) -> Tensor:
    """Totals of the anchors of this process, (B,), float64.

    Args:
        anchor: Posteriors of this process, batch shape (B,); B is the same on every process.
        part: What one part adds. It may depend on the posteriors and the parameters, and on nothing else that has a
            gradient.
        rows: Anchors in one part.
        parameters: Learned parameters of `part`.

    Returns:
        Logarithms, with gradients in the anchors of all processes and in the parameters.
    """
    learned, like = [x for x in parameters if x.requires_grad], anchor.map_tensors(Tensor.detach)

    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        totals = torch.full((len(like),), -torch.inf, dtype=torch.float64, device=like.device)
        block = like
        for turn in range(process_count()):
            if turn > 0:
                (block,) = _pass_on(block)
            for place, first in _places(like, rows, turn):
                totals[place] = torch.logaddexp(totals[place], part(like[place], block, first).double())
        return totals, (totals,), lambda grad, totals: _gradients(grad, totals, like, part, rows, learned)

    return with_gradient(compute, *_tensors(anchor), *learned)


def _gradients(
    grad: Tensor, totals: Tensor, anchor: PosteriorBatch, part: Part, rows: int, learned: list[Tensor]
) -> list[Tensor | None]:
    """In the tensors of the anchors and in what is learned."""
    own = anchor.map_tensors(_leaf)
    of_own, of_learned = ([torch.zeros_like(x) for x in xs] for xs in (_tensors(own), learned))
    used = [False] * len(of_own)  # a loss may leave kappa out
    block, of_block = own, own.map_tensors(torch.zeros_like)  # a block, and its gradient beside it
    for turn in range(process_count()):
        inputs, outputs = [*_tensors(own), *learned], [*of_own, *of_learned]
        if turn > 0:
            block, of_block = _pass_on(block, of_block)
            block = block.map_tensors(_leaf)
            inputs, outputs = inputs + _tensors(block), outputs + _tensors(of_block)
        for place, first in _places(own, rows, turn):
            with torch.autocast(own.device.type, enabled=False), matmul_precision("highest"), torch.enable_grad():
                values = part(own[place], block, first)
            shares = grad[place] * torch.exp(values.detach().double() - totals[place])
            gradients = torch.autograd.grad(values, inputs, shares.to(values.dtype), allow_unused=True)
            used = [before or x is not None for before, x in zip(used, gradients, strict=False)]
            for output, gradient in zip(outputs, gradients, strict=True):
                if gradient is not None:
                    output += gradient
    if process_count() > 1:
        (home,) = _pass_on(of_block)
        of_own = [a + b for a, b in zip(of_own, _tensors(home), strict=True)]
    return [*(x if known else None for x, known in zip(of_own, used, strict=True)), *of_learned]


def _leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_()


def _places(like: PosteriorBatch, rows: int, turn: int) -> list[tuple[slice, int | None]]:
    """The parts of a block: their rows, and in the first turn, whose block is the process's own, the first of them."""
    if turn == 0 and len(like) == 1:  # nothing but the anchor itself
        return []
    return [(slice(i, i + rows), i if turn == 0 else None) for i in range(0, len(like), rows)]


def _tensors(q: PosteriorBatch) -> list[Tensor]:
    tensors: list[Tensor] = []
    q.map_tensors(lambda x: tensors.append(x) or x)  # type: ignore[func-returns-value]
    return tensors


def _pass_on(*posteriors: PosteriorBatch) -> list[PosteriorBatch]:
    """All tensors to the next process in one message; those of the process before, in the same shapes."""
    tensors = [x.detach() for q in posteriors for x in _tensors(q)]
    received = pass_on(torch.cat([x.flatten() for x in tensors])).split([x.numel() for x in tensors])
    pieces = iter(received)
    return [q.map_tensors(lambda x: next(pieces).view(x.shape)) for q in posteriors]
