"""A figure of questions and their hits, with the pictures themselves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aleator.data import thumbnail
from aleator.evaluation import plots
from aleator.foundation import percent
from aleator.retrieval import Hit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_QUESTIONS, _MOST_HITS = 12, 8
_SIDE = 128  # pixels of a picture
_LONGEST = 18  # letters of a caption


def plot_answers(
    questions: Sequence[Mapping[str, Any]],
    metadata: Sequence[Mapping[str, Any]] | None,
    answers: Sequence[Sequence[Hit]],
    question_folder: Path | None,
    item_folder: Path | None,
) -> "Figure | None":
    """One row for each of the first questions: its picture, and those of its hits.

    Args:
        questions: What is known about each question: "id", "certainty_in_words" and perhaps "could_be".
        metadata: Metadata of the questions, with the "path" of their pictures.
        answers: Hits of each question.
        question_folder: Folder that the paths of the questions start from.
        item_folder: Folder that the paths of the items start from.

    Returns:
        The figure; None if there are no pictures.
    """
    rows = {}
    found = False
    shown = zip(questions[:_MOST_QUESTIONS], answers, strict=False)
    for number, (question, hits) in enumerate(shown):
        own = _picture(question_folder, metadata[number] if metadata else {})
        pictures = [_picture(item_folder, hit.metadata) for hit in hits[:_MOST_HITS]]
        found = found or own is not None or any(picture is not None for picture in pictures)
        likely = next(iter(question.get("could_be", {}).items()), None)
        caption = _short(question["id"]) + (
            f"\n{_short(likely[0])} {percent(likely[1])}?" if likely else "\n(question)"
        )
        row = [(_or_blank(own), caption)]
        for hit, picture in zip(hits, pictures, strict=False):
            name = hit.metadata.get("label", hit.id)
            row.append((_or_blank(picture), f"{_short(name)}\nmatch {percent(hit.match_probability)}"))
        rows[f"{number}\ncertainty\n{question['certainty_in_words']}"] = row
    return plots.image_rows(rows, first_apart=True, side=1.1) if found else None


def _picture(folder: Path | None, metadata: Mapping[str, Any]) -> np.ndarray | None:
    """The small picture of an item; None if there is none that can be read."""
    path = metadata.get("path")
    if folder is None or not isinstance(path, str):
        return None
    try:
        return thumbnail(folder / path, _SIDE)
    except ValueError:
        return None


def _or_blank(picture: np.ndarray | None) -> np.ndarray:
    return np.full((_SIDE, _SIDE, 3), 235, np.uint8) if picture is None else picture


def _short(value: Any) -> str:
    """The end of a long name, which is the part that differs in paths. Dollar signs would start mathematics."""
    text = str(value).replace("$", r"\$")
    return text if len(text) <= _LONGEST else f"…{text[-_LONGEST:]}"
