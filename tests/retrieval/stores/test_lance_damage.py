"""Random damages of an index on Lance: a plain error that names it, or an answer. Never a raw error, never a crash.

Lance has no checksums of the vectors, so a wrong answer is possible here, see docs/reliability.md.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from aleator.retrieval import CredibleIndex
from tests.test_damage import IDS, damage, posteriors

pytest.importorskip("lancedb")


def read_or_error(read: Callable[[Path], list], folder: Path) -> tuple[ValueError | None, list | None]:
    try:
        return None, read(folder)
    except ValueError as error:
        return error, None


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, about vectors that became zero
@pytest.mark.parametrize("count", [20, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("exact_below", [1000, 10])
def test_a_damage_is_named_or_answered(count, exact_below, tmp_path, capfd):
    q, whole, draw = posteriors(), tmp_path / "whole", random.Random(exact_below)
    with CredibleIndex.build(q[:36], IDS[:36], location=f"lance:{whole}", exact_below=exact_below) as index:
        index.add(q[36:], IDS[36:])
        index.remove(["i1", "i37"])

    def answers(folder: Path) -> list:
        with CredibleIndex.open(f"lance:{folder}") as index:
            return [[(hit.id, hit.cosine, hit.kappa) for hit in one] for one in index.search(q[:5], by="nearest")]

    wanted, named, other = answers(whole), 0, 0
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    for number in range(count):
        copy = Path(shutil.copytree(whole, tmp_path / str(number)))
        damage(copy / draw.choice(files), draw)
        error, found = read_or_error(answers, copy)
        if error is None:
            other += found != wanted
        else:
            assert str(copy) in str(error), error
            named += 1
        shutil.rmtree(copy)
    capfd.readouterr()  # what Lance says about its own files
    assert named > 0 or count < 100
    assert other <= max(3, 0.05 * count)
    print(f"{count} damages: {named} named, {other} other answers")
