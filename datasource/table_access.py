"""The tables of the streams, of whatever kind, opened with what the user gives: for the commands and the
delivery process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..committers.cleanup import CleanableTable
from ..committers.contract import StreamKey
from ..committers.errors import ConfigurationError, shown
from ..committers.store.sql import SqlManifestStore, StreamStatus
from .sinks.sink import LakeTable

if TYPE_CHECKING:
    from ..committers.iceberg.address import IcebergAddress
    from ..committers.iceberg.catalog import CatalogConfig


@dataclass(frozen=True, slots=True)
class TableAccess:
    """What opens the tables beside their address. May hold secrets."""

    storage: dict[str, str] = field(repr=False)
    """For the object store of Delta tables."""
    catalog: dict[str, str] = field(repr=False)
    """Properties of the catalog of Iceberg tables."""

    @classmethod
    def parse(cls, storage: Sequence[str] | None, catalog: Sequence[str] | None) -> TableAccess:
        """From `KEY=VALUE` texts.

        Raises:
            ConfigurationError: shows no value: it may be a secret.
        """
        options = _pairs("--storage", "AWS_REGION=eu-west-1", storage or ())
        properties = _pairs("--catalog", "uri=https://catalog.example", catalog or ())
        return cls(
            {key.upper(): value for key, value in options.items()},
            {key.lower(): value for key, value in properties.items()},
        )


def _pairs(option: str, example: str, texts: Sequence[str]) -> dict[str, str]:
    for number, text in enumerate(texts, 1):
        if not text.partition("=")[0].strip() or "=" not in text:
            raise ConfigurationError(
                f"{option} takes KEY=VALUE, for example {option} {example}; number {number} of them is none."
            )
    return {key.strip(): value for key, _, value in (text.partition("=") for text in texts)}


@dataclass(frozen=True, slots=True)
class TableNow:
    """A table as it is now."""

    table_id: str
    version: int


def open_table(stream: StreamStatus, access: TableAccess) -> LakeTable:
    """The committer of the stream's table. An instance looks at the table once.

    Raises:
        ConfigurationError: the stream was written by a newer version of Penstock.
    """
    if stream.kind == "delta":
        from ..committers.delta.committer import DeltaTableCommitter

        return DeltaTableCommitter(stream.key.table_uri, access.storage)
    if stream.kind == "iceberg":
        from ..committers.iceberg.committer import IcebergTableCommitter

        return IcebergTableCommitter(*_iceberg(stream.key, access))
    raise unknown_kind(stream.key, stream.kind)


def look_at_table(stream: StreamStatus, access: TableAccess) -> TableNow | None:
    """The stream's table as it is now; None if there is none.

    Raises:
        ConfigurationError: the kind is not known.
        RetryableError: it cannot be read now.
    """
    if stream.kind == "delta":
        from ..committers.delta.table import load_if_there as load_delta_if_there

        delta = load_delta_if_there(stream.key.table_uri, access.storage)
        return None if delta is None else TableNow(str(delta.metadata().id), delta.version())
    if stream.kind != "iceberg":
        raise unknown_kind(stream.key, stream.kind)
    from ..committers.iceberg.table import load_if_there, version_of

    catalog, address = _iceberg(stream.key, access)
    iceberg = load_if_there(catalog, address)
    if iceberg is None:
        return None
    return TableNow(str(iceberg.metadata.table_uuid), version_of(iceberg.metadata, address.branch))


def cleanable_table(stream: StreamStatus, store: SqlManifestStore, access: TableAccess) -> CleanableTable:
    """The stream's table, as clean-up looks at it.

    Raises:
        ConfigurationError: the kind is not known.
    """
    if stream.kind == "delta":
        from ..committers.delta.cleanup import DeltaCleanableTable

        return DeltaCleanableTable(stream.key.table_uri, access.storage)
    if stream.kind != "iceberg":
        raise unknown_kind(stream.key, stream.kind)
    from ..committers.iceberg.catalog import known_properties, redacted
    from ..committers.iceberg.cleanup import IcebergCleanableTable
    from ..committers.iceberg.table import load_if_there

    catalog, address = _iceberg(stream.key, access)
    return IcebergCleanableTable(
        lambda: load_if_there(catalog, address),
        address.uri,
        address.branch,
        store.expiries,
        in_short=lambda error: redacted(error, known_properties(catalog)),
    )


def unknown_kind(stream: StreamKey, kind: str) -> ConfigurationError:
    """The error for a stream whose kind of table has no code here."""
    return ConfigurationError(
        f"The stream {stream} writes a table of kind {shown(kind)}, which this version of Penstock does not "
        "know. Nothing was changed. Run: pip install --upgrade penstock"
    )


def _iceberg(stream: StreamKey, access: TableAccess) -> tuple[CatalogConfig, IcebergAddress]:
    from ..committers.iceberg.address import IcebergAddress
    from ..committers.iceberg.catalog import CatalogConfig, known_properties

    address = IcebergAddress.parse(stream.table_uri)
    if Path(address.catalog).is_absolute():
        return CatalogConfig.of(None, {}, warehouse=address.catalog), address
    catalog = CatalogConfig.of(address.catalog, access.catalog)
    if not known_properties(catalog):
        raise ConfigurationError(
            f"The Iceberg table {address.uri} is in the catalog {address.catalog!r}, of which nothing is "
            "known here. "
            "Say how to open it, for example with --catalog type=rest --catalog uri=https://catalog.example, "
            "or in "
            ".pyiceberg.yaml."
        )
    return catalog, address
