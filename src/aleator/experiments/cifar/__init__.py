"""The CIFAR-10H experiments: certainty beside people's disagreement, lost information and errors."""
