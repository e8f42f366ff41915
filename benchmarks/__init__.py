"""Benchmarks: ``python -m benchmarks.NAME`` from the repository. One output form for all."""
