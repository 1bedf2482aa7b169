"""Generated histories of tables, compared with DuckDB over the same rows."""
