"""How many paper-sized runs a GPU makes at the same time: steps per second of one run, and of several.

A run of the preset `paper` is many small kernels, so it leaves most of a GPU idle. Ways to fill it, each measured with
the real training loop on the preset's own setting:

- processes, with NVIDIA's MPS where it is installed (what `aleator reproduce` does) and without;
- several recorded CUDA graphs in one process, replayed on streams of their own.

`python -m benchmarks.concurrency [preset [steps [count ...]]]` prints a table for the preset `paper` or `corrected`. It
needs a GPU and takes about three minutes. With counts, it measures only so many processes at a time with MPS, about 20
seconds each.
"""

import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import torch

from aleator.data import GenerativeProcess
from aleator.experiments.controlled.published import corrected, published
from aleator.experiments.controlled.run import Setting, make_process, process_batches, run_seed
from aleator.experiments.settings import make_loss
from aleator.experiments.workers import shared_gpu
from aleator.training.cuda_graph import CudaGraphStep
from aleator.training.objective import Objective

PHASES = ("mu", "kappa")


def setting_of(preset: str, phase: str, steps: int) -> Setting:
    """The Ambiguous setting of a preset with one phase alone."""
    setting = published(steps=steps, log_every=max(1, steps // 8), checkpoint_every=None)
    if preset == "corrected":
        setting = corrected(setting)
    elif phase == "mu":
        setting = replace(setting, negatives=0)  # a rolled one, as `mu_phase_negatives` says
    recipe = {**setting.recipe, "phases": phase}
    return replace(setting, mu_phase_negatives=None, recipe=recipe, smoothing_steps=100, points=100)


def main(preset: str = "paper", steps: int = 4000, *counts: int) -> None:
    print(torch.cuda.get_device_name(), "MPS:", shutil.which("nvidia-cuda-mps-control"), flush=True)
    if counts:
        for count in counts:
            processes(preset, True, count, steps)
        return
    for phase in PHASES:
        profile(preset, phase)
    for phase in PHASES:
        for count in (1, 4, 8):
            together(preset, phase, count)
    rows: list[tuple[bool, int]] = [(False, 1), (False, 4)]
    if shutil.which("nvidia-cuda-mps-control"):
        rows += [(True, 1), (True, 4), (True, 8), (True, 14)]
    for shared, count in rows:
        processes(preset, shared, count, steps)


# Processes


def processes(preset: str, shared: bool, count: int, steps: int) -> None:
    """Runs in `count` processes; the rate over the time in which all of them train."""
    name = f"{count:2d} processes, {'MPS' if shared else 'no MPS'}"
    if not shared:
        return _processes(name, preset, count, steps)
    with shared_gpu("cuda"):
        _processes(name, preset, count, steps)
        print(f"{'':22s} servers of MPS: {_mps_servers() or 'none, so the processes took turns'}", flush=True)


def _mps_servers() -> str:
    """Numbers of the processes through which MPS shares the GPU."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        return ""
    asked = subprocess.run([control], input="get_server_list\n", check=False, capture_output=True, text=True)
    return " ".join(asked.stdout.split())


def _processes(name: str, preset: str, count: int, steps: int) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(count), context.Queue()
    workers = [context.Process(target=_work, args=(i, preset, steps, barrier, queue)) for i in range(count)]
    began = time.time()
    for worker in workers:
        worker.start()
    rates = [queue.get(timeout=300) for _ in workers]
    for worker in workers:
        worker.join()
    for k, phase in enumerate(PHASES):
        total = sum(rate[k] for rate in rates)
        print(f"{name:22s} {phase:6s} {total:9.0f} steps/s, {1e3 / total:.3f} ms a step of a run", flush=True)
    print(f"{'':22s} {time.time() - began:.0f} s in all", flush=True)


def _work(number: int, preset: str, steps: int, barrier: Any, queue: Any) -> None:
    torch.set_num_threads(1)
    rates = []
    try:
        for phase in PHASES:
            run_seed(replace(setting_of(preset, phase, 16), name="warm"), 4, "cuda")  # compile and fill caches
            barrier.wait(timeout=200)
            began = time.perf_counter()
            run_seed(setting_of(preset, phase, steps), 4, "cuda")
            torch.cuda.synchronize()
            rates.append(steps / (time.perf_counter() - began))
    except Exception as error:
        print("worker", number, repr(error), flush=True)
        barrier.abort()
        rates = [0.0, 0.0]
    queue.put(rates)


# Graphs of one process


def make_step(setting: Setting, process: GenerativeProcess) -> CudaGraphStep:
    """One step of a setting with one phase, as a graph."""
    from aleator.encoders import controlled_encoder

    phase = setting.recipe["phases"]
    encoder = controlled_encoder(setting.dim, kappa_widths=setting.kappa_widths).to("cuda")
    encoder.set_kappa_range(process.inputs(1000))
    for parameter in encoder.kappa_parameters() if phase == "mu" else encoder.mu_parameters():
        parameter.requires_grad_(False)
    objective = Objective(encoder, make_loss(setting), phase, setting.recipe["mu_negatives"])
    learning = [p for p in encoder.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(learning, lr=1e-4, fused=True, capturable=True)
    batches = process_batches(process, setting)

    def step() -> torch.Tensor:
        value = objective(batches(0, None))  # type: ignore[arg-type]
        value.backward()
        optimiser.step()
        optimiser.zero_grad()
        return value.detach()

    return CudaGraphStep(step)


def together(preset: str, phase: str, count: int, seconds: float = 3.0) -> None:
    """`count` graphs in one process, each replayed on its own stream."""
    setting = setting_of(preset, phase, 100)
    process = make_process(setting, 4, "cuda")
    torch.set_float32_matmul_precision("high")
    steps = [make_step(setting, process) for _ in range(count)]
    for step in steps:
        for _ in range(5):
            step()
    streams = [torch.cuda.Stream() for _ in steps]
    torch.cuda.synchronize()
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(20):
            for step, stream in zip(steps, streams, strict=True):
                with torch.cuda.stream(stream):
                    step()
        torch.cuda.synchronize()
        done += 20 * count
    rate = done / (time.perf_counter() - began)
    print(f"{count:2d} graphs, one process  {phase:6s} {rate:9.0f} steps/s, {1e3 / rate:.3f} ms a step", flush=True)


def profile(preset: str, phase: str) -> None:
    """Kernels of one step: how many, and how long they are busy."""
    from torch.profiler import ProfilerActivity

    setting = setting_of(preset, phase, 100)
    process = make_process(setting, 4, "cuda")
    torch.set_float32_matmul_precision("high")
    step = make_step(setting, process).step
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(10):
            step()
        torch.cuda.synchronize()
    rows = [row for row in trace.key_averages() if row.self_device_time_total > 0]
    busy, kernels = sum(row.self_device_time_total for row in rows) / 10, sum(row.count for row in rows) / 10
    print(f"{phase} phase: {kernels:.0f} kernels a step, busy for {busy / 1e3:.3f} ms", flush=True)
    for row in sorted(rows, key=lambda row: -row.self_device_time_total)[:14]:
        print(f"   {row.self_device_time_total / 10:8.1f} us  {row.count / 10:6.1f} x  {row.key[:90]}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(*sys.argv[1:2], *map(int, sys.argv[2:]))
