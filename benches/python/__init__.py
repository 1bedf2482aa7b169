"""Benchmarks of the Python package, each beside the peer or the limit it is compared with."""
