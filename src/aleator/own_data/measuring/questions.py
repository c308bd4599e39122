"""Questions that are asked against a gallery: which pairs of a question and an item match, by their labels.

Two items match with the probability that labels drawn for them agree: 1 or 0 for classes and groups, sum_c P(c | x)
P(c | x') for soft labels.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from aleator.evaluation import MatchPairs, fit_hit_map, fit_log_odds_map, nearest_neighbours
from aleator.foundation import require
from aleator.matching import FIRST_HITS, MatchMaps, VMFKernel, log_positivity
from aleator.own_data.collection.labels import Labels
from aleator.own_data.collection.parts import labels_at
from aleator.own_data.measuring.one_mode import one_mode
from aleator.posteriors import PosteriorBatch

_AMONG = 100  # nearest items among which the likeliest are looked for
_PAIRS = 10_000  # random pairs, and pairs that match
# Pairs of one question have its posterior in common, so many of them tell little more than a few. Maps from 8 to 100
# questions are likeliest on new ones if the pairs of a question count as 5 to 20 observations; from 600, it is all one.
_PAIRS_OF_A_QUESTION = 10


@dataclass(frozen=True)
class Questions:
    """Q questions, a gallery of N items, and the labels of both.

    Args:
        q: Posteriors of the questions, batch shape (Q,).
        labels: Their labels; not of the kind "pairs".
        gallery: Posteriors of the items, batch shape (N,).
        gallery_labels: Labels of the items, of the same kind.
        own: Position of each question in the gallery, shape (Q,); -1 for a question that is not in it. A question is
            never compared with itself.

    Examples:
        >>> import numpy as np, torch, aleator as al
        >>> from aleator.own_data import Labels, Questions
        >>> labels = Labels("classes", np.array([0, 0, 1]), ("cat", "dog"))
        >>> q = al.VonMisesFisher(torch.eye(3), 20.0)
        >>> questions = Questions(q, labels, q, labels, own=np.arange(3))
        >>> round(questions.prior, 3)
        0.333
    """

    q: PosteriorBatch
    labels: Labels
    gallery: PosteriorBatch
    gallery_labels: Labels
    own: np.ndarray

    @cached_property
    def prior(self) -> float:
        """Share of matches among all pairs of a question and an item."""
        asked, items = self._probabilities
        inside = np.flatnonzero(self.own >= 0)
        with_itself = asked[inside].multiply(items[self.own[inside]]).sum()
        matches = float((asked.sum(0) * items.sum(0)).sum() - with_itself)
        return matches / (len(self.q) * len(self.gallery) - len(inside))

    def select(self, chosen: np.ndarray) -> "Questions":
        """Some of the queries, with the whole gallery.

        Args:
            chosen: Which ones: booleans (Q,).

        Returns:
            These queries.
        """
        some = labels_at(self.labels, np.flatnonzero(chosen))
        return Questions(self.q[torch.as_tensor(chosen)], some, self.gallery, self.gallery_labels, self.own[chosen])

    @property
    def alone(self) -> bool:
        """Whether the queries are asked against each other."""
        return len(self.q) == len(self.gallery) and bool((self.own >= 0).all())

    @cached_property
    def hard(self) -> tuple[np.ndarray, np.ndarray]:
        """Class or group number of each query (Q,) and of each item (N,), the likeliest of soft labels."""
        (asked, items), _ = self._columns
        return asked[self.labels.hard()], items[self.gallery_labels.hard()]

    @property
    def has_match(self) -> torch.Tensor:
        """Whether another item of the gallery has the label of each query, booleans (Q,)."""
        asked, items = self.hard
        return torch.as_tensor(np.bincount(items, minlength=asked.max() + 1)[asked] - (self.own >= 0) > 0)

    @property
    def kinds(self) -> int:
        """Number of classes or groups among queries and items."""
        return len(np.unique(np.concatenate(self.hard)))

    def first_right(self, hits: MatchPairs) -> torch.Tensor:
        """Whether the first hit of each query has its label: 1 or 0, shape (Q,), float64.

        Args:
            hits: Hits of all queries, in the order of the queries.

        Returns:
            Which ones are right.
        """
        asked, items = self.hard
        first = ranks(hits) == 1
        return torch.as_tensor(asked[hits.first[first]] == items[hits.second[first]]).double()

    def hits(self, count: int = FIRST_HITS) -> MatchPairs:
        """The nearest items of each question, as a search finds them.

        Args:
            count: Number of hits of each question.

        Returns:
            Numbers of questions and items, and the probability that they match.
        """
        count = min(count, len(self.gallery) - int((self.own >= 0).any()))
        found = nearest_neighbours(*self._directions, count, own=self.own)
        return self._pairs(np.repeat(np.arange(len(self.q)), count), found.flatten().numpy())

    def likeliest(self, kernel: VMFKernel, count: int = FIRST_HITS) -> MatchPairs:
        """The items of each question with the largest match probability, as a search by match finds them.

        They are looked for among the hundred nearest items.

        Args:
            kernel: Kernel of the match probabilities.
            count: Number of hits of each question.

        Returns:
            Numbers of questions and items, and the probability that they match.
        """
        near = self.hits(_AMONG)
        log_r = self.log_r(near, kernel).view(len(self.q), -1)
        best = log_r.topk(min(count, log_r.shape[1]), 1).indices
        first, second = (numbers.view(log_r.shape).gather(1, best).flatten() for numbers in (near.first, near.second))
        return self._pairs(first.numpy(), second.numpy())

    def random_pairs(self, seed: int, count: int = _PAIRS) -> MatchPairs:
        """Questions with random items.

        Args:
            seed: Seed of the draw.
            count: Number of pairs. There are fewer where a question meets itself.

        Returns:
            Numbers of questions and items, and the probability that they match.
        """
        generator = np.random.default_rng(seed)
        first, second = generator.integers(len(self.q), size=count), generator.integers(len(self.gallery), size=count)
        return self._pairs(first, second)

    def matching_pairs(self, seed: int, count: int = _PAIRS) -> MatchPairs:
        """Pairs that match: all pairs in proportion to the probability that they match.

        Args:
            seed: Seed of the draw.
            count: Number of pairs.

        Returns:
            Numbers of questions and items. All pairs match.

        Raises:
            ValueError: If no question matches an item.
        """
        require(self.prior > 0, "labels", self.prior, "is the share of matches", "ask about items of the same labels")
        generator = np.random.default_rng(seed)
        asked, items = (side.T.tocsr() for side in self._probabilities)
        weight = asked.sum(1) * items.sum(1)
        first, second = np.empty(0, np.int64), np.empty(0, np.int64)
        while len(first) < count:  # pairs of a question with itself are drawn again
            classes = generator.choice(len(weight), size=count, p=weight / weight.sum())
            a, b = draw_columns(asked, classes, generator), draw_columns(items, classes, generator)
            different = self.own[a] != b
            first, second = np.concatenate([first, a[different]]), np.concatenate([second, b[different]])
        pairs = torch.as_tensor(first[:count]), torch.as_tensor(second[:count])
        return MatchPairs(*pairs, torch.ones(count, dtype=torch.float64))

    def log_r(self, pairs: MatchPairs, kernel: VMFKernel) -> torch.Tensor:
        """log r of pairs.

        Args:
            pairs: P pairs of these questions and items.
            kernel: Kernel of the match probabilities.

        Returns:
            log r, shape (P,).
        """
        return log_positivity(self.q[pairs.first], self.gallery[pairs.second], kernel)

    def _pairs(self, first: np.ndarray, second: np.ndarray) -> MatchPairs:
        different = self.own[first] != second
        first, second = first[different], second[different]
        asked, items = self._probabilities
        match = np.asarray(asked[first].multiply(items[second]).sum(1)).reshape(-1)
        return MatchPairs(*(torch.as_tensor(part) for part in (first, second, match)))

    @cached_property
    def _directions(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The likeliest directions of the questions (Q, D) and of the items (N, D)."""
        return one_mode(self.q).mu, one_mode(self.gallery).mu

    @cached_property
    def _probabilities(self) -> tuple[Any, Any]:
        """P(class | x) of the questions (Q, C) and of the items (N, C), sparse, with the same C classes."""
        columns, count = self._columns
        sides = (label_probabilities(self.labels), label_probabilities(self.gallery_labels))
        for side, column in zip(sides, columns, strict=True):
            side.indices = column[side.indices]
            side.resize(side.shape[0], count)
        return sides

    @cached_property
    def _columns(self) -> tuple[list[np.ndarray], int]:
        """The number of each class of the queries, and of the gallery, among the classes of both; and how many."""
        names = {name: c for c, name in enumerate(dict.fromkeys((*self.labels.names, *self.gallery_labels.names)))}
        sides = (self.labels, self.gallery_labels)
        return [np.array([names[name] for name in side.names]) for side in sides], len(names)


