"""The search for files that a reader neither reads nor refuses in words."""

import hashlib
import random
import re
import shutil
import time
from itertools import count as numbers
from pathlib import Path

from tests.fuzzing.mutations import copied, files_of, mutate
from tests.fuzzing.readers import CORPUS, outcome


def cases_of(reader: str) -> list[Path]:
    """The kept cases of a reader, in a fixed order."""
    return sorted(path for path in (CORPUS / reader).iterdir())


def search(
    reader: str, seed: int | str, folder: Path, count: int | None = None, seconds: float | None = None
) -> tuple[int, dict[str, Path]]:
    """Read mutated copies of the kept cases.

    Args:
        reader: Name of the reader.
        seed: What the mutations are drawn from.
        folder: Where the copies are made.
        count: How many files to try.
        seconds: How long to try, if there is no count.

    Returns:
        How many files were tried, and by its problem one file of each kind of finding.
    """
    cases, found, tried = cases_of(reader), {}, 0
    end = time.monotonic() + (seconds or 0)
    for number in numbers():
        if number >= count if count is not None else time.monotonic() > end:
            break
        draw = random.Random(f"{reader} {seed} {number}")
        copy = copied(draw.choice(cases), folder)
        mutate(copy, draw)
        problem = outcome(reader, copy)
        tried += 1
        if problem is not None and kind_of(problem) not in map(kind_of, found):
            aside = folder / "found"
            aside.mkdir(exist_ok=True)
            found[problem] = copied(copy, _numbered(aside, len(found)))
    return tried, found


def kind_of(problem: str) -> str:
    """What a problem is, whatever the numbers and names in it: the place in the code."""
    place = re.search(r"\w+\.py:\d+", problem)
    return f"{problem.split(':')[0]} {place[0] if place else ''}"


def keep(reader: str, case: Path) -> Path:
    """Keep a finding in the corpus."""
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files_of(case))).hexdigest()[:8]
    name, _, ending = case.name.partition(".")
    kept = CORPUS / reader / f"{name.split('-found')[0]}-found-{digest}{'.' if ending else ''}{ending}"
    if not kept.exists():
        shutil.copytree(case, kept) if case.is_dir() else shutil.copyfile(case, kept)
    return kept


def _numbered(folder: Path, number: int) -> Path:
    numbered = folder / str(number)
    numbered.mkdir()
    return numbered
