"""Extends PyIceberg with the help of its private functions and attributes.

`transaction` is PyIceberg's table and transaction with our writers, and `catalog` has such a table that is committed
through a catalog. `scan` is PyIceberg's scan with our plan (`scan_planner`) and our reader. `delete_by_filter` is its
delete. `table_metadata` and `metadata_updates` are table metadata and its updates. `catalog` implements the private
methods that PyIceberg calls on catalogs. `federated_catalog` sends requests only to the configured address.
`pyiceberg_patches` next to this folder changes PyIceberg for the whole process.

Before an upgrade of PyIceberg, compare its code with this list. `test_pyiceberg_private_parts.py` checks that each name
exists with the expected parameters, and that no other private name is used. "Overridden" means that PyIceberg calls our
method.

    file              name below `pyiceberg.`                                                use
    transaction       table:Transaction._apply                                               called
    transaction       table:Table._do_commit                                                 called
    metadata_updates  table.update:_apply_table_update                                       called
    metadata_updates  table.update:_TableMetadataUpdateContext                               called
    pyiceberg_patches io.pyarrow:_check_pyarrow_schema_compatible                            called
    pyiceberg_patches catalog:_ENV_CONFIG                                                    read
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
