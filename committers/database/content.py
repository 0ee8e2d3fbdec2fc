"""Encoding of the manifest of a batch for a database table; version 1, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..contract import Batch, Changes, History, Manifest, Mode
from ..errors import ConfigurationError, ManifestCorruptError
from .contract import TableAddress
from .layout import NO_CHANGES, ColumnChanges
from .staging import StagingName, StagingTable, StagingTables, query_hash

VERSION = 1
_CHANGES = "changes"
"""The mode of a manifest with `Changes`."""


@dataclass(frozen=True, slots=True)
class TableContent:
    """What one batch does to a table."""

    mode: Mode
    """The keys and the order of changes are columns of the staging tables."""
    table_id: str
    """The table's id when the batch was planned. A table with another id is another table."""
    columns: tuple[tuple[str, str], ...]
    """Name and SQL type of each column that the table gets, with the table's column names."""
    new_columns: tuple[str, ...] = ()
    """Columns that the table did not have when the batch was planned."""
    origins: tuple[str, ...] = ()
    """Origins of the query, stored with its token; see `origins`."""
    staged: StagingTables = ()
    needless: StagingTables = ()
    """Staging tables whose rows are replaced by a later batch of the same delivery: dropped without moving
    rows.
    """
    schema: str = ""
    """The columns of the query's rows, as an Arrow schema in base64, so that rows can be read back as they
    were. Empty in manifests of earlier versions.
    """
    extra: tuple[tuple[str, str], ...] = ()
    """Name and SQL type of columns that only the staging tables have: the order of changes, as far as the
    table does not get it, and whether a row deletes.
    """

    changes: ColumnChanges = NO_CHANGES
    """What the commit does to other columns of the table."""

    @property
    def is_prepared(self) -> bool:
        """True: the rows are in prepared transactions."""
        return any(one.is_prepared for one in self.staged)

    @property
    def staged_columns(self) -> tuple[tuple[str, str], ...]:
        """Name and SQL type of each column of the staging tables."""
        return (*self.columns, *self.extra)


@dataclass(frozen=True, slots=True)
class Manifests:
    """Manifests of one kind of database."""

    kind: str
    title: str
    """Of a table, for messages, such as `Postgres table`."""
    is_staged_as: Callable[[str], bool]
    """See `TypeRules`."""
    address_of: Callable[[str], TableAddress]
    """See `Dialect`."""

    def manifest_of(self, batch: Batch, content: TableContent, payloads: Iterable[StagingTables]) -> Manifest:
        """Build the manifest of a batch from the payloads of its tasks."""
        return self.build(batch, replace(content, staged=tuple(t for tables in payloads for t in tables)))

    def build(self, batch: Batch, content: TableContent) -> Manifest:
        """Build the manifest to prepare, with its counts."""
        return Manifest(
            batch=batch,
            kind=self.kind,
            version=VERSION,
            content=json.dumps(_fields(content), ensure_ascii=False).encode(),
            files=len(content.staged),
            rows=sum(table.rows for table in content.staged),
            size_bytes=sum(table.size_bytes for table in content.staged),
            is_empty=content.mode != "overwrite" and not content.staged,
        )

    def decode(self, manifest: Manifest) -> TableContent:
        """Return the content that was passed to `manifest_of`.

        Raises:
            ManifestCorruptError: not a manifest of this kind, an unknown version, or damaged.
        """
        try:
            return self._decoded(manifest)
        except (ConfigurationError, ValueError, KeyError, TypeError, RecursionError) as error:
            batch = manifest.batch
            raise ManifestCorruptError(
                f"The manifest of batch {batch.batch_id} of {batch.stream} cannot be read as one for a "
                f"{self.title} ({error}). Nothing was committed. Restore the store from a backup, or use the "
                "version of Penstock that prepared the batch."
            ) from error

    def _decoded(self, manifest: Manifest) -> TableContent:
        if (manifest.kind, manifest.version) != (self.kind, VERSION):
            raise ValueError(f"kind {manifest.kind!r}, version {manifest.version}")
        fields = json.loads(manifest.content)
        staged = _staging_tables(fields, "staged")
        needless = _staging_tables({"needless": [], **fields}, "needless")
        columns = _columns(fields["columns"])
        extra = _columns(fields.get("extra", ()))
        mode = _mode(fields, {name for name, _ in (*columns, *extra)})
        if len(staged) != manifest.files:
            raise ValueError("invalid number of staging tables")
        # Names and types are inserted into SQL statements, and a manipulated store could contain anything.
        own = set(map(self._own_name, manifest.batches))
        if not all(StagingName.parse(table.name) in own for table in (*staged, *needless)):
            raise ValueError("it lists a table that is not a staging table of the batch")
        altered = _column_changes(fields.get("altered", {}))
        if not all(self.is_staged_as(kind) for _, kind in (*columns, *extra, *altered.types)):
            raise ValueError("it contains an invalid type")
        return TableContent(
            mode=mode,
            table_id=_text(fields["table_id"]),
            columns=columns,
            new_columns=tuple(map(_text, fields["new_columns"])),
            origins=tuple(map(_text, fields["origins"])),
            staged=staged,
            needless=needless,
            schema=_text(fields.get("schema", "")),
            extra=extra,
            changes=altered,
        )

    def _own_name(self, batch: Batch) -> StagingName:
        stream = batch.stream
        return StagingName(query_hash(stream.query_id, self.address_of(stream.table_uri).sql), batch.batch_id)


