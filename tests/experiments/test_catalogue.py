"""The list of experiments."""

from aleator.experiments.catalogue import EXPERIMENTS


def test_the_families_of_experiments_keep_their_names():
    """They are part of the cache keys."""
    families = {name: experiment.run.family for name, experiment in EXPERIMENTS.items()}
    assert set(families.values()) == {"controlled", "landscape", "cifar"}
    assert families["recovery"] == "controlled"
    assert families["landscape"] == "landscape"
    assert families["cifar-losses"] == "cifar"


def test_every_experiment_has_a_title_of_one_line():
    for name, experiment in EXPERIMENTS.items():
        assert experiment.name == name
        assert experiment.title.endswith((".", "?"))
