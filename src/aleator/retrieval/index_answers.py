"""Answers of an index that rest on labels: sets with a promise, and label probabilities."""

import numpy as np
import torch

from aleator.evaluation import LabelModel, likely_labels
from aleator.foundation import plain_number, reject
from aleator.matching import ZonalKernel
from aleator.posteriors import PosteriorBatch, VMFMixture, VonMisesFisher
from aleator.retrieval.answer_sets import AnswerSet, answer
from aleator.retrieval.filters import Predicate
from aleator.retrieval.index_facts import IndexFacts, decode_kernel
from aleator.retrieval.items import directions
from aleator.retrieval.labels import label_model_of
from aleator.retrieval.mixture_search import MixtureRequest, mixture_request, region_thresholds
from aleator.retrieval.promise import Promise, SetsOf
from aleator.retrieval.scoring import cap_radii
from aleator.retrieval.search import SearchRequest
from aleator.retrieval.set_calibration import Right, calibrate_sets


class AnsweringIndex(IndexFacts):
    """The part of `CredibleIndex` that keeps promises and predicts labels."""

    @property
    def promise(self) -> Promise | None:
        """What `calibrate` promised about answer sets; None if the index is not calibrated, or the promise is void."""
        state = self.state()  # first: it brings the settings up to date
        stored = self._store.config.get("promise")
        return Promise.from_dict(stored) if stored is not None and stored.get("state") == state else None

    @property
    def promise_is_void(self) -> bool:
        """Whether the index was calibrated, and its items have changed since. Then nothing is promised."""
        return self.promise is None and self._store.config.get("promise") is not None

    def calibrate(
        self,
        questions: PosteriorBatch,
        right: Right,
        coverage: float = 0.95,
        *,
        error: float | None = None,
        assurance: float = 0.9,
        sets: SetsOf | None = None,
        fingerprint: str | None = None,
    ) -> Promise:
        """Find the level at which answer sets hold a right answer as often as promised, and store it with the index.

        The questions must be like those that will be asked, and must not be items that the encoder was trained on.
        Items of the index may have been. A question with a label that is itself an item of the index is answered
        without itself. The promise is void once items were added or removed: calibrate again.

        Args:
            questions: Posteriors of the calibration questions, batch shape (n,).
            right: The right answers. One label for each question: all items with this "label" in their metadata are
                right. Or a list of ids for each question.
            coverage: Share of questions whose set holds a right answer. n must be at least coverage / (1 - coverage).
            error: Largest share of wrong answers among the first answers that are given. Questions with a lower
                confidence are marked as not sure. Default: none are.
            assurance: Probability, over the calibration questions, that the coverage is kept, and the error. With few
                questions (fewer than 45 for 0.95 and 0.9), the coverage is kept on average over calibrations.
            sets: "labels": one item of each label that the question could have, the default if `right` holds labels.
                "ranked": the nearest items, as many as the question needs.
            fingerprint: Fingerprint of the encoder that made the questions.

        Returns:
            The promise. `answer_sets` keeps it, and `promise` has it when the index is opened again.

        Raises:
            ValueError: If an argument is not valid, if another encoder made the questions, if there are too few
                questions, or if no sets or no confidence can keep the promise. The index is then unchanged.

        Examples:
            >>> import torch, aleator as al
            >>> _ = torch.manual_seed(0)
            >>> centres = torch.eye(3)
            >>> def seen(n):  # items and questions of three labels that overlap
            ...     label = torch.arange(n) % 3
            ...     return al.VonMisesFisher(al.VonMisesFisher(centres[label], 5.0).sample(), 5.0), label
            >>> items, labels = seen(300)
            >>> index = al.CredibleIndex.build(items, metadata=[{"label": int(label)} for label in labels])
            >>> questions, right = seen(200)
            >>> promise = index.calibrate(questions, right, coverage=0.9)
            >>> print(promise)
            sets hold a right answer for 90 % of questions like the 200 of the calibration (90 % assured)
            >>> sets = index.answer_sets(seen(1000)[0])
            >>> 1 < sum(len(answer.hits) for answer in sets) / 1000 < 3
            True
        """
        self._require_encoder(fingerprint)
        coverage, error, assurance = map(plain_number, (coverage, error, assurance))  # stored as JSON
        request = self._nearest_request(questions, "questions", self.kernel)
        kernel = self._store.config["kernel"]
        with self._lock:
            promise = calibrate_sets(self._store, request, right, coverage, error, assurance, sets, kernel)
            self._store.configure(promise=promise.to_dict())
        return promise

    def answer_sets(self, queries: PosteriorBatch, *, fingerprint: str | None = None) -> list[AnswerSet]:
        """Find sets of items that hold a right answer as often as `calibrate` promised.

        Args:
            queries: Posteriors of the queries, batch shape (Q,).
            fingerprint: Fingerprint of the encoder that made the queries.

        Returns:
            A set for each query, and whether its first item is sure enough to be the answer.

        Raises:
            ValueError: If the index is not calibrated, if its items have changed since, if an argument is not valid, or
                if another encoder made the queries.
        """
        self._require_encoder(fingerprint)
        with self._lock, self._store.one_version():
            promise = self.promise
            if promise is None:
                size = f"{len(self._store)} items"  # not its location, which a client of a server may not know
                problem = "have changed since it was calibrated" if self.promise_is_void else "is not calibrated"
                reject("index", size, problem, "call index.calibrate, or run `aleator index calibrate`")
            request = self._nearest_request(queries, "queries", decode_kernel(promise.kernel))
            return answer(self._store, request, promise)

    def label_model(self) -> LabelModel:
        """Label probabilities with the labelled items of this index as the gallery.

        It holds the items of this moment. Labels are the metadata "labels" (a probability for each label) or "label".

        Returns:
            The model. If `build` was given a fitted one, it has the numbers that were fitted there, with other items.

        Raises:
            ValueError: If the items have fewer than two different labels.
        """
        with self._lock:
            return label_model_of(self)

    def label_probabilities(self, queries: PosteriorBatch) -> list[dict[str, float]]:
        """Which labels each query could have. For many calls, keep `label_model()` and call it.

        Args:
            queries: Posteriors of the queries, batch shape (Q,).

        Returns:
            For each query the probability of each label, the likeliest first.

        Raises:
            ValueError: If the items have fewer than two different labels.

        Examples:
            >>> import torch, aleator as al
            >>> items = al.VonMisesFisher(torch.eye(3)[[0, 0, 1]], 50.0)
            >>> labels = [{"label": "cat"}, {"label": "cat"}, {"label": "dog"}]
            >>> index = al.CredibleIndex.build(items, metadata=labels)
            >>> between = al.VonMisesFisher(torch.tensor([[0.6, 0.8, 0.0]]), 5.0)
            >>> [{name: round(p, 2) for name, p in row.items()} for row in index.label_probabilities(between)]
            [{'dog': 0.51, 'cat': 0.49}]
        """
        model = self.label_model()
        rows = likely_labels(model.probabilities(queries), model.names, most=len(model.names), least=0.0)
        return [dict(row) for row in rows]

    def _nearest_request(
        self, queries: PosteriorBatch, argument: str, kernel: ZonalKernel
    ) -> SearchRequest | MixtureRequest:
        """A request for the nearest items of queries."""
        return self._request(queries, argument, kernel=kernel)

    def _request(
        self,
        queries: PosteriorBatch,
        argument: str,
        *,
        kernel: ZonalKernel,
        p: float | None = None,
        threshold: float = 0.0,
        limit: int | None = None,
        passes: Predicate | None = None,
        prior: float | None = None,
        exact: bool = False,
    ) -> SearchRequest | MixtureRequest:
        """A request of queries, for their p-credible sets or, without p, for any items."""
        mu = directions(queries, argument, self.dim)
        kappa = queries.components.kappa.detach().cpu().double()  # (Q, K)
        one_mode = queries.modes == 1 and self.modes == 1
        plain = SearchRequest(
            mu=mu,
            kappa=kappa[:, 0].numpy(),
            radius=cap_radii(queries.components[:, 0], p) if p is not None and one_mode else np.full(len(mu), -np.inf),
            threshold=threshold,
            limit=limit,
            passes=passes,
            kernel=kernel,
            prior=self.prior if prior is None else prior,
            maps=self._maps_for(kernel),
            report=None if exact else self.recall_report,
        )
        if one_mode:
            return plain
        components = VonMisesFisher(torch.from_numpy(mu).double().view(*kappa.shape, -1), kappa, validate_args=False)
        stored = VMFMixture(queries.log_weights.detach().cpu().double(), components, validate_args=False)
        return mixture_request(stored, np.full(len(mu), -np.inf) if p is None else region_thresholds(stored, p), plain)
