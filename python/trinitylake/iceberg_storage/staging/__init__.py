"""Staged changes of one managed table in a transaction, and their rebase on newer metadata.

`staged_table` is the interface for other layers. `rebase` applies the staged commits to newer metadata if neither rows
(`row_conflicts`, from the `changed_files` of the snapshots in between) nor metadata (`metadata_conflicts`) conflict.
"""
