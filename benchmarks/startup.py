"""How long commands take to start, beside Python alone and `import torch`.

    python -m benchmarks startup

`aleator --help` loads no heavy library. `aleator rank` needs torch, so its floor is `import torch`.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from aleator.foundation import describe_run, write_json
from benchmarks.timing import interleaved, show


def main(path: Path = Path("results/benchmarks/startup.json")) -> None:
    """Measure, print and write the times."""
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "items.safetensors"
        mu = torch.nn.functional.normalize(torch.randn(1000, 16), dim=1)
        save_file({"mu": mu, "kappa": torch.rand(1000)}, file)
        ways = {
            "python": ["-c", "pass"],
            "import torch": ["-c", "import torch"],
            "aleator --help": ["-m", "aleator", "--help"],
            "aleator rank --help": ["-m", "aleator", "rank", "--help"],
            "aleator rank": ["-m", "aleator", "rank", str(file)],
        }
        seconds = interleaved({name: _start(arguments) for name, arguments in ways.items()}, repeats=5)
    ratios = show("start-up", seconds, "import torch")
    write_json(path, {"provenance": describe_run(began, "cpu"), "seconds": seconds, "ratios": ratios})


def _start(arguments: list[str]):
    return lambda: subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
