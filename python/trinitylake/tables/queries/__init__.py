"""SQL queries in DuckDB. DuckDB reads the files of tables itself if it can, and otherwise rows from our scans.

A query is processed twice. First it is planned over empty tables with the same columns, which shows its names and
errors, and the filters for each table. Then it is executed over the files that may match these filters.
"""
