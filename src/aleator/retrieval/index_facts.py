"""What an index is, as its store keeps it: dimension, encoder, kernel, prior, maps, measured recall."""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from aleator.foundation import reject, require
from aleator.matching import AcceptanceKernel, MatchMaps, VMFKernel, ZonalKernel
from aleator.retrieval.encoder_names import encoder_facts, encoder_name
from aleator.retrieval.recall import RecallReport
from aleator.retrieval.stores.base import Store

_STORED_KERNELS = {"VMFKernel": VMFKernel, "AcceptanceKernel": AcceptanceKernel}


class IndexFacts:
    """A store of items, and what it says about them. `CredibleIndex` inherits from it.

    Args:
        store: Where the items are.
    """

    def __init__(self, store: Store):
        way_out = "make an index with CredibleIndex.build(posteriors), or open one with CredibleIndex.open(location)"
        require(hasattr(store, "config"), "store", type(store).__name__, "not a store", way_out)
        self._store = store
        self._lock = threading.RLock()

    @property
    def store(self) -> Store:
        """The store that keeps the items."""
        return self._store

    @property
    def dim(self) -> int:
        """Dimension D of the posteriors."""
        return self._store.config["dim"]

    @property
    def modes(self) -> int:
        """Largest number of modes of an item: that of the posteriors that the index was built from."""
        return self._store.config.get("modes", 1)

    def state(self) -> str:
        """What the index holds, as a digest of all ids, metadata and posteriors.

        Returns:
            A text that is equal for equal items, in any order and in any store. What was measured with an index holds
            for this state of it.

        Examples:
            >>> import torch, aleator as al
            >>> index = al.CredibleIndex.build(al.VonMisesFisher(torch.eye(3), 5.0), ids=["x", "y", "z"])
            >>> before = index.state()
            >>> index.remove(["x"])
            >>> index.state() == before
            False
            >>> _ = index.add(al.VonMisesFisher(torch.eye(1, 3), 5.0), ["x"])
            >>> index.state() == before
            True
        """
        return self._store.state()

    @property
    def location(self) -> str | None:
        """Folder or URL of the index; None for an index in memory."""
        return self._store.location

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint of the encoder that made the items, if it was given to `build`."""
        return self._store.config["fingerprint"]

    @property
    def encoder(self) -> dict[str, Any]:
        """The fingerprint of the encoder and, if known, its "run", the day when it was "trained", and the "source"."""
        return {"fingerprint": self.fingerprint, **self._store.config.get("encoder", {})}

    def remember_encoder(self, header: Mapping[str, str]) -> None:
        """Keep the name of the encoder, from the header of a posteriors file.

        Args:
            header: What `read_header` gives.
        """
        facts = encoder_facts(header)
        if facts:
            self._store.configure(encoder=facts)

    def surer_than(self, kappa: np.ndarray) -> np.ndarray:
        """Share of the items with a smaller kappa.

        Args:
            kappa: Certainties, shape (n,).

        Returns:
            Shares, shape (n,); 0 for an empty index.
        """
        return self._store.count_below(kappa) / max(1, len(self._store))

    @property
    def kernel(self) -> ZonalKernel:
        """Kernel of the match probabilities."""
        return decode_kernel(self._store.config["kernel"])

    @property
    def prior(self) -> float:
        """Share of matches among pairs of a query and an item."""
        return self._store.config["prior"]

    @property
    def maps(self) -> MatchMaps:
        """Maps of calibrated match probabilities; the identity if none were given."""
        return MatchMaps.from_dict(self._store.config.get("maps"))

    @property
    def recall_report(self) -> RecallReport | None:
        """Measured recall of the approximate search; None if every search is exact."""
        report = self._store.config["report"]
        return None if report is None else RecallReport.from_dict(report)

    def _maps_for(self, kernel: ZonalKernel) -> MatchMaps:
        """The maps of the index, which belong to its kernel; the identity for another kernel."""
        known = isinstance(kernel, VMFKernel | AcceptanceKernel)
        return self.maps if known and encode_kernel(kernel) == self._store.config["kernel"] else MatchMaps()

    def _require_encoder(self, fingerprint: str | None) -> None:
        own = self.fingerprint
        same = fingerprint is None or own is None or fingerprint == own
        way_out = "embed with that encoder, or build a new index"
        problem = f"the index was made by the encoder {encoder_name(self.encoder)}"
        require(same, "fingerprint", fingerprint, problem, way_out)


def encode_kernel(kernel: ZonalKernel) -> dict[str, Any]:
    """A kernel as an index stores it."""
    name = type(kernel).__name__
    if not isinstance(kernel, VMFKernel | AcceptanceKernel):
        reject("kernel", name, "cannot be stored", f"use {' or '.join(_STORED_KERNELS)}; `search` takes any kernel")
    return {"name": name, "kappa_pos": float(kernel.kappa_pos.detach())}


def decode_kernel(stored: dict[str, Any]) -> ZonalKernel:
    """The kernel that `encode_kernel` described."""
    return _STORED_KERNELS[stored["name"]](stored["kappa_pos"])
