"""GPU version of data/network_posteriors.py: the true posteriors of a process, all layers in one kernel."""

from collections.abc import Sequence

from torch import Tensor

from aleator.fused.triton_helpers import leaky, linear_layer, on_its_own_device, tl, triton

_ROWS = 32  # inputs of a program


@on_its_own_device
def fused_network_posteriors(
    x: Tensor,
    mu_layers: Sequence[tuple[Tensor, Tensor]],
    kappa_layers: Sequence[tuple[Tensor, Tensor]],
    span: tuple[float, float],
    kappa_of_mu: bool,
) -> tuple[Tensor, Tensor]:
    """Directions (..., D) and kappas (...) of inputs x (..., I) in float32."""
    shape, inputs = x.shape[:-1], x.shape[-1]
    (first, _), (second, _), (third, _) = mu_layers
    dim = len(third)
    rows = x.reshape(-1, inputs).contiguous()
    mu, kappa = rows.new_empty(len(rows), dim), rows.new_empty(len(rows))
    tensors = [part.contiguous() for layer in (*mu_layers, *kappa_layers) for part in layer]
    hidden_kappa = len(kappa_layers[0][0])
    if len(rows):
        _posterior_networks_kernel[(triton.cdiv(len(rows), _ROWS),)](
            rows,
            *tensors,
            mu,
            kappa,
            len(rows),
            inputs,
            len(first),
            len(second),
            dim,
            hidden_kappa,
            span[0],
            span[1],
            kappa_of_mu,
            *(max(16, triton.next_power_of_2(n)) for n in (inputs, len(first), len(second), dim, hidden_kappa)),
            _ROWS,
        )
    return mu.view(*shape, dim), kappa.view(shape)


if triton is not None:

    @triton.jit
    def _posterior_networks_kernel(
        x_ptr, w1_ptr, b1_ptr, w2_ptr, b2_ptr, w3_ptr, b3_ptr, v1_ptr, c1_ptr, v2_ptr, c2_ptr, mu_ptr, kappa_ptr,
        count, inputs, units1, units2, dim, kappa_units, scale, shift, KAPPA_OF_MU: tl.constexpr,
        INPUTS: tl.constexpr, UNITS1: tl.constexpr, UNITS2: tl.constexpr, DIM: tl.constexpr,
        KAPPA_UNITS: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        """Each program: ROWS inputs. Weights w and biases b are those of mu, v and c those of kappa."""
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        live = row < count
        i, d = tl.arange(0, INPUTS), tl.arange(0, DIM)
        x = tl.load(x_ptr + row[:, None] * inputs + i[None, :], mask=live[:, None] & (i < inputs)[None, :], other=0.0)
        y = linear_layer(x, w1_ptr, b1_ptr, inputs, units1, INPUTS, UNITS1, "ieee")
        y = linear_layer(leaky(y, y), w2_ptr, b2_ptr, units1, units2, UNITS1, UNITS2, "ieee")
        y = linear_layer(leaky(y, y), w3_ptr, b3_ptr, units2, dim, UNITS2, DIM, "ieee")
        mu = y / tl.maximum(tl.sqrt(tl.sum(y * y, 1)), 1e-12)[:, None]
        tl.store(mu_ptr + row[:, None] * dim + d[None, :], mu, mask=live[:, None] & (d < dim)[None, :])
        if KAPPA_OF_MU:
            k = linear_layer(mu, v1_ptr, c1_ptr, dim, kappa_units, DIM, KAPPA_UNITS, "ieee")
        else:
            k = linear_layer(x, v1_ptr, c1_ptr, inputs, kappa_units, INPUTS, KAPPA_UNITS, "ieee")
        unit = tl.arange(0, KAPPA_UNITS)
        v2 = tl.load(v2_ptr + unit, mask=unit < kappa_units, other=0.0)
        u = tl.sum(leaky(k, k) * v2[None, :], 1) + tl.load(c2_ptr)
        softplus = tl.maximum(u, 0.0) + tl.log(1 + tl.exp(-tl.abs(u)))
        tl.store(kappa_ptr + row, tl.exp(scale * softplus + shift), mask=live)
