"""What a store must do. Derive a new one from `Store`.

A store keeps items safely and returns candidates near a direction. It does not decide which of them belong to the
answer: it returns at least the items that could belong, with the vectors that it holds. `CredibleIndex` scores them in
one way for all stores, so every store gives the same answer.
"""

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from aleator.retrieval.items import Items, digests_of, state_text, sum_of


@dataclass(frozen=True)
class Candidates:
    """n pairs of a query and an item that may belong to its answer, in ascending order of the query.

    Args:
        query: Number of the query within the call, shape (n,), int64.
        row: The store's number for the item, shape (n,), int64. Rows grow with every addition and are never reused.
        mu: Directions as stored, shape (n, D), float32.
        kappa: Certainties, shape (n,), float32.
        weight: Weights of the components that were found, shape (n,), float32, in an index of posteriors with several
            modes. There, an item may appear several times, with several components. None: every item has one mode.

    Examples:
        >>> import numpy as np
        >>> from aleator.retrieval import Candidates
        >>> candidates = Candidates(np.array([0, 0, 1]), np.array([4, 7, 4]), np.eye(3, dtype=np.float32), np.ones(3))
        >>> candidates.take(candidates.row == 4).query.tolist()
        [0, 1]
    """

    query: np.ndarray
    row: np.ndarray
    mu: np.ndarray
    kappa: np.ndarray
    weight: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.row)

    def take(self, choice: np.ndarray) -> "Candidates":
        """Select candidates.

        Args:
            choice: A boolean mask of shape (n,), or positions.

        Returns:
            The selected candidates.
        """
        weight = None if self.weight is None else self.weight[choice]
        return Candidates(self.query[choice], self.row[choice], self.mu[choice], self.kappa[choice], weight)

    def of_queries(self, queries: np.ndarray) -> "Candidates":
        """Renumber the queries, after a call for only some of them.

        Args:
            queries: New number of each query of the call.

        Returns:
            The same candidates with `queries[query]` as their query.
        """
        return Candidates(queries[self.query], self.row, self.mu, self.kappa, self.weight)

    @staticmethod
    def concatenate(parts: "list[Candidates]") -> "Candidates":
        """Join candidates of different queries.

        Args:
            parts: Candidates; no query appears in two parts.

        Returns:
            All of them, in ascending order of the query.
        """
        if len(parts) == 1:
            return parts[0]
        columns = ((c.query, c.row, c.mu, c.kappa) + (() if c.weight is None else (c.weight,)) for c in parts)
        together = Candidates(*(np.concatenate(column) for column in zip(*columns, strict=True)))
        return together.take(np.argsort(together.query, kind="stable"))


class IndexGoneError(ValueError, ConnectionError):
    """The folder of an open index is not there any more, or is another one."""

    def __init__(self, problem: str):
        super().__init__(f"{problem}; open it again")


class Finder(Protocol):
    """Finds items near directions: a store, or a part of its items."""

    @abstractmethod
    def within(self, mu: np.ndarray, radius: np.ndarray, effort: int | None) -> Candidates:
        """Find the items around each query.

        Args:
            mu: Directions of the queries, shape (Q, D), float32.
            radius: Least cosine for each query, shape (Q,); -inf for all items.
            effort: How hard an approximate store searches; None searches exactly.

        Returns:
            At least the items whose cosine with mu[i] reaches radius[i].
        """

    @abstractmethod
    def closest(self, mu: np.ndarray, k: int, effort: int | None) -> tuple[Candidates, np.ndarray]:
        """Find the nearest items to each query.

        Args:
            mu: Directions of the queries, shape (Q, D), float32.
            k: About how many items for each query.
            effort: How hard an approximate store searches; None searches exactly.

        Returns:
            Candidates, and a reach of shape (Q,): items that are left out have a cosine of at most reach[i] + slack.
            A reach of -inf means that no item is left out.
        """


