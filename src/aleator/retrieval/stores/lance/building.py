"""Building the vector index of an index on Lance, and keeping its files in order."""

import contextlib
import datetime
import math
from typing import Any

from aleator.retrieval.stores.lance.items import ItemTable
from aleator.retrieval.stores.lance.ledger import LEDGER, Ledger
from aleator.retrieval.stores.lance.place import ConflictError, Place

TABLES = "items-"  # starts the names of tables of items
_ABANDONED = datetime.timedelta(days=1)  # a table that no ledger names after this long was left by a killed writer

_KEPT = datetime.timedelta(days=7)
_FOR_EVER = datetime.timedelta(days=36_500)
_SAMPLES = 64  # vectors for each partition, to train on
_ROUNDS = 10  # of k-means
_GROWTH = 4  # the index is trained again when the collection has grown this many times


def partition_count(size: int) -> int:
    """Number of partitions of the vector index: about sqrt(n)."""
    return 1 << max(0, round(math.log2(math.sqrt(size)))) if size else 0


def bring_up_to_date(items: ItemTable, partitions: int, count: int, config: dict[str, Any], tries: int) -> int:
    """Compact the files, and build the vector index or add new rows to it.

    Args:
        items: The table.
        partitions: Partitions of the index that is there; 0 if there is none.
        count: Number of items.
        config: Settings of the index.
        tries: How often to compact, if other writers come in between.

    Returns:
        Partitions of the index that is there now.
    """
    wanted = partition_count(count) if count >= config["exact_below"] else 0
    if wanted and (not partitions or wanted >= _GROWTH * partitions):
        _compact(items, tries)
        from lancedb.index import BTree, IvfFlat

        nearest = IvfFlat("l2", num_partitions=wanted, sample_rate=_SAMPLES, max_iterations=_ROUNDS)
        with items.place.plain_errors():
            items.table.create_index("mu", config=nearest, name="nearest")
            for column in ("row", "key"):
                items.table.create_index(column, config=BTree())
        return wanted
    _compact(items, tries)  # it adds new rows to the indexes, too
    return partitions if wanted else 0


def _compact(items: ItemTable, tries: int) -> None:
    for _ in range(tries):
        try:
            with items.place.plain_errors():
                items.table.checkout_latest()
                items.table.optimize(cleanup_older_than=_FOR_EVER)
            return
        except ConflictError:
            continue  # the files stay as they are, which is slower and as right


def drop_old_versions(items: ItemTable, ledger: Ledger) -> None:
    """Remove versions of the index that are older than a week, and the files that only they need."""
    with contextlib.suppress(ConflictError), items.place.plain_errors():
        items.table.checkout_latest()
        items.table.optimize(cleanup_older_than=_KEPT)
    ledger.forget(_KEPT)


def drop_abandoned(place: Place, connection: Any, current: str) -> None:
    """Remove tables of builds that were killed, or replaced, long ago."""
    with place.plain_errors():
        for name in connection.list_tables().tables:
            if name in (LEDGER, current) or not name.startswith(TABLES):
                continue
            if datetime.datetime.now() - _last_written(place, connection, name) > _ABANDONED:
                connection.drop_table(name)


def _last_written(place: Place, connection: Any, name: str) -> datetime.datetime:
    if place.folder is None:
        return connection.open_table(name).list_versions()[-1]["timestamp"]
    # Lance must not read the files of a table that nobody verifies.
    times = [path.stat().st_mtime for path in (place.folder / f"{name}.lance").rglob("*")]
    return datetime.datetime.fromtimestamp(max(times, default=0.0))
