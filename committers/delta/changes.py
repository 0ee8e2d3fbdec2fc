"""Commits changes to a Delta table: new files, masked rows of others, and the token, in one log entry.

The rows to mask are found on the version that the commit is based on. The entry is the next version, so if
another writer commits first, it fails, and the next attempt searches that writer's files too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import Schema

from ..changes.file_search import SearchedFile, SearchFiles
from ..changes.key_files import WrittenKeys, data_files, key_files, read_keys
from ..changes.masked_rows import KeySearch, MaskedRows, ReadMasked
from ..changes.rewriting import (
    ChangedRows,
    Lazy,
    MaskedFile,
    OpenTableRows,
    RewriteFiles,
    TableRows,
    WriteChangeData,
    cannot_rewrite,
    only_on_read,
)
from ..changes.tombstones import Tombstones
from ..cleaning.deletion import is_relative
from ..contract import Changes, DataFile, Manifest
from ..errors import PenstockError, TableNotSupportedError
from ..file_tables.files import TableFiles
from ..file_tables.manifest import LakeManifest
from ..file_tables.shared_files import shared_with
from ..texts.safe_text import get_logger
from .active_files import active_files
from .change_features import has_change_data, has_vectors
from .deletion_vectors import NewVectors, read_vector
from .file_values import bounds_of, stored_value, values_of
from .log_entry import ActiveFile, add_action, add_again_action, cdc_action, remove_action
from .snapshot_cache import TableSnapshot

SMALL_BYTES = 1024**2
"""Files up to this size are rewritten, those of a table partition together, rather than given a vector. Each
batch adds some, and without this the later ones and readers would have ever more of them to open.
"""
SMALL_BYTES_MAX = 4 * SMALL_BYTES
SMALL_FILES_MAX = 16
"""Of those, what one commit rewrites: no more than it takes to find the rows in a larger table."""

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FileActions:
    """What a commit does with files, and what it has written before."""

    actions: tuple[Mapping[str, Any], ...]
    """`remove` and `add` of the Delta protocol."""
    written: tuple[str, ...] = ()
    """Paths of files that only this attempt needs."""

    def and_then(self, others: FileActions) -> FileActions:
        return FileActions((*self.actions, *others.actions), (*self.written, *others.written))


class DeltaChanges:
    """The changes of one manifest. Attempts to commit it share what they have read.

    Args:
        files: of the table
        rewrite: see `RewriteFiles`
        search: see `SearchFiles`
        write_change_data: see `WriteChangeData`
        open_rows: see `OpenTableRows`
    """

    def __init__(
        self,
        manifest: Manifest,
        content: LakeManifest,
        files: TableFiles,
        storage_options: Mapping[str, str],
        rewrite: RewriteFiles | None,
        search: SearchFiles,
        write_change_data: WriteChangeData | None = None,
        open_rows: OpenTableRows | None = None,
    ) -> None:
        assert isinstance(content.mode, Changes)
        self.manifest = manifest
        self._content = content
        self._changes = content.mode
        self._files = files
        self._options = storage_options
        self._rewrite = rewrite
        self._write_change_data = write_change_data
        self._open_rows = open_rows
        self._search_files = partial(search, content)
        self._new = {file.path: file for file in data_files(content.files)}
        self._written: list[WrittenKeys] = []
        self._search: KeySearch | None = None
        self._tombstones = Tombstones.of(files, manifest.batch, content.mode)

    def file_actions(self, table: TableSnapshot, now_ms: int) -> FileActions:
        """Find the rows to mask in a version of the table, and write what the commit needs.

        Raises:
            RetryableError: storage or log cannot be read now.
            TableNotSupportedError: the log or a vector cannot be read.
            PenstockError: a file is damaged.
        """
        schema = pa.schema(Schema.from_json(table.schema().to_json()).to_arrow())
        active = {file.path: file for file in active_files(table, self._options)}
        if outside := next((path for path in active if not is_relative(path)), None):
            raise TableNotSupportedError(
                f"The Delta table {table.table_uri} has files outside of its location, first {outside}: it "
                "is a shallow clone, whose rows cannot be changed. Nothing was committed. Make a deep clone."
            )
        vectors: dict[str, pa.Array] = {}

        def read_masked(paths: Sequence[str]) -> Mapping[str, pa.Array]:
            """Read the vectors of files that have one of the keys."""
            for path in paths:
                if (vector := active[path].vector) is not None:
                    vectors[path] = read_vector(vector, self._files.read, table.table_uri)
            return vectors

        rows = Lazy(lambda: self._opened_rows(schema, active))
        masked = self._masked_rows(schema, active, read_masked, rows)
        more = FileActions(())
        if masked.computed is not None:
            more = self._computed(table, masked.computed, rows(), now_ms)
        elif has_change_data(table.metadata().configuration) and (masked.in_table or masked.in_new):
            more = self._change_data(schema, active, masked)
        try:
            return more.and_then(self._replaced(table, active, vectors, masked, now_ms))
        except BaseException:
            self.discard(more)
            raise

    def _computed(
        self, table: TableSnapshot, computed: pa.Table, rows: TableRows, now_ms: int
    ) -> FileActions:
        """Write rows that only the commit knows."""
        if shared_with(table.metadata().configuration) is not None:
            raise only_on_read(self.manifest)
        if has_change_data(table.metadata().configuration):
            raise TableNotSupportedError(
                f"The Delta table {table.table_uri} has a change data feed, for which rows that keep values "
                f"of older ones are not supported. Batch {self.manifest.batch.batch_id} was not committed. "
                "Send whole rows, without updateColumns, or set delta.enableChangeDataFeed=false."
            )
        files = rows.write(computed)
        added = [add_action(file, now_ms) for file in files]
        return FileActions(tuple(added), tuple([file.path for file in files]))

    def _replaced(
        self,
        table: TableSnapshot,
        active: Mapping[str, ActiveFile],
        vectors: Mapping[str, pa.Array],
        masked: MaskedRows,
        now_ms: int,
    ) -> FileActions:
        """Return what replaces rows of the table by the new ones."""
        is_shared = shared_with(table.metadata().configuration) is not None
        if self._changes.merge == "on-write" or not has_vectors(table.metadata().configuration):
            if is_shared:
                raise only_on_read(self.manifest)
            rewritten = self._rewritten(active, vectors, masked, now_ms)
            return rewritten.and_then(self._added(set(self._new).difference(masked.in_new), now_ms))
        small, others = ({}, masked.in_table) if is_shared else _small_files(active, masked.in_table)
        try:
            rewritten = self._rewritten(active, vectors, MaskedRows(small, {}), now_ms)
        except PenstockError as error:
            logger.info("Small files get deletion vectors, since they cannot be rewritten: %s", error)
            rewritten, others = FileActions(()), masked.in_table
        try:
            left = self._with_vectors(active, vectors, MaskedRows(others, masked.in_new), now_ms)
        except BaseException:
            self.discard(rewritten)
            raise
        return rewritten.and_then(left)

    def discard(self, attempt: FileActions) -> None:
        """Delete what an attempt has written that was certainly not committed. Clean-up finds the rest."""
        with suppress(PenstockError):
            self._files.delete(attempt.written)

    def clean_up(self, table: TableSnapshot) -> None:
        """Delete the key files of the batch after its commit, and old tombstones. The rest is done later, and
        so are key files that another table may still need.
        """
        if shared_with(table.metadata().configuration) is None:
            with suppress(PenstockError):
                self._files.delete([file.path for file in key_files(self._content.files)])
        if self._tombstones is not None:
            self._tombstones.prune()

    def _opened_rows(self, schema: pa.Schema, active: Mapping[str, ActiveFile]) -> TableRows:
        if self._open_rows is None:
            raise cannot_rewrite(self.manifest)

        def values_of(path: str) -> Mapping[str, pa.Scalar | None]:
            new = self._new.get(path)
            values = active[path].partition_values if new is None else dict(new.partition_values)
            return {name: stored_value(values[name], schema.field(name).type) for name in values}

        names = {name: name for name in schema.names}
        return self._open_rows(self.manifest, self._content, values_of, names)

    def _masked_rows(
        self,
        schema: pa.Schema,
        active: Mapping[str, ActiveFile],
        read_masked: ReadMasked,
        open_rows: Callable[[], TableRows],
    ) -> MaskedRows:
        if self._search is None:
            batch = self.manifest.batch
            self._written = read_keys(batch, key_files(self._content.files), self._files.opened)
            planned = pa.schema(Schema.from_json(self._content.schema_json).to_arrow()).names
            self._search = KeySearch(
                self._changes,
                self._written,
                planned,
                self._files.opened,
                self._search_files,
                tombstones=self._tombstones,
            )
        names = self._searched_columns
        searched = [
            SearchedFile(
                path,
                values_of(names, file.partition_values, schema),
                bounds_of(self._changes.keys, file.stats, schema),
                size_bytes=file.size_bytes,
            )
            for path, file in active.items()
        ]
        new = {file.path: file for file in self._new_files(schema)}
        parts = [[new[path] for path in one.files] for one in self._written]
        return self._search.masked_rows(searched, parts, read_masked, open_rows)

    @property
    def _searched_columns(self) -> tuple[str, ...]:
        return (*self._changes.identity, *self._changes.order_by, *self._changes.ends)

    def _new_files(self, schema: pa.Schema) -> list[SearchedFile]:
        names = self._searched_columns
        return [
            SearchedFile(path, values_of(names, dict(file.partition_values), schema))
            for path, file in self._new.items()
        ]

    def _change_data(
        self, schema: pa.Schema, active: Mapping[str, ActiveFile], masked: MaskedRows
    ) -> FileActions:
        """Write the changes for readers of the change data feed, who otherwise take whole files for them."""
        if self._write_change_data is None or self._search is None:
            raise cannot_rewrite(self.manifest)
        changed = [
            ChangedRows(self._new[path] if path in self._new else self._own_file(active[path]), rows, kinds)
            for path, (rows, kinds) in self._search.change_kinds(masked, self._new_files(schema)).items()
            if len(rows)
        ]
        files = self._write_change_data(self.manifest, self._content, changed) if changed else ()
        return FileActions(tuple(map(cdc_action, files)), tuple([file.path for file in files]))

    def _own_file(self, file: ActiveFile) -> DataFile:
        """Return a file of the table as the writers have it."""
        _, count = self._with_loose_bounds(file.stats, file.path)
        values = [(name, file.partition_values.get(name)) for name in self._content.partition_by]
        return DataFile(file.path, file.size_bytes, count, tuple(values))

    # Masked rows stay in their files --------------------------------------------------------------

    def _with_vectors(
        self,
        active: Mapping[str, ActiveFile],
        before: Mapping[str, pa.Array],
        masked: MaskedRows,
        now_ms: int,
    ) -> FileActions:
        batch, actions = self.manifest.batch, list[Mapping[str, Any]]()
        vectors = NewVectors(batch.stream.query_id, batch.batch_id)
        for path, rows in masked.in_table.items():
            file = active[path]
            everything = _union(before.get(path), rows)
            stats, count = self._with_loose_bounds(file.stats, path)
            actions.append(remove_action(file, now_ms))
            if len(everything) < count:
                actions.append(add_again_action(file, stats, vectors.add(everything)))
        for path, lost in masked.in_new.items():
            new = self._new[path]
            if len(lost) < new.rows:
                stats, _ = self._with_loose_bounds(new.statistics, path)
                actions.append(add_action(new, now_ms, stats, vectors.add(lost)))
        written: tuple[str, ...] = ()
        if vectors.file is not None:
            path, content = vectors.file
            self._files.create(path, content)
            written = (path,)
        unmasked = self._added(set(self._new).difference(masked.in_new), now_ms)
        return FileActions(tuple(actions), written).and_then(unmasked)

    def _added(self, paths: Collection[str], now_ms: int) -> FileActions:
        """New files without a masked row."""
        return FileActions(tuple([add_action(self._new[path], now_ms) for path in sorted(paths)]))

    def _with_loose_bounds(self, stats: str, path: str) -> tuple[str, int]:
        """Return the statistics of a file for an `add` with a vector, and its number of rows: deleted rows
        may have the lowest or highest value.
        """
        try:
            found = json.loads(stats or "{}")
            count = int(found["numRecords"])
            loose = stats.rstrip()
            if "tightBounds" in found:
                before, _, after = loose.rpartition('"tightBounds":true')
                loose = f'{before}"tightBounds":false{after}' if before else loose
            else:
                loose = f'{loose[:-1]},"tightBounds":false}}'
            if json.loads(loose)["tightBounds"] is False:
                return loose, count
        except (ValueError, KeyError, TypeError, RecursionError):
            with self._files.opened(path) as stream:
                count = pq.ParquetFile(stream).metadata.num_rows
        return json.dumps({"numRecords": count, "tightBounds": False}), count

    # Files without masked rows take their place ---------------------------------------------------

    def _rewritten(
        self,
        active: Mapping[str, ActiveFile],
        before: Mapping[str, pa.Array],
        masked: MaskedRows,
        now_ms: int,
    ) -> FileActions:
        touched = [
            MaskedFile(self._own_file(active[path]), _union(before.get(path), rows))
            for path, rows in masked.in_table.items()
        ]
        touched += [MaskedFile(self._new[path], rows) for path, rows in masked.in_new.items()]
        files = self._written_again(touched) if touched else ()
        actions = [
            *(remove_action(active[path], now_ms) for path in masked.in_table),
            *(add_action(file, now_ms) for file in files),
        ]
        return FileActions(tuple(actions), tuple([file.path for file in files]))

    def _written_again(self, files: Sequence[MaskedFile]) -> Sequence[DataFile]:
        if self._rewrite is None:
            raise cannot_rewrite(self.manifest)
        return self._rewrite(self.manifest, self._content, files)


def _small_files(
    active: Mapping[str, ActiveFile], masked: Mapping[str, pa.Array]
) -> tuple[Mapping[str, pa.Array], Mapping[str, pa.Array]]:
    """Return the files that are rewritten rather than given a vector, and the others."""
    size_bytes, small = 0, set[str]()
    for path in sorted(masked, key=lambda path: active[path].size_bytes)[:SMALL_FILES_MAX]:
        size_bytes += active[path].size_bytes
        if active[path].size_bytes > SMALL_BYTES or size_bytes > SMALL_BYTES_MAX:
            break
        small.add(path)
    return (
        {path: rows for path, rows in masked.items() if path in small},
        {path: rows for path, rows in masked.items() if path not in small},
    )


def _union(some: pa.Array | None, others: pa.Array) -> pa.Array:
    return others if some is None else pc.unique(pa.concat_arrays([some, others]))
