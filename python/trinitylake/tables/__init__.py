"""Tables: reading and writing rows, and the tables of a version, a transaction and the latest version.

Other packages use `table` (the common base class), `scan`, `input_rows`, `staged_tables` (the tables of one
transaction), `registered_table` and `table_definition`. The package does not depend on `Lakehouse`: an
`AutocommitTable` gets an object that begins transactions (`autocommit_table.LatestVersion`).

Importing the package loads none of its modules.
"""
