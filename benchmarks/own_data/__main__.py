"""Run the experiment; a row that is in the result already is not made again.

python -m benchmarks.own_data                                everything: hours
python -m benchmarks.own_data --quick --minutes 0.1          small data sets, to try it out
python -m benchmarks.own_data --only cifar glyphs:ours       one data set; one method of another
"""

import argparse
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

# Before torch is loaded: threads that wait by spinning use CPU time that nobody gains from.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

from aleator.foundation import describe_run, replace_file, write_json
from benchmarks.own_data.data_sets import NAMES, DataSet, load
from benchmarks.own_data.measuring import classifier_matches, draw_pairs, measure
from benchmarks.own_data.ours import label_answers, neighbour_answers, our_matches, train_ours
from benchmarks.own_data.rivals import rivals_for
from benchmarks.own_data.table import OURS, markdown, verdicts

_KAPPA, _LABELS = f"{OURS}: nearest in mu, kappa", f"{OURS}: label probabilities"


def main() -> None:
    """Make the rows that are missing, and write the report after each."""
    options = _options()
    name = "quick" if options.quick else "full"
    path = options.output / f"{name}.json"
    result = json.loads(path.read_text()) if path.is_file() else {"experiment": "own-data", "rows": {}}
    for data_name in NAMES:
        methods = _selected(options.only, data_name)
        if methods is None:
            continue
        data = load(data_name, options.work, options.quick)
        rows = result["rows"].setdefault(data_name, {})
        for method in ("ours", *rivals_for(data)):
            here = [row for row in rows if row == method or (method == "ours" and row.startswith(OURS))]
            if (methods and method not in methods) or (here and not options.again):
                continue
            print(f"== {data_name}: {method}", flush=True)
            rows |= _make(data, method, options, rows)
            write_json(path, result)
            replace_file(options.output / f"{name}.md", markdown(result["rows"]).encode())
        print(f"== {data_name}", *verdicts(rows), sep="\n")


def _make(data: DataSet, method: str, options: argparse.Namespace, rows: dict[str, Any]) -> dict[str, Any]:
    """The row of one method; for ours, the rows of all our scores."""
    began = time.time()
    pairs = draw_pairs(data)
    torch.manual_seed(options.seed)
    made = {}
    if method == "ours":
        folder = options.work / "runs" / (f"{data.name}-quick" if options.quick else data.name)
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was stopped: its CPU time is not known
        settings = {"minutes": options.minutes, "seed": options.seed} | options.settings
        trained = train_ours(data, folder, settings)
        answers, nearest = neighbour_answers(data, trained)
        metrics = measure(data, answers, our_matches(trained, nearest, pairs), pairs)
        made[_KAPPA] = (metrics, trained.cpu_seconds)
        labels = label_answers(data, trained)
        if labels is not None:
            matches = classifier_matches(data, labels, pairs)  # as for the rivals: the items' labels are known
            made[_LABELS] = (measure(data, labels, matches, pairs), trained.cpu_seconds)
    else:
        spent = next((row["cpu_seconds"] for name, row in rows.items() if name.startswith(OURS)), None)
        budget = spent or 60 * (options.minutes or 5.0) * torch.get_num_threads()  # the CPU time of ours
        began_cpu = time.process_time()
        answers = rivals_for(data)[method](data, budget, options.seed)
        seconds = time.process_time() - began_cpu
        made[method] = (measure(data, answers, classifier_matches(data, answers, pairs), pairs), seconds)
    provenance = describe_run(began, "cpu")
    return {
        name: {
            "cpu_seconds": seconds,
            "metrics": metrics | {"cpu_seconds": {"value": seconds, "low": seconds, "high": seconds}},
            "provenance": provenance,
        }
        for name, (metrics, seconds) in made.items()
    }


def _selected(only: list[str], data_name: str) -> list[str] | None:
    """Methods of a data set that are asked for: [] for all, None if the data set is not."""
    if not only:
        return []
    chosen = [word.partition(":") for word in only if word.partition(":")[0] == data_name]
    if not chosen:
        return None
    return [] if any(not method for _, _, method in chosen) else [method for _, _, method in chosen]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.own_data", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], help=f"DATA or DATA:METHOD; DATA is one of {', '.join(NAMES)}")
    parser.add_argument("--minutes", type=float, help="training time of ours, in place of its default")
    parser.add_argument("--settings", type=json.loads, default={}, help='other settings of ours: {"steps": 100}')
    parser.add_argument("--quick", action="store_true", help="small data sets")
    parser.add_argument("--again", action="store_true", help="make rows again that are there")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("results/own-data"))
    parser.add_argument("--work", type=Path, default=Path("build/own-data"), help="data sets, runs and embeddings")
    options = parser.parse_args()
    unknown = [word for word in options.only if word.partition(":")[0] not in NAMES]
    if unknown:
        parser.error(f"no data set {', '.join(unknown)}; choose from {', '.join(NAMES)}")
    return options


if __name__ == "__main__":
    main()
