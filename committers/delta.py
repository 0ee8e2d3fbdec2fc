"""The Delta table committer: one commit of a Delta table per batch, with the batch's token in it.

The token is two application transactions (`txn` actions of the Delta protocol) per query:

    penstock:{query_id}           the batch id
    penstock:{query_id}:digest    the first 60 bits of the digest of the batch's source offsets

Delta does not deduplicate by them: a fresh handle may commit a lower version again. So each attempt loads
the table anew, looks for the token there, and commits on that very handle, for its next version only and
without retries of the library. Whoever takes that version first, a twin included, makes the attempt fail,
and the next attempt sees the twin's token.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from . import crash_points, delta_manifest
from .contract import AlreadyCommitted, Batch, Committed, Conflict, Manifest, Outcome, Token
from .delta_checks import check_supported
from .delta_history import NOTE_KEY, CommitInfo, commit_note, commits_since, restored_to_before
from .delta_manifest import DeltaManifest
from .delta_schema import DeltaTarget, delta_fields, describe, fields_of, match, missing_columns, plan_target
from .errors import (
    CheckpointMismatchError,
    CommitStateUnknownError,
    ConfigurationError,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
    TableChangedError,
)
from .files import TableFiles

DEFAULT_PROPERTIES: Mapping[str, str] = {"delta.checkpointInterval": "10"}
"""Properties of the tables that Penstock creates, unless the user gives others."""

_DIGEST_CHARS = 15
"""Hex digits of the digest that fit into a `txn` version, a signed 64-bit number."""


class DeltaTableCommitter:
    """Commits manifests to one Delta table. Runs on the driver and in the delivery process, one per call.

    Promises that a batch lands at most once per (query, batch id), whoever else commits to the table
    meanwhile. Does not look into data files, and does not promise that they are there: recovery asks
    `missing_files` first.

    Args:
        table_uri: location of the table, as the Delta library takes it
        storage_options: for the Delta library's object store
        now_ms: clock, milliseconds since 1970; only people read what it is used for
    """

    def __init__(
        self,
        table_uri: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._uri = table_uri
        self._options = dict(storage_options or {})
        self._now_ms = now_ms
        self._first_look: DeltaTable | None = None

    # Before the write -----------------------------------------------------------------------------

    def plan(
        self,
        source: pa.Schema,
        *,
        partition_by: Sequence[str] | None = None,
        create: bool = True,
        properties: Mapping[str, str] | None = None,
        evolve: bool = False,
        overwrite: bool = False,
        batch_id: int = 0,
    ) -> DeltaTarget:
        """What a batch with these columns is written into; creates the table if it is not there.

        Called on the driver before any data moves. Adds no column yet: the commit does.

        Args:
            partition_by: the partition columns that the query asks for; None takes the table's own
            properties: for a table that is created, beside `DEFAULT_PROPERTIES`
            evolve: may the batch add nullable columns?
            overwrite: will the batch replace all rows?

        Raises:
            ConfigurationError: no table and `create` is False; or it is partitioned otherwise.
            SchemaMismatchError: shows both schemas.
            TableNotSupportedError: names what direct commits would violate.
            RetryableError: the table cannot be read now.
        """
        fields = delta_fields(source, self._uri)
        table, created = self._open_or_create(fields, partition_by, create, properties or {}, batch_id)
        check_supported(table, overwrite)
        self._check_partitioning(table, partition_by)
        return plan_target(table, fields, evolve=evolve, created=created)

    def _open_or_create(
        self,
        fields: Sequence[Mapping[str, object]],
        partition_by: Sequence[str] | None,
        create: bool,
        properties: Mapping[str, str],
        batch_id: int,
    ) -> tuple[DeltaTable, bool]:
        table = self._load_if_there()
        if table is not None:
            return table, False
        if not create:
            raise ConfigurationError(
                f"There is no Delta table at {self._uri}, and createTable=false. Create the table, correct the "
                "path, or set createTable=true."
            )
        created = self._create(fields, partition_by or (), properties)
        crash_points.reach("table.created", batch_id)
        return self._load(), created

    def _create(
        self,
        fields: Sequence[Mapping[str, object]],
        partition_by: Sequence[str],
        properties: Mapping[str, str],
    ) -> bool:
        """False if somebody else has created the table meanwhile: then that one is used.

        Without retries: with its usual ones the library commits the loser's "create" on top of the winner's
        table, which gives it another id.
        """
        schema = Schema.from_json(json.dumps({"type": "struct", "fields": list(fields)}))
        try:
            DeltaTable.create(
                self._uri,
                schema,
                mode="error",
                partition_by=_partition_columns(fields, partition_by),
                configuration={**DEFAULT_PROPERTIES, **properties},
                storage_options=self._options,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except Exception as error:
            if self._load_if_there() is not None:
                return False
            raise ConfigurationError(
                f"The Delta table {self._uri} cannot be created: {error}. Correct the path, the storage.* options "
                "or the table properties."
            ) from error
        return True

    def _check_partitioning(self, table: DeltaTable, partition_by: Sequence[str] | None) -> None:
        has = table.metadata().partition_columns
        if partition_by is None or [name.lower() for name in has] == [name.lower() for name in partition_by]:
            return
        raise ConfigurationError(
            f"partitionBy asks for {_columns_in_words(partition_by)}, but the Delta table {self._uri} is partitioned "
            f"by {_columns_in_words(has)}. Leave partitionBy out to take the table's own, or write another table."
        )

    def check_unchanged(self, table_id: str | None, last_version: int | None) -> None:
        """Is the table still the one that the stream wrote, at or after the version of its last commit?

        Args:
            table_id: the id that the stream's last manifest names; None if there is none
            last_version: the version that holds the stream's last batch; None if not known

        Raises:
            TableChangedError: dropped, re-created or restored to before the stream's last batch.
        """
        table = self._load_unchanged(table_id)
        if last_version is not None:
            self._check_not_restored(table, commits_since(table, last_version), last_version)

    def token(self, query_id: str) -> Token | None:
        """The last batch of the query that the table holds; None if there is no table."""
        if self._first_look is None:
            self._first_look = self._load_if_there()
        return None if self._first_look is None else _token(self._first_look, query_id)

    # Commit ---------------------------------------------------------------------------------------

    def commit(self, manifest: Manifest) -> Outcome:
        """Add all files of the manifest and its token in one table commit, if the token is not there yet.

        Idempotent. A batch behind the table's token counts as committed: batches of a query land in order,
        and whether the earlier one had the same offsets is for the store to know.

        Raises:
            SchemaMismatchError, TableNotSupportedError: the table can no longer take these files; the batch
                did not land.
            TableChangedError: dropped, re-created, or restored to before the batch was planned.
            CheckpointMismatchError: the table holds the batch id with other offsets.
            RetryableError: the table cannot be read, or a vacuum has deleted files; the batch did not land.
            CommitStateUnknownError: the batch may have landed. Delete nothing.
        """
        content = delta_manifest.decode(manifest)
        table = self._load_unchanged(content.table_id)
        outcome = self._outcome_by_token(table, manifest.batch, content)
        if outcome is not None:
            return outcome
        lacking = self._check_fits(table, manifest, content)
        if not lacking:
            return self._land(table, manifest, content)
        if not self._add_columns(table, manifest.batch, content, lacking):
            return Conflict("another writer committed while the table's columns were added")
        table = self._load_unchanged(content.table_id)
        outcome = self._outcome_by_token(table, manifest.batch, content)
        if outcome is not None:
            return outcome
        if self._check_fits(table, manifest, content):
            return Conflict("another writer took away the columns just added")
        return self._land(table, manifest, content)

    def _outcome_by_token(self, table: DeltaTable, batch: Batch, content: DeltaManifest) -> Outcome | None:
        """None if the batch is yet to land, by the very handle that it would be committed on."""
        token = _token(table, batch.stream.query_id)
        if token is None or token.batch_id < batch.batch_id:
            return None
        if token.batch_id == batch.batch_id and not token.matches(batch.digest):
            raise CheckpointMismatchError(
                f"The Delta table {self._uri} holds batch {batch.batch_id} of query {batch.stream.query_id} with "
                "other source offsets: the checkpoint was reset, rewound or copied. Nothing was committed. "
                f"`penstock show {batch.stream.query_id} {batch.batch_id}` shows both; put back the checkpoint "
                "that wrote the table, or start the query with a new checkpoint."
            )
        commits = commits_since(table, content.table_version)
        version = next((commit.version for commit in commits if commit.holds(batch)), None)
        if version is not None:
            self._check_not_restored(table, commits, version)
        return AlreadyCommitted(version)

    def _check_fits(self, table: DeltaTable, manifest: Manifest, content: DeltaManifest) -> list[str]:
        """Can the table, as this handle has it, take the files? The columns that it has yet to get."""
        commits = commits_since(table, content.table_version)
        self._check_not_restored(table, commits, content.table_version)
        self._check_not_vacuumed(commits, manifest)
        check_supported(table, overwrite=content.mode == "overwrite")
        written, current = fields_of(content.schema_json), fields_of(table.schema().to_json())
        problems, lacking = missing_columns(written, current, content.new_columns)
        if tuple(table.metadata().partition_columns) != content.partition_by:
            problems.append(
                f"it is now partitioned by {_columns_in_words(table.metadata().partition_columns)}"
            )
        if problems:
            lines = "\n".join(f"  - {problem}" for problem in problems)
            raise SchemaMismatchError(
                f"The Delta table {self._uri} was altered while batch {manifest.batch.batch_id} of query "
                f"{manifest.batch.stream.query_id} was written, and can no longer take its files:\n{lines}\n"
                f"  The files have:\n{describe(written)}\n  The table has:\n{describe(current)}\n"
                "The batch did not land. Start the query again to write it for the new columns, or alter the table "
                "back."
            )
        return lacking

    def _check_not_vacuumed(self, commits: Sequence[CommitInfo], manifest: Manifest) -> None:
        """A vacuum with a short retention deletes files that are not committed yet."""
        if not any(commit.is_vacuum for commit in commits):
            return
        missing = self.missing_files(manifest)
        if missing:
            raise RetryableError(
                f"The Delta table {self._uri} was vacuumed while batch {manifest.batch.batch_id} of query "
                f"{manifest.batch.stream.query_id} was written: {len(missing)} of its {manifest.files} files are "
                f"gone, first {missing[0]}. The batch did not land; the query's next start writes it again. Vacuum "
                "with a retention that is longer than a batch takes."
            )

    def _add_columns(
        self, table: DeltaTable, batch: Batch, content: DeltaManifest, lacking: Sequence[str]
    ) -> bool:
        """Add the columns in a commit of their own; False if another writer took the version.

        A crash after it leaves columns that are NULL everywhere; the batch's recovery finds them there.
        """
        new = [Field.from_json(json.dumps(f)) for f in fields_of(content.schema_json) if f["name"] in lacking]
        try:
            table.alter.add_columns(new, commit_properties=CommitProperties(max_commit_retries=0))
        except CommitFailedError:
            return False
        except DeltaError as error:
            raise RetryableError(
                f"Columns {_columns_in_words(lacking)} could not be added to the Delta table {self._uri}: {error}. The "
                "batch did not land."
            ) from error
        crash_points.reach("evolve.done", batch.batch_id)
        return True

    def _land(self, table: DeltaTable, manifest: Manifest, content: DeltaManifest) -> Outcome:
        batch = manifest.batch
        crash_points.reach("commit.start", batch.batch_id)
        try:
            table.create_write_transaction(
                self._add_actions(content),
                mode=content.mode,
                schema=table.schema(),
                partition_by=list(content.partition_by),
                commit_properties=_commit_properties(manifest, content),
            )
        except Exception as error:
            return self._outcome_after(error, batch, table.version())
        crash_points.reach("commit.landed", batch.batch_id)
        return Committed(table.version() + 1)

    def _add_actions(self, content: DeltaManifest) -> list[AddAction]:
        now_ms = self._now_ms()
        return [
            AddAction(
                path=file.path,
                size=file.size_bytes,
                partition_values=dict(file.partition_values),
                modification_time=now_ms,
                data_change=True,
                stats=file.statistics,
            )
            for file in content.files
        ]

    def _outcome_after(self, error: Exception, batch: Batch, version: int) -> Outcome:
        """What an error of the commit call means: the table says."""
        try:
            table = self._load()
        except PenstockError as unreadable:
            raise self._state_unknown(batch, error) from unreadable
        token = _token(table, batch.stream.query_id)
        if token is not None and token.batch_id >= batch.batch_id:
            return Committed(version + 1)
        if isinstance(error, CommitFailedError) and table.version() > version:
            return Conflict(f"version {version + 1} of {self._uri} was taken by another writer")
        raise self._state_unknown(batch, error) from error

    def _state_unknown(self, batch: Batch, error: Exception) -> CommitStateUnknownError:
        return CommitStateUnknownError(
            f"Batch {batch.batch_id} of query {batch.stream.query_id} may or may not be in the Delta table {self._uri}: "
            f"{error}. Nothing is deleted. Start the query again, or run `penstock recover`: it looks at the table and "
            "finishes the batch."
        )

    # Files ----------------------------------------------------------------------------------------

    def missing_files(self, manifest: Manifest) -> Sequence[str]:
        """Files that the manifest names and that are gone."""
        content = delta_manifest.decode(manifest)
        return self._files().missing([file.path for file in content.files])

    def delete_files(self, paths: Iterable[str]) -> int:
        """Delete uncommitted data files; the number deleted. Files already gone are no error."""
        return self._files().delete(paths)

    def _files(self) -> TableFiles:
        return TableFiles(self._uri, self._options)

    # The table ------------------------------------------------------------------------------------

    def _load(self) -> DeltaTable:
        """
        Raises:
            TableChangedError: there is no table.
            RetryableError: it cannot be read now.
        """
        table = self._load_if_there()
        if table is None:
            raise TableChangedError(
                f"There is no Delta table at {self._uri} any more: it was dropped or moved under the stream. Nothing "
                "was committed. Put the table back, or start the query with a new checkpoint to write a new table."
            )
        return table

    def _load_if_there(self) -> DeltaTable | None:
        try:
            return DeltaTable(self._uri, storage_options=self._options)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise RetryableError(
                f"The Delta table {self._uri} cannot be read: {error}. Nothing was committed. Check the path, the "
                "storage.* options and that the storage is reachable, then start again."
            ) from error

    def _load_unchanged(self, table_id: str | None) -> DeltaTable:
        table = self._load()
        has = table.metadata().id
        if table_id is None or str(has) == table_id:
            return table
        raise TableChangedError(
            f"The Delta table {self._uri} was dropped and created again under the stream: its id is {has}, the "
            f"stream wrote {table_id}. Nothing was committed. Start the query with a new checkpoint to write the new "
            "table from the beginning, or put the old table back."
        )

    def _check_not_restored(self, table: DeltaTable, commits: Sequence[CommitInfo], version: int) -> None:
        """Delta's RESTORE takes back rows but not tokens: the table would claim to hold batches that it lost."""
        if table.version() < version:
            raise TableChangedError(
                f"The Delta table {self._uri} is at version {table.version()}, but the stream wrote version {version}: "
                "its log was put back from a copy. Start the query with a new checkpoint, or put back the whole log."
            )
        restore = restored_to_before(table, commits, version)
        if restore is not None:
            raise TableChangedError(
                f"The Delta table {self._uri} was restored (version {restore.version}) to before version {version}, "
                "which the stream wrote or started from. Rows that the stream delivered are gone, and going on would "
                "leave a gap. Restore the table to that version or a later one, or start the query with a new "
                "checkpoint to write it from the beginning."
            )


