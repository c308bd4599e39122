"""Grow the corpus: look for files that a reader neither reads nor refuses in words, and keep them.

    python -m tests.fuzzing                      a minute over all readers
    python -m tests.fuzzing --seconds 600        longer
    python -m tests.fuzzing --reader images      one of them
    python -m tests.fuzzing --seeds              write the valid cases again

Every kind of finding is kept once, as corpus/READER/found-....  Mend the reader and commit the file with it.
"""

import argparse
import random
import tempfile
from pathlib import Path

from tests.fuzzing.readers import CORPUS, READERS
from tests.fuzzing.search import keep, search
from tests.fuzzing.seeds import write_seeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--reader", choices=READERS)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9))
    parser.add_argument("--seeds", action="store_true")
    options = parser.parse_args()
    if options.seeds:
        write_seeds(CORPUS)
        return
    readers = [options.reader] if options.reader else list(READERS)
    for reader in readers:
        with tempfile.TemporaryDirectory(prefix="fuzzing") as folder:
            tried, found = search(reader, options.seed, Path(folder), seconds=options.seconds / len(readers))
            print(f"{reader}: {tried} files, {len(found)} kinds of findings (seed {options.seed})", flush=True)
            for problem, case in found.items():
                print(f"  {keep(reader, case).relative_to(CORPUS)}: {problem}")


if __name__ == "__main__":
    main()
