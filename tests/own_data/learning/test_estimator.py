"""The estimator of scikit-learn: it learns, and it works where estimators work."""

import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import aleator as al
from aleator.own_data import Settings, label_metrics, read_collection, train
from tests.own_data.conftest import blobs

SMALL = {"steps": 25, "width": 16, "members": 1}


def named(labels):
    return np.array(["zebra", "ant", "cow", "bee"])[labels]


@pytest.fixture(scope="module")
def fitted():
    rows, labels = blobs()
    return al.AleatorClassifier(**SMALL | {"steps": 150}).fit(rows, named(labels))


def test_it_learns_classes_of_any_kind(fitted):
    rows, labels = blobs(seed=1)
    assert fitted.classes_.tolist() == ["ant", "bee", "cow", "zebra"]
    clear = np.arange(len(rows)) % 4 != 0  # the others lie between two classes
    assert fitted.score(rows[clear], named(labels)[clear]) > 0.95
    probabilities = fitted.predict_proba(rows)
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-6)
    assert (fitted.predict(rows) == fitted.classes_[probabilities.argmax(1)]).all()
    assert fitted.metrics_["label_accuracy"] > 0.5


def test_uncertainty_is_larger_between_two_classes(fitted):
    rows, _ = blobs(seed=1)
    between = np.arange(len(rows)) % 4 == 0
    for by in ("labels", "kappa"):
        scores = fitted.uncertainty(rows, by=by)
        assert np.median(scores[between]) > np.median(scores[~between])
    entropy = -(fitted.predict_proba(rows) * np.log(fitted.predict_proba(rows) + 1e-300)).sum(1) / np.log(4)
    np.testing.assert_allclose(fitted.uncertainty(rows), entropy, atol=1e-5)
    with pytest.raises(ValueError, match="by = 'entropy'"):
        fitted.uncertainty(rows, by="entropy")


def test_transform_gives_the_means_of_the_posteriors(fitted):
    rows, _ = blobs()
    q = fitted.posteriors(rows)
    assert isinstance(q, al.VonMisesFisher)
    means = fitted.transform(rows)
    np.testing.assert_allclose(means, q.mean.numpy())
    assert (np.linalg.norm(means, axis=1) < 1).all()
    assert fitted.get_feature_names_out()[0] == "aleatorclassifier0"


def test_the_recipe_is_that_of_aleator_train(features, tmp_path):
    """The same data, settings and seed give the same encoder as `train`."""
    rows, labels = blobs()
    settings = {"dim": 4, "steps": 10, "width": 32, "members": 2, "batch_size": 64}
    collection = read_collection(features / "x.npy", features / "y.npy")
    run = train(collection, tmp_path / "run", Settings(**settings), device="cpu", baselines=False, progress=False)
    estimator = al.AleatorClassifier(**settings, holdout=run.config["settings"]["holdout"]).fit(rows, labels)
    assert torch.equal(estimator.posteriors(rows).mu, run.posteriors(rows).mu)
    np.testing.assert_allclose(estimator.predict_proba(rows), run.label_probabilities(rows).numpy(), atol=1e-6)


def test_clone_pipeline_and_grid_search():
    rows, labels = blobs(count=80)
    head = al.AleatorClassifier(**SMALL | {"steps": 3}, random_state=3)
    assert clone(head).get_params() == head.get_params()
    pipeline = make_pipeline(StandardScaler(), head)
    search = GridSearchCV(pipeline, {"aleatorclassifier__width": [4, 8]}, cv=2, error_score="raise")
    search.fit(rows, labels)
    assert search.best_params_["aleatorclassifier__width"] in (4, 8)
    assert search.best_estimator_.predict_proba(rows).shape == (80, 4)
    assert search.best_estimator_[-1].width == search.best_params_["aleatorclassifier__width"]


def test_numbers_of_numpy_as_searches_give_them():
    rows, labels = blobs(count=80)
    plain = SMALL | {"steps": 2, "dim": 3, "learning_rate": 0.5, "holdout": 0.25, "random_state": 7}
    given = {name: (np.float32 if isinstance(value, float) else np.int64)(value) for name, value in plain.items()}
    first, second = (al.AleatorClassifier(**settings).fit(rows, labels).transform(rows) for settings in (plain, given))
    np.testing.assert_array_equal(first, second)


