"""Adds partitions to an external table of a Hive metastore or of Glue.

The owner of the table creates it; its location is the folder. Runs on the driver, in the delivery process and
in commands; executors never see a catalog. The options are those of pyiceberg, whose clients it uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path

from ..error_causes import retryable
from ..errors import NEXT_TRY, ConfigurationError, PenstockError, TableChangedError
from ..iceberg.catalog import CatalogConfig, check_address_given, known_properties, open_catalog
from ..iceberg.redaction import redacted
from .catalog_table import PartitionCatalog
from .glue import open_glue
from .partitions import NewPartitions

_SHOWN_MAX = 3
"""Partitions in a message."""


@contextmanager
def opened(catalog: str, properties: Mapping[str, str]) -> Iterator[PartitionCatalog]:
    """Open a catalog for a few requests.

    Args:
        catalog: its name; pyiceberg's own configuration may have properties for it
        properties: the options `catalog.*`

    Raises:
        ConfigurationError: it cannot be opened as configured.
        RetryableError: a request failed; it may have been executed.
        AccessRefusedError: the catalog denies access.
    """
    config = CatalogConfig.of(catalog, properties)
    try:
        with _client(config) as client:
            yield client
    except PenstockError:
        raise
    except Exception as error:  # noqa: BLE001  catalog drivers raise errors of any type
        text = redacted(error, known_properties(config)) or type(error).__name__
        raise retryable(error)(f"The catalog {catalog!r} has failed: {text}. {NEXT_TRY}") from None


def _client(config: CatalogConfig) -> AbstractContextManager[PartitionCatalog]:
    from ..iceberg.library.catalogs import catalog_kind

    check_address_given(config)
    kind = catalog_kind(known_properties(config))
    if kind == "glue":
        return open_glue(open_catalog(config))
    if kind == "hive":
        catalog = open_catalog(config)  # reports a missing package
        from .hive import open_hive

        return open_hive(catalog)
    raise ConfigurationError(
        f"The catalog {config.name!r} has no tables of plain files: set catalog.type to glue or hive, not to "
        f"{kind or 'a class of its own'}."
    )


def add_partitions(new: NewPartitions, folder: str, properties: Mapping[str, str]) -> None:
    """Add the partitions of a batch that are not in the catalog.

    Asks for all of them, so that a partition that was dropped comes back with its next files.

    Args:
        folder: location of the table
        properties: the options `catalog.*`

    Raises:
        TableChangedError: the table or a partition is not where the files are.
        ConfigurationError, RetryableError, AccessRefusedError: see `opened`. Some may be added.
    """
    with opened(new.table.catalog, properties) as catalog:
        table = catalog.table(new.table)
        if table is None:
            raise TableChangedError(
                f"The table {new.table} no longer exists in the catalog {new.table.catalog!r}. Create it "
                "again, or remove the option catalogTable."
            )
        if normalized(table.location) != normalized(folder):
            raise TableChangedError(
                f"The table {new.table} is at {table.location}, and the files are in {folder}. Set its "
                "location, or remove the option catalogTable."
            )
        if any(len(one.values) != len(table.partition_columns) for one in new.partitions):
            columns = ", ".join(name for name, _ in table.partition_columns)
            raise TableChangedError(
                f"The table {new.table} is now partitioned by {columns or 'nothing'}, and the files in "
                f"{folder} are not. Create it as it was, or remove the option catalogTable."
            )
        locations = {one.values: f"{table.location.rstrip('/')}/{one.folder}" for one in new.partitions}
        found = catalog.locations(table, new.partitions)
        missing = [one for one in new.partitions if one.values not in found]
        if missing:
            catalog.add(table, {locations[one.values]: one for one in missing})
            # Another process may have added one meanwhile, elsewhere.
            found = {**found, **catalog.locations(table, missing)}
    elsewhere = {
        one.folder: found[one.values]
        for one in new.partitions
        if one.values in found and normalized(found[one.values]) != normalized(locations[one.values])
    }
    if elsewhere:
        shown = [f"{name} is at {location}" for name, location in islice(elsewhere.items(), _SHOWN_MAX)]
        raise TableChangedError(
            f"{len(elsewhere)} partitions of the table {new.table} are not where the files of the batch are, "
            f"below {table.location}, so readers would not find its rows: {'; '.join(shown)}. Penstock does "
            "not change them. Set their locations (ALTER TABLE … PARTITION … SET LOCATION), or drop them "
            "from the catalog; then start again."
        )


def normalized(location: str) -> str:
    """Return a location in one form: local paths without `file:` and links, `s3://` for `s3a://`."""
    local = re.sub(r"^file:(//)?(?=/)", "", location)
    if local.startswith("/"):
        return str(Path(local).resolve())
    return re.sub(r"^s3[an]://", "s3://", location).rstrip("/")
