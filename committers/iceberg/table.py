"""An Iceberg table as the catalog has it now: loading it, a query's last batch, and whether that is still
there.

What a query has delivered is noted in a table property, changed in the same commit as the snapshot: unlike
the snapshot's summary it survives expiry, and reading it costs nothing. A rollback takes back snapshots but
no properties, so the property also names the batch's snapshot, which must lie behind the branch's head.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchIdentifierError, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from ..contract import BATCH_WRITE_PREFIX, Batch, Token
from ..error_causes import retryable
from ..errors import NEXT_TRY, PenstockError, TableChangedError
from ..file_tables.merged_batches import recorded_digest
from .address import MAIN_BRANCH, IcebergAddress
from .catalog import (
    CatalogConfig,
    MissingCatalogError,
    known_properties,
    open_catalog,
    redacted,
    warn_of_ignored_properties,
)
from .target import NO_SNAPSHOT

LOADS_MAX = 3
TOKEN_PREFIX = "penstock."  # noqa: S105  the beginning of a table property's name
BATCH_WRITE_TOKEN_KEPT_MS = 7 * 24 * 3600 * 1000
"""Longer than a batch write may commit (`batch_writes.COMMIT_WITHIN`): only its commit asks for the token."""
SUMMARY_QUERY, SUMMARY_BATCH, SUMMARY_DIGEST = "penstock.query-id", "penstock.batch-id", "penstock.digest"
SUMMARY_MERGED = "penstock.merged"
"""The batches of a delivery, as `merged_note` has them."""
CHERRY_PICKED_FROM = "source-snapshot-id"
"""Where engines note, in a snapshot's summary, which one they have applied once more to another branch."""


def load_if_there(config: CatalogConfig, address: IcebergAddress) -> Table | None:
    """The table as the catalog has it now; None if there is none.

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
    except Exception as error:  # noqa: BLE001  the drivers of many catalogs raise what they like
        text = redacted(error, known_properties(config))
        raise retryable(error)(
            f"The Iceberg table {address.uri} cannot be read: {text}. Nothing was committed. Check "
            f"the catalog.* options and that catalog and storage are reachable. {NEXT_TRY}"
        ) from None
    warn_of_ignored_properties(table, address.uri)
    return table


def _load(catalog: Catalog, address: IcebergAddress) -> Table:
    """Again, if others have replaced and deleted the metadata that the catalog named before it was read."""
    for _ in range(LOADS_MAX - 1):
        with suppress(FileNotFoundError):
            return catalog.load_table(address.identifier)
    return catalog.load_table(address.identifier)


def load(config: CatalogConfig, address: IcebergAddress, table_id: str | None = None) -> Table:
    """The table as the catalog has it now.

    Raises:
        TableChangedError: there is none any more, or not the one with `table_id`.
        RetryableError: it cannot be read now.
    """
    table = _read(config, address)
    if table is None:
        raise TableChangedError(
            f"There is no Iceberg table {address.uri} any more: it was dropped or renamed under the stream. "
            "Nothing was committed. Put the table back, or start the query with a new checkpoint to write "
            "a new table from the beginning."
        )
    check_same_table(table, address, table_id)
    return table


def check_same_table(table: Table, address: IcebergAddress, table_id: str | None) -> None:
    """
    Raises:
        TableChangedError: the table has another UUID.
    """
    has = str(table.metadata.table_uuid)
    if table_id not in (None, has):
        raise TableChangedError(
            f"The Iceberg table {address.uri} was dropped and created again under the stream: its UUID is "
            f"{has}, the stream wrote {table_id}. Nothing was committed. Start the query with a new "
            "checkpoint to write the new table from the beginning, or put the old table back."
        )


# A query's last batch -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """The last batch of a query in the table, and the snapshot that brought it."""

    batch_id: int
    digest: str
    snapshot_id: int
    sequence_number: int
    timestamp_ms: int
    origins: tuple[str, ...] = ()
    """Of the query; see `origins`."""

    @property
    def token(self) -> Token:
        return Token(self.batch_id, self.digest)

    def holds(self, batch: Batch) -> bool:
        return (self.batch_id, self.digest) == (batch.batch_id, batch.digest)


def token_property(query_id: str, branch: str) -> str:
    """The table property that notes the query's last batch: one for each branch, as each has rows of its
    own.
    """
    return f"{TOKEN_PREFIX}{query_id}" + ("" if branch == MAIN_BRANCH else f"@{branch}")


def committed_batch(metadata: TableMetadata, query_id: str, branch: str) -> CommittedBatch | None:
    """The query's last batch as this metadata has it."""
    name = token_property(query_id, branch)
    text = metadata.properties.get(name)
    if text is None:
        return _forgotten(metadata, query_id, branch) if query_id.startswith(BATCH_WRITE_PREFIX) else None
    try:
        return _parse_token(text)
    except ValueError:
        raise TableChangedError(
            f"The table property {name!r}, by which Penstock knows the query's last batch, was changed to "
            f"{text!r}. "
            "Nothing was committed. Set it back to what it was: `metadata.json` files before the change have "
            "it."
        ) from None


def _forgotten(metadata: TableMetadata, query_id: str, branch: str) -> CommittedBatch | None:
    """What the token of a batch write said, from its snapshot, which the table may keep for longer."""
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
        noted = json.loads(text)
        numbers = {
            key: int(noted[key]) for key in CommittedBatch.__slots__ if key not in ("digest", "origins")
        }
        origins = tuple(map(str, noted.get("origins", ())))
        return CommittedBatch(digest=str(noted["digest"]), **numbers, origins=origins)
    except (KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"it cannot be read: {error!r}") from None