def _fields(content: TableContent) -> Mapping[str, Any]:
    fields = asdict(content)
    altered = fields.pop("changes")
    if content.changes:
        fields["altered"] = altered
    if isinstance(content.mode, Changes):
        return {**fields, "mode": _CHANGES, "changes": fields["mode"]}
    del fields["extra"]
    return fields


def _mode(fields: Mapping[str, Any], staged: Set[str]) -> Mode:
    """
    Args:
        staged: columns of the staging tables
    """
    mode = fields["mode"]
    if mode != _CHANGES:
        if mode not in ("append", "overwrite"):
            raise ValueError(f"invalid mode {mode!r:.50}")
        return mode  # type: ignore[no-any-return]
    given = {"partial_columns": (), "history": None, **fields["changes"]}
    names = {
        name: tuple(map(_text, given[name]))
        for name in ("keys", "order_by", "drop_columns", "partial_columns")
    }
    if given["history"] is not None:
        given["history"] = History(**{name: _text(one) for name, one in given["history"].items()})
    changes = Changes(**{**given, **names})
    if not changes.keys or not staged >= {*changes.identity, *changes.ends, *changes.order_by}:
        raise ValueError("its keys or their order are no columns of its staging tables")
    if changes.late_rows not in ("apply", "ignore") or not isinstance(changes.tombstones_s, int | float):
        raise ValueError("invalid changes")
    return changes


def _columns(given: Any) -> tuple[tuple[str, str], ...]:
    return tuple((_text(name), _text(kind)) for name, kind in given)


def _column_changes(given: Any) -> ColumnChanges:
    if not given:
        return NO_CHANGES
    relaxed = tuple(map(_text, given["relaxed"]))
    return ColumnChanges(_columns(given["types"]), relaxed, _columns(given["renames"]))


def _staging_tables(fields: Mapping[str, Any], name: str) -> StagingTables:
    return tuple(_staging_table(**table) for table in fields[name])


def _staging_table(schema: object, name: object, rows: object, size_bytes: object) -> StagingTable:
    if not isinstance(rows, int) or not isinstance(size_bytes, int):
        raise TypeError("rows and bytes must be numbers")
    return StagingTable(_text(schema), _text(name), rows, size_bytes)


def _text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise TypeError(f"{value!r:.50} must be a string")
    return value
