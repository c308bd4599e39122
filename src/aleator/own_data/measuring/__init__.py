"""How good a trained model is: posteriors, match and label probabilities, compared with baselines."""
