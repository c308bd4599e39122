"""A user's own data, end to end: read a collection, train, embed, evaluate."""

from typing import TYPE_CHECKING, Any

from aleator.own_data.auditing.audit import audit
from aleator.own_data.auditing.files import Audit, read_findings
from aleator.own_data.collection.collection import Collection
from aleator.own_data.collection.labels import LabelKind, Labels, read_labels, read_labels_of
from aleator.own_data.collection.problems import Problem, describe_problems
from aleator.own_data.collection.reading import example_sentences, read_collection
from aleator.own_data.embedding.embedded import EmbeddedCollection, rank_by_certainty, rank_by_kappa, read_embedded
from aleator.own_data.embedding.embedded_evaluation import evaluate_embedded
from aleator.own_data.embedding.embedding import embed
from aleator.own_data.embedding.exporting import embed_into, unfinished_work
from aleator.own_data.learning.defaults import Settings, kernel_width
from aleator.own_data.learning.learning import train
from aleator.own_data.measuring.answer_figure import plot_answers
from aleator.own_data.measuring.answers import Answers, label_metrics, label_rows
from aleator.own_data.measuring.comparison import COMPARISON_WORDS, compare_with_baselines, with_interval
from aleator.own_data.measuring.evaluation import METRIC_WORDS, calibrate_on_labels, evaluate, figures
from aleator.own_data.measuring.one_mode import certainty_score, mode_weights, one_mode
from aleator.own_data.measuring.questions import Questions, fit_match_maps, held_out_questions
from aleator.own_data.runs.model import AleatorModel
from aleator.own_data.runs.run import Run, load_run, save_run

if TYPE_CHECKING:
    from aleator.own_data.learning.estimator import AleatorClassifier

__all__ = [
    "COMPARISON_WORDS",
    "METRIC_WORDS",
    "AleatorClassifier",
    "AleatorModel",
    "Answers",
    "Audit",
    "Collection",
    "EmbeddedCollection",
    "LabelKind",
    "Labels",
    "Problem",
    "Questions",
    "Run",
    "Settings",
    "audit",
    "calibrate_on_labels",
    "certainty_score",
    "compare_with_baselines",
    "describe_problems",
    "embed",
    "embed_into",
    "evaluate",
    "evaluate_embedded",
    "example_sentences",
    "figures",
    "fit_match_maps",
    "held_out_questions",
    "kernel_width",
    "label_metrics",
    "label_rows",
    "load_run",
    "mode_weights",
    "one_mode",
    "plot_answers",
    "rank_by_certainty",
    "rank_by_kappa",
    "read_collection",
    "read_embedded",
    "read_findings",
    "read_labels",
    "read_labels_of",
    "save_run",
    "train",
    "unfinished_work",
    "with_interval",
]


def __getattr__(name: str) -> Any:
    if name == "AleatorClassifier":  # on demand, because its base classes need scikit-learn
        from aleator.own_data.learning.estimator import AleatorClassifier

        return AleatorClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
