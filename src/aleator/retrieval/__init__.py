"""Search a collection of posteriors, in memory, in a folder, on a PostgreSQL server or on an object store."""

from aleator.retrieval.answer_sets import AnswerSet
from aleator.retrieval.certainty_words import certainty_in_words
from aleator.retrieval.checking import check_index, repair_index
from aleator.retrieval.encoder_names import encoder_name
from aleator.retrieval.filters import Filter
from aleator.retrieval.hits import Hit, group_by_mode
from aleator.retrieval.index import CredibleIndex
from aleator.retrieval.index_files import finish_index, index_from_file
from aleator.retrieval.items import Items, decode_id, directions, encode_id
from aleator.retrieval.metadata_labels import label_text, labels_of, share_of_matches
from aleator.retrieval.mixture_search import highest_log_density, region_thresholds
from aleator.retrieval.plots import plot_hits
from aleator.retrieval.posteriors_file import (
    label_header,
    match_header,
    match_settings,
    read_answers,
    read_posteriors,
    rewrite_header,
    write_posteriors,
)
from aleator.retrieval.promise import Promise, SetsOf
from aleator.retrieval.recall import RecallReport, Rung, tune_recall
from aleator.retrieval.scoring import TIE, cap_radii, cosines, slack
from aleator.retrieval.search import SearchBy
from aleator.retrieval.snapshot import Snapshot, take_snapshot
from aleator.retrieval.stores.base import Candidates, IndexGoneError, Store
from aleator.retrieval.stores.lance.place import is_lance
from aleator.stored import (
    Id,
    Metadata,
    items_header,
    join_items,
    read_header,
    read_items,
    read_items_beside,
    write_items,
)

__all__ = [
    "TIE",
    "AnswerSet",
    "Candidates",
    "CredibleIndex",
    "Filter",
    "Hit",
    "Id",
    "IndexGoneError",
    "Items",
    "Metadata",
    "Promise",
    "RecallReport",
    "Rung",
    "SearchBy",
    "SetsOf",
    "Snapshot",
    "Store",
    "cap_radii",
    "certainty_in_words",
    "check_index",
    "cosines",
    "decode_id",
    "directions",
    "encode_id",
    "encoder_name",
    "finish_index",
    "group_by_mode",
    "highest_log_density",
    "index_from_file",
    "is_lance",
    "items_header",
    "join_items",
    "label_header",
    "label_text",
    "labels_of",
    "match_header",
    "match_settings",
    "plot_hits",
    "read_answers",
    "read_header",
    "read_items",
    "read_items_beside",
    "read_posteriors",
    "region_thresholds",
    "repair_index",
    "rewrite_header",
    "share_of_matches",
    "slack",
    "take_snapshot",
    "tune_recall",
    "write_items",
    "write_posteriors",
]