def token_of(metadata: TableMetadata, query_id: str, branch: str) -> Token | None:
    """The query's token as this metadata has it."""
    committed = committed_batch(metadata, query_id, branch)
    return None if committed is None else committed.token


def digest_of(metadata: TableMetadata, branch: str, committed: CommittedBatch, batch: Batch) -> str | None:
    """Digest of the offsets that the batch id was delivered from, or its beginning.

    None if nobody can tell any more: for a batch before the last one, once its snapshot has expired.
    """
    if committed.batch_id == batch.batch_id:
        return committed.digest
    for snapshot in line_of(metadata, branch):
        summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
        if summary.get(SUMMARY_QUERY) != batch.stream.query_id:
            continue
        if summary.get(SUMMARY_BATCH) == str(batch.batch_id):
            return summary.get(SUMMARY_DIGEST)
        if digest := recorded_digest(summary.get(SUMMARY_MERGED, ""), batch.batch_id):
            return digest
    return None


def recorded_origin(
    metadata: TableMetadata, query_id: str, branch: str, origins: Sequence[str]
) -> str | None:
    """The first of the origins from which another query has committed what the branch still has."""
    others: set[str] = set()
    for name, text in metadata.properties.items():
        other_id = name.removeprefix(TOKEN_PREFIX).partition("@")[0]
        if other_id == query_id or name != token_property(other_id, branch):
            continue
        with suppress(ValueError):  # another property, or a broken token: let it be
            committed = _parse_token(text)
            others.update(committed.origins if _is_behind_head(metadata, branch, committed) else ())
    return next((origin for origin in origins if origin in others), None)


def token_value(batch_id: int, digest: str, snapshot: Snapshot, origins: Sequence[str]) -> str:
    """What the table property says once `snapshot` has brought the batch."""
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
    """The tokens of batch writes that ended long ago: nobody asks for them again, and each has its own."""
    forgettable = []
    for name, text in metadata.properties.items():
        if name.startswith(TOKEN_PREFIX + BATCH_WRITE_PREFIX):
            with suppress(ValueError):  # another write's, and broken: let it be
                if _parse_token(text).timestamp_ms < now_ms - BATCH_WRITE_TOKEN_KEPT_MS:
                    forgettable.append(name)
    return forgettable


def version_of(metadata: TableMetadata, branch: str) -> int:
    """Snapshot id of the branch's head; `NO_SNAPSHOT` if it has none."""
    ref = metadata.refs.get(branch)
    return NO_SNAPSHOT if ref is None else ref.snapshot_id


# Rollback -----------------------------------------------------------------------------------------


def check_not_rolled_back(
    metadata: TableMetadata, address: IcebergAddress, committed: CommittedBatch | None
) -> None:
    """A rollback takes back rows but no table property: the table would claim batches that it has lost.

    Raises:
        TableChangedError: the last batch's snapshot is no longer behind the branch's head.
    """
    if committed is None or _is_behind_head(metadata, address.branch, committed):
        return
    raise TableChangedError(
        f"The branch {address.branch!r} of the Iceberg table {address.uri} no longer leads to snapshot "
        f"{committed.snapshot_id}, in which the stream delivered batch {committed.batch_id}: it was rolled "
        "back, replaced "
        "or dropped. Those rows are gone, and going on would leave a gap. Nothing was committed. Either put "
        "the "
        "snapshot back while it is not expired, with pyiceberg:\n"
        f"    table.manage_snapshots().set_current_snapshot(snapshot_id={committed.snapshot_id}).commit()\n"
        "or accept the table as it is, without these rows:\n"
        "    penstock recover --accept-table\n"
        "or start the query with a new checkpoint to write the table from the beginning."
    )


def _is_behind_head(metadata: TableMetadata, branch: str, committed: CommittedBatch) -> bool:
    """Found behind the head; or expired, and nothing behind the head is older than it."""
    older_seen = False
    snapshot = None
    for snapshot in line_of(metadata, branch):
        if snapshot.snapshot_id == committed.snapshot_id or _is_copy_of(snapshot, committed.snapshot_id):
            return True
        older_seen |= _is_older(snapshot, committed)
    if snapshot is None or older_seen:
        return False
    return metadata.snapshot_by_id(committed.snapshot_id) is None


def line_of(metadata: TableMetadata, branch: str) -> Iterator[Snapshot]:
    """The branch's head and the snapshots behind it, newest first, as far as they are not expired."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    ref = metadata.refs.get(branch)
    snapshot = None if ref is None else by_id.get(ref.snapshot_id)
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else by_id.get(parent)


def _is_copy_of(snapshot: Snapshot, snapshot_id: int) -> bool:
    summary = snapshot.summary
    return summary is not None and summary.additional_properties.get(CHERRY_PICKED_FROM) == str(snapshot_id)


def _is_older(snapshot: Snapshot, committed: CommittedBatch) -> bool:
    """By sequence number, which nothing written in format version 1 has; there by time."""
    if committed.sequence_number:
        return (snapshot.sequence_number or 0) < committed.sequence_number
    return snapshot.timestamp_ms < committed.timestamp_ms
