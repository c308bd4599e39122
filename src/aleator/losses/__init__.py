"""Contrastive losses on posteriors: `loss(anchor, positive, negative)` returns a scalar.

    base             ContrastiveLoss, the base class: shapes, checks, the mean over anchors
    similarity       SimilarityLoss (define the similarity of two posteriors); InfoNCE, ExactInfoNCE, ELK
    prototypes       PrototypeLoss: contrast with learned class posteriors
    sampled          SampledLoss (compare samples of the posteriors); MCInfoNCE, HIB
    sampled_cosines  cosines with samples that are never formed
    soft_targets     cross-entropy with match weights, for `loss.soft`
    softmax_share    share of the positive among the candidates of its anchor

docs/guides/losses.md says which places to touch to add a loss.
"""

from aleator.losses.base import ContrastiveLoss, negative_count, self_mask
from aleator.losses.prototypes import PrototypeLoss
from aleator.losses.sampled import HIB, MCInfoNCE, SampledLoss
from aleator.losses.similarity import ELK, ExactInfoNCE, InfoNCE, SimilarityLoss

__all__ = [
    "ELK",
    "HIB",
    "ContrastiveLoss",
    "ExactInfoNCE",
    "InfoNCE",
    "MCInfoNCE",
    "PrototypeLoss",
    "SampledLoss",
    "SimilarityLoss",
    "negative_count",
    "self_mask",
]
