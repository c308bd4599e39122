"""Names of encoders for people: the run and the day of its training. The fingerprint alone identifies an encoder."""

import re
from collections.abc import Mapping
from typing import Any

_CHECKSUM = re.compile("[0-9a-f]{10,}")  # of an encoder; a name that a user gave is shown whole
_SHOWN = 8  # digits of a fingerprint that a person can compare


def encoder_name(facts: Mapping[str, Any]) -> str:
    """The name of an encoder for people.

    Args:
        facts: The header of a posteriors file, or the settings of an index: "fingerprint", and if known "run" and
            "trained".

    Returns:
        "photos of 2026-11-16 (1a2b3c4d)", or the fingerprint alone.

    Examples:
        >>> from aleator.retrieval import encoder_name
        >>> encoder_name({"fingerprint": "1a2b3c4d5e6f", "run": "photos", "trained": "2026-11-16"})
        'photos of 2026-11-16 (1a2b3c4d)'
        >>> encoder_name({"fingerprint": "1a2b3c4d5e6f"})
        '1a2b3c4d'
    """
    digits = str(facts.get("fingerprint") or "unknown")
    if _CHECKSUM.fullmatch(digits):
        digits = digits[:_SHOWN]
    run, day = facts.get("run"), facts.get("trained")
    if not run:
        return digits
    return f"{run}{f' of {day}' if day else ''} ({digits})"


def encoder_facts(header: Mapping[str, str]) -> dict[str, str]:
    """What an index remembers of its encoder and its items, from the header of their posteriors file.

    Args:
        header: The header.

    Returns:
        "run", "trained" and "source", as far as they are known.
    """
    return {name: header[name] for name in ("run", "trained", "source") if name in header}
