"""Queries in SQL: DuckDB runs them over the files of tables that it may read itself, and over our scans of others.

A query is read twice. First over empty tables with the right columns: that finds what the text names, its mistakes, and
which filters reach which table. Then over the files that those filters leave.
"""
