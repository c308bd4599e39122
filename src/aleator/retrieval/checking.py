"""Checking and repairing an index that was saved."""

from pathlib import Path

import numpy as np

from aleator.foundation import lock_beside, only_process, reject, require
from aleator.matching import DEFAULT_PRIOR, VMFKernel
from aleator.posteriors import PosteriorBatch
from aleator.retrieval.index import CredibleIndex, encode_kernel
from aleator.retrieval.items import Id, directions, encode_ids, make_items
from aleator.retrieval.snapshot import take_snapshot
from aleator.retrieval.stores.lance.place import is_lance
from aleator.retrieval.stores.repair import ItemVectors, Repair, repair_folder


def check_index(location: str | Path) -> int:
    """Verify everything in an index: every id, every kappa, every vector.

    `CredibleIndex.open` verifies as much, faster: by one checksum of the ledger and one of the vectors. This reads
    every row. An index on a server is read completely; its pages are verified by PostgreSQL, if its checksums are on.

    Args:
        location: The folder, the postgresql:// URL, or the lance: or s3:// location.

    Returns:
        Number of items.

    Raises:
        DamagedFileError: If something is damaged. It names the file and the way out.
        ValueError: If there is no index.

    Examples:
        >>> import torch, aleator as al
        >>> from aleator.retrieval import check_index
        >>> posteriors = al.VonMisesFisher(torch.eye(3), 5.0)
        >>> al.CredibleIndex.build(posteriors, location="checked").close()
        >>> check_index("checked")
        3
    """
    with CredibleIndex.open(location) as index:
        check = getattr(index.store, "check", None)  # a folder and Lance have one
        if check is not None:
            check()
        return len(take_snapshot(index))


def repair_index(folder: str | Path, posteriors: PosteriorBatch | None = None, ids: list[Id] | None = None) -> Repair:
    """Repair a damaged index in a folder: keep what is whole, and say what is lost.

    The damaged folder is kept under another name. An index without damage is left as it is.

    Args:
        folder: The folder.
        posteriors: Posteriors that replace lost vectors, such as those that the index was built from, batch shape (N,).
        ids: Their ids.

    Returns:
        What was kept, and what is lost.

    Raises:
        ValueError: If there is no index, or nothing in it is whole.

    Examples:
        >>> import torch, aleator as al
        >>> from pathlib import Path
        >>> from aleator.retrieval import repair_index
        >>> posteriors = al.VonMisesFisher(torch.eye(3), 5.0)
        >>> al.CredibleIndex.build(posteriors, ids=["x", "y", "z"], location="broken").close()
        >>> vectors = next(Path("broken").glob("vectors-*"))
        >>> vectors.unlink()
        >>> repaired = repair_index("broken", posteriors, ["x", "y", "z"])
        >>> repaired.kept, repaired.made_again, repaired.lost
        (3, 3, [])
    """
    if is_lance(folder):
        reject("location", "lance:...", "has versions instead", "open an older version, location#number")
    if "://" in str(folder):
        reject("location", "postgresql://...", "is on a server", "restore the database with the tools of PostgreSQL")
    folder = Path(folder).expanduser()
    require(folder.is_dir(), "location", str(folder), "there is no such folder", "name the folder of an index")
    replacements = None if posteriors is None or ids is None else _vectors_by_key(posteriors, ids)
    dim = posteriors.dim if posteriors is not None else 2
    default = {
        "dim": dim,
        "kernel": encode_kernel(VMFKernel()),
        "prior": DEFAULT_PRIOR,
        "maps": None,
        "fingerprint": None,
        "recall": 0.99,
        "exact_below": 100_000,
        "report": None,
        "promise": None,
        "labels": None,
    }
    if posteriors is not None and posteriors.modes > 1:
        default["modes"] = posteriors.modes
    with only_process(lock_beside(folder), "location", "index repair"):
        return repair_folder(folder, replacements, default)


def _vectors_by_key(posteriors: PosteriorBatch, ids: list[Id]) -> dict[str, ItemVectors]:
    items = make_items(
        posteriors, directions(posteriors, "posteriors"), encode_ids(ids), None, mixtures=posteriors.modes > 1
    )
    owner = np.arange(len(items)) if items.owner is None else items.owner
    weight = np.ones(len(owner), np.float32) if items.weight is None else items.weight
    first = np.searchsorted(owner, np.arange(len(items) + 1))
    return {
        key: ItemVectors(items.mu[a:b], items.kappa[a:b], weight[a:b])
        for key, a, b in zip(items.keys, first[:-1].tolist(), first[1:].tolist(), strict=True)
    }
