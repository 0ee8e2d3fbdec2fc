"""A table whose rows wait in a row log: a query with routes writes no files of the tables, as it does not
know them.

A delivery opens the table, which creates it if it does not exist, writes the rows of all its batches, and
commits them together. What it has written is in no manifest: if it is killed, the next delivery writes again,
the token of the table says whether that is necessary, and the clean-up finds the rest.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from ...committers.contract import (
    NO_LETTERS,
    AlreadyCommitted,
    AttemptId,
    Batch,
    Committed,
    Conflict,
    DataFiles,
    DeadLetter,
    DeadLetters,
    Manifest,
    Outcome,
    TaskWriter,
    Token,
)
from ...committers.dead_letters import BadRows
from ...committers.errors import CommitStateUnknownError, PenstockError, RetryableError
from ...committers.protocol.decision import is_in_table
from ...committers.protocol.token_check import other_offsets
from ...committers.requests.content import LOGGED_FOR_TABLE, RequestManifests
from ...committers.row_log.log import LoggedBatch, RowLog
from ...committers.target import CheckToken, HoldsRefusedRows, Target
from ...committers.texts.safe_text import get_logger
from ...writers.bad_rows import BadRowWriter
from ...writers.partition import storage_errors
from ..options.delivery import DeliveryOptions
from ..options.row_log import missing_row_log, row_log_of, storage_options_of

if TYPE_CHECKING:
    from typing_extensions import Self

logger = get_logger(__name__)


class TableSink(Protocol):
    """A `Sink` of a table."""

    @property
    def options(self) -> DeliveryOptions: ...

    @property
    def kind(self) -> str: ...

    def open_table(self) -> Target[Any, Any]: ...


def logged_table(sink: TableSink) -> LoggedTable:
    """Open the table of a query with routes.

    Raises:
        ConfigurationError: it is not known where the row log is.
    """
    options = sink.options
    location = row_log_of(options.row_log, options.checkpoint_location)
    if location is None:
        raise missing_row_log("routeBy")
    log = RowLog(location, dict(storage_options_of(options)))
    return LoggedTable(sink.open_table(), sink.kind, log, options)


@dataclass(frozen=True, slots=True)
class _Written:
    """The rows of a delivery, in files of the table."""

    manifest: Manifest
    payload: Any
    letters: DeadLetters
    dropped: int
    """Rows that the table does not accept, and that are no dead letters."""


class LoggedTable:
    """The target of a stream, around the one of its table. See `Target` and `Mergeable`. One instance for
    each delivery.

    Args:
        table: the target that writes and commits
        kind: of its manifests
    """

    def __init__(self, table: Target[Any, Any], kind: str, log: RowLog, options: DeliveryOptions) -> None:
        self._table = table
        self._log = log
        self._options = options
        self._manifests = RequestManifests(kind, LOGGED_FOR_TABLE)
        self._written: _Written | None = None
        self._committed: Manifest | None = None
        """The last manifest of the table that it has."""
        self._check: Callable[[], None] = lambda: None

    def supervised(self, check: Callable[[], None]) -> Self:
        """See `WritesInCommit`."""
        opened = copy(self)
        opened._check = check
        return opened

    # Manifests --------------------------------------------------------------------------------------

    def manifest(self, batch: Batch, content: object, payloads: Sequence[DataFiles]) -> Manifest:
        return self._manifests.encode_files(batch, payloads)

    def mergeable(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        return self._manifests.mergeable(manifests)

    def merge(self, manifests: Sequence[Manifest], verified_version: int | None) -> Manifest:
        return self._manifests.merge(manifests)

    def missing(self, manifest: Manifest) -> Sequence[str]:
        """Missing files of the row log, with its location. They are deleted after the delivery, so none is
        missing for a batch that the table has.
        """
        missing = self._log.files.missing([file.path for file in self._manifests.files(manifest)])
        if not missing or is_in_table(self.token(manifest.batch.stream.query_id), manifest.batch):
            return []
        return [f"{self._log.location}/{path}" for path in missing]

    def discard(self, payloads: Iterable[DataFiles]) -> int:
        paths = [file.path for payload in payloads for file in payload]
        return self._log.files.delete(paths) if paths else 0

    # The table --------------------------------------------------------------------------------------

    def token(self, query_id: str) -> Token | None:
        return self._table.token(query_id)

    def check_unchanged(self, query_id: str, table_id: str | None, last_version: int | None) -> None:
        """See `SupportsTableIdentity`."""
        if hasattr(self._table, "check_unchanged"):
            self._table.check_unchanged(query_id, table_id, last_version)

    def accept(self, query_id: str) -> None:
        """See `SupportsTableIdentity`."""
        if hasattr(self._table, "accept"):
            self._table.accept(query_id)

    def refused_rows(self, manifest: Manifest) -> DeadLetters:
        """See `HoldsRefusedRows`."""
        return self._letters_again(manifest, self._batches(manifest))

    def delete_refused_rows(self, manifest: Manifest) -> None:
        """See `HoldsRefusedRows`."""
        if self._committed is not None and isinstance(self._table, HoldsRefusedRows):
            self._table.delete_refused_rows(self._committed)

    # Commit -----------------------------------------------------------------------------------------

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        """Write the rows and commit them, unless the table has them. Raises as `Target.plan_batch`,
        `TaskWriter` and `Committer.commit`.
        """
        batches, token = self._batches(manifest), self.token(manifest.batch.stream.query_id)
        if is_in_table(token, manifest.batch):
            letters = self._letters_again(manifest, batches)
            self._delete(batches, letters)
            return AlreadyCommitted(None, letters)
        if token is not None and token.batch_id == manifest.batch.batch_id:
            raise other_offsets(manifest.batch, f"table {manifest.batch.stream.table_uri}")
        written = self._written = self._written or self._write(manifest, batches)
        try:
            outcome = self._table.commit(written.manifest, check_token)
        except CommitStateUnknownError:
            raise
        except PenstockError:
            self._discard()
            raise
        if isinstance(outcome, Conflict):
            return outcome
        if isinstance(outcome, AlreadyCommitted):
            self._discard()
        self._written, self._committed = None, written.manifest
        letters = _joined(written.letters, outcome.dead_letters)
        self._delete(batches, letters)
        outcome = replace(outcome, dead_letters=letters)
        if isinstance(outcome, Committed):
            outcome = replace(outcome, dropped_rows=outcome.dropped_rows + written.dropped)
        return outcome

    def _batches(self, manifest: Manifest) -> list[LoggedBatch]:
        return [one for one in self._manifests.batches(manifest) or () if one.files]

    def _write(self, manifest: Manifest, batches: Sequence[LoggedBatch]) -> _Written:
        batch = manifest.batch
        rows = self._columns(batches)
        planned = self._table.plan_batch(rows, "append", batch.batch_id)
        run_id = f"delivery-{uuid.uuid4()}"
        attempt = AttemptId(batch.stream.query_id, run_id, batch.batch_id, partition=0, attempt=0)
        with storage_errors(attempt, batch.stream):
            writer = planned.writers.open(attempt)
        try:
            letters, dropped = {}, 0
            for one in batches:
                with storage_errors(attempt, batch.stream):
                    letters[one.batch.batch_id], refused = self._append(one, rows, writer)
                dropped += refused
            with storage_errors(attempt, batch.stream):
                payload = writer.finish()
        except BaseException:
            writer.abort()
            raise
        whole = self._table.manifest(batch, planned.content, [payload])
        whole = whole.in_place_of(manifest)
        return _Written(whole, payload, letters, dropped)

    def _columns(self, batches: Sequence[LoggedBatch]) -> pa.Schema:
        """Return the columns of all batches: those of one that has fewer are NULL in its rows."""
        return pa.unify_schemas([self._log.schema(one) for one in batches])

    def _append(
        self, batch: LoggedBatch, rows: pa.Schema, writer: TaskWriter[Any]
    ) -> tuple[list[DeadLetter], int]:
        """Write the rows of one batch. Return those that the table refuses, and how many it drops."""
        letters: list[DeadLetter] = []
        refused = 0
        choice = self._options.bad_rows
        for file in batch.files:
            into = writer
            if choice is not BadRows.FAIL:
                into = BadRowWriter.around(writer, file.partition, choice, file.first_row)
            for some in self._log.read(replace(batch, files=(file,))):
                self._check()
                into.write(_with_columns(some.rows, rows))
            if isinstance(into, BadRowWriter):
                letters += into.dead_letters
                refused += into.dropped
        if refused:
            logger.warning(
                "%s rows of batch %s of %s do not fit and were dropped (badRows=drop).",
                refused,
                batch.batch.batch_id,
                batch.batch.stream,
            )
        limit = self._options.dead_letter_max
        if limit is not None and letters:
            where = f"batch {batch.batch.batch_id} of {batch.batch.stream}"
            limit.check(len(letters), batch.rows, where, letters[-1])
        return letters, refused

    def _letters_again(self, manifest: Manifest, batches: Sequence[LoggedBatch]) -> DeadLetters:
        """Find the rows that were refused when the batches were committed, by a process that was killed
        before it could store them. The files of a batch with such rows are still there.
        """
        is_kept = self._options.bad_rows is BadRows.DEAD_LETTER
        there = [one for one in batches if not self._log.files.missing([file.path for file in one.files])]
        if not is_kept or not there:
            return NO_LETTERS
        again = self._write(manifest, there)
        try:
            outcome = self._table.commit(again.manifest, _has_lost)  # maybe it holds rows that it refused
        finally:
            self._table.discard([again.payload])
        self._committed = again.manifest
        held = NO_LETTERS if isinstance(outcome, Conflict) else outcome.dead_letters
        return _joined(again.letters, held)

    def _discard(self) -> None:
        """Delete what was written and is not committed. If that fails, the clean-up does it."""
        with suppress(PenstockError):
            if self._written is not None:
                self._table.discard([self._written.payload])
        self._written = None

    def _delete(self, batches: Sequence[LoggedBatch], letters: Mapping[int, object]) -> None:
        """Delete the files of the log. Those of a batch with dead letters are left to the clean-up: a crash
        before the batch is marked needs them.
        """
        paths = [file.path for one in batches if one.batch.batch_id not in letters for file in one.files]
        try:
            if paths:
                self._log.files.delete(paths)
        except PenstockError as error:
            logger.warning(
                "%s delivered files of %s are left to penstock gc: %s", len(paths), self._log, error
            )


def _has_lost(_: Token | None) -> None:
    raise RetryableError("The table had the batches, and has lost them while its dead letters were read.")


def _joined(*letters: DeadLetters) -> DeadLetters:
    joined: dict[int, list[DeadLetter]] = {}
    for some in letters:
        for batch_id, found in some.items():
            if found:
                joined.setdefault(batch_id, []).extend(found)
    return joined


def _with_columns(rows: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return the rows with NULL in the columns that they do not have."""
    if rows.schema.names == columns.names:
        return rows.replace_schema_metadata(None)
    arrays = [
        rows.column(field.name) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=columns.names)
