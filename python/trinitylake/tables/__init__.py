"""Tables: rows in and out, and the kinds of tables that a version, a transaction and the latest version give.

Layers above use `table` (what all kinds share), `scan`, `input_rows` (rows on their way in), `staged_tables` (the
tables of one transaction), `registered_table` and `table_definition`. It does not depend on `Lakehouse`: a table that
commits by itself gets an object that begins transactions (`autocommit_table.LatestVersion`).

Importing this package loads none of it.
"""
