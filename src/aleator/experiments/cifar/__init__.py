"""The CIFAR-10H experiments: does certainty follow people's disagreement, lost information and errors?"""