def test_soft_labels():
    rows, labels = blobs(count=120)
    votes = np.eye(4)[labels] * 0.7 + np.eye(4)[(labels + 1) % 4] * 0.3
    head = al.AleatorClassifier(**SMALL | {"steps": 50}).fit(rows, votes)
    assert head.classes_.tolist() == [0, 1, 2, 3]
    found = label_metrics(torch.from_numpy(head.predict_proba(rows)), torch.from_numpy(votes))
    assert found["label_log_likelihood"] > np.log(1 / 4)
    with pytest.raises(ValueError, match=r"row 0 of y': sum to 1\.3"):
        head.fit(rows, votes + np.eye(4)[0] * 0.3)
    with pytest.raises(ValueError, match="y = 3: X has 120 rows"):
        head.fit(rows, votes[:3])


def test_it_is_pickled_and_saved(fitted, tmp_path):
    rows, _ = blobs()
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(rows), fitted.predict_proba(rows))
    folder = fitted.to_model().save_pretrained(tmp_path / "model")
    model = al.AleatorModel.from_pretrained(folder, device="cpu")
    assert model.label_names == ("ant", "bee", "cow", "zebra")
    np.testing.assert_allclose(model.label_probabilities(rows).numpy(), fitted.predict_proba(rows), atol=1e-6)


def test_the_seed_decides():
    rows, labels = blobs(count=80)
    first, second = (
        al.AleatorClassifier(**SMALL | {"steps": 2}, random_state=seed).fit(rows, labels).transform(rows)
        for seed in (np.random.RandomState(1), np.random.RandomState(1))
    )
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        (np.zeros((20, 2)), np.zeros(20), "1 class"),
        (
            np.zeros((8, 2)),
            np.arange(8) % 2,
            r"data = 'X': too few items \(8\) to hold out 20 % of them; add items of each class",
        ),
        (1e8 + np.arange(60.0).reshape(20, 3), np.arange(20) % 2, "data = 'X': column 0.*float32"),
        (
            np.where(np.arange(40) == 7, -1e300, 0).reshape(20, 2),
            np.arange(20) % 2,
            "^X = -1e.300: row 3, column 1 is too",
        ),
        (np.full((20, 2), 1e300), np.full((20, 2), 0.5), "^X = 1e.300: row 0, column 0 is too large"),
        (np.full((20, 2), np.nan), np.arange(20) % 2, "NaN"),
        (np.zeros((20, 2)), np.linspace(0, 1, 20), "Unknown label type"),
    ],
)
def test_mistakes_are_named(rows, labels, message):
    with pytest.raises(ValueError, match=message):
        al.AleatorClassifier(**SMALL).fit(rows, labels)


def test_a_share_that_cannot_be_held_out_is_named():
    with pytest.raises(ValueError, match=r"holdout = -0.1: not a share above 0 and below 1; pass for example 0.2"):
        al.AleatorClassifier(**SMALL, holdout=-0.1).fit(*blobs(count=80))


def test_a_fresh_process_uses_it():
    """And the package alone does not load scikit-learn."""
    code = """
import sys, numpy as np, aleator as al
import aleator.own_data
assert "sklearn" not in sys.modules
y = np.arange(60) % 2
X = np.eye(2)[y] * 4 + np.random.default_rng(0).standard_normal((60, 2))
print(al.AleatorClassifier(steps=30, width=16, members=1, learning_rate=0.02).fit(X, y).score(X, y) > 0.8)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "True\n"


def test_a_dozen_items_are_enough():
    rows, labels = np.eye(2)[np.arange(12) % 2], np.arange(12) % 2
    assert al.AleatorClassifier(**SMALL | {"steps": 1}).fit(rows, labels).predict(rows).shape == (12,)


@pytest.mark.slow
def test_the_checks_of_scikit_learn():
    """All but those that fit ten items, of which six of one class are needed."""
    few = "fits ten items"
    expected = {"check_estimators_nan_inf": few, "check_fit2d_1feature": few, "check_n_features_in_after_fitting": few}
    results = check_estimator(
        al.AleatorClassifier(**SMALL | {"steps": 40}), on_fail=None, on_skip=None, expected_failed_checks=expected
    )
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert not failed
    assert sum(r["status"] == "passed" for r in results) > 50


def test_its_model_takes_nothing_from_a_run_that_lies_about(run, features, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows, labels = blobs()
    model = al.AleatorClassifier(**SMALL | {"steps": 1}).fit(rows, labels).to_model()
    shutil.copytree(run.folder, tmp_path / "AleatorClassifier")
    assert not (model.save_pretrained("saved") / "items.npz").exists()
