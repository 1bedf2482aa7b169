"""The row-level change feed: which rows each version inserted, deleted and updated.

`table_versions` finds the versions that changed a table, `file_changes` compares the files of two versions,
`row_comparison` compares rows of files that were replaced, `row_signatures` hashes rows for that, and `feed` puts the
batches of the feed together.
"""
