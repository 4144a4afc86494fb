"""Benchmarks: the product and its peers in the same run, in turn, as ratios of medians.

Timings never decide a test; what is found is written down in docs/benchmarks.md with its command.
"""
