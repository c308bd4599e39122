"""Probabilistic contrastive learning with von Mises-Fisher posteriors."""
