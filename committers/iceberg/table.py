"""Loads an Iceberg table from the catalog, reads a query's last batch, and detects rollbacks.

A query's last batch is stored in a table property, which is changed in the same commit as the snapshot.
Unlike the snapshot's summary it survives expiry, and reading it is free. A rollback reverts snapshots but no
properties, so the property also contains the batch's snapshot id, which must be an ancestor of the branch's
head.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchIdentifierError, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.expressions import EqualTo, Reference
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from ..contract import BATCH_WRITE_PREFIX, Batch, Token
from ..error_causes import retryable
from ..errors import NEXT_TRY, PenstockError, RetryableError, TableChangedError
from ..file_tables.merged_batches import MERGED, recorded_digest
from ..file_tables.table_changes import check_same_id, dropped
from .address import MAIN_BRANCH, IcebergAddress
from .catalog import (
    CatalogConfig,
    MissingCatalogError,
    in_short,
    open_catalog,
    warn_of_ignored_properties,
)
from .target import NO_SNAPSHOT

if TYPE_CHECKING:
    import pyarrow as pa

LOADS_MAX = 3
TOKEN_PREFIX = "penstock."  # noqa: S105  prefix of a table property
BATCH_WRITE_TOKEN_KEPT_MS = 7 * 24 * 3600 * 1000
"""Longer than a batch write may take to commit (`batch_writes.COMMIT_WITHIN`): only its own commit reads the
token.
"""
SUMMARY_QUERY, SUMMARY_BATCH, SUMMARY_DIGEST = "penstock.query-id", "penstock.batch-id", "penstock.digest"
"""See `history_properties`."""
CHERRY_PICKED_FROM = "source-snapshot-id"
"""Summary key where engines store which snapshot they have applied again to another branch."""


def load_if_there(config: CatalogConfig, address: IcebergAddress) -> Table | None:
    """Load the current table from the catalog; None if it does not exist.

    Raises:
        ConfigurationError: the catalog cannot be opened as configured.
        RetryableError: it cannot be read now.
    """
    try:
        return _read(config, address)
    except MissingCatalogError:
        return None


def _read(config: CatalogConfig, address: IcebergAddress) -> Table | None:
    try:
        table = _load(open_catalog(config, create=False), address)
    except (NoSuchTableError, NoSuchNamespaceError, NoSuchIdentifierError):
        return None
    except PenstockError:
        raise
    except Exception as error:  # noqa: BLE001  catalog drivers raise errors of any type
        raise _unreadable(config, address, error) from None
    warn_of_ignored_properties(table, address.uri)
    return table


def _unreadable(config: CatalogConfig, address: IcebergAddress, error: Exception) -> RetryableError:
    return retryable(error)(
        f"The Iceberg table {address.uri} cannot be read: {in_short(error, config)}. Nothing was committed. "
        f"Check the catalog.* options and that catalog and storage are reachable. {NEXT_TRY}"
    )


def read_rows(config: CatalogConfig, address: IcebergAddress, column: str, value: str) -> pa.Table | None:
    """Return the rows with a value in a text column; None if the table does not exist.

    Raises:
        RetryableError: it cannot be read now.
    """
    table = load_if_there(config, address)
    if table is None:
        return None
    try:
        is_wanted = EqualTo(Reference(column), value)  # type: ignore[call-arg,arg-type]
        scan = table.scan(row_filter=is_wanted)
        if address.branch != MAIN_BRANCH:
            scan = scan.use_ref(address.branch)
        return scan.to_arrow()
    except Exception as error:  # noqa: BLE001  storage raises errors of any type
        raise _unreadable(config, address, error) from None


def _load(catalog: Catalog, address: IcebergAddress) -> Table:
    """Tried again if others have replaced and deleted the catalog's metadata file before it was read."""
    for _ in range(LOADS_MAX - 1):
        with suppress(FileNotFoundError):
            return catalog.load_table(address.identifier)
    return catalog.load_table(address.identifier)


def load(config: CatalogConfig, address: IcebergAddress, table_id: str | None = None) -> Table:
    """Load the current table from the catalog.

    Raises:
        TableChangedError: it does not exist any more, or has another UUID than `table_id`.
        RetryableError: it cannot be read now.
    """
    table = _read(config, address)
    if table is None:
        raise dropped(f"Iceberg table {address.uri}")
    check_same_table(table, address, table_id)
    return table


