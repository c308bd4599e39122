"""The core beside its floor and beside the plain way: sampling, normalisers, and the table of expected positivities.

- a million samples at a thousand (mu, kappa), against the torch.randn call of that shape, which is the floor, and
  against a loop over scipy.stats.vonmises_fisher;
- the log-normaliser of a million kappas against one call of scipy's ive on the same array;
- pairwise r of 1024 x 1024 posteriors with its gradient, against the formula written out in PyTorch, with the memory
  of each.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from scipy import special, stats
from torch import Tensor

from aleator import VMFKernel, VonMisesFisher, pairwise_log_positivity
from aleator.foundation.files import write_json
from aleator.foundation.provenance import describe_run
from aleator.special.bessel import log_bessel_ratios
from aleator.special.polynomials import gegenbauer, log_harmonic_dimensions
from benchmarks.timing import interleaved, show

POSTERIORS, SAMPLES, KAPPAS, SIDE, KAPPA_POS = 1000, 1000, 1_000_000, 1024, 20.0


def main(folder: Path = Path("results/benchmarks")) -> None:
    began = time.time()
    rows = {
        "sampling": [sampling(dim) for dim in (10, 128)],
        "log-normaliser": [log_normaliser(dim) for dim in (3, 10, 128, 512, 1024)],
        "pairwise": pairwise(),
    }
    write_json(folder / "core.json", {"benchmark": "core", "provenance": describe_run(began, "cpu"), "rows": rows})


def posteriors(count: int, dim: int, low: float, high: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mu = torch.nn.functional.normalize(torch.randn(count, dim, generator=generator), dim=-1)
    return mu, low + (high - low) * torch.rand(count, generator=generator)


def sampling(dim: int) -> dict:
    mu, kappa = posteriors(POSTERIORS, dim, 1.0, 100.0)
    q = VonMisesFisher(mu, kappa)
    frozen = [stats.vonmises_fisher(m, k) for m, k in zip(_unit(mu), kappa.double().numpy(), strict=True)]
    seconds = interleaved(
        {
            "torch.randn, the floor": lambda: torch.randn(SAMPLES, POSTERIORS, dim),
            "ours": lambda: q.sample((SAMPLES,)),
        }
    )
    seconds |= interleaved({"loop over scipy": lambda: [f.rvs(SAMPLES) for f in frozen]}, repeats=1, warm_up=0)
    ratios = show(f"a million samples, D = {dim}", seconds, "torch.randn, the floor")
    return {"dim": dim, "seconds": seconds, "ratio to the floor": ratios}


def log_normaliser(dim: int) -> dict:
    kappa = torch.logspace(-2, 4, KAPPAS, dtype=torch.float64)
    mu = torch.zeros(dim, dtype=torch.float64)
    mu[0] = 1
    array, order = kappa.numpy(), dim / 2 - 1
    seconds = interleaved(
        {
            "ours": lambda: VonMisesFisher(mu, kappa, validate_args=False).log_normaliser,
            "scipy ive": lambda: special.ive(order, array),
        },
        repeats=5,
    )
    underflows = int((special.ive(order, array) == 0).sum())
    ratios = show(f"a million log-normalisers, D = {dim}; ive is 0 at {underflows} of them", seconds, "ours")
    return {"dim": dim, "seconds": seconds, "times faster": ratios["scipy ive"], "where ive underflows": underflows}


def pairwise() -> dict:
    seconds = interleaved({"ours": _ours(SIDE), "formula by formula": _formula(SIDE)}, repeats=5)
    ratios = show(f"pairwise r, {SIDE} x {SIDE}, value and gradient", seconds, "ours")
    memory = {name: _peak(name) for name in ("ours", "formula")}
    print("  peak memory beyond the inputs: " + ", ".join(f"{name} {mb:.0f} MB" for name, mb in memory.items()))
    return {"side": SIDE, "seconds": seconds, "ratios": ratios, "peak memory, MB": memory}


def _inputs(side: int) -> list[Tensor]:
    sides = (posteriors(side, 10, 16.0, 32.0, seed) for seed in (0, 1))
    return [x.requires_grad_() for pair in sides for x in pair]


def _ours(side: int):
    leaves = _inputs(side)

    def run() -> None:
        q1, q2 = VonMisesFisher(*leaves[:2], validate_args=False), VonMisesFisher(*leaves[2:], validate_args=False)
        pairwise_log_positivity(q1, q2, VMFKernel(KAPPA_POS)).sum().backward()

    return run


def _formula(side: int):
    """Equation (3) as it is written: every P_n of every pair is stored, and autograd keeps what it needs."""
    leaves, dim = _inputs(side), 10
    terms = VMFKernel(KAPPA_POS).terms(dim, 1e-10)

    def run() -> None:
        mu1, kappa1, mu2, kappa2 = leaves
        weight = log_harmonic_dimensions(dim, terms) + log_bessel_ratios(dim / 2 - 1, torch.tensor(KAPPA_POS), terms)
        log_a1, log_a2 = (log_bessel_ratios(dim / 2 - 1, kappa, terms) for kappa in (kappa1, kappa2))
        P = gegenbauer(dim, terms, mu1.double() @ mu2.double().T)
        r = torch.einsum("nt,mt,tnm->nm", (weight + log_a1).exp(), log_a2.exp(), P)
        r.clamp_min(1e-30).log().sum().backward()

    return run


def _peak(name: str) -> float:
    """Megabytes by which the largest resident size of a fresh process grows while it does the work."""
    command = [sys.executable, "-m", "benchmarks.core", name]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _grown(name: str) -> float:
    way = {"ours": _ours, "formula": _formula}[name]
    way(8)()  # tables and libraries
    work = way(SIDE)
    before = _largest_resident_size()
    work()
    return _largest_resident_size() - before


def _largest_resident_size() -> float:
    """Megabytes. Linux's own account: getrusage would count the parent process as well."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def _unit(mu: Tensor) -> np.ndarray:
    """scipy asks for unit length to 1e-12 or so."""
    return torch.nn.functional.normalize(mu.double(), dim=-1).numpy()


if __name__ == "__main__":
    print(json.dumps(_grown(sys.argv[1])))
