"""A whole training step of the controlled experiment, pairs included, against what the published code does per step.

The paper's Ambiguous setting: D = 10, batch 512, kappa in [16, 32], kappa_pos = 20, its encoder. On a GPU: MCInfoNCE
with 512 samples, in its mu phase (one rolled negative) and its kappa phase (32 negatives, each anchor's own or shared
by 16), and ExactInfoNCE with the 511 other anchors. On a CPU: loss and gradient of the two.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from aleator import ExactInfoNCE, MCInfoNCE, VMFKernel, VonMisesFisher
from aleator.data.generative import GenerativeProcess
from aleator.encoders import controlled_encoder
from aleator.foundation.files import write_json
from aleator.foundation.provenance import describe_run
from aleator.training.cuda_graph import CudaGraphStep
from aleator.training.objective import Objective
from benchmarks import published_step

BATCH, DIM, SAMPLES, NEGATIVES, KAPPA_POS = 512, 10, 512, 32, 20.0


def main(folder: Path = Path("results/benchmarks")) -> None:
    began = time.time()
    name, measure = ("training-gpu", gpu) if torch.cuda.is_available() else ("training-cpu", cpu)
    rows = measure()
    write_json(folder / f"{name}.json", {"benchmark": name, "provenance": describe_run(began), "rows": rows})


def gpu() -> dict:
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda")
    process = GenerativeProcess(DIM, seed=4, device=device, smoothing_steps=500)
    rows = {}
    monte_carlo = MCInfoNCE(VMFKernel(KAPPA_POS), SAMPLES)
    exact = ExactInfoNCE(VMFKernel(KAPPA_POS))
    # The kernel that really accepted the pairs has a longer series; what kappa <= 128 needs of it is counted once.
    matched = ExactInfoNCE(process.kernel, process.kernel.terms(DIM, 1e-10, 128.0, 128.0))
    for name, loss, part, negatives, group in (
        ("MCInfoNCE, mu phase", monte_carlo, "mu", 0, 1),
        ("MCInfoNCE, kappa phase", monte_carlo, "kappa", NEGATIVES, 1),
        ("MCInfoNCE, kappa phase, negatives shared by 16", monte_carlo, "kappa", NEGATIVES, 16),
        ("ExactInfoNCE, 511 in-batch negatives", exact, "joint", 0, 1),
        ("ExactInfoNCE, matched kernel", matched, "joint", 0, 1),
    ):
        for label, captured in (("graph", True), ("eager", False)):
            _report(rows, f"{name}, {label}", _our_step(process, loss, part, negatives, group, captured), 50)
    for name, part, negatives in (("mu phase", "mu", 0), ("kappa phase", "kappa", NEGATIVES)):
        _report(rows, f"published way, {name}", _published_step(process, part, negatives), 5)
    for phase in ("mu phase", "kappa phase"):
        ours, theirs = rows[f"MCInfoNCE, {phase}, graph"]["ms"], rows[f"published way, {phase}"]["ms"]
        print(f"{phase}: {theirs / ours:.0f} times faster")
    return rows


def cpu() -> dict:
    """Loss and gradient on two cores: the exact loss with 511 negatives against 512 samples with 32."""
    torch.manual_seed(0)

    def posteriors(*shape: int) -> VonMisesFisher:
        mu = torch.nn.functional.normalize(torch.randn(*shape, DIM), dim=-1).requires_grad_()
        return VonMisesFisher(mu, torch.empty(shape).uniform_(16, 32).requires_grad_(), validate_args=False)

    anchor, positive, negative = posteriors(BATCH), posteriors(BATCH), posteriors(BATCH, NEGATIVES)
    exact, monte_carlo = ExactInfoNCE(VMFKernel(KAPPA_POS)), MCInfoNCE(VMFKernel(KAPPA_POS), SAMPLES)
    seconds: dict[str, list[float]] = {"exact": [], "monte carlo": []}
    for i in range(4):
        for name, run in (
            ("exact", lambda: exact(anchor, positive).backward()),
            ("monte carlo", lambda: monte_carlo(anchor, positive, negative).backward()),
        ):
            began = time.perf_counter()
            run()
            if i:
                seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = medians["monte carlo"] / medians["exact"]
    print(
        f"exact {medians['exact'] * 1e3:.0f} ms, Monte Carlo {medians['monte carlo'] * 1e3:.0f} ms: {ratio:.1f} times"
    )
    return {"seconds": medians, "ratio": ratio}


def _our_step(
    process: GenerativeProcess, loss, part: str, negatives: int, group: int, captured: bool
) -> Callable[[], torch.Tensor]:
    encoder = controlled_encoder(DIM).to(process.device)
    encoder.set_kappa_range(process.inputs(1000))
    _freeze(encoder, part)
    objective = Objective(encoder, loss, part, "rolled")
    learning = [p for p in encoder.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(learning, lr=1e-4, fused=True, capturable=captured)
    batches = process.batches(BATCH, negatives, group=group)

    def step() -> torch.Tensor:
        value = objective(batches())
        value.backward()
        optimiser.step()
        optimiser.zero_grad()
        return value.detach()

    return CudaGraphStep(step) if captured else step


def _published_step(process: GenerativeProcess, part: str, negatives: int) -> Callable[[], torch.Tensor]:
    encoder = controlled_encoder(DIM).to(process.device)
    encoder.set_kappa_range(process.inputs(1000))
    _freeze(encoder, part)
    optimiser = torch.optim.Adam([p for p in encoder.parameters() if p.requires_grad], lr=1e-4)

    def step() -> torch.Tensor:
        x, positive = published_step.draw_pairs(process, BATCH)
        negative = process.inputs(BATCH, negatives) if negatives else None
        value = published_step.loss(encoder, x, positive, negative, SAMPLES, KAPPA_POS)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        return value.detach()

    return step


def _freeze(encoder, part: str) -> None:
    held = {"mu": encoder.kappa_parameters(), "kappa": encoder.mu_parameters(), "joint": []}[part]
    for parameter in held:
        parameter.requires_grad_(False)


def _report(rows: dict, name: str, step: Callable[[], torch.Tensor], repeats: int) -> None:
    rows[name] = row = _measure_gpu(step, repeats)
    print(f"{name:45s} {row['ms']:9.3f} ms   {row['peak_gb']:6.3f} GB", flush=True)


def _measure_gpu(step: Callable[[], torch.Tensor], repeats: int) -> dict[str, float]:
    """Median milliseconds of a step, by device events, and the peak of allocated memory over all of them."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    peak = (torch.cuda.max_memory_allocated() - before) / 1e9
    return {"ms": statistics.median(times), "peak_gb": peak}


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