def check_same_table(table: Table, address: IcebergAddress, table_id: str | None) -> None:
    """
    Raises:
        TableChangedError: the table has another UUID.
    """
    check_same_id(f"Iceberg table {address.uri}", str(table.metadata.table_uuid), table_id, name="UUID")


# A query's last batch -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """The last batch of a query in the table, and its snapshot."""

    batch_id: int
    digest: str
    snapshot_id: int
    sequence_number: int
    timestamp_ms: int
    origins: tuple[str, ...] = ()
    """Origins of the query; see `origins`."""

    @property
    def token(self) -> Token:
        return Token(self.batch_id, self.digest)

    def holds(self, batch: Batch) -> bool:
        return (self.batch_id, self.digest) == (batch.batch_id, batch.digest)


def token_property(query_id: str, branch: str) -> str:
    """The table property with the query's last batch: one per branch, because each branch has its own
    rows.
    """
    return f"{TOKEN_PREFIX}{query_id}" + ("" if branch == MAIN_BRANCH else f"@{branch}")


def committed_batch(metadata: TableMetadata, query_id: str, branch: str) -> CommittedBatch | None:
    """The query's last batch in this metadata."""
    name = token_property(query_id, branch)
    text = metadata.properties.get(name)
    if text is None:
        return _forgotten(metadata, query_id, branch) if query_id.startswith(BATCH_WRITE_PREFIX) else None
    try:
        return _parse_token(text)
    except ValueError:
        raise TableChangedError(
            f"The table property {name!r}, in which Penstock stores the query's last batch, was changed to "
            f"{text!r}. Nothing was committed. Restore its value from a `metadata.json` file before the "
            "change."
        ) from None


def _forgotten(metadata: TableMetadata, query_id: str, branch: str) -> CommittedBatch | None:
    """A removed token of a batch write, restored from its snapshot, which the table may keep for longer."""
    for snapshot in line_of(metadata, branch):
        summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
        if summary.get(SUMMARY_QUERY) == query_id:
            digest, number = summary.get(SUMMARY_DIGEST, ""), snapshot.sequence_number or 0
            return CommittedBatch(0, digest, snapshot.snapshot_id, number, snapshot.timestamp_ms)
    return None


def _parse_token(text: str) -> CommittedBatch:
    """
    Raises:
        ValueError: the text is not what `token_value` returns.
    """
    try:
        fields = json.loads(text)
        numbers = {
            key: int(fields[key]) for key in CommittedBatch.__slots__ if key not in ("digest", "origins")
        }
        origins = tuple(map(str, fields.get("origins", ())))
        return CommittedBatch(digest=str(fields["digest"]), **numbers, origins=origins)
    except (KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"it cannot be read: {error!r}") from None


def token_of(metadata: TableMetadata, query_id: str, branch: str) -> Token | None:
    """The query's token in this metadata."""
    committed = committed_batch(metadata, query_id, branch)
    return None if committed is None else committed.token


def earlier_digest(metadata: TableMetadata, branch: str, batch: Batch) -> str | None:
    """Digest of the offsets from which a batch before the last one was delivered, or a prefix of it; None if
    its snapshot has expired.
    """
    for snapshot in line_of(metadata, branch):
        summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
        if summary.get(SUMMARY_QUERY) != batch.stream.query_id:
            continue
        if summary.get(SUMMARY_BATCH) == str(batch.batch_id):
            return summary.get(SUMMARY_DIGEST)
        if digest := recorded_digest(summary.get(MERGED, ""), batch.batch_id):
            return digest
    return None


def recorded_origin(
    metadata: TableMetadata, query_id: str, branch: str, origins: Sequence[str]
) -> str | None:
    """The first of the origins from which another query has committed a batch that the branch still has."""
    others: set[str] = set()
    for name, text in metadata.properties.items():
        other_id = name.removeprefix(TOKEN_PREFIX).partition("@")[0]
        if other_id == query_id or name != token_property(other_id, branch):
            continue
        with suppress(ValueError):  # another property, or an invalid token: skip it
            committed = _parse_token(text)
            others.update(committed.origins if _is_behind_head(metadata, branch, committed) else ())
    return next((origin for origin in origins if origin in others), None)


