"""What an index on Lance holds, as its ledger says it: one state, which never changes."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from aleator.foundation import BadArgumentError, DamagedFileError, require
from aleator.retrieval.stores.base import IndexGoneError
from aleator.retrieval.stores.consistency import config_problem
from aleator.retrieval.stores.lance.place import Place

FORMAT = 2  # of the ledger and the table of items. Format 2 has checksums; indexes in format 1 have none
_SINCE_2 = ("format", "totals", "files")  # fields that format 1 does not have


@dataclass(frozen=True)
class State:
    """What an index holds.

    Args:
        number: Number of changes so far.
        table: Name of the table of items.
        version: The version of that table that is read. It has all of these items.
        next_row: Rows from here on were never given out.
        count: Number of items.
        config: Settings of the index.
        open: By token, rows (start, stop) that a writer is adding. They are not in the index yet. A writer that was
            killed leaves its entry, and its rows are never shown.
        removed: Rows (start, stop) that were removed from the index and are perhaps still in the table.
        partitions: Partitions of the vector index; 0 if there is none.
        tokens: Tokens of the last changes. A writer whose connection broke can see whether its change happened.
        format: Of the ledger and the table.
        totals: Sums of the checksums of all rows of the index (`checksums.py`); nothing in format 1.
        files: SHA-256 of all files that Lance reads for this version (`files.py`), by path; nothing in format 1
            and on an object store.
    """

    number: int
    table: str
    version: int
    next_row: int
    count: int
    config: dict[str, Any]
    open: dict[str, tuple[int, int]] = field(default_factory=dict)
    removed: list[tuple[int, int]] = field(default_factory=list)
    partitions: int = 0
    tokens: list[str] = field(default_factory=list)
    format: int = 1
    totals: dict[str, int] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    @property
    def hidden(self) -> np.ndarray:
        """Rows (n, 2), start and stop, ascending, that are not in the index."""
        return np.array(sorted([*map(tuple, self.open.values()), *map(tuple, self.removed)]), np.int64).reshape(-1, 2)

    def shows(self, rows: np.ndarray) -> np.ndarray:
        """Whether rows (n,) of the table are in the index."""
        hidden = self.hidden
        shown = rows < self.next_row
        if len(hidden):
            before = np.searchsorted(hidden[:, 0], rows, side="right") - 1
            shown &= (before < 0) | (rows >= hidden[before, 1])
        return shown

    def to_json(self) -> str:
        """As JSON, with a checksum."""
        values = asdict(self)
        if self.format == 1:
            return json.dumps({name: value for name, value in values.items() if name not in _SINCE_2})
        return json.dumps({**values, "digest": _digest(values)})

    @classmethod
    def from_json(cls, text: str | bytes, place: Place) -> "State":
        """A state that `to_json` wrote. A ValueError, TypeError or KeyError if it did not."""
        values = json.loads(text)
        written = values.get("format", 1)
        if ("digest" in values or written != 1) and values.pop("digest") != _digest(values):
            raise place.damaged("its ledger does not match its checksum")
        problem = f"is in format {written}, and this release reads formats up to {FORMAT}"
        require(written <= FORMAT, "location", str(place), problem, "open it with the release that wrote it")
        return cls(**values)


def read_state(place: Place, text: str | bytes, number: int) -> State:
    """A state that `State.to_json` wrote, with this number. Raises a DamagedFileError if it is another one."""
    try:
        state = State.from_json(text, place)
        problem = config_problem(state.config) if number == state.number else "its ledger has another number"
    except (DamagedFileError, BadArgumentError):
        raise
    except (TypeError, ValueError, KeyError, AttributeError):
        problem = "its ledger cannot be read"
    if problem is not None:
        raise place.damaged(problem)
    return state


def gone(place: Place, problem: str) -> IndexGoneError:
    """The error for an index that was removed or replaced."""
    return IndexGoneError(f"{place}: {problem}")


def _digest(values: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16).hexdigest()