def fit_match_maps(questions: Questions, kernel: VMFKernel, seed: int = 0) -> MatchMaps:
    """Fit the maps under which match probabilities of held-out questions are right.

    The map of pairs is fitted on random pairs, and on pairs that match, which count with their share. The maps of hits
    are fitted on the first ten hits of each question: one on the nearest items, one on the likeliest.

    Args:
        questions: Questions that the encoder was not trained on, and the gallery that they are asked against.
        kernel: Kernel of the match probabilities.
        seed: Seed of the pairs.

    Returns:
        The maps. They belong to the prior `questions.prior`.

    Raises:
        ValueError: If no question matches any item, or all match all.

    Examples:
        >>> import numpy as np, torch, aleator as al
        >>> from aleator.own_data import Labels, Questions, fit_match_maps
        >>> classes = np.arange(60) % 3
        >>> labels = Labels("classes", classes, ("cat", "dog", "owl"))
        >>> q = al.VonMisesFisher(torch.eye(3)[classes], 20.0)
        >>> maps = fit_match_maps(Questions(q, labels, q, labels, own=np.arange(60)), al.VMFKernel(20.0))
        >>> al.match_probability(q[:1], q[:4], al.VMFKernel(20.0), 1 / 3, maps.pair) > 0.5
        tensor([ True, False, False,  True])
    """
    prior = questions.prior
    require(0 < prior < 1, "labels", prior, "is the share of matches", "calibrate on items of two classes or more")
    matching, random = questions.matching_pairs(seed), questions.random_pairs(seed + 1)
    share = torch.full((len(matching),), prior / len(matching), dtype=torch.float64)
    pair = fit_log_odds_map(
        torch.cat([questions.log_r(matching, kernel), questions.log_r(random, kernel)]),
        torch.cat([matching.match, torch.zeros(len(random), dtype=torch.float64)]),
        prior,
        weight=torch.cat([share, (1 - random.match) * (1 - prior) / (1 - random.match).sum()]),
        observations=_PAIRS_OF_A_QUESTION * len(questions.q),
    )
    hit, likeliest = (
        fit_hit_map(
            questions.log_r(hits, kernel),
            ranks(hits),
            hits.match,
            prior,
            observations=len(questions.q),
            start=pair,
        )
        for hits in (questions.hits(), questions.likeliest(kernel))
    )
    return MatchMaps(pair, hit, likeliest)


