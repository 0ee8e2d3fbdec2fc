"""The committer of DuckLake tables: one transaction of the catalog per batch, with the batch's token in it.

The transaction reads the query's row in the fence table, registers the files of the batch, and updates the
row. DuckLake keeps the whole transaction to one snapshot, and lets only one of two transactions commit that
have read the same row (see `fence`). If the response is lost, the row tells whether the table has the batch.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .. import crash_points
from ..changes.key_files import data_files, key_files
from ..changes.ties import check_ties
from ..contract import (
    AlreadyCommitted,
    Batch,
    Changes,
    Committed,
    Conflict,
    DataFiles,
    Manifest,
    Outcome,
    Token,
)
from ..errors import (
    PenstockError,
    RetryableError,
    SchemaMismatchError,
    TableChangedError,
)
from ..file_tables.manifest import LakeManifest, decode
from ..file_tables.merged_batches import note_fields
from ..file_tables.table_changes import check_not_behind
from ..postgres.address import quoted
from ..protocol.failed_commit import failed_batch
from ..protocol.token_check import is_committed
from ..target import CheckToken
from ..texts.safe_text import get_logger
from . import connection, fence
from .changes import DuckLakeChanges
from .connection import ConversionError, DatabaseError, Lake, LakeServer, is_conflict, literal
from .fence import FenceRow
from .files import files_of
from .storage import files_below
from .table import (
    KIND,
    LakeTable,
    check_same_table,
    check_supported,
    columns_to_add,
    files_location,
    load_if_there,
)
from .values import WRITE_AGAIN, check_partition_values

logger = get_logger(__name__)

_NOT_COMMITTED = "The batch was not committed"


@dataclass(frozen=True, slots=True)
class _TableAndFence:
    """The table and the query's fence row when they were first loaded."""

    table: LakeTable | None
    row: FenceRow | None


