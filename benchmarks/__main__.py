"""`python -m benchmarks` runs every benchmark, `python -m benchmarks core` one; results go to results/benchmarks/."""

import importlib
import sys
from pathlib import Path

NAMES = ("core", "training", "retrieval")


def main(arguments: list[str]) -> None:
    unknown = [name for name in arguments if name not in NAMES]
    if unknown:
        sys.exit(f"no benchmark {', '.join(unknown)}; choose from {', '.join(NAMES)}")
    for name in arguments or NAMES:
        if (Path(__file__).parent / f"{name}.py").exists():
            print(f"== {name}")
            importlib.import_module(f"benchmarks.{name}").main()


main(sys.argv[1:])
