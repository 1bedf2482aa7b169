"""Benchmarks of the package, each compared with a peer or a limit that is measured in the same run."""
