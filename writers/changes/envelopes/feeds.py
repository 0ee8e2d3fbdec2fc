"""Rows of the change feeds of tables: Delta's change data feed and Iceberg's changelog view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from ....committers.arrow_values import numeric_array
from .events import TIME_TYPE, Events, sequence_of
from .formats import Context, equals, refuse
from .messages import Messages, Path

CHANGE_TYPE, COMMIT_TIME = "_change_type", "_commit_timestamp"


class _Feed:
    """See `Format`. Within a version of the table, the rows that leave it come before those that it gets, so
    that a row that was replaced ends as the new one.
    """

    metadata: ClassVar[Mapping[Path, pa.DataType]] = {}
    flat_metadata: ClassVar[Mapping[Path, pa.DataType]] = {}
    after: ClassVar[Path] = ()
    before: ClassVar[Path] = ()
    flat_marker: ClassVar[str | None] = CHANGE_TYPE
    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    """Columns that the feed has beside those of the table. The second is the version."""
    upsert_types: ClassVar[tuple[str, ...]]
    delete_types: ClassVar[tuple[str, ...]]

    def events(self, messages: Messages, context: Context) -> Events:
        kind, target = messages.text(CHANGE_TYPE), context.target
        upserts, deletes = equals(kind, *self.upsert_types), equals(kind, *self.delete_types)
        types = ", ".join((*self.upsert_types, *self.delete_types))
        refuse(pc.invert(pc.or_(upserts, deletes)), f"A row has another {CHANGE_TYPE} than {types}.")
        version = messages.number(self.columns[1])
        refuse(pc.is_null(version), f"A row has NULL in {self.columns[1]}.")
        counter = numeric_array([0, 1]).take(upserts.cast(pa.int8()))
        after = messages.image((), target.columns, context.given)
        old_keys = messages.image((), target.key_columns, context.given)
        time = messages.fields.column((COMMIT_TIME,), TIME_TYPE).values
        return Events(messages, upserts, deletes, after, old_keys, version, sequence_of(counter), time)


@dataclass(frozen=True)
class DeltaFeed(_Feed):
    name: ClassVar[str] = "delta-cdf"
    columns: ClassVar[tuple[str, ...]] = (CHANGE_TYPE, "_commit_version", COMMIT_TIME)
    upsert_types: ClassVar[tuple[str, ...]] = ("insert", "update_postimage")
    delete_types: ClassVar[tuple[str, ...]] = ("delete", "update_preimage")


@dataclass(frozen=True)
class IcebergChangelog(_Feed):
    name: ClassVar[str] = "iceberg-changelog"
    columns: ClassVar[tuple[str, ...]] = (CHANGE_TYPE, "_change_ordinal", "_commit_snapshot_id")
    upsert_types: ClassVar[tuple[str, ...]] = ("INSERT", "UPDATE_AFTER")
    delete_types: ClassVar[tuple[str, ...]] = ("DELETE", "UPDATE_BEFORE")
