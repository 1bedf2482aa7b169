"""The only package that uses private parts of PyIceberg: subclasses of its classes, and access to its functions.

`transaction` is its table and transaction without deep copies, `append` and `rewrite` produce snapshots that can be
redone on another parent, `rows_without` deletes by a filter, `scan_planner`, `scan` and `live_rows` plan scans and read
files, `manifest` reads and writes manifests with prepared schemas, `avro_encoding` encodes them, `avro_doubles` decodes
them, `partition_types` gives the types of partitions, `row_ids` assigns
the row ids of format version 3, `table_metadata` and `metadata_updates` are table metadata and its updates,
`data_file_writer` writes rows in bounded memory, `partitioned_rows` sorts them by partition, `added_files` takes in
files that exist, `variant` adds a type, `rows_written` fills in default values, `catalog` implements the private
methods that PyIceberg calls on catalogs, `functions` gives single functions public names, `rows_read` records the
predicates of a statement, `null_values` keeps what is null, `own_threads` gives threads to work that waits for others,
`readable_numbers` refuses numbers that other languages cannot read, and `federated_catalog` asks other catalogs at the
address given.

To try a new minor version of PyIceberg, compare it with this list. `test_pyiceberg_private_parts.py` checks that
each name is there with the parameters that are expected, and that nothing else of PyIceberg that is private is used in
the package. "Overridden" means that PyIceberg calls ours.

    file              what it relies on, below `pyiceberg.`                                  how
    transaction       table:Transaction._apply                                               called
    transaction       table:Table._do_commit                                                 called
    metadata_updates  table.update:_apply_table_update                                       called
    metadata_updates  table.update:_TableMetadataUpdateContext                               called
    functions         io.pyarrow:_check_pyarrow_schema_compatible                            called
    functions         catalog:_ENV_CONFIG                                                    read
    federated_catalog catalog.rest:RestCatalog._create_session                               overridden
    federated_catalog catalog.rest:RestCatalog._fetch_config                                 overridden
    federated_catalog catalog.rest:RestCatalog._load_file_io                                 overridden
    catalog           catalog:MetastoreCatalog._create_staged_table                          overridden
    catalog           catalog:MetastoreCatalog._get_updated_props_and_update_summary         called
    catalog           catalog:Catalog._convert_schema_if_needed                              called
    catalog           catalog:Catalog._delete_old_metadata                                   overridden

Attributes that are read or set:

    transaction       table:Transaction                         _table _updates
    transaction       table:Table                               _identifier
"""
