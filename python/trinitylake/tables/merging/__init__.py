"""MERGE and upsert: source rows are matched with table rows by key, and update, delete or insert rows.

`join_keys` makes keys comparable and finds duplicates, `candidate_files` selects files that may hold a key, `matching`
joins, `clauses` evaluates the clauses for each pair, `file_rewrite` rewrites files, and `engine` runs all steps.
"""
