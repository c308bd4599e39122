"""`--minutes`: how much of them is left for learning, after reading the items and before evaluation.

`fit` keeps its part by the clock (`Recipe.minutes`). It is decided when the training starts first, and kept in the run
folder, so that a training that is resumed goes on with the limit that it began with.
"""

import time
from typing import Any

import numpy as np

from aleator.foundation import read_json, write_json
from aleator.own_data.learning.encoding import encode_items
from aleator.own_data.learning.preparation import Job, PreparedTraining

_SAMPLE = 64  # items that are encoded to see how long it takes
# Evaluation takes up to twice as long as encoding its items, because heads and baselines are fitted on them; and the
# machine may be busier then.
_EVALUATION = 2.5
_LEAST_SHARE = 0.25  # of the minutes for learning, however long reading and evaluation take


def learning_minutes(
    name: str,
    training: PreparedTraining,
    evaluated: int,
    settings: dict[str, Any],
    job: Job,
    share: float = 1.0,
) -> float | None:
    """Most minutes that a training may take.

    Args:
        name: Name of the training. RUN/NAME_minutes.json keeps the answer.
        training: The items and the encoder, which is moved to the device of the job.
        evaluated: Number of items that are encoded when it ends and afterwards.
        settings: Settings with "minutes"; None: no limit.
        job: Where the training runs, and since when.
        share: Share of what is left; the rest is for what is trained after it.

    Returns:
        The minutes; None without a limit.
    """
    if settings["minutes"] is None:
        return None
    path = job.folder / f"{name}_minutes.json"
    if job.group.first and not path.is_file():
        limit = 60 * settings["minutes"]
        afterwards = _EVALUATION * evaluated * seconds_per_item(training, job)
        gone = _seconds_gone(job)
        learning = share * max(limit - gone - afterwards, _LEAST_SHARE * limit)
        write_json(path, {"minutes": learning / 60, "seconds_gone": gone, "seconds_of_evaluation": afterwards})
        job.log(
            f"learning ends after {learning / 60:.2g} minutes at most: {gone:.0f} s have gone, "
            f"and evaluation will take about {afterwards:.0f} s"
        )
    job.group.wait()
    return read_json(path, "remove it, and start again")["minutes"]


def seconds_per_item(training: PreparedTraining, job: Job) -> float:
    """Time to encode one of many items."""
    training.encoder.to(job.torch_device).eval()
    sample = np.arange(min(_SAMPLE, len(training.items)))
    for _ in range(2):  # the first time takes longer
        began = time.perf_counter()
        encode_items(training, sample)
    return (time.perf_counter() - began) / len(sample)


def _seconds_gone(job: Job) -> float:
    return time.time() - job.began
