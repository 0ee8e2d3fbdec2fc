"""File I/O of tables, configured by the catalog's properties, which the operator sets, and not by the
table's.

pyiceberg overrides the catalog's properties with the table's. Anyone who can write the table can set those:
an `s3.endpoint` there would receive requests signed with the operator's credentials, and `py-io-impl` or a
location provider would name an object that this process imports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.table import TableProperties
from pyiceberg.typedef import EMPTY_DICT, Properties

from ...file_tables.library_hooks import check_hooks, hook
from ...file_tables.unsupported_features import refuse
from ..properties import unsupported_property

_Opened = TypeVar("_Opened", bound=Catalog)


def add_hooks(catalog: _Opened, hooks: type) -> _Opened:
    """Return the same catalog with the hooks overriding the methods of its own class, whatever class that
    is.

    Raises:
        ConfigurationError: the library no longer has the methods that the hooks override.
    """
    check_hooks(hooks)
    kind = type(catalog)
    catalog.__class__ = type(kind.__name__, (hooks, kind), {"__module__": kind.__module__})
    return catalog


class CatalogFileIO(Catalog):
    """For catalogs that return no file I/O properties with their tables: all but REST catalogs."""

    @hook
    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        """Called with the properties of each table that is loaded, created or changed."""
        refuse_location_provider(properties, location)
        return super()._load_file_io(EMPTY_DICT, location)


def refuse_location_provider(properties: Mapping[str, str], location: str | None) -> None:
    """Reject a table that names a class to import, before the library imports it.

    Raises:
        TableNotSupportedError: the table names one.
    """
    key = TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL
    if key in properties:
        unsupported_feature = unsupported_property(key, properties[key])
        refuse(
            [unsupported_feature] if unsupported_feature else [],
            f"The Iceberg table with the metadata {location}",
            "Iceberg",
        )
