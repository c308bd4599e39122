"""An embedded collection: the contents of a posteriors file that `aleator embed` wrote."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from aleator.evaluation import LabelModel, likely_labels
from aleator.foundation import reject, require_one_of
from aleator.matching import MatchMaps, VMFKernel
from aleator.own_data.collection.labels import PAIR_COLUMNS, Labels, named_labels, pairs_from_table
from aleator.own_data.collection.tables import read_table
from aleator.own_data.measuring.one_mode import certainty_score, mode_weights, one_mode
from aleator.posteriors import PosteriorBatch
from aleator.retrieval import match_settings, read_answers, read_header, read_posteriors
from aleator.stored import CertaintyScore, ListedItems, label_scores, rank_rows, read_records

_NO_LABELS = "there are no label probabilities: the run learned from pairs or groups, or is of an older release"


@dataclass(frozen=True)
class EmbeddedCollection:
    """N posteriors, with a record of each item and the settings of their match probabilities.

    Args:
        q: Posteriors, batch shape (N,).
        records: For each item its "id" and what else is known, such as "path", "text" and "label".
        kernel: Kernel of calibrated match probabilities.
        prior: Prior of calibrated match probabilities.
        fingerprint: Checksum of the encoder.
        label_model: Label probabilities of the run, if the file has them.
        novelty: How unlike the training items each item is, shape (N,): positive if it is unlike anything seen. None if
            the file does not say.
        maps: Maps of calibrated match probabilities; the identity in files of older versions.
        source: The file or folder that was embedded, if the posteriors file says it.
        marked: Whether the records say "used" for items that the encoder was trained or calibrated on. Files of older
            versions do not.
        run: Folder of the run that embedded them, if the posteriors file says it.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.own_data import EmbeddedCollection
        >>> q = al.VonMisesFisher(torch.eye(2), torch.tensor([5.0, 50.0]))
        >>> records = [{"id": 0, "label": "b"}, {"id": 1, "label": "a"}]
        >>> embedded = EmbeddedCollection(q, records, al.VMFKernel(), 0.5, None)
        >>> embedded.labels().values
        array([1, 0])
    """

    q: PosteriorBatch
    records: list[dict[str, Any]]
    kernel: VMFKernel
    prior: float
    fingerprint: str | None
    label_model: LabelModel | None = None
    novelty: Tensor | None = None
    maps: MatchMaps = field(default_factory=MatchMaps)
    source: str | None = None
    marked: bool = False
    run: str | None = None

    @property
    def kind(self) -> str:
        """What was embedded: "images", "text" or "features"."""
        first = self.records[0]
        return "images" if "path" in first else "text" if "text" in first else "features"

    def label_probabilities(self) -> Tensor:
        """Probability of each label, for each item.

        Returns:
            Probabilities, shape (N, C), in the order of `label_model.names`.

        Raises:
            ValueError: If the file has no label probabilities.
        """
        if self.label_model is None:
            reject("posteriors", "this file", _NO_LABELS, "train on classes or soft labels, and embed again")
        return self.label_model.probabilities(self.q)

    def labels(self) -> Labels:
        """The labels in the records, or the pairs of the table that was embedded.

        Returns:
            Soft labels if every record has "labels", classes otherwise; pairs if no record has a label and the items
            were embedded from a table of pairs that is still there.

        Raises:
            ValueError: If a record has no label.
        """
        if not any("label" in record for record in self.records):
            pairs = self._pairs_of_source()
            if pairs is not None:
                return pairs
        for i, record in enumerate(self.records):
            if "label" not in record:
                named = f"item {record['id']} (line {i + 1})"
                reject("posteriors", named, "has no label", "embed labelled data, or pass --labels")
        if not all("labels" in record for record in self.records):
            return named_labels([str(record["label"]) for record in self.records], "classes")
        names = sorted({name for record in self.records for name in record["labels"]})
        column = {name: c for c, name in enumerate(names)}
        probabilities = np.zeros((len(self.records), len(names)), np.float32)
        for i, record in enumerate(self.records):
            for name, probability in record["labels"].items():
                probabilities[i, column[name]] = probability
        return Labels("soft", probabilities / probabilities.sum(1, keepdims=True), tuple(names))

    def _pairs_of_source(self) -> Labels | None:
        """The pairs of the table that was embedded, found by id; None if it was not a table of pairs, or is gone."""
        path = Path(self.source or "")
        if path.suffix not in (".csv", ".tsv") or not path.is_file():
            return None
        table = read_table(path)
        if not set(PAIR_COLUMNS) <= set(table.header):
            return None
        ids = [record["id"] for record in self.records]
        known = set(ids)  # items that could not be read were left out
        rows = [i for i, row in enumerate(table.rows) if all(row[column] in known for column in PAIR_COLUMNS)]
        return pairs_from_table(table.select(rows), ids) if rows else None


def read_embedded(path: str | Path) -> EmbeddedCollection:
    """Read a posteriors file and the .jsonl file beside it. Items of a file that was written without one are numbered.

    Args:
        path: A .safetensors or .npz file with mu (N, D) and kappa (N,); see `read_posteriors` for several modes.

    Returns:
        The posteriors and the records of the items. Kernel, prior and maps are the defaults if the file has none.

    Raises:
        ValueError: If a file is missing or damaged, or if the two files have different lengths.

    Examples:
        >>> import numpy as np
        >>> from aleator.own_data import read_embedded
        >>> np.savez("two.npz", mu=np.eye(2, 3), kappa=np.array([5.0, 50.0]))
        >>> read_embedded("two.npz").records
        [{'id': 0}, {'id': 1}]
    """
    path = Path(path).expanduser()
    q = read_posteriors(path)
    header = read_header(path)
    kernel, prior, maps = match_settings(header, path)
    records = read_records(path, len(q))
    fingerprint, source = header.get("fingerprint"), header.get("source")
    marked = header.get("used") == "marked"
    answers, run = read_answers(path), header.get("run_folder")
    return EmbeddedCollection(q, records, kernel, prior, fingerprint, *answers, maps, source, marked, run)


def rank_by_certainty(
    embedded: EmbeddedCollection, limit: int | None = None, surest: bool = False, by: CertaintyScore | None = None
) -> Iterator[dict[str, Any]]:
    """List the most ambiguous items first.

    Args:
        embedded: The items and their posteriors.
        limit: Number of items to list. Default: all.
        surest: Whether to list the most certain items first instead.
        by: "labels": `label_certainty` of the label probabilities, which also sees where mu lies; of items that are
            equally sure, or as sure as they can be, those that are unlike anything seen come first, and then those
            with the smaller kappa. "kappa": kappa, or `certainty` of posteriors with several modes. Default: labels if
            there are label probabilities, kappa otherwise.

    Returns:
        The record of each item with its "rank" from 1, "kappa" (of several modes that of the closest vMF, and "modes",
        their weights), and "percentile", the share of items that are less
        certain. With label probabilities also "certainty" and "could_be", the likeliest labels and their
        probabilities. If the file says so also "unlike", whether the item is unlike anything seen.

    Raises:
        ValueError: If there are no label probabilities to rank by.

    Examples:
        >>> import numpy as np
        >>> from aleator.own_data import rank_by_certainty, read_embedded
        >>> np.savez("two.npz", mu=np.eye(2, 3), kappa=np.array([50.0, 5.0]))
        >>> list(rank_by_certainty(read_embedded("two.npz"), limit=1))
        [{'rank': 1, 'id': 1, 'kappa': 5.0, 'percentile': 0.0}]
    """
    if by is None:
        by = "kappa" if embedded.label_model is None else "labels"
    require_one_of("by", by, get_args(CertaintyScore))
    model, q = embedded.label_model, embedded.q
    if model is None and by == "labels":
        reject("by", by, _NO_LABELS, "rank by kappa, or train on classes or soft labels and embed again")
    sure = None if model is None else model.certainty_and_label(q)
    unlike = None if embedded.novelty is None else (embedded.novelty > 0).cpu().numpy()

    def describe(items: np.ndarray) -> ListedItems:
        listed = q[torch.from_numpy(items)]
        odd = None if unlike is None else unlike[items]
        modes = [mode_weights(listed[n]) for n in range(len(listed))] if q.modes > 1 else None
        kappa = one_mode(listed).kappa.numpy()
        if model is None or sure is None:
            return ListedItems(kappa, modes, unlike=odd)
        likely = likely_labels(model.probabilities(listed), model.names)
        return ListedItems(kappa, modes, sure[0].cpu().numpy()[items], likely, odd)

    plain = certainty_score(q).detach().cpu().numpy()
    score = plain
    if model is not None and sure is not None and by == "labels":
        certainty, likeliest, _ = (each.cpu().numpy() for each in sure)
        score = label_scores(certainty, likeliest, model.weights.numpy(), model.floor)
    return rank_rows(embedded.records, score, plain, describe, limit, surest, unlike)


def rank_by_kappa(
    embedded: EmbeddedCollection, limit: int | None = None, surest: bool = False
) -> Iterator[dict[str, Any]]:
    """List the items with the smallest kappa first: `rank_by_certainty` with `by="kappa"`.

    Args:
        embedded: The items and their posteriors.
        limit: Number of items to list. Default: all.
        surest: Whether to list the items with the largest kappa first instead.

    Returns:
        The records, as in `rank_by_certainty`.

    Examples:
        >>> import numpy as np
        >>> from aleator.own_data import rank_by_kappa, read_embedded
        >>> np.savez("two.npz", mu=np.eye(2, 3), kappa=np.array([50.0, 5.0]))
        >>> list(rank_by_kappa(read_embedded("two.npz"), limit=1))
        [{'rank': 1, 'id': 1, 'kappa': 5.0, 'percentile': 0.0}]
    """
    return rank_by_certainty(embedded, limit, surest, "kappa")
