"""What the exact loss costs as the batch grows: time and memory of loss and gradient, beside torch InfoNCE.

    python -m benchmarks.loss_scale                                  # two cores: B = 1,024 and 2,048
    python -m benchmarks.loss_scale --device cuda --out results/benchmarks/loss_scale.json

torch InfoNCE is written in two ways: a matrix product and `cross_entropy`, the fastest, and a matrix product, a
logsumexp and a difference, the usual one. Ratios to both compare medians of one run.
Before a size is timed, the loss and the gradients of some anchors are compared with brute force in float64. Sizes do
not depend on each other: a size that fails, for whatever reason, leaves its error in its row. Rows of an earlier run
with other sizes are kept.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from aleator import AcceptanceKernel, ExactInfoNCE, MCInfoNCE, VMFKernel, VonMisesFisher, log_positivity
from aleator.foundation.files import write_json
from aleator.foundation.provenance import describe_run
from aleator.losses import cuda_replay

KERNELS = {"vmf": VMFKernel, "acceptance": AcceptanceKernel}
RIVALS = ("infonce", "infonce, logsumexp")
SAMPLED = {"mc-16": 16, "mc-512": 512}
LOW, HIGH = 16.0, 128.0  # kappas, as in the controlled experiments
CHECKED = 8  # anchors that are compared with brute force


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", type=int, nargs="+", default=None)
    parser.add_argument("--dims", type=int, nargs="+", default=None)
    parser.add_argument("--ways", nargs="+", default=["vmf", "acceptance"], help="vmf, acceptance, mc-16, mc-512")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--skip-check", action="store_true")
    parser.add_argument("--graph", action="store_true", help="time a CUDA graph too")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--peak", nargs=4, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.peak:
        name, batch, dim, device = options.peak
        print(json.dumps(_grown(name, int(batch), int(dim), device)))
        return
    on_gpu = options.device != "cpu"
    sizes = options.sizes or ([1024, 4096, 16384, 65536] if on_gpu else [1024, 2048])
    began, rows = time.time(), _rows_so_far(options.out)
    for dim in options.dims or ([10, 64, 256] if on_gpu else [64]):
        for batch in sizes:
            plain: dict[str, float] = {}
            for name in (*RIVALS, *options.ways):
                row: dict = {"device": options.device, "way": name, "batch": batch, "dim": dim}
                try:
                    row |= _measure(name, batch, dim, options)
                    if name in RIVALS:
                        plain[name] = row["ms"]
                    row |= {f"times {rival}": row["ms"] / plain[rival] if rival in plain else None for rival in RIVALS}
                except Exception as error:  # also Triton's own, which are no RuntimeErrors
                    row["error"] = f"{type(error).__name__}: {str(error)[:300]}"
                print(_line(row), flush=True)
                rows = [r for r in rows if any(r[k] != row[k] for k in ("device", "way", "batch", "dim"))] + [row]
                if options.out:
                    provenance = describe_run(began, options.device)
                    write_json(options.out, {"benchmark": "loss_scale", "provenance": provenance, "rows": rows})
                if on_gpu:
                    torch.cuda.empty_cache()
    if options.out:
        figure(options.out)


def _measure(name: str, batch: int, dim: int, options: argparse.Namespace) -> dict:
    leaves = _leaves(batch, dim, options.device)
    row: dict = {}
    if name in KERNELS and not options.skip_check:
        row["error of loss"], row["error of gradients"] = _errors(name, leaves)
    step = _step(name, leaves)
    row["ms"] = _milliseconds(step, options.repeats, options.device)
    if options.graph and options.device != "cpu":
        row["ms in a graph"] = _graph_milliseconds(step, options.repeats)
    row["peak MB"] = _peak(name, batch, dim, options.device, step)
    return row


def _leaves(batch: int, dim: int, device: str) -> list[Tensor]:
    """mu and kappa of anchors, and of positives that are near them."""
    generator = torch.Generator().manual_seed(batch + dim)
    mu = torch.randn(batch, dim, generator=generator)
    near = F.normalize(mu, dim=-1) + 0.5 * torch.randn(batch, dim, generator=generator) / dim**0.5
    kappas = [LOW + (HIGH - LOW) * torch.rand(batch, generator=generator) for _ in range(2)]
    tensors = (F.normalize(mu, dim=-1), kappas[0], F.normalize(near, dim=-1), kappas[1])
    return [x.to(device).requires_grad_() for x in tensors]


def _step(name: str, leaves: list[Tensor]) -> Callable[[], None]:
    """Loss and gradient."""
    mu, kappa, near, near_kappa = leaves
    if name in RIVALS:

        def loss() -> Tensor:
            logits = (20.0 * mu) @ near.T
            if name == "infonce":
                return F.cross_entropy(logits, torch.arange(len(mu), device=mu.device))
            return (logits.logsumexp(1) - logits.diagonal()).mean()
    else:
        module = MCInfoNCE(VMFKernel(), SAMPLED[name]) if name in SAMPLED else ExactInfoNCE(KERNELS[name]())

        def loss() -> Tensor:
            anchor = VonMisesFisher(mu, kappa, validate_args=False)
            return module(anchor, VonMisesFisher(near, near_kappa, validate_args=False))

    def step() -> None:
        for leaf in leaves:
            leaf.grad = None
        loss().backward()

    return step


def _errors(name: str, leaves: list[Tensor]) -> tuple[float, float]:
    """Largest error of the loss of an anchor, and of the gradients beside the largest of their size."""
    mu, kappa, near, near_kappa = leaves
    kernel = KERNELS[name]()
    loss = ExactInfoNCE(kernel)
    anchor = VonMisesFisher(mu, kappa, validate_args=False)
    each = loss.per_anchor(anchor, VonMisesFisher(near, near_kappa, validate_args=False), None)
    gradients = torch.autograd.grad(each.mean(), leaves)
    with torch.no_grad():
        positive = VonMisesFisher(near.double(), near_kappa.double(), validate_args=False)
        double = VonMisesFisher(mu.double(), kappa.double(), validate_args=False)
        own = log_positivity(double, positive, kernel)
    at = torch.linspace(0, len(mu) - 1, CHECKED).long().to(mu.device)
    total = _brute_totals(double, kernel, at)
    expected = F.softplus(total - own[at])
    worst = (each[at] - expected).abs().max().item()

    # Gradients of these anchors: as anchors and as negatives of the others.
    weight = -torch.expm1(-each.detach().double()) / len(mu)  # share of the negatives
    totals = own + torch.log(torch.expm1(each.detach().double()))  # of the others, from their own loss
    totals[at] = total
    weight[at] = torch.sigmoid(total - own[at]) / len(mu)
    rows = [x.detach()[at].double().requires_grad_() for x in (mu, kappa)]
    some = VonMisesFisher(*rows, validate_args=False)
    table = log_positivity(some[:, None], double[None, :], kernel)
    shares = weight[at, None] * torch.exp(table - total[:, None]) + weight * torch.exp(table - totals)
    shares = shares.detach().scatter(1, at[:, None], 0.0)
    to_positive = log_positivity(some, positive[at], kernel)
    value = (shares * table).sum() - (weight[at] * to_positive).sum()
    errors = []
    for ours, exact in zip(gradients[:2], torch.autograd.grad(value, rows), strict=True):
        errors.append(((ours[at] - exact).abs().max() / exact.abs().max()).item())
    return worst, max(errors)


def _brute_totals(q: VonMisesFisher, kernel, at: Tensor) -> Tensor:
    with torch.no_grad():
        table = log_positivity(q[at][:, None], q[None, :], kernel)
        return table.scatter(1, at[:, None], -torch.inf).logsumexp(1)


def _milliseconds(step: Callable[[], object], repeats: int, device: str) -> float:
    step()
    step()
    times = []
    for _ in range(repeats):
        if device == "cpu":
            began = time.perf_counter()
            step()
            times.append(1e3 * (time.perf_counter() - began))
            continue
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def _graph_milliseconds(step: Callable[[], None], repeats: int) -> float:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return _milliseconds(graph.replay, repeats, "cuda")


def _peak(name: str, batch: int, dim: int, device: str, step: Callable[[], object]) -> float:
    """Megabytes beyond the inputs, on a GPU with the recording of the loss (losses/cuda_replay.py)."""
    if device != "cpu":
        cuda_replay.forget_recordings()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(cuda_replay.ORDINARY + 2):
            step()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    command = [sys.executable, "-m", "benchmarks.loss_scale", "--peak", name, str(batch), str(dim), device]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _grown(name: str, batch: int, dim: int, device: str) -> float:
    """By how much the largest resident size of this fresh process grows."""

    def largest() -> float:
        return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024

    _step(name, _leaves(64, dim, device))()  # tables and libraries
    step = _step(name, _leaves(batch, dim, device))
    before = largest()
    step()
    return largest() - before


def figure(path: Path) -> None:
    """Time and memory against the batch at D = 64, from the rows in `path`, beside it as .png."""
    from matplotlib.figure import Figure

    rows = [row for row in _rows_so_far(path) if row["dim"] == 64]
    drawing = Figure(figsize=(9.6, 3.2), layout="constrained", dpi=150)
    for axis, measured, label in zip(
        drawing.subplots(1, 2), ("ms", "peak MB"), ("ms, loss and gradient", "MB"), strict=True
    ):
        for way in dict.fromkeys(row["way"] for row in rows):
            points = sorted((row["batch"], row[measured]) for row in rows if row["way"] == way and measured in row)
            if points:
                axis.plot(*zip(*points, strict=True), "o-", label=way)
        axis.set(xscale="log", yscale="log", xlabel="batch", ylabel=label)
        axis.set_xticks(sorted({row["batch"] for row in rows}), minor=False)
        axis.set_xticks([], minor=True)
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.tick_params(axis="x", rotation=30)
        axis.spines[["top", "right"]].set_visible(False)
    drawing.legend(*drawing.axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    drawing.savefig(path.with_suffix(".png"))


def _rows_so_far(path: Path | None) -> list[dict]:
    return json.loads(path.read_text())["rows"] if path is not None and path.exists() else []


def _line(row: dict) -> str:
    shown = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items() if k != "device"}
    return "  ".join(f"{k}={v}" for k, v in shown.items())


if __name__ == "__main__":
    main()
