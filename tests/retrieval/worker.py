"""A program whose processes the tests kill. Each line on standard input is a job, done by a fork of this process.

Imports take seconds and a job takes milliseconds, so the imports happen once. A job is JSON: {"location": ...,
"steps": [...], "report": ...}. The process id is printed. The report is a file with "begin N" and "done N" around each
step.
"""

import json
import os
import signal
import sys
import time
import warnings
import zlib

import torch

from aleator import VonMisesFisher
from aleator.retrieval import CredibleIndex

DIM = 8
PATIENCE = 60.0  # seconds for a server to come back


def posterior_of(ids) -> VonMisesFisher:
    """Posteriors that follow from the ids."""
    rows = [torch.Generator().manual_seed(zlib.crc32(str(id).encode())) for id in ids]
    mu = torch.stack([torch.randn(DIM, generator=row) for row in rows]) if rows else torch.empty(0, DIM)
    return VonMisesFisher(torch.nn.functional.normalize(mu, dim=-1), torch.arange(1.0, len(rows) + 1))


def metadata_of(ids):
    return [{"id": id} for id in ids]


def take(step, index, location):
    """Do one step of a job, and return the index for the next step."""
    name, *arguments = step
    if name == "build":
        ids, *options = arguments
        more = options[0] if options else {}
        return CredibleIndex.build(posterior_of(ids), ids, metadata_of(ids), location=location, replace=True, **more)
    if name == "insist":
        return insist(index, location, arguments[0])
    index = index or CredibleIndex.open(location)
    if name == "add":
        (ids,) = arguments
        index.add(posterior_of(ids), ids, metadata_of(ids))
    elif name == "remove":
        index.remove(arguments[0])
    elif name == "save":
        index.save()
    return index


def insist(index, location, ids):
    """Add items to a server that may be killed: repeat until the items are in the index."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            index = index or CredibleIndex.open(location)
            if ids[0] not in index:
                index.add(posterior_of(ids), ids, metadata_of(ids))
            return index
        except ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def main() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are not waited for
    for line in sys.stdin:
        job = json.loads(line)
        if job["location"].startswith(("lance:", "s3:")):
            warnings.simplefilter("ignore")  # of forks
            import lancedb  # noqa: F401
        pid = os.fork()
        if pid:
            print(f"pid {pid}", flush=True)
            continue
        index = None
        # A file, because the test may be slow to read a pipe.
        report = os.open(job["report"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number, step in enumerate(job["steps"]):
            os.write(report, f"begin {number}\n".encode())
            index = take(step, index, job["location"])
            os.write(report, f"done {number}\n".encode())
        os.write(report, b"end\n")
        os._exit(0)


if __name__ == "__main__":
    main()
