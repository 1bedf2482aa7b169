"""Spark's way to find `format("trinitylake")`: it imports every top-level `pyspark_*` module for a `DefaultSource`."""

from trinitylake.spark.source import TrinityLakeDataSource as DefaultSource

__all__ = ["DefaultSource"]
