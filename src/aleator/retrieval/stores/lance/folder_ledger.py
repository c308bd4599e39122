"""The ledger of an index on Lance in a folder: a file for each state.

The file of a state is written under another name, and then gets its name as a second link to it. The file system gives
a name once: of two writers who change the same state, one gets the name of the next one. So a state is there whole, or
not at all, and it has a checksum that is verified before anything else is read. `save` removes states that are older
than a week, as it does versions of the table.
"""

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from aleator.foundation import DamagedFileError, create_file
from aleator.retrieval.stores.base import IndexGoneError
from aleator.retrieval.stores.lance.ledger import LEDGER, Ledger, TableLedger, refuse_second, require_known
from aleator.retrieval.stores.lance.place import Place
from aleator.retrieval.stores.lance.state import State, gone, read_state

_MOST = 100  # states that are read again to see what has changed


class FolderLedger(Ledger):
    """A ledger that is a folder of JSON files. Version n of the index is the state with the number n - 1."""

    def __init__(self, place: Place, folder: Path):
        self._folder = folder
        super().__init__(place)

    @classmethod
    def create(cls, place: Place, folder: Path, state: State) -> "FolderLedger":
        """Make the ledger. Of several writers who do this, one succeeds."""
        with place.plain_errors():
            folder.mkdir(parents=True, exist_ok=True)
            is_first = not _numbers(folder) and _claim(folder, state)
        if not is_first:
            refuse_second(place)
        return cls(place, folder)

    @classmethod
    def find(cls, place: Place, folder: Path) -> "FolderLedger | None":
        """The ledger, or None if there is none."""
        with place.plain_errors():
            numbers = _numbers(folder)
        if numbers and place.version is not None:
            require_known(place, [number + 1 for number in numbers])
        return cls(place, folder) if numbers else None

    def since(self, number: int) -> list[State]:
        first = max(number + 1, self.state.number - _MOST)
        try:
            return [*map(self._state, range(first, self.state.number)), self.state]
        except (DamagedFileError, IndexGoneError):  # older states are not needed
            return [self.state]

    def forget(self, age: timedelta) -> None:
        # A writer that still has a forgotten state may write the file after it. It then sees that newer states exist,
        # and makes its change again from the newest.
        old = time.time() - age.total_seconds()
        with self._place.plain_errors():
            states = [self._folder / _name(number) for number in _numbers(self._folder)[:-1]]
            for path in (*states, *self._folder.glob(".*.partial")):  # and what killed writers left
                if path.stat().st_mtime < old:
                    path.unlink(missing_ok=True)

    def _has_changed(self) -> bool:
        number = self.state.number
        with self._place.plain_errors():
            if (self._folder / _name(number + 1)).exists():
                return True
            if (self._folder / _name(number)).exists():
                return False
            newest = max(_numbers(self._folder), default=-1)
        if newest < number:
            raise gone(self._place, "its ledger is not there any more")
        return True  # ours was forgotten

    def _put(self, old: State, new: State) -> None:
        with self._place.plain_errors():
            _claim(self._folder, new)

    def _read(self) -> None:
        with self._place.plain_errors():
            number = max(_numbers(self._folder), default=0) if self._place.version is None else self._place.version - 1
        self.state, self.version = self._state(number), number + 1

    def _state(self, number: int) -> State:
        with self._place.plain_errors():
            data = (self._folder / _name(number)).read_bytes()
        return read_state(self._place, data, number)


def find_ledger(place: Place, connection: Any) -> Ledger | None:
    """The ledger at a place, or None if there is no index."""
    files = None if place.folder is None else FolderLedger.find(place, place.folder / LEDGER)
    return TableLedger.find(place, connection) if files is None else files


def create_ledger(place: Place, connection: Any, state: State) -> Ledger:
    """Make the ledger of a place that has none. Of several writers who do this, one succeeds."""
    if place.folder is None:
        return TableLedger.create(place, connection, state)
    return FolderLedger.create(place, place.folder / LEDGER, state)


def _name(number: int) -> str:
    return f"{number:020d}.json"


def _numbers(folder: Path) -> list[int]:
    """Numbers of the states in a folder, ascending."""
    if not folder.is_dir():
        return []
    return sorted(int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal())


def _claim(folder: Path, state: State) -> bool:
    """Write the file of a state, unless its number is taken. Returns whether it was written."""
    return create_file(folder / _name(state.number), state.to_json().encode())
