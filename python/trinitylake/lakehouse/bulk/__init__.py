"""Many objects at once, in one version: registration of objects, and the import of another catalog.

`definition_writer.py` writes definition files, here or on executors; `registration.py` registers objects on this
machine, or by an engine (`engines.py`); `catalog_import.py` turns another catalog into objects.
"""
