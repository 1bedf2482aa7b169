"""MERGE and upsert: rows that come in are matched with those of a table by a key, and change, remove or join them.

`join_keys` makes values comparable and finds duplicates, `candidate_files` tells which files may hold a key, `matching`
joins, `clauses` says what becomes of a pair, `file_rewrite` rewrites changed files, and `engine` does all of it.
"""
