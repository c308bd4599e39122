"""What a user could do without us, in seconds: neighbours by raw inputs, and a linear head on them."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from aleator.evaluation import label_certainty, nearest_neighbours

NEIGHBOURS = 10
_COMPONENTS = 256  # principal components that stand for the pixels of an image
_SAMPLE = 4000  # rows from which they are estimated
_HEAD_WORK = 4e8  # items x features x classes of the linear head's training
_STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)  # of its regularisation, as scikit-learn counts it; chosen on held-out rows
_CHOICE_ROWS = 3000


@dataclass(frozen=True)
class ScoredAnswers:
    """Answers to Q questions.

    Args:
        right: 1 for a right answer, 0 for a wrong one, shape (Q,), float64.
        certainty: How certain each answer is, shape (Q,), float64.
    """

    right: Tensor
    certainty: Tensor


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
        sample = centred(gallery[:: max(1, len(gallery) // _SAMPLE)])
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


def neighbours(questions: Tensor, gallery: Tensor, own: np.ndarray, count: int, by: str) -> Tensor:
    """The nearest items of each question, but not the question itself.

    Args:
        questions: Rows (Q, K).
        gallery: Rows (N, K).
        own: Position of each question in the gallery, shape (Q,); -1 if it is not there.
        count: Number of neighbours.
        by: "cosine" or "euclidean".

    Returns:
        Numbers of gallery items, shape (Q, count) or fewer if the gallery is small, the nearest first.
    """
    inside = bool((own >= 0).any())
    near = nearest_neighbours(questions, gallery, min(count + inside, len(gallery)), by)  # type: ignore[arg-type]
    if not inside:
        return near
    itself = near == torch.as_tensor(own)[:, None]
    itself[~itself.any(1), -1] = True  # where the question is not among them, the farthest is dropped
    return near[~itself].view(len(near), -1)


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
    near = neighbours(questions, gallery, own, NEIGHBOURS, "euclidean").numpy()
    found = gallery_labels[near]
    agreement = (found == found[:, :1]).mean(1)
    return ScoredAnswers(torch.as_tensor(found[:, 0] == labels).double(), torch.as_tensor(agreement))


def linear_head(questions: Tensor, gallery: Tensor, labels: np.ndarray, gallery_labels: np.ndarray) -> ScoredAnswers:
    """Logistic regression on raw inputs; its certainty is 1 - softmax entropy / log C.

    An item with soft labels counts once for each class, by its probability.

    Args:
        questions: Rows (Q, K).
        gallery: Rows (N, K) to learn from. Of many, a sample is used.
        labels: Class numbers of the questions, shape (Q,).
        gallery_labels: Label probabilities of the gallery, shape (N, C).

    Returns:
        The answers.
    """
    probability = torch.as_tensor(head_probabilities(questions.numpy(), gallery.numpy(), gallery_labels))
    return ScoredAnswers(
        torch.as_tensor(probability.argmax(1).numpy() == labels).double(), label_certainty(probability)
    )


def cross_fitted_head(rows: Tensor, labels: np.ndarray, probabilities: np.ndarray, folds: int = 5) -> ScoredAnswers:
    """A linear head where the questions are their own gallery: each is answered by a head that did not learn from it.

    Args:
        rows: Rows (N, K).
        labels: Class numbers, shape (N,).
        probabilities: Label probabilities, shape (N, C).
        folds: Number of parts; the items of one are answered by the head of the others.

    Returns:
        The answers.
    """
    fold = np.random.default_rng(0).permutation(len(rows)) % folds
    right, certainty = torch.empty(len(rows), dtype=torch.float64), torch.empty(len(rows), dtype=torch.float64)
    for k in range(folds):
        asked, learned = fold == k, fold != k
        answers = linear_head(rows[asked], rows[learned], labels[asked], probabilities[learned])
        right[asked], certainty[asked] = answers.right, answers.certainty
    return ScoredAnswers(right, certainty)


def head_probabilities(questions: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """P(class | question) of a logistic regression, shape (Q, C).

    Args:
        questions: Rows (Q, K).
        rows: Rows to learn from, shape (N, K).
        labels: Their label probabilities, shape (N, C).
    """
    most = max(500, int(_HEAD_WORK / (rows.shape[1] * labels.shape[1])))
    order = np.random.default_rng(0).permutation(len(rows))[:most]
    part = order[:_CHOICE_ROWS]
    learned, held_out = part[len(part) // 5 :], part[: len(part) // 5]
    likelihood = {}
    for strength in _STRENGTHS:
        p = _logistic_regression(rows[learned], labels[learned], strength, rows[held_out])
        likelihood[strength] = float((labels[held_out] * np.log(np.maximum(p, 1e-9))).sum())
    best = max(likelihood, key=likelihood.__getitem__)
    return _logistic_regression(rows[order], labels[order], best, questions)


def _logistic_regression(rows: np.ndarray, labels: np.ndarray, strength: float, questions: np.ndarray) -> np.ndarray:
    """P(class | question), shape (Q, C)."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    item, label = np.nonzero(labels)
    probability = np.zeros((len(questions), labels.shape[1]))
    if len(np.unique(label)) < 2:
        probability[:, label[:1]] = 1.0
        return probability
    model = LogisticRegression(C=strength, max_iter=60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # sixty steps are enough for a baseline
        model.fit(rows[item], label, labels[item, label])
    probability[:, model.classes_] = model.predict_proba(questions)
    return probability
