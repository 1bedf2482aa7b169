"""Iceberg tables on the storage of a lakehouse: files, metadata, and changes that a transaction stages.

`file_io` is PyIceberg's file access below the root, `metadata` reads and writes metadata files, `table_location` says
where a table may lie and `write_rules` what may be written to it, `view_metadata` shows a view as Iceberg has it, and
`errors` turns PyIceberg's errors into ours. `external` and `federated` open tables that live elsewhere, `relocation`
brings a table along when its lakehouse was moved. `staging` is one managed table in one transaction;
`extended_pyiceberg` is PyIceberg made fit for that. Nothing here knows a lakehouse: only its storage.

Importing this package loads none of it.
"""
