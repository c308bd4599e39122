"""`AleatorClassifier`: `aleator train` on features, as an estimator of scikit-learn.

This module is the only one that needs scikit-learn when it is imported, so it is loaded when the name is first used.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from aleator.evaluation import label_certainty
from aleator.foundation import plain_number, reject, require, require_one_of
from aleator.own_data.collection.labels import Labels, soft_labels
from aleator.own_data.collection.reading import read_collection
from aleator.own_data.learning.defaults import Settings
from aleator.own_data.learning.learning import train
from aleator.own_data.measuring.one_mode import one_mode
from aleator.own_data.runs.model import AleatorModel
from aleator.posteriors import PosteriorBatch
from aleator.stored import CertaintyScore


class AleatorClassifier(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClassifierMixin, BaseEstimator):
    """Posteriors and label probabilities from features, with the interface of scikit-learn.

    The recipe is that of `aleator train` on features: an ensemble of small heads is trained, and its kappa, its match
    probabilities and its label probabilities are calibrated on items that are held out of the given ones. It works in
    pipelines, in `clone`, in cross-validation and in grid search.

    Args:
        dim: D, the dimension of the posteriors. This and what else is None is chosen from the data, as in `Settings`.
        modes: Number of modes of each posterior, or "auto", which tries one and two. Default: 1.
        kappa_pos: Concentration of the kernel: how close two latents must be to match.
        steps: Number of training steps.
        batch_size: Number of items in a batch.
        learning_rate: Highest learning rate of the one-cycle schedule.
        weight_decay: Weight decay of AdamW.
        dropout: Share of the units of hidden layers that are left out in training.
        width: Width of the hidden layers.
        members: Number of networks in the head.
        holdout: Share of the items that calibrates and evaluates, and is not learned from. Default: about 600 items,
            but 5 % to 20 %.
        random_state: Seed of everything random: a number, a numpy `RandomState`, or None for another one each time.
        device: "cpu", "cuda" or "auto", for example.
        verbose: Whether to print the log of the training.

    Attributes:
        classes_: The classes, sorted. With soft labels the numbers of the columns.
        model_: The fitted `AleatorModel`.
        metrics_: Metrics on held-out items.
        n_features_in_: F.

    Examples:
        >>> import numpy as np, aleator as al
        >>> rng = np.random.default_rng(0)
        >>> y = np.arange(120) % 3
        >>> X = 3 * np.eye(3, 5)[y] + rng.standard_normal((120, 5))
        >>> head = al.AleatorClassifier(steps=20, width=16).fit(X, y)
        >>> head.predict_proba(X).shape, head.transform(X).shape
        ((120, 3), (120, 8))
        >>> head.uncertainty(X).shape
        (120,)
    """

    def __init__(
        self,
        dim: int | None = None,
        modes: int | Literal["auto"] | None = None,
        kappa_pos: float | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        dropout: float | None = None,
        width: int | None = None,
        members: int | None = None,
        holdout: float | None = None,
        random_state: Any = 0,
        device: str = "cpu",
        verbose: bool = False,
    ):
        self.dim = dim
        self.modes = modes
        self.kappa_pos = kappa_pos
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.dropout = dropout
        self.width = width
        self.members = members
        self.holdout = holdout
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> "AleatorClassifier":
        """Train on features and labels.

        Args:
            X: Features, shape (N, F).
            y: Classes, shape (N,), or soft labels: probabilities of shape (N, C) with C >= 2.

        Returns:
            The estimator itself.

        Raises:
            ValueError: If the shapes do not fit, a number is not finite, or there are too few items of a class.
        """
        X, labels, classes = self._checked(X, y)
        settings = self._settings()
        with tempfile.TemporaryDirectory() as temporary:
            np.save(Path(temporary) / "features.npy", np.ascontiguousarray(X))
            collection = replace(read_collection(Path(temporary) / "features.npy"), labels=labels, source=Path("X"))
            run = train(
                collection,
                Path(temporary) / "run",
                settings,
                device=self.device,
                baselines=False,
                figures=False,
                progress=False,
                log=print if self.verbose else lambda line: None,
            )
        config = run.config | {"data": run.config["data"] | {"source": "features"}}
        self.classes_ = classes
        folder = Path("AleatorClassifier (in memory)")  # its name in messages; no files are there
        self.model_ = AleatorModel(replace(run, folder=folder, config=config))
        self.metrics_ = run.metrics
        self._n_features_out = run.encoder.dim
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Means of the posteriors: their direction is mu, their length says how certain they are.

        Args:
            X: Features, shape (N, F).

        Returns:
            E z, shape (N, D), inside the unit ball.
        """
        return self.posteriors(X).mean.numpy()

    def posteriors(self, X: Any) -> PosteriorBatch:
        """The posteriors themselves.

        Args:
            X: Features, shape (N, F).

        Returns:
            `VonMisesFisher`, or `VMFMixture` if there are several modes, batch shape (N,).
        """
        check_is_fitted(self)
        return self.model_.encode(validate_data(self, X, dtype=np.float32, reset=False), show_progress=False)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities of the classes.

        Args:
            X: Features, shape (N, F).

        Returns:
            Probabilities, shape (N, C), in the order of `classes_`.
        """
        q = self.posteriors(X)
        labels = self.model_.run.answers.labels
        assert labels is not None
        probabilities = labels.probabilities(q).double()
        return (probabilities / probabilities.sum(-1, keepdim=True)).numpy()  # float32 sums to 1 in seven digits

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each item.

        Args:
            X: Features, shape (N, F).

        Returns:
            Classes, shape (N,).
        """
        likeliest = self.predict_proba(X).argmax(1)
        return self.classes_[likeliest]

    def uncertainty(self, X: Any, by: CertaintyScore = "labels") -> np.ndarray:
        """How uncertain each item is. Larger is less certain.

        Args:
            X: Features, shape (N, F).
            by: "labels": entropy of the class probabilities over its maximum, from 0 to 1. "kappa": 1 / kappa; of
                several modes, that of the closest vMF.

        Returns:
            Scores, shape (N,).

        Raises:
            ValueError: If `by` is not known.
        """
        require_one_of("by", by, get_args(CertaintyScore))
        q = self.posteriors(X)
        if by == "kappa":
            return (1 / one_mode(q).kappa.double()).numpy()
        labels = self.model_.run.answers.labels
        assert labels is not None
        return (1 - label_certainty(labels.probabilities(q)).double()).clamp(0, 1).numpy()

    def to_model(self) -> AleatorModel:
        """The fitted model, for `save_pretrained`, `push_to_hub` and the index.

        Returns:
            The model.
        """
        check_is_fitted(self)
        return self.model_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]  # posteriors are computed in it
        return tags

    def _checked(self, X: Any, y: Any) -> tuple[np.ndarray, Labels, np.ndarray]:
        """Features, labels and classes."""
        rows = np.asarray(y)
        if rows.ndim == 2 and rows.shape[1] > 1:
            X = validate_data(self, X, dtype=[np.float32, np.float64])
            _require_single_precision(X)
            probabilities = check_array(rows, dtype=np.float64, input_name="y")
            fits = len(probabilities) == len(X)
            require(fits, "y", len(probabilities), f"X has {len(X)} rows", "pass a row of probabilities for each item")
            classes = np.arange(probabilities.shape[1])
            return X, soft_labels("y", probabilities, tuple(map(str, classes))), classes
        X, y = validate_data(self, X, y, dtype=[np.float32, np.float64])
        _require_single_precision(X)
        check_classification_targets(y)
        classes, numbers = np.unique(y, return_inverse=True)
        way_out = "pass items of at least two classes"
        require(len(classes) >= 2, "y", "1 class", "there is nothing to tell apart", way_out)
        return X, Labels("classes", numbers.astype(np.int64), tuple(map(str, classes))), classes

    def _settings(self) -> Settings:
        """Settings of the training."""
        seed, random = plain_number(self.random_state), check_random_state(self.random_state)
        seed = seed if isinstance(seed, int) else int(random.randint(2**31 - 1))
        names = ("dim", "modes", "kappa_pos", "steps", "batch_size", "learning_rate", "weight_decay")
        return Settings(
            **{name: getattr(self, name) for name in (*names, "dropout", "width", "members", "holdout")}, seed=seed
        )


def _require_single_precision(X: np.ndarray) -> None:
    """Raise if a feature is larger than float32 holds, which everything is computed in."""
    for row, column in np.argwhere(np.abs(X) > np.finfo(np.float32).max)[:1].tolist():
        problem = f"row {row}, column {column} is too large for single precision"
        reject("X", float(X[row, column]), problem, "scale the column, or leave the row out")
