"""The report: one table for each data set, and who wins in each column."""

from typing import Any

from benchmarks.own_data.measuring import COLUMNS
from benchmarks.own_data.rivals import BEST_POSSIBLE

OURS = "aleator"

Rows = dict[str, dict[str, Any]]  # method -> {"metrics": {column: {"value", "low", "high"} or None}, ...}


def markdown(data_sets: dict[str, Rows]) -> str:
    """The whole report."""
    lines = [
        "# Our defaults beside other methods, on several data sets",
        "",
        "Made by `python -m benchmarks.own_data`; the JSON file beside it holds all numbers and their provenance.",
        "Brackets hold 95 % bootstrap intervals over the questions. The best number of a column is bold. Ours are the",
        f"rows that start with {OURS}.",
        "",
    ]
    for name, rows in data_sets.items():
        columns = [c for c in COLUMNS if any(row["metrics"].get(c) is not None for row in rows.values())]
        lines += [f"## {name}", ""]
        lines += ["| method | " + " | ".join(COLUMNS[c].title for c in columns) + " |"]
        lines += ["|---" * (len(columns) + 1) + "|"]
        best = {c: best_method(rows, c) for c in columns}
        for method, row in rows.items():
            cells = [_cell(row["metrics"].get(c), best[c] == method) for c in columns]
            lines.append(f"| {method} | " + " | ".join(cells) + " |")
        lines += ["", *(f"- {line}" for line in verdicts(rows)), ""]
    return "\n".join(lines)


def best_method(rows: Rows, column: str, ours: bool | None = None) -> str | None:
    """The method with the best number of a column: of all, of ours alone, or of the rivals alone."""
    more = COLUMNS[column].more_is_better
    found = {
        method: row["metrics"][column]["value"]
        for method, row in rows.items()
        if row["metrics"].get(column) is not None
        and method != BEST_POSSIBLE
        and ours in (None, method.startswith(OURS))
    }
    if more is None or not found:
        return None
    return max(found, key=lambda method: found[method] if more else -found[method])


def verdicts(rows: Rows) -> list[str]:
    """For each column, whether ours or a rival wins, or whether their intervals hold each other's number."""
    lines = []
    for column, about in COLUMNS.items():
        ours, rival = best_method(rows, column, True), best_method(rows, column, False)
        if ours is None or rival is None:
            continue
        a, b = rows[ours]["metrics"][column], rows[rival]["metrics"][column]
        ahead = (a["value"] > b["value"]) == about.more_is_better
        close = a["low"] <= b["value"] <= a["high"] or b["low"] <= a["value"] <= b["high"]
        if close or ahead:
            verdict = "level" if close else "ours wins"
            lines.append(f"{about.title}: {verdict}, {_against(a, b)} ({ours}; {rival})")
        else:
            lines.append(f"{about.title}: **{rival} wins**, {_against(b, a)} of ours ({ours})")
    return lines


def _against(first: dict[str, float], second: dict[str, float]) -> str:
    return f"{_number(first['value'])} against {_number(second['value'])}"


def _cell(measured: dict[str, float] | None, best: bool) -> str:
    if measured is None:
        return ""
    value = _number(measured["value"])
    value = f"**{value}**" if best else value
    if measured["low"] == measured["high"]:
        return value
    return f"{value} [{_number(measured['low'])}, {_number(measured['high'])}]"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.3f}"
