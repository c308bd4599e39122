"""One way to give a function a gradient of its own."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result", Tensor, tuple[Tensor, ...])
Saved = tuple[Tensor | None, ...]
# Gradients of the results, then what was saved -> gradients of the inputs; None for one without.
Backward = Callable[..., Sequence[Tensor | None]]


def with_gradient(
    compute: Callable[[Sequence[bool]], tuple[Result, Saved, Backward]],
    *inputs: Tensor | None,
    differentiable_again: bool = False,
) -> Result:
    """The results of a function that knows its gradient, with this gradient in the inputs.

    Args:
        compute: Called without a graph, with a flag for each input: whether its gradient is needed. It returns the
            result or results; the tensors that the backward pass needs; and the backward pass, a function of the
            gradients of the results and of the saved tensors. That function should hold no large tensor by itself:
            saved tensors are freed after the backward pass.
        *inputs: Tensors that get gradients. None stands for an input that is left out.
        differentiable_again: Whether the backward pass is made of differentiable functions of saved inputs. Otherwise
            create_graph=True is refused. torch's own `once_differentiable` raises in `backward()` alone; with
            `torch.autograd.grad` and named inputs, second derivatives would be left out silently.

    Returns:
        What `compute` returns first.

    Raises:
        RuntimeError: In a backward pass with create_graph=True, unless `differentiable_again`.

    Examples:
        >>> import torch
        >>> from aleator.foundation import with_gradient
        >>> def cube(x):
        ...     def compute(needed):
        ...         return x**3, (x,), lambda grad, x: (3 * grad * x.square(),)
        ...     return with_gradient(compute, x)
        >>> x = torch.tensor(2.0, requires_grad=True)
        >>> torch.autograd.grad(cube(x), x)
        (tensor(12.),)
    """
    return _WithGradient.apply(compute, differentiable_again, *inputs)


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, compute: Any, differentiable_again: bool, *inputs: Tensor | None) -> Any:
        result, saved, ctx.gradients_of_inputs = compute(ctx.needs_input_grad[2:])
        ctx.save_for_backward(*saved)
        ctx.differentiable_again = differentiable_again
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        if torch.is_grad_enabled() and not ctx.differentiable_again:  # torch enables it for create_graph=True alone
            problem = "create_graph = True: what is differentiated here has no second derivatives"
            raise RuntimeError(f"{problem}; leave it out, or use a loss that has them: InfoNCE or ELK")
        return None, None, *ctx.gradients_of_inputs(*grads, *ctx.saved_tensors)
