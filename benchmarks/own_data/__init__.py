"""A stranger's experiment: our defaults on data we did not make for them, beside what the stranger would use instead.

python -m benchmarks.own_data --help
"""
