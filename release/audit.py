"""Ask whether the pinned packages have known weaknesses, with pip-audit.

    python release/audit.py

pip-audit asks a service on the network (pypi.org). Where it is not installed, or the service does not answer, this says
so and ends with status 2, which is not "nothing was found". Status 1: weaknesses were found. Status 0: none is known.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
# What pip-audit prints when it could not ask.
UNREACHABLE = ("ConnectionError", "Max retries exceeded", "Failed to establish", "Temporary failure", "ServiceError")
UNREACHABLE += ("ProxyError", "timed out", "Connection refused", "HTTPError", "NameResolutionError")


def pinned(text: str) -> str:
    """The pins of a constraints file, without the local part of a version (2.13.0+cpu), which no service knows."""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return "\n".join(line.split("+")[0] for line in lines if "==" in line) + "\n"


def verdict(status: int, said: str) -> tuple[int, str]:
    """Exit status and sentence, from what pip-audit returned and printed."""
    if "No module named pip_audit" in said:
        return 2, "not audited: pip-audit is not installed; pip install pip-audit"
    if status == 0:
        return 0, "audited: no known weakness"
    if any(sign in said for sign in UNREACHABLE):
        return 2, "not audited: the service that knows the weaknesses cannot be reached from here"
    return 1, "audited: see above"


def main() -> int:
    """Run pip-audit on the pins."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pins.txt"
        path.write_text(pinned(CONSTRAINTS.read_text()))
        command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--requirement", str(path)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    status, sentence = verdict(result.returncode, result.stdout + result.stderr)
    if status == 1:
        print(result.stdout + result.stderr)
    print(sentence)
    return status


if __name__ == "__main__":
    sys.exit(main())
