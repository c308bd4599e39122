"""Every module has a test file of its name, or stands in the table below."""

from pathlib import Path

import pytest

from tests.test_layers import modules

TESTS = Path(__file__).parent

# Where a module is tested that has no test file of its own name. A value is a file, or a folder of them.
TESTED_IN = {
    "cli.index_options": "cli/test_query.py",
    "cli.label_text": "cli/test_own_data.py",
    "cli.quickstart": "quickstart/test_quickstart.py",
    "cli.reproduce": "experiments/test_report.py",
    "data.array_files": "data/test_cifar.py",
    "data.items": "data/test_batches.py",
    "encoders.heads": "encoders/test_encoder.py",
    "foundation.wording": "cli/test_query.py",
    "fused.angles": "fused/test_functions.py",
    "fused.bessel": "fused/test_functions.py",
    "fused.triton_helpers": "fused/test_functions.py",
    "fused.sampled_cosines": "fused/test_functions.py",
    "fused.sampling": "fused/test_functions.py",
    "fused.series": "fused/test_functions.py",
    "fused.softmax_share": "fused/test_functions.py",
    "matching.on_gpu": "fused/test_totals.py",
    "losses.softmax_share": "losses/test_sampled.py",
    "matching.zonal": "matching/test_kernels.py",
    "own_data.embedding.readable": "own_data/collection/test_left_out.py",
    "own_data.learning.held_out_comparison": "own_data/learning/test_learning.py",
    "own_data.learning.time_limit": "own_data/learning/test_recipe.py",
    "own_data.measuring.answer_figure": "cli/test_query.py",
    "own_data.measuring.encoded_items": "own_data/learning/test_encoding.py",
    "own_data.collection.collection": "own_data/collection/test_reading.py",
    "posteriors.checks": "posteriors/test_batch.py",
    "posteriors.moments": "posteriors/test_vmf.py",
    "quickstart.circle": "quickstart/test_quickstart.py",
    "quickstart.digits": "quickstart/test_quickstart.py",
    "quickstart.modes": "quickstart/test_quickstart.py",
    "quickstart.report": "quickstart/test_quickstart.py",
    "retrieval.certainty_words": "cli/test_query.py",
    "retrieval.encoder_names": "cli/test_query.py",
    "retrieval.hits": "retrieval/test_search.py",
    "retrieval.index_files": "cli/test_index.py",
    "retrieval.items": "retrieval/test_index.py",
    "retrieval.plots": "cli/test_index.py",
    "retrieval.promise": "retrieval/test_set_calibration.py",
    "retrieval.stores.consistency": "retrieval/stores/test_damage.py",
    "retrieval.stores.faiss": "retrieval/test_recall.py",
    "retrieval.stores.ledger": "retrieval/stores/test_folder.py",
    "retrieval.stores.repair": "retrieval/test_checking.py",
    "stored.arrays": "retrieval/test_posteriors_file.py",
    "stored.checksums": "retrieval/test_posteriors_file.py",
    "stored.items": "retrieval/test_posteriors_file.py",
    "special.debye": "special/test_bessel.py",
    "training.fabric": "training/test_resuming.py",
    "training.optimisers": "training/test_soap.py",
    "web.app": "web",
    "web.collection": "web",
    "web.credible_levels": "web",
    "web.guard": "web",
    "web.json_response": "web",
    "web.limits": "web",
    "web.models": "web",
    "web.pictures": "web",
    "web.problems": "web",
    "web.service": "web",
    "web.stopping": "web/test_workers.py",
    "web.watching": "web/test_logs.py",
}


def own_file(name: str) -> Path:
    *packages, last = name.split(".")
    return TESTS.joinpath(*packages, f"test_{last}.py")


def plain_modules() -> list[str]:
    return sorted(name for name, path in modules().items() if not path.name.startswith("__"))


@pytest.mark.parametrize("name", plain_modules())
def test_a_module_has_its_tests(name):
    if name in TESTED_IN:
        assert (TESTS / TESTED_IN[name]).exists()
        assert not own_file(name).exists(), f"{name} has a test file of its own: take it out of the table"
    else:
        assert own_file(name).exists(), f"add {own_file(name).relative_to(TESTS)}, or a row to TESTED_IN"


def test_the_table_names_modules_that_exist():
    assert set(TESTED_IN) <= set(plain_modules())
