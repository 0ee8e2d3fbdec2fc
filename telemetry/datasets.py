"""Names of datasets by the naming rules of OpenLineage: https://openlineage.io/docs/spec/naming"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True, slots=True)
class DatasetName:
    namespace: str
    name: str


def dataset_of(kind: str, address: str) -> DatasetName:
    """Return the name of a destination.

    Args:
        kind: of the destination
        address: its normalized address, `StreamKey.table_uri`
    """
    return _OF_KIND.get(kind, place_of)(address)


def place_of(address: str) -> DatasetName:
    """Return the name of a file, a folder or a service: `s3://bucket` and `path/in/it`."""
    scheme, separator, rest = address.partition("://")
    if not separator or scheme == "file":
        return DatasetName("file", posixpath.normpath(rest if separator else address.removeprefix("file:")))
    server, _, path = rest.partition("/")
    namespace = f"{_SCHEMES.get(scheme, scheme)}://{server}"
    return DatasetName(namespace, unquote(path).rstrip("/") or "/")


_SCHEMES = {"s3a": "s3", "gcs": "gs", "postgresql": "postgres"}


def _postgres(address: str) -> DatasetName:
    """`postgresql://host:port/database/schema/table`"""
    parts = urlsplit(address)
    return DatasetName(f"postgres://{unquote(parts.netloc)}", ".".join(_names(parts.path)))


def _mysql(address: str) -> DatasetName:
    """`mysql://host:port/database/table`"""
    parts = urlsplit(address)
    return DatasetName(f"mysql://{unquote(parts.netloc)}", ".".join(_names(parts.path)))


def _kafka(address: str) -> DatasetName:
    """`kafka://host:port,host:port/topic?progressTopic=…`: the first server names the cluster."""
    parts = urlsplit(address)
    return DatasetName(f"kafka://{parts.netloc.partition(',')[0]}", ".".join(_names(parts.path)))


def _ducklake(address: str) -> DatasetName:
    """`duckdb:///path/schema/table`, `ducklake+postgresql://host:port/database/schema/table`, `ducklake+sqlite:///path/schema/table`"""
    scheme, _, rest = address.partition("://")
    place, schema, table = rest.rsplit("/", 2)
    return DatasetName(f"{scheme.partition('+')[0]}://{place}", f"{unquote(schema)}.{unquote(table)}")


def _catalog_table(scheme: str) -> Callable[[str], DatasetName]:
    """`catalog:namespace.table@branch`. A folder that has tables without a catalog is named as a folder."""

    def name(address: str) -> DatasetName:
        catalog, colon, table = address.rpartition(":")
        if not colon or "/" in table:
            return place_of(address)
        return DatasetName(f"{scheme}://{catalog}", table)

    return name


def _names(path: str) -> list[str]:
    return [unquote(part) for part in path.split("/") if part]


_OF_KIND: dict[str, Callable[[str], DatasetName]] = {
    "duckdb": _ducklake,
    "ducklake": _ducklake,
    "iceberg": _catalog_table("iceberg"),
    "kafka": _kafka,
    "mysql": _mysql,
    "paimon": _catalog_table("paimon"),
    "postgres": _postgres,
}
"""Kinds whose addresses are not those of a place."""
