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
        self._rows: dict[int, tuple[str, str, list]] = {}  # by row: key, metadata, components
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
            first = self._next_row
            owner = np.arange(len(items)) if items.owner is None else items.owner
            weight = np.ones(len(items)) if items.weight is None else items.weight
            for key, metadata in zip(items.keys, items.metadata_json, strict=True):
                self._rows[self._next_row] = (key, metadata, [])
                self._next_row += 1
            for row, *component in zip(owner + first, items.mu, items.kappa, weight, strict=True):
                self._rows[row][2].append(component)

    def delete(self, keys):
        with self._lock:
            for key in set(keys) - self.existing(keys):
                reject("ids", decode_id(key), "not in the index", "remove only items that it holds")
            self._rows = {row: item for row, item in self._rows.items() if item[0] not in set(keys)}

    def existing(self, keys):
        return {item[0] for item in self._rows.values()} & set(keys)

    def within(self, mu, radius, effort):
        row, items, kappa, weight = self._arrays()
        query, position = np.nonzero(mu @ items.T >= radius[:, None] - slack(mu.shape[1]))
        weight = weight[position] if self.config.get("modes", 1) > 1 else None
        return Candidates(query, row[position], items[position], kappa[position], weight)

    def components(self, rows):
        row, mu, kappa, weight = self._arrays()
        number, position = np.nonzero(rows[:, None] == row)
        return Candidates(number, row[position], mu[position], kappa[position], weight[position])

    def closest(self, mu, k, effort):
        everything = np.full(len(mu), -np.inf)  # nothing is left out
        return self.within(mu, everything, effort), everything

    def describe(self, rows):
        return {row: self._rows[row][:2] for row in rows.tolist() if row in self._rows}

    def kappa_range(self):
        finite = [float(kappa) for kappa in self._arrays()[2] if np.isfinite(kappa)]
        return (min(finite), max(finite)) if finite else (0.0, 0.0)

    def count_below(self, kappa):
        with self._lock:
            heaviest = np.array([components[0][1] for _, _, components in self._rows.values()], np.float32)
        return np.searchsorted(np.sort(heaviest), kappa)

    def sample_directions(self, count):
        return self._arrays()[1][:count]

    def save(self, location=None):
        pass

    def close(self):
        pass

    def _arrays(self):
        """Rows (n,), mu (n, D), kappa (n,) and weights (n,) of all components."""
        with self._lock:
            parts = [(row, *component) for row, item in self._rows.items() for component in item[2]]
        rows = np.array([part[0] for part in parts], np.int64)
        mu = np.array([part[1] for part in parts], np.float32).reshape(len(parts), self.config["dim"])
        return rows, mu, *(np.array([part[column] for part in parts], np.float32) for column in (2, 3))
