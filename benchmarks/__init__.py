"""Benchmarks: each states ratios, measured in one run, against a limit and against peers."""
