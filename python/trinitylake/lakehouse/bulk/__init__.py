"""Registration of many objects, and import of another catalog: each call creates one version of the lakehouse.

`definition_writer.py` writes definition files, in this process or on executors. `registration.py` registers objects in
this process, or through an engine (`engines.py`). `catalog_import.py` imports another catalog.
"""
