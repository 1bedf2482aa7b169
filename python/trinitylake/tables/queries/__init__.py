"""SQL queries in DuckDB, over files of tables that it can read, and over our scans of the others.

A query runs twice: first over empty tables with the right columns, which finds its names, its errors and the filters of
each table; then over the files that match these filters.
"""
