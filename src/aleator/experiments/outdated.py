"""Whether a stored result was made with the settings that its preset has today.

Every row of a result in results/ holds the parameters of its runs. A preset may change later; until it is run again,
its table shows the earlier settings. The report says so, with what has changed.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from aleator.experiments.runner import Row

_EARLIER_PAPER = (
    "These runs were made before the preset followed the published code's laws. They took negatives from P(x), as the "
    "paper's text says, with the published code's vMF kernel (unless a row says otherwise), which does not fit them "
    "([why](../docs/understanding.md))."
)


def note_on_changes(result: dict[str, Any], rows: Sequence[Row]) -> str:
    """What differs between a stored result and the rows of its preset, as Markdown; empty if nothing does."""
    stored = {(row["setting"], row["loss"]): row for row in result["rows"]}
    today = {(row.setting.name, row.setting.loss): row for row in rows}
    both = [key for key in today if key in stored]
    changed = {key: set(changed_fields(today[key].setting, stored[key])) for key in both}
    old = [key for key in both if changed[key]]
    changes = sorted(set().union(*changed.values()))
    parts = []
    if changes:
        which = "Made" if len(old) == len(both) else f"{_listed(old, today)}: made"
        parts.append(f"**{which} with earlier settings of this preset. Those of today have not been run yet.**")
        if result["preset"] == "paper" and "rule" in changes:
            parts.append(_EARLIER_PAPER)
        parts.append(f"Changed since: {', '.join(f'`{name}`' for name in changes)}.")
    elif fewer := [key for key in both if len(stored[key]["seeds"]) < len(today[key].seeds)]:
        parts.append(f"The preset has more seeds today: {_listed(fewer, today)}.")
    if new := [key for key in today if key not in stored]:
        parts.append(f"Not run yet: {_listed(new, today)}.")
    if gone := [key for key in stored if key not in today]:
        parts.append(f"No longer in the preset: {_listed(gone, stored)}.")
    return " ".join(parts)


def changed_fields(setting: Any, stored: dict[str, Any]) -> Iterator[str]:
    """Names of the fields of a setting that differ from the parameters of a stored row.

    A field that is younger than the result is taken to have had its default. One that no longer exists is left out.
    """
    parameters = stored.get("parameters", {})
    for field in dataclasses.fields(setting):
        now = getattr(setting, field.name)
        if field.name not in parameters:
            if field.default is not dataclasses.MISSING and now != field.default:
                yield field.name
        elif dataclasses.is_dataclass(now):
            yield from changed_fields(now, {"parameters": parameters[field.name]})
        elif json.loads(json.dumps(now)) != parameters[field.name]:
            yield field.name


def _listed(keys: Sequence[tuple[str, str]], all_keys: Iterable[tuple[str, str]]) -> str:
    """Names of at most four rows in quotation marks, and how many more there are.

    A name that several losses share, among `all_keys`, is followed by the row's loss.
    """
    uses = Counter(name for name, _ in all_keys)
    shown = ", ".join(f'"{name}"' + (f" ({loss})" if uses[name] > 1 else "") for name, loss in keys[:4])
    return shown if len(keys) <= 4 else f"{shown} and {len(keys) - 4} more"
