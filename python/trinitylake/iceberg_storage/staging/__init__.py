"""Staged changes of one managed table in a transaction, and their rebase on newer metadata.

`staged_table` is the interface for other packages. `rebase` applies the staged commits to newer metadata if neither
rows (`row_conflicts`, by the `changed_rows` of other commits) nor metadata (`metadata_conflicts`) conflict.
"""
