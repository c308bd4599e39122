"""Contrastive losses on posteriors."""

from aleator.losses.losses import ELK, HIB, ContrastiveLoss, ExactInfoNCE, InfoNCE, MCInfoNCE

__all__ = ["ELK", "HIB", "ContrastiveLoss", "ExactInfoNCE", "InfoNCE", "MCInfoNCE"]
