"""Rivals: simple methods that take seconds, to compare with. Neighbours by raw inputs, and a linear head on them."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from aleator.evaluation import Predictor, cross_fit, label_certainty, linear_head, nearest_neighbours
from aleator.foundation import even_sample

NEIGHBOURS = 10
_COMPONENTS = 256  # principal components that stand for the pixels of an image
_SAMPLE = 4000  # rows from which they are estimated
_HEAD_WORK = 4e8  # items x features x classes of the linear head's training
_STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)  # inverse penalties of the linear head; one is chosen on held-out rows
_CHOICE_ROWS = 3000
_LEAST_PROBABILITY = 1e-9  # of a class, in likelihoods


@dataclass(frozen=True)
class ScoredAnswers:
    """Answers to Q questions.

    Args:
        right: 1 for a right answer, 0 for a wrong one, shape (Q,), float64.
        certainty: How certain each answer is, shape (Q,), float64.
        log_likelihood: Of each question's label, shape (Q,), float64. None if the method gives no probabilities.
    """

    right: Tensor
    certainty: Tensor
    log_likelihood: Tensor | None = None


def input_rows(questions: Tensor, gallery: Tensor) -> tuple[Tensor, Tensor]:
    """Raw inputs as rows that can be compared.

    Features are standardised by the gallery. Pixels (uint8) share one scale; of many, the first principal components
    of the gallery are kept.

    Args:
        questions: Features (Q, F), or images (Q, C, H, W) of uint8.
        gallery: The same for N items.

    Returns:
        Rows of the questions (Q, K) and of the gallery (N, K), float32.
    """
    pixels = gallery.dtype == torch.uint8
    centre = gallery.flatten(1).float().mean(0)

    def centred(items: Tensor) -> Tensor:
        return items.flatten(1).float() - centre

    if not pixels:
        spread = centred(gallery).square().mean(0).sqrt()
        spread = torch.where(spread > 1e-6 * (1 + centre.abs()), spread, 1.0)
        return centred(questions) / spread, centred(gallery) / spread
    if len(centre) <= 2 * _COMPONENTS:
        rows = [centred(questions), centred(gallery)]
    else:
        sample = centred(gallery[even_sample(len(gallery), _SAMPLE)])
        components = min(_COMPONENTS, *sample.shape)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            _, _, basis = torch.pca_lowrank(sample, components, center=False)
        rows = [torch.cat([centred(block) @ basis for block in items.split(2048)]) for items in (questions, gallery)]
    scale = rows[1].square().mean().sqrt().clamp_min(1e-12)
    return rows[0] / scale, rows[1] / scale


def text_rows(questions: list[str], gallery: list[str]) -> tuple[Tensor, Tensor]:
    """Texts as rows of unit length: how often each word and pair of words occurs (tf-idf), in 256 dimensions.

    Args:
        questions: Q texts.
        gallery: N texts.

    Returns:
        Rows of the questions (Q, K) and of the gallery (N, K), float32.
    """
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), max_features=20_000, token_pattern=r"(?u)\b\w+\b")
    try:
        counts = words.fit_transform(gallery)
    except ValueError:  # no word at all
        return torch.zeros(len(questions), 1), torch.zeros(len(gallery), 1)
    if counts.shape[1] <= _COMPONENTS:
        rows = [words.transform(questions).toarray(), counts.toarray()]
    else:
        reduction = TruncatedSVD(min(_COMPONENTS, counts.shape[0]), random_state=0).fit(counts)
        rows = [reduction.transform(words.transform(questions)), reduction.transform(counts)]
    asked, items = (torch.nn.functional.normalize(torch.as_tensor(part).float(), dim=1) for part in rows)
    return asked, items


def raw_neighbours(
    questions: Tensor, gallery: Tensor, own: np.ndarray, labels: np.ndarray, gallery_labels: np.ndarray
) -> ScoredAnswers:
    """The nearest item by raw inputs; its certainty is the share of ten neighbours that have the same label.

    Args:
        questions: Rows (Q, K).
        gallery: Rows (N, K).
        own: Position of each question in the gallery, -1 if it is not there, shape (Q,).
        labels: Class numbers of the questions, shape (Q,).
        gallery_labels: Class numbers of the gallery, shape (N,).

    Returns:
        The answers.
    """
    count = min(NEIGHBOURS, len(gallery) - int((own >= 0).any()))
    near = nearest_neighbours(questions, gallery, count, "euclidean", own=own).numpy()
    found = gallery_labels[near]
    agreement = (found == found[:, :1]).mean(1)
    return ScoredAnswers(torch.as_tensor(found[:, 0] == labels).double(), torch.as_tensor(agreement))


def linear_answers(questions: Tensor, gallery: Tensor, labels: Tensor, gallery_labels: Tensor) -> ScoredAnswers:
    """Logistic regression on raw inputs; its certainty is 1 - softmax entropy / log C.

    Args:
        questions: Rows (Q, K).
        gallery: Rows (N, K) to learn from. Of many, a sample is used.
        labels: Label probabilities of the questions, shape (Q, C).
        gallery_labels: Label probabilities of the gallery, shape (N, C).

    Returns:
        The answers.
    """
    return label_answers(fit_head(gallery, gallery_labels)(questions), labels)


def cross_fitted_answers(rows: Tensor, labels: Tensor, folds: int = 5) -> ScoredAnswers:
    """The same where the questions are their own gallery: each is answered by a head that did not learn from it.

    Args:
        rows: Rows (N, K).
        labels: Label probabilities, shape (N, C).
        folds: Number of parts; the items of one are answered by the head of the others.

    Returns:
        The answers.
    """
    fold = np.random.default_rng(0).permutation(len(rows)) % folds
    return label_answers(cross_fit(rows, labels, fold, fit_head), labels)


def fit_head(rows: Tensor, labels: Tensor) -> Predictor:
    """A linear head whose penalty is chosen on held-out rows. A class that no row has gets no probability.

    Args:
        rows: Rows to learn from, shape (N, K). Of many, a sample is used.
        labels: Their label probabilities, shape (N, C).

    Returns:
        Function from rows (Q, K) to P(class | row), shape (Q, C).
    """
    most = max(500, int(_HEAD_WORK / (rows.shape[1] * labels.shape[1])))
    order = torch.as_tensor(np.random.default_rng(0).permutation(len(rows))[:most])
    part = order[:_CHOICE_ROWS]
    learned, held_out = part[len(part) // 5 :], part[: len(part) // 5]
    likelihood = {}
    for strength in _STRENGTHS:
        p = _head(rows[learned], labels[learned], strength)(rows[held_out])
        likelihood[strength] = float(_log_likelihoods(p, labels[held_out]).sum())
    best = max(likelihood, key=likelihood.__getitem__)
    return _head(rows[order], labels[order], best)


def _head(rows: Tensor, labels: Tensor, strength: float) -> Predictor:
    """A linear head on the classes that the rows have. The penalty on the sum over rows is 1 / `strength`."""
    known = torch.nonzero(labels.sum(0) > 0)[:, 0]
    predict = linear_head(rows, labels[:, known], penalty=1 / (strength * len(rows)))
    return lambda new: torch.zeros(len(new), labels.shape[1]).index_copy(1, known, predict(new))


def label_answers(probability: Tensor, labels: Tensor) -> ScoredAnswers:
    """The likeliest class of each question as its answer.

    Args:
        probability: P(class | question), shape (Q, C).
        labels: Label probabilities of the questions, shape (Q, C).

    Returns:
        The answers, with the likelihood of the labels.
    """
    probability, labels = probability.double(), labels.double()
    right = probability.argmax(1) == labels.argmax(1)
    return ScoredAnswers(right.double(), label_certainty(probability), _log_likelihoods(probability, labels))


def _log_likelihoods(probability: Tensor, labels: Tensor) -> Tensor:
    """Of the label of each row, (Q,); both have shape (Q, C)."""
    return (labels * probability.clamp_min(_LEAST_PROBABILITY).log()).sum(1)
