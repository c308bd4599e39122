"""A complete store in a few lines: arrays in memory, every search compares all items. A model for a new store."""

import threading

import numpy as np

from aleator.foundation import reject
from aleator.retrieval import Candidates, Items, Store, decode_id, slack


class ListStore(Store):
    def __init__(self, items: Items, config: dict):
        self.config = config
        self._lock = threading.RLock()
        self._next_row = 0
        self._rows: dict[int, tuple[str, str, np.ndarray, float]] = {}  # key, metadata, mu and kappa by row
        self.insert(items)

    @property
    def location(self):
        return None

    def __len__(self):
        return len(self._rows)

    @property
    def efforts(self):
        return []  # every search is exact

    def reserve_ids(self, count):
        return list(range(self._next_row, self._next_row + count))

    def insert(self, items):
        with self._lock:
            for key in self.existing(list(items.keys)):
                reject("ids", decode_id(key), "already in the index", "choose another id")
            for item in zip(items.keys, items.metadata_json, items.mu, items.kappa, strict=True):
                self._rows[self._next_row] = item
                self._next_row += 1

    def delete(self, keys):
        with self._lock:
            for key in set(keys) - self.existing(keys):
                reject("ids", decode_id(key), "not in the index", "remove only items that it holds")
            self._rows = {row: item for row, item in self._rows.items() if item[0] not in set(keys)}

    def existing(self, keys):
        return {item[0] for item in self._rows.values()} & set(keys)

    def within(self, mu, radius, effort):
        row, items, kappa = self._arrays()
        query, position = np.nonzero(mu @ items.T >= radius[:, None] - slack(mu.shape[1]))
        return Candidates(query, row[position], items[position], kappa[position])

    def closest(self, mu, k, effort):
        everything = np.full(len(mu), -np.inf)  # nothing is left out
        return self.within(mu, everything, effort), everything

    def describe(self, rows):
        return {row: self._rows[row][:2] for row in rows.tolist() if row in self._rows}

    def kappa_range(self):
        finite = [float(kappa) for *_, kappa in self._rows.values() if np.isfinite(kappa)]
        return (min(finite), max(finite)) if finite else (0.0, 0.0)

    def sample_directions(self, count):
        return self._arrays()[1][:count]

    def save(self, location=None):
        pass

    def close(self):
        pass

    def _arrays(self):
        """Rows (n,), mu (n, D) and kappa (n,)."""
        with self._lock:
            items = list(self._rows.values())
            rows = np.array(list(self._rows), np.int64)
        mu = np.array([item[2] for item in items], np.float32).reshape(len(items), self.config["dim"])
        return rows, mu, np.array([item[3] for item in items], np.float32)
