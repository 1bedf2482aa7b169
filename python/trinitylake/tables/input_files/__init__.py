"""Input files: rows of CSV, JSON and Parquet files, read as a stream and without loss.

The dialect of a CSV file is explicit, because DuckDB's detection drops rows that do not fit its guess. Each row must
have as many fields as the header. A row that does not fit raises an error with file, line and text, or goes to
`InputFiles.bad_rows` if bad rows are allowed.
"""
