"""The row-level change feed: which rows each version inserted, deleted and updated.

`table_versions` finds the versions that changed a table, `file_changes` compares the files of two versions,
`row_comparison` compares rows of files that were replaced: `copied_rows` finds those that were copied in order, and
`row_signatures` hashes the others. `feed` puts the batches of the feed together.
"""
