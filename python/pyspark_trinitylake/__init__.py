"""Lets Spark find `format("trinitylake")`: Spark imports every top-level module `pyspark_*` and looks for a
`DefaultSource` in it.
"""

from trinitylake.spark.source import TrinityLakeDataSource as DefaultSource

__all__ = ["DefaultSource"]
