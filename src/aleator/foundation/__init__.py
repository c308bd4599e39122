"""Tools of all other packages: checks, devices, precision, randomness, processes, signals, files, progress, origins."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aleator.foundation.checks import (
    BadArgumentError,
    is_whole,
    make_numbers_plain,
    plain_number,
    reject,
    require,
    require_at_least,
    require_class_numbers,
    require_count,
    require_file,
    require_float,
    require_new_folder,
    require_not_compiled,
    require_one_of,
    require_probability,
    require_type,
)
from aleator.foundation.files import (
    create_file,
    holds_nothing,
    naming_file,
    replace_file,
    save_figure,
    write_json,
    writing_atomically,
)
from aleator.foundation.integrity import (
    DamagedFileError,
    file_sha256,
    read_json,
    using_contents,
    verify_checksums,
    write_checksums,
)
from aleator.foundation.locks import lock_beside, only_process
from aleator.foundation.made_from import changed_sources, digest, require_made_from
from aleator.foundation.progress import CountBar, ProgressLines, duration, progress_bar
from aleator.foundation.redaction import redacted
from aleator.foundation.signals import raised_on_sigterm
from aleator.foundation.spreadsheets import without_apostrophe, write_csv
from aleator.foundation.wording import percent, visible

if TYPE_CHECKING:
    from aleator.foundation.bundle import pack_state, read_bundle, unpack_state, write_bundle
    from aleator.foundation.derivatives import Backward, Saved, with_gradient
    from aleator.foundation.devices import one_thread, resolve_device
    from aleator.foundation.distributed import (
        ProcessGroup,
        gather_batch,
        launched_process,
        pass_on,
        process_count,
        process_group,
        process_rank,
        require_equal_batches,
    )
    from aleator.foundation.precision import matmul_precision, without_autocast
    from aleator.foundation.provenance import command, describe_run
    from aleator.foundation.randomness import (
        derived_seed,
        even_sample,
        preserved_randomness,
        random_state,
        sample_numbers,
        seed_generators,
        set_random_state,
    )

# Modules that need torch. They are imported when a name of theirs is first used: a command that only reads a file
# starts without torch, which takes seconds to import.
_WITH_TORCH = ("bundle", "derivatives", "devices", "distributed", "precision", "provenance", "randomness")

__all__ = [
    "Backward",
    "BadArgumentError",
    "CountBar",
    "DamagedFileError",
    "ProcessGroup",
    "ProgressLines",
    "Saved",
    "changed_sources",
    "command",
    "create_file",
    "derived_seed",
    "describe_run",
    "digest",
    "duration",
    "even_sample",
    "file_sha256",
    "gather_batch",
    "holds_nothing",
    "is_whole",
    "launched_process",
    "lock_beside",
    "make_numbers_plain",
    "matmul_precision",
    "naming_file",
    "one_thread",
    "only_process",
    "pack_state",
    "pass_on",
    "percent",
    "plain_number",
    "preserved_randomness",
    "process_count",
    "process_group",
    "process_rank",
    "progress_bar",
    "raised_on_sigterm",
    "random_state",
    "read_bundle",
    "read_json",
    "redacted",
    "reject",
    "replace_file",
    "require",
    "require_at_least",
    "require_class_numbers",
    "require_count",
    "require_equal_batches",
    "require_file",
    "require_float",
    "require_made_from",
    "require_new_folder",
    "require_not_compiled",
    "require_one_of",
    "require_probability",
    "require_type",
    "resolve_device",
    "sample_numbers",
    "save_figure",
    "seed_generators",
    "set_random_state",
    "unpack_state",
    "using_contents",
    "verify_checksums",
    "visible",
    "with_gradient",
    "without_apostrophe",
    "without_autocast",
    "write_bundle",
    "write_checksums",
    "write_csv",
    "write_json",
    "writing_atomically",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in map(import_module, (f"aleator.foundation.{module}" for module in _WITH_TORCH)):
            if name in vars(module):
                value = globals()[name] = vars(module)[name]
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