class DuckLakeCommitter:
    """Commits manifests to one DuckLake table. Runs on the driver and in the delivery process, one instance
    per call.

    A batch is committed at most once per (query, batch id), even if other writers use the table at the same
    time.
    """

    def __init__(self, server: LakeServer) -> None:
        self._server = server
        self._address = server.address
        self._loaded: dict[str, _TableAndFence] = {}

    # Current state of the table ---------------------------------------------------------------------

    def check_unchanged(self, query_id: str, table_id: str | None, last_version: int | None) -> None:
        """See `SupportsTableIdentity`. Notices also a catalog that was restored from a backup."""
        found = self._load(query_id)
        in_fence = None if found.row is None else found.row.table_id
        for wrote in (table_id, in_fence):
            if wrote is not None:
                check_same_table(found.table, wrote, self._address)
        if found.table is not None:
            lake = f"DuckLake of {self._address.uri}"
            check_not_behind(lake, found.table.snapshot, last_version, unit="snapshot")

    def accept(self, query_id: str) -> None:
        """See `SupportsTableIdentity`."""
        with self._server.attached("Nothing was accepted") as lake:
            if lake is None:
                return
            lake.begin()
            table = load_if_there(lake, self._address)
            if table is not None:
                fence.accept(lake, self._address, query_id, table.table_id)
            error = connection.commit(lake)
            if error is not None:
                raise self._server.failed(error, "Nothing was accepted")
        self._loaded.clear()

    def token(self, query_id: str) -> Token | None:
        """See `Committer`."""
        row = self._load(query_id).row
        return None if row is None else row.token

    def table(self) -> LakeTable | None:
        """The current table; None if it does not exist."""
        return self._load("").table

    def recorded_origin(self, query_id: str, origins: Sequence[str]) -> str | None:
        """The first of the origins from which another query was the last to commit to the table."""
        with self._server.attached("Nothing was changed") as lake:
            table = None if lake is None else load_if_there(lake, self._address)
            if lake is None or table is None:
                return None
            for origin in origins:
                last = fence.last_of_origin(lake, self._address, origin, table.table_id)
                if last not in (None, query_id):
                    return origin
        return None

    def has_rows(self) -> bool:
        """See `SupportsOrigins`."""
        with self._server.attached("Nothing was changed") as lake:
            if lake is None or load_if_there(lake, self._address) is None:
                return False
            return bool(lake.rows(f"SELECT 1 FROM {self._table(lake)} LIMIT 1"))

    def _load(self, query_id: str) -> _TableAndFence:
        if query_id not in self._loaded:
            with self._server.attached("Nothing was changed") as lake:
                if lake is None:
                    self._loaded[query_id] = _TableAndFence(None, None)
                else:
                    lake.begin()
                    table = load_if_there(lake, self._address)
                    row = fence.read(lake, self._address, query_id)
                    self._loaded[query_id] = _TableAndFence(table, row)
        return self._loaded[query_id]

    def _table(self, lake: Lake) -> str:
        return lake.table(self._address.schema, self._address.table)

    def check_ties(self, batch: Batch, content: LakeManifest) -> None:
        """Check, before the batch is prepared, that each key has one last row. See `ties`."""
        files = files_of(self._server) if isinstance(content.mode, Changes) else None
        if files is not None and isinstance(content.mode, Changes):
            check_ties(batch, content.mode, content.files, files.opened, lambda file: {})

    # Commit ---------------------------------------------------------------------------------------

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        """See `Committer`. Registers the files of the manifest and sets its token, in one transaction.

        A batch before the token counts as committed, because the batches of a query are committed
        in order.

        Raises:
            TableNotSupportedError: the table does not accept these files.
            TableChangedError: the table or the fence table was dropped or re-created.
            RetryableError: the batch was not committed.
        """
        self._loaded.clear()
        content = decode(manifest, KIND)
        crash_points.reach("commit.start", manifest.batch.batch_id)
        with self._server.attached(_NOT_COMMITTED, new_columns=content.new_columns) as lake:
            if lake is None:
                raise self._no_fence("catalog")
            try:
                lake.begin()
                done = self._add(lake, manifest, content, check_token)
            except DatabaseError as error:
                if is_conflict(error):
                    return Conflict(self._server.in_short(error))
                if isinstance(error, ConversionError):
                    raise self._bad_value(error, manifest) from None
                raise self._server.failed(error, _NOT_COMMITTED) from None
            if done is not None:
                return done
            error_at_end = connection.commit(lake)
            version = -1 if error_at_end else lake.snapshot()
        outcome = self._outcome_after(error_at_end, manifest) if error_at_end else Committed(version)
        if isinstance(outcome, Committed):
            crash_points.reach("commit.landed", manifest.batch.batch_id)
            self.discard([key_files(content.files)])
        return outcome

    def _add(
        self, lake: Lake, manifest: Manifest, content: LakeManifest, check_token: CheckToken
    ) -> AlreadyCommitted | None:
        """The whole transaction except for its COMMIT; the outcome if the table already has the batch."""
        address, batch = self._address, manifest.batch
        if not fence.is_there(lake, address):
            raise self._no_fence(f"table {fence.FENCE_TABLE}")
        row = fence.read(lake, address, batch.stream.query_id)
        token = None if row is None else row.token
        if is_committed(manifest, token, f"DuckLake table {address.uri}"):
            is_last = token is not None and token.batch_id == batch.batch_id
            return AlreadyCommitted(lake.snapshot() if is_last else None)
        check_token(token)
        table = check_same_table(load_if_there(lake, address), content.table_id, address)
        check_supported(table, address)
        location = files_location(table.data_path, address)
        what = f"batch {batch.batch_id} of query {batch.stream.query_id}"
        check_partition_values(content.files, what)
        self._check_files(manifest, content, location)
        for column in columns_to_add(lake, content, table, address, what):
            lake.rows(f"ALTER TABLE {self._table(lake)} ADD COLUMN {quoted(column.name)} {column.type}")
        if content.mode == "overwrite":
            lake.rows(f"DELETE FROM {self._table(lake)}")
        changes = None
        if isinstance(content.mode, Changes):
            files = files_below(location, self._server.storage)
            changes = DuckLakeChanges(lake, self._table(lake), manifest, content, files)
            changes.delete_replaced()
        if new := data_files(content.files):
            lake.rows(
                f"CALL ducklake_add_data_files({literal(lake.name)}, {literal(address.table)}, ?, "
                f"schema => {literal(address.schema)}, allow_missing => true, "
                f"hive_partitioning => {str(bool(content.partition_by)).lower()})",
                [posixpath.join(location, file.path) for file in new],
            )
        if changes is not None:
            changes.delete_losing()
        fence.update(lake, address, batch, table.table_id, content.origins, is_new=row is None)
        written = {"query": batch.stream.query_id, "batch": batch.batch_id, "digest": batch.digest}
        lake.rows(
            f"CALL {lake.name}.set_commit_message('penstock', ?, extra_info => ?)",
            f"batch {batch.batch_id}",
            json.dumps({"penstock": {**written, **note_fields(manifest)}}),
        )
        return None

    def _bad_value(self, error: DatabaseError, manifest: Manifest) -> SchemaMismatchError:
        return SchemaMismatchError(
            f"duckdb cannot read a value in the files of batch {manifest.batch.batch_id} of "
            f"{manifest.batch.stream}: {self._server.in_short(error)}. {_NOT_COMMITTED}. {WRITE_AGAIN}"
        )

    def _no_fence(self, what: str) -> TableChangedError:
        return TableChangedError(
            f"The {what} of the DuckLake table {self._address.uri} is missing. It says which batches of the "
            "stream the table has. Nothing was committed. Restore it; or start the query with a new "
            "checkpoint to write the table from the beginning."
        )

    def _check_files(self, manifest: Manifest, content: LakeManifest, location: str) -> None:
        missing = files_below(location, self._server.storage).missing([file.path for file in content.files])
        if missing:
            raise RetryableError(
                f"{len(missing)} of the {manifest.files} files of batch {manifest.batch.batch_id} of "
                f"{manifest.batch.stream} are missing below {location}, first {missing[0]}: they were "
                f"deleted. {_NOT_COMMITTED}. The next start of a coupled query writes it again."
            )

    def _outcome_after(self, error: DatabaseError, manifest: Manifest) -> Outcome:
        """Interpret an error of COMMIT. Postgres may still execute it after the connection is lost."""
        text = self._server.in_short(error)
        failed = failed_batch(
            manifest.batch,
            f"the DuckLake table {self._address.uri}",
            text,
            can_commit_later=not self._address.catalog.is_local,
        )
        with failed.reading_table(), self._server.attached("It is unknown if it is committed") as lake:
            if lake is None:
                raise self._no_fence("catalog")
            row = fence.read(lake, self._address, manifest.batch.stream.query_id)
            version = lake.snapshot()
        if is_committed(manifest, None if row is None else row.token, f"DuckLake table {self._address.uri}"):
            return AlreadyCommitted(version) if is_conflict(error) else Committed(version)
        if is_conflict(error):
            return Conflict(text)
        raise failed.not_found()

    # Files ----------------------------------------------------------------------------------------

    def missing(self, manifest: Manifest) -> Sequence[str]:
        """See `Committer`."""
        paths = [file.path for file in decode(manifest, KIND).files]
        files = files_of(self._server)
        missing = paths if files is None else files.missing(paths)
        if missing:
            self._loaded.clear()
        return missing

    def discard(self, payloads: Iterable[DataFiles]) -> int:
        """Delete uncommitted data files; return the number deleted. If the catalog, which says where they
        are, does not answer now, they are left to clean-up.
        """
        paths = [file.path for files in payloads for file in files]
        try:
            files = files_of(self._server)
        except PenstockError as error:
            logger.warning("%s files are left to penstock gc: %s", len(paths), error)
            return 0
        return 0 if files is None else files.delete(paths)