def token_value(batch_id: int, digest: str, snapshot: Snapshot, origins: Sequence[str]) -> str:
    """The value of the table property after `snapshot` has committed the batch."""
    committed = CommittedBatch(
        batch_id,
        digest,
        snapshot.snapshot_id,
        snapshot.sequence_number or 0,
        snapshot.timestamp_ms,
        tuple(origins),
    )
    return json.dumps(asdict(committed))


def forgettable_tokens(metadata: TableMetadata, now_ms: int) -> list[str]:
    """Tokens of batch writes that ended long ago: they are no longer read, and each batch write has its
    own.
    """
    forgettable = []
    for name, text in metadata.properties.items():
        if name.startswith(TOKEN_PREFIX + BATCH_WRITE_PREFIX):
            with suppress(ValueError):  # an invalid token of another write: skip it
                if _parse_token(text).timestamp_ms < now_ms - BATCH_WRITE_TOKEN_KEPT_MS:
                    forgettable.append(name)
    return forgettable


def version_of(metadata: TableMetadata, branch: str) -> int:
    """Snapshot id of the branch's head; `NO_SNAPSHOT` if it has none."""
    ref = metadata.refs.get(branch)
    return NO_SNAPSHOT if ref is None else ref.snapshot_id


# Rollback -----------------------------------------------------------------------------------------


def check_query_not_rolled_back(metadata: TableMetadata, address: IcebergAddress, query_id: str) -> None:
    """Check that no rollback has removed the query's last batch. Raises as `check_not_rolled_back`."""
    check_not_rolled_back(metadata, address, committed_batch(metadata, query_id, address.branch))


def check_not_rolled_back(
    metadata: TableMetadata, address: IcebergAddress, committed: CommittedBatch | None
) -> None:
    """Check that no rollback has removed the query's last batch. A rollback reverts no table properties.

    Raises:
        TableChangedError: the last batch's snapshot is no longer an ancestor of the branch's head.
    """
    if committed is None or _is_behind_head(metadata, address.branch, committed):
        return
    raise TableChangedError(
        f"The branch {address.branch!r} of the Iceberg table {address.uri} no longer contains snapshot "
        f"{committed.snapshot_id}, in which the stream delivered batch {committed.batch_id}: the branch was "
        "rolled back, replaced or dropped. These rows are missing, and continuing would leave a gap. "
        "Nothing was committed. Restore the snapshot before it expires, with pyiceberg:\n"
        f"    table.manage_snapshots().set_current_snapshot(snapshot_id={committed.snapshot_id}).commit()\n"
        "or accept the table without these rows:\n"
        "    penstock recover --accept-table\n"
        "or start the query with a new checkpoint to write the table from the beginning."
    )


def _is_behind_head(metadata: TableMetadata, branch: str, committed: CommittedBatch) -> bool:
    """True if the snapshot is an ancestor of the head; or if it has expired and no ancestor is older."""
    has_older_ancestor = False
    snapshot = None
    for snapshot in line_of(metadata, branch):
        if snapshot.snapshot_id == committed.snapshot_id or _is_copy_of(snapshot, committed.snapshot_id):
            return True
        has_older_ancestor |= _is_older(snapshot, committed)
    if snapshot is None or has_older_ancestor:
        return False
    return metadata.snapshot_by_id(committed.snapshot_id) is None


def line_of(metadata: TableMetadata, branch: str) -> Iterator[Snapshot]:
    """The branch's head and its ancestors, newest first, until an expired one."""
    by_id = snapshots_by_id(metadata)
    ref = metadata.refs.get(branch)
    snapshot = None if ref is None else by_id.get(ref.snapshot_id)
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else by_id.get(parent)


def snapshots_by_id(metadata: TableMetadata) -> dict[int, Snapshot]:
    """pyiceberg's own lookup iterates over all snapshots each time."""
    return {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}


def _is_copy_of(snapshot: Snapshot, snapshot_id: int) -> bool:
    summary = snapshot.summary
    return summary is not None and summary.additional_properties.get(CHERRY_PICKED_FROM) == str(snapshot_id)


def _is_older(snapshot: Snapshot, committed: CommittedBatch) -> bool:
    """Compares sequence numbers. Format version 1 has none; there timestamps are compared."""
    if committed.sequence_number:
        return (snapshot.sequence_number or 0) < committed.sequence_number
    return snapshot.timestamp_ms < committed.timestamp_ms
