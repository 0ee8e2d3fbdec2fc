"""pyiceberg's catalog clients with timeouts: the library sets none, or ones that take too long.

A request that times out may have been executed. The file I/O of a table ignores the table's properties
(`table_file_io`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog

from .timeouts import Timeouts


def catalog_kind(properties: Mapping[str, object]) -> str | None:
    """The type of catalog that pyiceberg's `load_catalog` would open; None for a custom class."""
    kind, uri = properties.get("type"), properties.get("uri")
    if "py-catalog-impl" in properties:
        return None
    if kind is not None:
        return str(kind).lower()
    starts = {"http": "rest", "thrift": "hive", "sqlite": "sql", "postgresql": "sql"}
    return next((kind for start, kind in starts.items() if str(uri).startswith(start)), None)


def needs_uri(properties: Mapping[str, object]) -> bool:
    """Return True if `load_catalog` would refuse the properties because there is no `uri` among them."""
    if "uri" in properties or "py-catalog-impl" in properties:
        return False
    return catalog_kind(properties) in (None, "hive", "rest", "sql")


def open_library_catalog(name: str, properties: Mapping[str, Any]) -> Catalog:
    """Open the catalog like `load_catalog`, with timeouts and the operator's file I/O.

    Args:
        properties: including those of pyiceberg's own configuration

    Raises:
        ConfigurationError: a timeout is not a number, or the library has changed (`library_hooks`).
        Exception: raised by the library.
    """
    from pyiceberg.catalog.rest import RestCatalog

    from .rest import RestFileIO
    from .table_file_io import CatalogFileIO, add_hooks

    catalog = _open(name, properties)
    return add_hooks(catalog, RestFileIO if isinstance(catalog, RestCatalog) else CatalogFileIO)


def _open(name: str, properties: Mapping[str, Any]) -> Catalog:
    kind = catalog_kind(properties)
    if kind == "rest" and isinstance(properties.get("uri"), str):
        from .rest import RestCatalogWithTimeouts

        return RestCatalogWithTimeouts(name, **properties)
    if kind == "hive" and "uri" in properties and _is_installed("hive_metastore", "thrift"):
        from .hive import HiveCatalogWithTimeouts

        return HiveCatalogWithTimeouts(name, **properties)
    if kind == "sql" and "uri" in properties:
        from .sql import SqlCatalogWithTimeouts

        return SqlCatalogWithTimeouts(name, **properties)
    if kind == "glue" and _is_installed("boto3"):
        return load_catalog(name, **_of_glue(properties))
    return load_catalog(name, **properties)


def _is_installed(*packages: str) -> bool:
    """If one is missing, `load_catalog` reports which extra to install."""
    from importlib.util import find_spec

    return all(find_spec(package) is not None for package in packages)


def _of_glue(properties: Mapping[str, Any]) -> dict[str, Any]:
    """botocore waits 60 s for a response, and pyiceberg makes ten attempts."""
    import botocore.session
    from botocore.config import Config

    timeouts = Timeouts.of("glue", properties)
    given = dict(properties)
    if "botocore_session" not in given:
        session = botocore.session.get_session()
        config = Config(connect_timeout=timeouts.connect_s, read_timeout=timeouts.request_s)
        session.set_default_client_config(config)
        given["botocore_session"] = session
    retries = str(given.get("glue.max-retries", ""))
    if retries.isdecimal():  # options are strings, and botocore needs a number
        given["glue.max-retries"] = int(retries)
    return given
