"""Options that several commands share, most of them on an index, and how they open it."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from aleator.retrieval import CredibleIndex

Location = Annotated[
    str, typer.Argument(help="the index: a folder, lance:folder/, s3://bucket/name, or postgresql://host/database#name")
]
Posteriors = Annotated[
    Path, typer.Argument(help="file of `aleator embed`, or any .npz or .safetensors with mu (N, D) and kappa (N,)")
]
Items = Annotated[
    Path | None, typer.Option(help='ids and metadata: a file with one line {"id": ..., "any": "metadata"} per item')
]
Fingerprint = Annotated[str | None, typer.Option(help="fingerprint of the encoder that made the posteriors")]
Prior = Annotated[float | None, typer.Option(help="share of matches among pairs of a query and an item")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


def open_index(location: str, fingerprint: str | None, header: Mapping[str, str], posteriors: Path) -> "CredibleIndex":
    """Open an index for posteriors. If another encoder made it, the error names both by run and date.

    Args:
        location: The index.
        fingerprint: Fingerprint of the encoder, as the user gave it; None: that of the header.
        header: The header of the posteriors file.
        posteriors: The posteriors file.
    """
    from aleator.foundation import reject
    from aleator.retrieval import CredibleIndex, encoder_name

    made_by = fingerprint or header.get("fingerprint")
    index = CredibleIndex.open(location)
    own = index.fingerprint
    if made_by is None or own is None or made_by == own:
        return index
    facts = {"fingerprint": made_by} if fingerprint else header
    names = encoder_name(facts), encoder_name(index.encoder)
    index.close()
    problem = f"were made by the encoder {names[0]}, the index by {names[1]}"
    reject("posteriors", str(posteriors), problem, "embed with the encoder of the index, or build a new index")