def ranks(hits: MatchPairs) -> torch.Tensor:
    """The rank from 1 of each of P hits among those of its question, shape (P,); the hits are in their order."""
    return torch.arange(len(hits)) - torch.searchsorted(hits.first, hits.first) + 1


def held_out_questions(
    q: PosteriorBatch, numbers: np.ndarray, gallery: PosteriorBatch, gallery_numbers: np.ndarray, labels: Labels
) -> Questions:
    """Held-out items as questions against training items.

    If whole groups are held out, no training item matches a held-out one. The gallery then has the held-out items too.
    A question that is in the gallery is not compared with itself.

    Args:
        q: Posteriors of the held-out items, batch shape (Q,).
        numbers: Their item numbers, shape (Q,).
        gallery: Posteriors of training items, batch shape (N,).
        gallery_numbers: Their item numbers, shape (N,).
        labels: Labels of all items of the collection; not of the kind "pairs".

    Returns:
        The questions.
    """
    order = np.argsort(gallery_numbers)
    places = order[np.searchsorted(gallery_numbers, numbers, sorter=order).clip(max=len(order) - 1)]
    own = np.where(gallery_numbers[places] == numbers, places, -1)
    if labels.kind == "groups":
        own = len(gallery_numbers) + np.arange(len(numbers))
        gallery = PosteriorBatch.cat([gallery, q])
        gallery_numbers = np.concatenate([gallery_numbers, numbers])
    asked, items = (labels_at(labels, chosen) for chosen in (numbers, gallery_numbers))
    return Questions(q, asked, gallery, items, own)


def label_probabilities(labels: Labels) -> Any:
    """P(class | item) as a sparse matrix (N, C); the labels are not pairs."""
    from scipy.sparse import csr_array

    if labels.kind == "soft":
        return csr_array(labels.values.astype(np.float64))
    n = len(labels.values)
    return csr_array((np.ones(n), labels.values, np.arange(n + 1)), shape=(n, len(labels.names)))


def draw_columns(rows: Any, which: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """For each row number in `which`, draw a column in proportion to the entries of that row of a sparse matrix."""
    total = np.concatenate([[0.0], np.cumsum(rows.data)])
    start, stop = total[rows.indptr[which]], total[rows.indptr[which + 1]]
    entry = np.searchsorted(total, start + generator.random(len(which)) * (stop - start), "right") - 1
    return rows.indices[np.clip(entry, rows.indptr[which], rows.indptr[which + 1] - 1)]
