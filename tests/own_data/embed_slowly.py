"""A process that embeds, for a test that kills it: it prints its progress in every batch and waits for a line."""

import sys
from pathlib import Path

import torch

import aleator.own_data.embedding.rows as rows
from aleator.own_data import embed, load_run, read_collection


def main(run: Path, data: Path, output: Path) -> None:
    torch.set_num_threads(1)
    append = rows.RowFile.append

    def append_and_wait(self, values, digests):
        half = len(values) // 2
        append(self, values[:half], digests[:half])  # a kill may leave half a batch on disk
        print(self.done, flush=True)
        sys.stdin.readline()
        append(self, values[half:], digests[half:])

    rows.RowFile.append = append_and_wait
    embed(load_run(run), read_collection(data), output, batch_size=40, device="cpu")


main(*map(Path, sys.argv[1:]))
