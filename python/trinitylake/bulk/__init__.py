"""Many objects at once, in one version: registration of objects, and the import of another catalog.

`definitions.py` writes definition files, here or on executors; `registration.py` registers objects on this machine and
hands over to `trinitylake.spark.registration` if there is an engine; `migration.py` turns another catalog into objects.
"""

from trinitylake.bulk.migration import CatalogImport, import_catalog
from trinitylake.bulk.registration import Registration, register

__all__ = ["CatalogImport", "Registration", "import_catalog", "register"]
