"""MERGE and upsert: source rows are matched with table rows by key, and update, delete or insert rows.

`join_keys` makes keys comparable and finds duplicates, `matching` selects files that may hold a key and joins,
`clauses` evaluates the clauses for each pair, `file_rewrite` rewrites files, and `engine` runs all steps.
"""