def _token(table: DeltaTable, query_id: str) -> Token | None:
    """The query's token as this handle has it."""
    batch_id = table.transaction_version(_app_id(query_id))
    if batch_id is None:
        return None
    digest = table.transaction_version(_digest_app_id(query_id))
    return Token(batch_id, "" if digest is None else f"{digest:0{_DIGEST_CHARS}x}")


def _app_id(query_id: str) -> str:
    return f"penstock:{query_id}"


def _digest_app_id(query_id: str) -> str:
    return f"penstock:{query_id}:digest"


def _commit_properties(manifest: Manifest, content: DeltaManifest) -> CommitProperties:
    batch = manifest.batch
    query_id = batch.stream.query_id
    return CommitProperties(
        custom_metadata={
            NOTE_KEY: commit_note(batch, manifest.files, manifest.rows),
            "isBlindAppend": content.mode == "append",
        },
        max_commit_retries=0,
        app_transactions=[
            Transaction(_app_id(query_id), batch.batch_id),
            Transaction(_digest_app_id(query_id), int(batch.digest[:_DIGEST_CHARS], 16)),
        ],
    )


def _partition_columns(fields: Sequence[Mapping[str, object]], partition_by: Sequence[str]) -> list[str]:
    """The partition columns as the columns are spelt."""
    spelt = {str(field["name"]).lower(): str(field["name"]) for field in fields}
    unknown = [name for name in partition_by if name.lower() not in spelt]
    if unknown:
        raise ConfigurationError(
            f"partitionBy names {_columns_in_words(unknown)}, which the query does not have. It has "
            f"{_columns_in_words(list(spelt.values()))}."
        )
    return [spelt[name.lower()] for name in partition_by]


def _columns_in_words(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) if names else "no column"
