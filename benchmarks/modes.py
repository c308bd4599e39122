"""What several modes cost: a step of the exact loss, and of `fit`, with K modes beside one mode.

    python -m benchmarks.modes --device cuda --batch 4096

Prints one line for each K. A ratio is the median time divided by that of one mode, within one run. On a GPU the peak
memory of a loss with its gradients stands beside it.
"""

import argparse
import json
import statistics
import time

import torch

import aleator as al
from aleator.encoders import MLP


def median_seconds(step, device: torch.device, repeats: int) -> float:
    """Median time of a call, after three calls that are not counted."""
    times = []
    for i in range(repeats + 3):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if i >= 3:
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def peak_megabytes(step, device: torch.device) -> float:
    """Most memory that one call takes on a GPU, beside what is there already."""
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def measured(modes: int, batch: int, dim: int, device: torch.device, repeats: int) -> dict[str, float]:
    """Time of the loss with its gradients, and of a whole step with encoder and optimiser, in milliseconds."""
    torch.manual_seed(0)
    encoder = al.Encoder(MLP(64, (512, 512)), dim, modes=modes).to(device)
    loss = al.ExactInfoNCE(al.VMFKernel(20.0))
    x, y = (torch.randn(batch, 64, device=device) for _ in range(2))
    optimiser = torch.optim.Adam(encoder.parameters(), fused=device.type == "cuda")
    with torch.no_grad():
        q = encoder(torch.cat([x, y]))
    fixed = q.map_tensors(lambda tensor: tensor.detach().clone().requires_grad_())

    def loss_step() -> None:
        loss(*fixed.split((batch, batch))).backward()

    def whole_step() -> None:
        optimiser.zero_grad()
        loss(*encoder(torch.cat([x, y])).split((batch, batch))).backward()
        optimiser.step()

    steps = {"loss_ms": loss_step, "step_ms": whole_step}
    found = {name: 1e3 * median_seconds(step, device, repeats) for name, step in steps.items()}
    return found | ({"loss_peak_mb": peak_megabytes(loss_step, device)} if device.type == "cuda" else {})


def main() -> None:
    """Parse the arguments and print the lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--modes", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    device, first = torch.device(options.device), None
    for modes in options.modes:
        found = measured(modes, options.batch, options.dim, device, options.repeats)
        first = first or found
        line = {"modes": modes, "batch": options.batch, "dim": options.dim, **found}
        line |= {f"{name}_ratio": found[f"{name}_ms"] / first[f"{name}_ms"] for name in ("loss", "step")}
        print(json.dumps({k: round(v, 3) for k, v in line.items()}), flush=True)


if __name__ == "__main__":
    main()
