"""Our defaults on several data sets that were not made for them, beside what a user would use instead.

python -m benchmarks.own_data --help
"""
