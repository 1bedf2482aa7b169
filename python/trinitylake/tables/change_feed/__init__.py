"""The row-level change feed: which rows each version inserted, deleted and updated.

`table_versions` finds the versions that changed a table, `file_changes` compares the files of two versions,
`row_comparison` compares rows of files that were replaced, with the help of `equal_rows`. `feed` assembles the batches
of the feed.
"""
