"""Registration of many objects, and the import of another catalog, each in one version.

`definition_writer.py` writes definition files, here or on executors. `registration.py` registers objects on this
machine, or through an engine (`engines.py`). `catalog_import.py` imports another catalog.
"""
