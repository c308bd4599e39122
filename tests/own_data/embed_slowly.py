"""A process that embeds and is killed by the test: it says how far it is after every batch and waits for a word."""

import sys
from pathlib import Path

import torch

import aleator.own_data.rows as rows
from aleator.own_data import embed, load_run, read_collection


def main(run: Path, data: Path, output: Path) -> None:
    torch.set_num_threads(1)
    append = rows.RowFile.append

    def append_and_wait(self, values):
        append(self, values[: len(values) // 2])  # half a batch on disk is a state that a kill may leave, too
        print(self.done, flush=True)
        sys.stdin.readline()
        append(self, values[len(values) // 2 :])

    rows.RowFile.append = append_and_wait
    embed(load_run(run), read_collection(data), output, batch_size=40, device="cpu")


main(*map(Path, sys.argv[1:]))