class Store(Finder, Protocol):
    """Keeps the items of one index. The base class of a new store.

    `CredibleIndex(store)` searches any store. A store must

    - do each change as one transaction: it happens completely, or it raises and nothing has changed;
    - keep ids unique: `insert` raises a ValueError for a key that it holds, `delete` for a key that it does not hold;
    - return from `within` and `closest` at least the items that the exact cosine would accept. Float32 arithmetic is
      allowed an error of `slack(dim)`, so a store searches with a radius that is smaller by this much;
    - return vectors exactly as they were inserted;
    - be safe to use from several threads.

    An approximate store offers `efforts`, sets `config["report"]` to `tune_recall(store, config["recall"])` in `save`,
    and searches exactly when `effort` is None.

    `tests/retrieval/stores/test_base.py` holds the tests that every store must pass. Add a new store to its list.
    `tests/retrieval/stores/list_store.py` is a complete store in fifty lines.

    Attributes:
        config: Settings of the index, which the store keeps as JSON: "dim", "kernel", "prior", "fingerprint", "recall",
            "exact_below" and "report" (a `RecallReport` as a dict, or None where every search is exact). "promise" is
            a `Promise` and "maps" are `MatchMaps` as a dict, or None.
            "modes" is the largest number of modes of an item, 1 if it is missing. A store for more than one keeps all
            vectors of `Items` and offers `components`.

    Examples:
        >>> import numpy as np, torch, aleator as al
        >>> store = al.CredibleIndex.build(al.VonMisesFisher(torch.eye(3), 5.0), ids=["x", "y", "z"]).store
        >>> candidates = store.within(np.eye(1, 3, dtype=np.float32), np.array([0.9]), None)
        >>> store.describe(candidates.row)
        {0: ('"x"', '{}')}
        >>> hits = al.CredibleIndex(store).search(al.VonMisesFisher(torch.eye(1, 3), 50.0))
        >>> [hit.id for hit in hits[0]]
        ['x']
    """

    config: dict[str, Any]

    @property
    @abstractmethod
    def location(self) -> str | None:
        """Folder or URL of the store; None for a store in memory."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of items."""

    def state(self) -> str:
        """What the store holds, as a digest: equal for equal items, in any order. A server asks for it often.

        Returns:
            The sum of the digests of all items as text. Here all items are read; a store that can keeps the sum instead
            (`Items.digests`).
        """
        with self.one_version():
            found = self.within(np.eye(1, self.config["dim"], dtype=np.float32), np.array([-np.inf]), None)
            texts = self.describe(found.row)
        described = [texts[row] for row in found.row.tolist()]
        return state_text(sum_of(digests_of(described, found.mu, found.kappa, found.weight)))

    @property
    @abstractmethod
    def efforts(self) -> list[int]:
        """Efforts that an approximate search can choose from, ascending; empty where every search is exact.

        An effort is a number with a meaning of the store's own, such as the number of lists to search.
        """

    @abstractmethod
    def reserve_ids(self, count: int) -> list[int]:
        """Make ids for items that are added without ids.

        Args:
            count: Number of ids.

        Returns:
            Integers that no item had as its row before.
        """

    @abstractmethod
    def insert(self, items: Items) -> None:
        """Add items, all or none.

        Args:
            items: The items.

        Raises:
            ValueError: If the store holds one of the keys.
        """

    @abstractmethod
    def delete(self, keys: list[str]) -> None:
        """Remove items, all or none.

        Args:
            keys: Ids as JSON text, each once.

        Raises:
            ValueError: If the store does not hold one of the keys.
        """

    @abstractmethod
    def existing(self, keys: list[str]) -> set[str]:
        """Look up which keys the store holds.

        Args:
            keys: Ids as JSON text.

        Returns:
            Those of the keys that the store holds.
        """

    def narrowed(self, texts: Sequence[Sequence[str]]) -> Finder:
        """Leave out items that cannot pass a filter. Only a store that can look at metadata itself needs it.

        Args:
            texts: Pieces of JSON text. The metadata of an item that passes contain at least one of each sequence.

        Returns:
            What searches exactly among at least the items that may pass. Here the store itself.
        """
        return self

    @abstractmethod
    def describe(self, rows: np.ndarray) -> dict[int, tuple[str, str]]:
        """Look up ids and metadata.

        Args:
            rows: Rows of `Candidates`.

        Returns:
            Id and metadata as JSON text, by row. Rows that were removed in the meantime are missing.
        """

    def components(self, rows: np.ndarray) -> Candidates:
        """Look up whole items of several modes. Only a store that keeps such items needs it.

        Args:
            rows: Rows of items, shape (n,), each once.

        Returns:
            All components of the items, with their weights. `query` is the position of the item in `rows`. Items that
            were removed in the meantime are missing.
        """
        raise NotImplementedError

    @abstractmethod
    def kappa_range(self) -> tuple[float, float]:
        """Find the range of certainties.

        Returns:
            The smallest and the largest finite kappa, or (0.0, 0.0) where there is none.
        """

    @abstractmethod
    def count_below(self, kappa: np.ndarray) -> np.ndarray:
        """Count the items that are less certain.

        Args:
            kappa: Certainties, shape (n,).

        Returns:
            For each of them the number of items with a smaller kappa; of several modes the heaviest counts.
        """

    @abstractmethod
    def sample_directions(self, count: int) -> np.ndarray:
        """Draw some of the items, for measuring recall.

        Args:
            count: Largest number of items.

        Returns:
            Directions of items that are spread over the collection, shape (n, D) with n <= count.
        """

    def one_version(self) -> AbstractContextManager[Any]:
        """Read one version of the items in several calls. Only a store that keeps versions needs it.

        Returns:
            A context. The calls inside it see the items as they were when it began.
        """
        return nullcontext()

    def configure(self, **changes: Any) -> None:
        """Change settings in `config`, durably where items are durable.

        Args:
            **changes: New values by key; the other settings stay.
        """
        self.config = {**self.config, **changes}

    @abstractmethod
    def save(self, location: str | None) -> None:
        """Bring the search structure up to date.

        Args:
            location: Where to move the index; None leaves it where it is.

        Raises:
            ValueError: If the store cannot be saved there.
        """

    @abstractmethod
    def close(self) -> None:
        """Release files and connections."""
