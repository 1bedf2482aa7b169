"""Queries in SQL: DuckDB runs them over the files of tables that it may read itself, and over our scans of others.

A query runs twice: first over empty tables with the right columns, which finds its names, its errors and the filters of
each table; then over the files that match these filters.
"""
