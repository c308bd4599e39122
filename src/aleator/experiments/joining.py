"""Joins a part of a table with what is stored of the table: rows and seeds that another machine made stay."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aleator.experiments.outdated import changed_fields
from aleator.experiments.runner import Row, mean_over_seeds
from aleator.foundation import require


def require_joinable(stored: dict[str, Any], planned: Sequence[Row], target: Path) -> None:
    """Raise if stored seeds would stand in one row with runs of other settings.

    Args:
        stored: The stored result.
        planned: Rows that are to be joined with it, with their seeds. A row may come in several parts.
        target: File of the stored result.
    """
    for row in stored["rows"]:
        parts = [part for part in planned if _key_of(part) == _key(row)]
        only_stored = set(row["seeds"]).difference(*(part.seeds for part in parts))
        if parts and only_stored:
            changed = sorted(set(changed_fields(parts[0].setting, row)))
            problem = f"{target.name} has runs of {row['setting']} with other settings ({', '.join(changed)})"
            require(not changed, "results", str(target.parent.parent), problem, "name another folder of results")


def join_results(
    stored: dict[str, Any], fresh: dict[str, Any], rows: Sequence[Row], starts: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """A result with the rows and seeds of two. Of a seed that is in both, the fresh run counts.

    Args:
        stored: The stored result.
        fresh: The result of the runs that are here.
        rows: The rows of the table, in order. Stored rows that are no longer in it come last.
        starts: The starts of this call that had something to run. The stored seconds have the earlier ones.
    """
    by_key = {_key(row): row for row in stored["rows"]}
    for row in fresh["rows"]:
        by_key[_key(row)] = _joined(by_key[_key(row)], row) if _key(row) in by_key else row
    ordered = [by_key.pop(_key_of(row)) for row in rows if _key_of(row) in by_key]
    table = [*ordered, *by_key.values()]
    runs, runs_here = (sum(len(row["seeds"]) for row in some) for some in (table, fresh["rows"]))
    provenance = fresh["provenance"]
    if runs > runs_here:
        provenance = _joined_provenance(stored["provenance"], provenance, starts) | {"runs": runs}
    return {**fresh, "provenance": provenance, "rows": table}


def _key(row: dict[str, Any]) -> tuple[str, str]:
    """What tells a row of a result from the others."""
    return row["setting"], row["loss"]


def _key_of(row: Row) -> tuple[str, str]:
    """The same of a row that is to be run."""
    return row.setting.name, row.setting.loss


def _joined(stored: dict[str, Any], fresh: dict[str, Any]) -> dict[str, Any]:
    """One row with the seeds of two."""
    if set(stored["seeds"]) <= set(fresh["seeds"]):
        return fresh
    seeds = [*stored["seeds"], *(seed for seed in fresh["seeds"] if seed not in stored["seeds"])]

    def both(old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
        by_seed = dict(zip(stored["seeds"], old, strict=True)) | dict(zip(fresh["seeds"], new, strict=True))
        return [by_seed[seed] for seed in seeds]

    old, new = stored["metrics"], fresh["metrics"]
    metrics = {name: mean_over_seeds(both(old[name]["values"], new[name]["values"])) for name in new if name in old}
    seconds = both(stored["run_seconds"], fresh["run_seconds"])
    return {**fresh, "seeds": seeds, "metrics": metrics, "run_seconds": seconds}


def _joined_provenance(
    stored: dict[str, Any], fresh: dict[str, Any], starts: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The commits, devices and seconds of both parts. Command and versions are those of the fresh one."""

    def both(name: str) -> str:
        return stored[name] if fresh[name] in stored[name] else f"{stored[name]}, {fresh[name]}"

    return {
        **fresh,
        "commit": both("commit"),
        "device": both("device"),
        "wall_seconds": round(stored["wall_seconds"] + sum(start["seconds"] for start in starts), 1),
        "sittings": stored.get("sittings", 1) + len(starts),
        "runs shared with other experiments": stored.get("runs shared with other experiments", 0),
    }
