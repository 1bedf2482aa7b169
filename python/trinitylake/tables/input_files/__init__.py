"""Input files: rows of CSV, JSON and Parquet files, read as a stream and without loss.

The dialect of a CSV file is explicit, because DuckDB's detection drops rows that do not fit its guess. Each row has as
many fields as the header. A row that does not fit is an error that names file, line and text, or goes to
`InputFiles.bad_rows` if that is allowed.
"""
