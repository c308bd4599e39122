"""What a backend must do: keep items safely, and name candidates near a direction.

A store decides nothing about the answer. It returns at least the items that `scoring` could accept, with the
vectors it holds, and `CredibleIndex` judges them; that is why every backend gives the same answer.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from aleator.retrieval.items import Items


@dataclass(frozen=True)
class Candidates:
    """n items to be judged, in ascending order of the query. A row is a store's own number for an item: it
    grows with every addition and is never used again."""

    query: np.ndarray  # (n,) int64, position of the query in the call
    row: np.ndarray  # (n,) int64
    mu: np.ndarray  # (n, D) float32, as stored
    kappa: np.ndarray  # (n,) float32

    def __len__(self) -> int:
        return len(self.row)

    def take(self, choice: np.ndarray) -> "Candidates":
        """The candidates that a mask or an index array selects."""
        return Candidates(self.query[choice], self.row[choice], self.mu[choice], self.kappa[choice])

    def of(self, queries: np.ndarray) -> "Candidates":
        """The same items, found for a subset of the queries of a call: `queries` says which."""
        return Candidates(queries[self.query], self.row, self.mu, self.kappa)

    @staticmethod
    def concatenate(parts: "list[Candidates]") -> "Candidates":
        """Parts with different queries as one, in order of the query."""
        if len(parts) == 1:
            return parts[0]
        columns = ((c.query, c.row, c.mu, c.kappa) for c in parts)
        together = Candidates(*(np.concatenate(column) for column in zip(*columns, strict=True)))
        return together.take(np.argsort(together.query, kind="stable"))


class Store(Protocol):
    """One collection in one place. Every method is one transaction: it happens or it does not.

    `effort` is how hard an approximate store searches: lists probed or graph nodes visited. None is exact.
    """

    config: dict[str, Any]

    @property
    def location(self) -> str | None: ...
    def __len__(self) -> int: ...
    @property
    def efforts(self) -> list[int]:
        """Efforts worth trying, ascending; empty where every search is exact."""

    def reserve(self, count: int) -> list[int]:
        """Numbers that serve as ids for items that come without."""

    def insert(self, items: Items) -> None: ...
    def delete(self, keys: list[str]) -> None: ...
    def present(self, keys: list[str]) -> set[str]: ...
    def within(self, mu: np.ndarray, radius: np.ndarray, effort: int | None) -> Candidates:
        """At least the items whose cosine with mu[i] reaches radius[i]: mu (Q, D), radius (Q,)."""

    def closest(self, mu: np.ndarray, k: int, effort: int | None) -> tuple[Candidates, np.ndarray]:
        """About k items nearest to each mu[i], and a reach (Q,): whatever was left out has a cosine of at
        most reach[i] + slack. A reach of -inf says that nothing was left out."""

    def describe(self, rows: np.ndarray) -> dict[int, tuple[str, str]]:
        """Key and note by row; rows that were removed meanwhile are missing."""

    def kappa_range(self) -> tuple[float, float]:
        """The smallest and the largest finite kappa held."""

    def sample(self, count: int) -> np.ndarray:
        """At most count of the directions held, (n, D), spread over the collection."""

    def save(self, location: str | None) -> None: ...
    def close(self) -> None: ...
