"""The branch of an Iceberg table that a stream writes. It is created if it does not exist."""

from __future__ import annotations

from contextlib import suppress

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import AssertTableUUID

from ..dry_runs import in_dry_run
from ..error_causes import retryable
from ..errors import ConfigurationError, RetryableError
from .address import IcebergAddress
from .catalog import flat
from .library.snapshots import Change, empty_snapshot, start_branch
from .redaction import redacted

ATTEMPTS_MAX = 5
"""Attempts. Each can only fail because another writer has changed a ref of the table."""


def ensure_branch(table: Table, address: IcebergAddress) -> Table:
    """Return the table with the branch. A new branch starts at the head of the main branch.

    A snapshot appended to a missing branch would start from an empty table. A table without snapshots first
    gets an empty snapshot on its main branch: pyiceberg cannot start another branch otherwise, and with a
    common snapshot the main branch can be fast-forwarded to the new one later.

    Runs on the driver before a stream's first batch. If several processes create the branch at the same time,
    one succeeds.

    Raises:
        ConfigurationError: the name belongs to a tag.
        RetryableError: the catalog did not accept the branch.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        if address.branch == MAIN_BRANCH or _has_branch(table, address):
            return table
        if in_dry_run():
            return table
        try:
            with suppress(*(CommitFailedException,) if attempt < ATTEMPTS_MAX else ()):
                updates, requirements = _next_step(table, address.branch)
                same_table = AssertTableUUID(uuid=table.metadata.table_uuid)
                table.catalog.commit_table(table, (same_table, *requirements), updates)
            table = table.catalog.load_table(address.identifier)
        except Exception as error:  # noqa: BLE001  catalog drivers raise errors of any type
            raise _not_created(table, address, error) from None
    return table


def _has_branch(table: Table, address: IcebergAddress) -> bool:
    ref = table.metadata.refs.get(address.branch)
    if ref is not None and ref.snapshot_ref_type != SnapshotRefType.BRANCH:
        raise ConfigurationError(
            f"{address.branch!r} is a tag of the Iceberg table {address.table_name}, and tags cannot be "
            "written. Set the option branch to another name."
        )
    return ref is not None


def _next_step(table: Table, branch: str) -> Change:
    """The update that creates the branch, or the snapshot that it needs first."""
    head = table.metadata.snapshot_by_name(MAIN_BRANCH)
    if head is not None:
        return start_branch(table, branch, head.snapshot_id)
    return empty_snapshot(table)


def _not_created(table: Table, address: IcebergAddress, error: Exception) -> RetryableError:
    text = redacted(error, flat({**table.catalog.properties, **table.io.properties}))
    return retryable(error)(
        f"The branch {address.branch!r} of the Iceberg table {address.table_name} could not be created: "
        f"{text}. Nothing was written. Start the query again."
    )
