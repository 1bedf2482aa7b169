"""One managed table in one transaction, and how its changes are redone on what others committed meanwhile.

`staged_table` is the table; layers above use nothing else. `rebase` applies its commits again, in order, to newer
metadata, if neither rows (`row_conflicts`, from the `changed_files` of the snapshots in between) nor metadata
(`metadata_conflicts`) conflict. `saved_commits` is their form in a saved transaction.
"""
