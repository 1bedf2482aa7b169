"""SQL queries in DuckDB. It reads the files of tables itself if it can, and otherwise rows from our scans.

A query is processed twice: first over empty tables with the right columns, to find the names and errors in it and the
filters for each table; then over the files that may match these filters.
"""
