"""Iceberg tables on the storage of a lakehouse: files, metadata, and changes that a transaction stages.

`file_io` is PyIceberg's file access below the root and `file_writer` the stream of a file. `metadata` reads and writes
metadata files. `locations` has the rules for the locations of a table and its files, `table_properties` those for its
properties and `update_checks` those for its updates. `view_metadata` is the Iceberg form of a view, and `errors`
converts errors between PyIceberg and this project. `pyiceberg_patches` changes PyIceberg for the whole process.
`row_ids` assigns the row ids of format version 3. `external_tables` and `federated_tables` open tables outside of the
lakehouse, `relocation` rewrites metadata after a lakehouse was moved. `staging` is one managed table in one
transaction; `extended_pyiceberg` extends PyIceberg where its public interface does not suffice. The modules depend only
on the storage of a lakehouse, not on `Lakehouse`.

Importing this package imports none of its modules.
"""
