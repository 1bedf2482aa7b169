"""Iceberg tables on the storage of a lakehouse: files, metadata, and changes that a transaction stages.

`file_io` is PyIceberg's file access below the root and `file_writer` the stream of a file, `metadata` reads and writes
metadata files, `table_location` says where a table may lie, `table_properties` which properties it may have and
`update_checks` what may be written to it, `view_metadata` is the Iceberg form of a view, and `errors` turns PyIceberg's
errors into ours. `row_ids` assigns the row ids of format version 3. `external` and `federated` open tables outside of
the lakehouse, `relocation` rewrites metadata after a lakehouse was moved. `staging` is one
managed table in one transaction; `extended_pyiceberg` is what that needs beyond PyIceberg's public interface.
Nothing here depends on `Lakehouse`, only on its storage.

Importing this package loads none of it.
"""
