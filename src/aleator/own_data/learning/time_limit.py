"""`--minutes`: how much of them is left for learning, after reading the items and before evaluation.

`fit` keeps its part by the clock (`Recipe.minutes`). The part is decided when the training starts first, and kept in
the run folder, so that a training that is resumed goes on with the limit that it began with. How long evaluation will
take is seen while learning: it encodes items, as every validation does, and takes longer on a machine that is busy.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aleator.foundation import read_json, write_json
from aleator.own_data.learning.defaults import CompleteSettings
from aleator.own_data.learning.encoding import encode_items
from aleator.own_data.learning.preparation import Job, PreparedTraining

_SAMPLE = 64  # items that are encoded to see how long it takes
_FITS = 1.5  # evaluation takes this many times as long as encoding its items: models of matches and labels are fitted
_SECONDS = 8.0  # and baselines and figures take about this long
_LEAST_SHARE = 0.25  # of the minutes for learning, however long reading and evaluation take


@dataclass
class TimeLimit:
    """The time that a training may take, with the evaluation after it.

    Args:
        minutes: Most minutes of learning and evaluation.
        least: Least seconds of learning.
        evaluated: Number of items that are encoded when learning ends and afterwards.
        at_first: Seconds to encode an item before learning.
    """

    minutes: float
    least: float
    evaluated: int
    at_first: float
    _seen: list[float] = field(default_factory=list)

    def afterwards(self) -> float:
        """Seconds to keep for evaluation, by the speed of the last two validations. One alone may have been held up."""
        slower = max(1.0, min(self._seen[-2:], default=0.0) / self.at_first)
        evaluation = slower * (_FITS * self.evaluated * self.at_first + _SECONDS)
        return min(evaluation, 60 * self.minutes - self.least)

    def timed(self, validate: Callable[[Any], dict[str, float]], items: int) -> Callable[[Any], dict[str, float]]:
        """A validation that encodes so many items, with a look at the clock."""

        def validating(encoder: Any) -> dict[str, float]:
            began = time.perf_counter()
            metrics = validate(encoder)
            self._seen.append((time.perf_counter() - began) / items)
            return metrics

        return validating


def limit_time(
    name: str, training: PreparedTraining, evaluated: int, settings: CompleteSettings, job: Job, share: float = 1.0
) -> TimeLimit | None:
    """How long a training may take.

    Args:
        name: Name of the training. RUN/NAME_minutes.json keeps the answer.
        training: The items and the encoder, which is moved to the device of the job.
        evaluated: Number of items that are encoded when it ends and afterwards.
        settings: All settings. Without "minutes" there is no limit.
        job: Where the training runs, and since when.
        share: Share of what is left; the rest is for what is trained after it.

    Returns:
        The limit, if there is one.
    """
    if settings.minutes is None:
        return None
    path = job.folder / f"{name}_minutes.json"
    if job.group.first and not path.is_file():
        all_seconds, gone = 60 * settings.minutes, seconds_gone(job)
        least = share * _LEAST_SHARE * all_seconds
        minutes = max(share * (all_seconds - gone), least) / 60
        decided: dict[str, Any] = {"minutes": minutes, "least": least, "at_first": seconds_per_item(training, job)}
        write_json(path, decided)
        evaluation = TimeLimit(**decided, evaluated=evaluated).afterwards()
        job.log(
            f"learning may take {60 * minutes - evaluation:.0f} s: {gone:.0f} s have gone, "
            f"and about {evaluation:.0f} s are kept for what comes after it"
        )
    job.group.wait()
    return TimeLimit(**read_json(path, "remove it, and start again"), evaluated=evaluated)


def seconds_gone(job: Job) -> float:
    """Seconds since the command began."""
    return time.time() - job.began


def seconds_per_item(training: PreparedTraining, job: Job) -> float:
    """Time to encode one of many items."""
    training.encoder.to(job.torch_device).eval()
    sample = np.arange(min(_SAMPLE, len(training.items)))
    for _ in range(2):  # the first time takes longer
        began = time.perf_counter()
        encode_items(training, sample)
    return (time.perf_counter() - began) / len(sample)
