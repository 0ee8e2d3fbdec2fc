"""Opens the Iceberg table for a batch, or creates it. Runs on the driver, before any task starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortOrder

from .. import crash_points
from ..contract import PartitionField, SortField
from ..dry_runs import before_creating
from ..errors import ConfigurationError
from .address import IcebergAddress
from .arrow import iceberg_struct
from .catalog import CatalogConfig, catalog_error, is_io_property, open_catalog
from .checks import FORMAT_VERSION_MAX
from .layout import iceberg_sort_order, layout_problems, partition_spec
from .plan import metrics_modes, parquet_settings
from .properties import EXPIRE_PROPERTY, FREE_PROPERTIES, MAINTENANCE_PROPERTY, unsupported_property
from .schema import RESERVED, check_names
from .table import load, load_if_there

DEFAULT_PROPERTIES: Mapping[str, str] = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    EXPIRE_PROPERTY: "true",
    MAINTENANCE_PROPERTY: "true",
}
"""Default properties of new tables: they keep the cost of a commit constant."""

_RESERVED_PROPERTIES = frozenset(
    {
        "uuid",
        "snapshot-count",
        "current-snapshot-id",
        "current-snapshot-summary",
        "current-snapshot-timestamp-ms",
        "current-schema",
        "default-partition-spec",
        "default-sort-order",
    }
)
"""Iceberg stores these elsewhere, and its engines reject them as properties."""


@dataclass(frozen=True, slots=True)
class NewIcebergTable:
    """How to create a table that does not exist yet, and what an existing one has to match."""

    allowed: bool
    partition_spec: tuple[PartitionField, ...] | None = None
    """Empty: no partitions. None: no requirement, and a new table is not partitioned."""
    sort_order: tuple[SortField, ...] | None = None
    """Empty: not sorted. None: no requirement, and a new table is not sorted."""
    format_version: int | None = None
    """None: version 2 for a new table, and no requirement for an existing one."""
    properties: Mapping[str, str] = field(default_factory=dict)
    own_properties: Mapping[str, str] = field(default_factory=dict)
    """Set by the sink, and not checked as those of the user are."""


def open_or_create(
    config: CatalogConfig, address: IcebergAddress, source: pa.Schema, new: NewIcebergTable, batch_id: int
) -> tuple[Table, bool]:
    """Return the table, and whether this call created it.

    Raises:
        ConfigurationError: the table does not exist, and creation is disabled or not possible with these
            options.
        SchemaMismatchError: names the columns that Iceberg has no type for.
        RetryableError: the catalog cannot be reached now.
    """
    table = load_if_there(config, address)
    if table is not None:
        return table, False
    if not new.allowed:
        raise ConfigurationError(
            f"There is no Iceberg table {address.uri}, and createTable=false. Create the table, correct the "
            "options table and catalog, or set createTable=true."
        )
    created = _create(config, address, source, new)
    crash_points.reach("table.created", batch_id)
    return load(config, address), created


def _create(config: CatalogConfig, address: IcebergAddress, source: pa.Schema, new: NewIcebergTable) -> bool:
    """Return False if another process has created the table in the meantime; then that table is used."""
    struct = iceberg_struct(source, address.table_name)
    check_names(struct, address.table_name)
    RESERVED.check(source.names, f"Iceberg table {address.table_name}")
    schema = Schema(*struct.fields)
    properties = _properties(address, new, schema)
    spec = partition_spec(address, new.partition_spec or (), schema)
    order = iceberg_sort_order(address, new.sort_order or (), schema)
    before_creating(f"Iceberg table {address.uri}")
    try:
        catalog = open_catalog(config)

        def create() -> None:
            catalog.create_table(
                address.identifier, schema, partition_spec=spec, sort_order=order, properties=dict(properties)
            )

        _with_namespace(catalog, address, create)
    except TableAlreadyExistsError:
        return False
    except Exception as error:  # noqa: BLE001  catalog drivers raise errors of any type
        if load_if_there(config, address) is not None:
            return False
        raise catalog_error(error, f"cannot create the table {address.table_name}", config) from None
    return True


def _with_namespace(catalog: Catalog, address: IcebergAddress, create: Callable[[], None]) -> None:
    """The namespace is created only if it is missing: not every user may read namespaces."""
    try:
        create()
    except NoSuchNamespaceError:
        namespace = address.identifier[:-1]
        try:
            catalog.create_namespace(namespace)
        except Exception:
            if not catalog.namespace_exists(namespace):  # otherwise another process has created it
                raise
        create()


def check_layout(table: Table, address: IcebergAddress, new: NewIcebergTable) -> None:
    """Check that the table has the requested partitioning and sort order.

    Raises:
        ConfigurationError: they differ; the message shows both.
    """
    problems = layout_problems(table, new.partition_spec, new.sort_order)
    if new.format_version not in (None, table.format_version):
        problems.append(
            f"format-version asks for {new.format_version}, but it has format version {table.format_version}"
        )
    if problems:
        raise ConfigurationError(
            f"The Iceberg table {address.uri} already exists and differs from the options: "
            f"{'; '.join(problems)}. Remove the option to use the table's own, or write another table."
        )


# Properties ---------------------------------------------------------------------------------------


def _properties(address: IcebergAddress, new: NewIcebergTable, schema: Schema) -> dict[str, str]:
    """
    Raises:
        ConfigurationError: lists each unsupported property with the reason.
    """
    problems = list(_property_problems(new))
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise ConfigurationError(
            f"The Iceberg table {address.uri} cannot be created with these properties:\n"
            f"{lines}\n"
            "Fix the option tableProperties."
        )
    parquet_settings(new.properties, schema)
    metrics_modes(schema, SortOrder(), new.properties)
    version = _format_version(new)
    return {**DEFAULT_PROPERTIES, **new.properties, **new.own_properties, "format-version": version}


def _format_version(new: NewIcebergTable) -> str:
    if new.format_version is not None:
        return str(new.format_version)
    return new.properties.get("format-version", str(FORMAT_VERSION_MAX))


def _property_problems(new: NewIcebergTable) -> Iterator[str]:
    given = new.properties.get("format-version")
    if given is not None and new.format_version is not None and given != str(new.format_version):
        yield f"format-version: it is set twice, to {given} and to {new.format_version}"
    if _format_version(new) not in ("1", "2"):
        yield f"format-version = {_format_version(new)}: Penstock writes tables of format version 1 and 2"
    for key, value in sorted(new.properties.items()):
        unsupported_feature = unsupported_property(key, value)
        if unsupported_feature is not None:
            yield str(unsupported_feature)
        if key in _RESERVED_PROPERTIES:
            yield f"{key}: Iceberg stores it elsewhere, and engines reject it as a property"
        if is_io_property(key):
            yield f"{key}: file I/O ignores the table's properties; set the option catalog.{key}"
        if key.startswith("penstock.") and key not in FREE_PROPERTIES:
            free = " and ".join(FREE_PROPERTIES)
            yield (
                f"{key}: reserved, Penstock stores there which batches the table has; only {free} can be set"
            )
