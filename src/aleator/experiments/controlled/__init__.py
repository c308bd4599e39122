"""The controlled experiments: a process with known posteriors, and encoders that are to find them."""
