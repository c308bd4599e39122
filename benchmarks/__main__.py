"""`python -m benchmarks` runs every benchmark, `python -m benchmarks core` one; results go to results/benchmarks/."""

import importlib
import os
import sys
from pathlib import Path

# Before torch is loaded: threads that wait by spinning stall each other wherever another process has a core.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

NAMES = (
    *("core", "training", "retrieval", "own_data_speed", "soft_targets", "audit"),
    *("startup", "ray_embedding", "billion"),
)


def main(arguments: list[str]) -> None:
    unknown = [name for name in arguments if name not in NAMES]
    if unknown:
        sys.exit(f"no benchmark {', '.join(unknown)}; choose from {', '.join(NAMES)}")
    for name in arguments or NAMES:
        if (Path(__file__).parent / f"{name}.py").exists():
            print(f"== {name}")
            importlib.import_module(f"benchmarks.{name}").main()


main(sys.argv[1:])
