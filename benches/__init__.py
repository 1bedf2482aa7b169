"""Benchmarks: see benches/README.md."""
