"""The files that CONTRIBUTING.md names exist, so that its walks through the code stay true."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_file_that_contributing_names_exists():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    names = re.findall(r"`([\w./-]+\.(?:py|js|md|txt))`", text)
    assert len(names) > 30
    missing = [name for name in names if not any((base / name).exists() for base in (ROOT, ROOT / "src" / "aleator"))]
    assert not missing
