"""Functions with a gradient of their own that cannot be differentiated twice."""

import functools
from collections.abc import Callable
from typing import Any

import torch


def first_derivatives_only(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the backward pass of a `torch.autograd.Function` that has no second derivatives.

    torch's own `once_differentiable` raises in `backward()` of what was made with create_graph=True. It does not in
    `torch.autograd.grad` with named inputs, where second derivatives would be left out silently. So this raises as
    soon as create_graph=True is asked for.

    Args:
        backward: The backward pass.

    Returns:
        The same, with the check.

    Raises:
        RuntimeError: In a backward pass with create_graph=True.

    Examples:
        >>> import torch
        >>> class Cube(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x**3
        ...
        ...     @staticmethod
        ...     @first_derivatives_only
        ...     def backward(ctx, grad):
        ...         return 3 * grad * ctx.saved_tensors[0].square()
        >>> x = torch.tensor(2.0, requires_grad=True)
        >>> torch.autograd.grad(Cube.apply(x), x)
        (tensor(12.),)
    """

    @functools.wraps(backward)
    def checked(*arguments: Any) -> Any:
        if torch.is_grad_enabled():  # torch enables it for create_graph=True alone
            problem = "create_graph = True: what is differentiated here has no second derivatives"
            raise RuntimeError(f"{problem}; leave it out, or use a loss that has them: InfoNCE or ELK")
        return backward(*arguments)

    return checked
