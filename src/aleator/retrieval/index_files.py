"""From a posteriors file to an index."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from aleator.foundation import BadArgumentError
from aleator.matching import MatchMaps, VMFKernel
from aleator.retrieval.index import CredibleIndex
from aleator.retrieval.items import Id, Metadata, items_of
from aleator.retrieval.metadata_labels import share_of_matches
from aleator.retrieval.posteriors_file import match_settings, read_answers, read_header, read_posteriors


def index_from_file(
    posteriors: Path,
    location: str,
    ids: Sequence[Id] | None,
    metadata: Sequence[Metadata] | None,
    *,
    kappa_pos: float | None = None,
    prior: float | None = None,
    fingerprint: str | None = None,
    replace: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> CredibleIndex:
    """Build an index of a posteriors file, with its kernel, prior, maps, label probabilities and encoder.

    Args:
        posteriors: The posteriors file.
        location: Where the index shall be, as in `CredibleIndex.build`.
        ids: Ids of the items. None: they are numbered.
        metadata: Metadata of the items. The prior comes from their labels if all have one.
        kappa_pos: Kernel instead of the file's. The maps of the file belong to its kernel, and are then left out.
        prior: Prior instead of the file's.
        fingerprint: Fingerprint of the encoder instead of the file's.
        replace: Whether to replace an index that is already there.
        storage_options: Options of the object store.

    Returns:
        The index.

    Raises:
        ValueError: If the file is not valid, or if `location` holds an index and `replace` is false.

    Examples:
        >>> import numpy as np
        >>> from pathlib import Path
        >>> from aleator.retrieval import index_from_file
        >>> np.savez("two.npz", mu=np.eye(2, 3), kappa=np.array([5.0, 50.0]))
        >>> with index_from_file(Path("two.npz"), "two-items", ["a", "b"], None) as index:
        ...     len(index)
        2
    """
    header = read_header(posteriors)
    kernel, written_prior, maps = match_settings(header, posteriors)
    if kappa_pos is not None:
        kernel, maps = VMFKernel(kappa_pos), MatchMaps()
    if prior is None:
        own_prior = share_of_matches(metadata) if maps.calibrated else None
        prior = written_prior if own_prior is None else own_prior
    index = CredibleIndex.build(
        read_posteriors(posteriors),
        ids,
        metadata,
        location=location,
        kernel=kernel,
        prior=prior,
        maps=maps,
        fingerprint=header.get("fingerprint") if fingerprint is None else fingerprint,
        label_model=read_answers(posteriors)[0],
        replace=replace,
        storage_options=storage_options,
    )
    index.remember_encoder(header)
    return index


def finish_index(
    posteriors: Path,
    location: str,
    ids: Sequence[Id] | None,
    metadata: Sequence[Metadata] | None,
    storage_options: Mapping[str, str] | None = None,
) -> bool:
    """Finish an index on Lance that `index_from_file` was building when its process was killed.

    Args:
        posteriors: The posteriors file.
        location: Where the index may be.
        ids: Ids of the items.
        metadata: Metadata of the items.
        storage_options: Options of the object store.

    Returns:
        Whether the index is there, with these items and no others. If not, nothing was changed.

    Examples:
        >>> import numpy as np
        >>> from pathlib import Path
        >>> from aleator.retrieval import finish_index
        >>> np.savez("two.npz", mu=np.eye(2, 3), kappa=np.array([5.0, 50.0]))
        >>> finish_index(Path("two.npz"), "lance:never-begun", ["a", "b"], None)
        False
    """
    header = read_header(posteriors)
    try:
        index = CredibleIndex.open(location, storage_options=storage_options)
    except BadArgumentError:  # there is none, or one of another kind
        return False
    with index:
        items = items_of(read_posteriors(posteriors), ids, metadata)
        holds = getattr(index.store, "holds", None)  # only Lance's store has it
        if holds is None or index.fingerprint != header.get("fingerprint") or not holds(items):
            return False
        index.save()
        index.remember_encoder(header)
    return True
