"""Which tiles and warps are fastest for the sums with polynomials on this GPU: milliseconds of loss and gradient.

    python -m benchmarks.loss_scale_tuning

Each line is one choice of fused/interpolant.py's constants FORWARD and BACKWARD, with the others as they are. The first
lines say from which batch size on the polynomials are faster than the series.
"""

import argparse

from aleator.fused import interpolant
from aleator.matching import ways
from benchmarks.loss_scale import _graph_milliseconds, _leaves, _milliseconds, _step

CHOICES = [(64, 32, 4), (64, 32, 8), (64, 64, 4), (64, 64, 8), (64, 16, 4), (64, 128, 8)]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=16384)
    parser.add_argument("--dim", type=int, default=64)
    options = parser.parse_args(arguments)
    for batch in (1024, 2048, 4096, 8192):
        for least in (1, 2**62):
            ways.GPU_PAIRS_OF_GRID = least
            for way in ("vmf", "acceptance"):
                _report(f"{'polynomials' if least == 1 else 'series'} batch={batch}", way, batch, options)
    ways.GPU_PAIRS_OF_GRID = 1
    for constants in (interpolant.FORWARD, interpolant.BACKWARD):
        usual = dict(constants)
        name = "FORWARD" if constants is interpolant.FORWARD else "BACKWARD"
        for rows, columns, warps in CHOICES:
            constants.update(ROWS=rows, COLUMNS=columns, num_warps=warps)
            _report(f"{name} rows={rows} columns={columns} warps={warps}", "vmf", options.batch, options)
        constants.update(usual)


def _report(what: str, way: str, batch: int, options: argparse.Namespace) -> None:
    try:
        step = _step(way, _leaves(batch, options.dim, options.device))
        eager = _milliseconds(step, 5, options.device)
        print(f"{what}  {way}  ms={eager:.3f}  in a graph={_graph_milliseconds(step, 5):.3f}", flush=True)
    except Exception as error:  # some choices need more shared memory than there is
        print(f"{what}  {way}  {type(error).__name__}: {str(error)[:120]}", flush=True)


if __name__ == "__main__":
    main()
