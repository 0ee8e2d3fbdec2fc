"""Options of sinks whose queries may change and delete rows by key."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from ...committers.contract import EVERY_COLUMN, Changes, History, LateRows
from ...committers.schema_registry import SchemaRegistry
from ..changes.modes import FEEDS, FORMATS, VALUE_FORMATS, Envelope, EnvelopeChanges
from .declaring import declared, option, optional, passed_on
from .parsing import Option, columns, duration_s, flag, one_of, text

_ONLY_UPSERTS = {
    "keys": "keys",
    "order_by": "orderBy",
    "delete_when": "deleteWhen",
    "drop_columns": "dropColumns",
    "late_rows": "lateRows",
    "tombstones_s": "tombstonesFor",
    "merge": "merge",
    "envelope": "changes",
    "value_format": "valueFormat",
    "value_columns": "valueColumns",
    "avro_schema": "avroSchema",
    "registry_properties": "registry.*",
    "update_columns": "updateColumns",
    "has_history": "history",
    "valid_from": "validFrom",
    "valid_to": "validTo",
    "is_current": "isCurrent",
}
"""Names of the options that need `writeMode=upsert`, by field."""

_LATE_ROWS: Mapping[str, LateRows] = {"apply": "apply", "ignore": "ignore"}


def _columns_option(name: str, meaning: str) -> tuple[str, ...]:
    return field(default=(), metadata=declared(name, columns, f"{meaning}: `a, b`, or a JSON array."))


def updated_columns(text: str) -> tuple[str, ...]:
    """Parse the option `updateColumns`.

    Raises:
        ValueError: no column is given.
    """
    named = {"all": (), "given": (EVERY_COLUMN,)}.get(text.strip().lower())
    return columns(text) if named is None else named


def _column_name(given: str) -> str:
    """
    Raises:
        ValueError: it is empty.
    """
    return text(given).strip()


@dataclass(frozen=True, kw_only=True)  # no slots: a second base of options classes that have some
class ChangeOptions:
    """A layer of options: rows replace and delete rows by key."""

    merge: ClassVar[Literal["on-read", "on-write"] | None] = None
    """See `FileChangeOptions`."""
    update_columns: ClassVar[tuple[str, ...]] = ()
    """See `TableChangeOptions`."""
    history: ClassVar[History | None] = None
    """See `TableChangeOptions`."""

    is_upsert: bool = option(
        "writeMode",
        one_of({"append": False, "upsert": True}),
        "`append`: each row is added. `upsert`: each row replaces or deletes the row with the same `keys`. "
        "See [Changes](changes.md).",
        default="append",
    )
    keys: tuple[str, ...] = _columns_option(
        "keys",
        "With `writeMode=upsert`: the columns that identify a row. A row with NULL in one of them is a bad "
        "row, and floating-point columns are refused",
    )
    order_by: tuple[str, ...] = _columns_option(
        "orderBy",
        "With `writeMode=upsert`: columns that order the rows of a key, such as a log sequence number. The "
        "row with the greatest value counts. Without it, a batch with two different rows of one key is "
        "refused",
    )
    delete_when: str = field(
        default="",
        metadata=declared(
            "deleteWhen",
            text,
            "With `writeMode=upsert`: which rows delete their key, as an expression over the columns of the "
            "query such as `op = 'd'`, or the name of a boolean column. Other rows are inserted or replace.",
        ),
    )
    drop_columns: tuple[str, ...] = _columns_option(
        "dropColumns", "With `writeMode=upsert`: columns of the query that the table does not get"
    )
    late_rows: LateRows = option(  # noqa: RUF009  it returns a field
        "lateRows",
        one_of(_LATE_ROWS),
        "With `writeMode=upsert`: what a row does that is older by `orderBy` than the row of an earlier "
        "batch. `apply`: it replaces it, as batches are applied in their order. `ignore`: it changes "
        "nothing.",
        default="apply",
    )
    tombstones_s: float = option(
        "tombstonesFor",
        duration_s,
        "With `lateRows=ignore`: how long a deletion is remembered. Within this time an older row does not "
        "bring the key back.",
        default="7d",
    )

    envelope: str | None = optional(
        "changes",
        one_of({name: name for name in FORMATS}),
        "With `writeMode=upsert`: the rows are messages of a source of changes: "
        f"{', '.join(f'`{name}`' for name in FORMATS)}. They tell the rows of the table, their order and "
        "which are deleted. See [Change data capture](change-data-capture.md).",
    )
    value_format: str | None = optional(
        "valueFormat",
        one_of({name: name for name in VALUE_FORMATS}),
        "With `changes`: the form of messages in the column `value`, as Spark's Kafka source has it. "
        "`avro-confluent` is Avro with a schema id before each message, as Confluent's converter writes it.",
        default="`json`, unless the fields of the messages are columns",
    )
    value_columns: str = field(
        default="",
        metadata=declared(
            "valueColumns",
            text,
            "With `changes`, if the messages are in the column `value`: the columns of the table, such as "
            "`id BIGINT, name STRING, amount DECIMAL(10,2)`. The comment of a column names its type in Kafka "
            "Connect or Debezium, if the messages have no schema: `at TIMESTAMP COMMENT 'MicroTimestamp'`.",
        ),
    )
    avro_schema: str = field(
        default="",
        repr=False,
        metadata=declared(
            "avroSchema",
            text,
            "With `valueFormat=avro` or `avro-confluent`: the schema that the messages were written with, as "
            "JSON.",
        ),
    )
    registry_properties: Mapping[str, str] = passed_on(
        "registry.",
        str.lower,
        "With `valueFormat=avro-confluent`: the Schema Registry that has the schemas of the messages, in "
        "place of `avroSchema`: `registry.url`, `registry.basic.auth.user.info` or "
        "`registry.bearer.auth.token`, `registry.ssl.ca.location`, `registry.ssl.certificate.location` and "
        "`registry.ssl.key.location`. Tasks get them.",
    )

    @property
    def changes(self) -> Changes | None:
        """The mode of the query's batches; None if they append or overwrite."""
        if not self.is_upsert:
            return None
        changes = Changes(
            keys=self.keys,
            order_by=self.order_by,
            delete_when=self.delete_when,
            drop_columns=self.drop_columns,
            late_rows=self.late_rows,
            tombstones_s=self.tombstones_s if self.late_rows == "ignore" else 0.0,
            merge=self.merge,
            partial_columns=self.update_columns,
            history=self.history,
        )
        if self.envelope is None:
            return changes
        form = Envelope(
            self.envelope,
            self.value_format,
            self.value_columns,
            self.avro_schema,
            SchemaRegistry.of(self.registry_properties) if self.registry_properties else None,
        )
        return EnvelopeChanges.of(changes, form)


@dataclass(frozen=True, kw_only=True)  # no slots: a second base of options classes that have some
class TableChangeOptions(ChangeOptions):
    """The layer of tables, whose rows a commit can read: a change may need the row that it replaces."""

    update_columns: tuple[str, ...] = option(  # type: ignore[misc]
        "updateColumns",
        updated_columns,
        "With `writeMode=upsert`: which columns of the table a row leaves as they are. `all`: none, the row "
        "replaces the whole row. `given`: those that are NULL in the row, or that the query does not have. "
        "Names of columns, `a, b` or a JSON array: as `given`, but only these columns.",
        default="all",
    )
    has_history: bool = option(
        "history",
        flag,
        "With `writeMode=upsert`: `true` keeps all versions of a row, with the columns `validFrom`, "
        "`validTo` and `isCurrent` (slowly changing dimension, type 2).",
        default="false",
    )
    valid_from: str = option(
        "validFrom",
        _column_name,
        "With `history=true`: the column with the first value of `orderBy` of a version.",
        default="valid_from",
    )
    valid_to: str = option(
        "validTo",
        _column_name,
        "With `history=true`: the column with the beginning of the next version or the deletion; NULL if "
        "there is none.",
        default="valid_to",
    )
    is_current: str = option(
        "isCurrent",
        _column_name,
        "With `history=true`: the boolean column that is true for the newest version of a key that is not "
        "deleted.",
        default="is_current",
    )

    @property
    def history(self) -> History | None:  # type: ignore[override]
        return History(self.valid_from, self.valid_to, self.is_current) if self.has_history else None


@dataclass(frozen=True, kw_only=True)  # no slots: a second base of options classes that have some
class FileChangeOptions(TableChangeOptions):
    """The layer of file tables."""

    merge: Literal["on-read", "on-write"] | None = optional(  # type: ignore[misc]
        "merge",
        one_of({"on-read": "on-read", "on-write": "on-write"}),
        "With `writeMode=upsert`: how deleted rows leave their files. `on-read`: they are masked by deletion "
        "vectors or position deletes, which readers of the table must know. `on-write`: their files are "
        "written again, which takes longer, and which every reader can read.",
        default="`on-read` for a new table and one that has masked rows, else `on-write`",
    )


def refused_changes(name: str, known: Sequence[Option]) -> dict[str, str]:
    """Return the problem of `writeMode`, by its name, if the destination does not have the option.

    Args:
        name: of the data source, for messages
        known: the options of the destination
    """
    if any(option.name == "writeMode" for option in known):
        return {}
    return {
        "writeMode": f"writeMode: {name} only appends, and replaces and deletes no rows. To keep all "
        "changes, append the changes as they are: leave writeMode out."
    }


def problems_of_changes(values: Mapping[str, Any], of_all: Collection[str] = ()) -> list[str]:
    """Return problems of values that are all valid one by one.

    Args:
        of_all: fields of options that the destination also has without `writeMode=upsert`
    """
    if not values.get("is_upsert"):
        only = {of_field: name for of_field, name in _ONLY_UPSERTS.items() if of_field not in of_all}
        given = [name for of_field, name in only.items() if of_field in values]
        return [f"{name}: only a query with writeMode=upsert has it." for name in given]
    problems = []
    keys, order_by = values.get("keys", ()), values.get("order_by", ())
    dropped = {name.lower() for name in values.get("drop_columns", ())}
    if not keys:
        problems.append('keys is missing: give the columns that identify a row, .option("keys", "id").')
    if "route_by" in values:
        problems.append(
            "writeMode=upsert with routeBy is not supported: the batches of a delivery are written together. "
            "Start a query for each table, or append the changes."
        )
    problems += _problems_of_envelope(values)
    if lost := [name for name in keys if name.lower() in dropped]:
        problems.append(f"dropColumns contains {', '.join(lost)} of keys, which the table needs.")
    if values.get("late_rows") == "ignore":
        if not order_by and "envelope" not in values:
            problems.append("lateRows=ignore needs orderBy: the columns that tell which row is older.")
        if lost := [name for name in order_by if name.lower() in dropped]:
            problems.append(
                f"dropColumns contains {', '.join(lost)} of orderBy. With lateRows=ignore the table needs "
                "it, to compare later rows with it."
            )
    elif "tombstones_s" in values:
        problems.append("tombstonesFor: only a query with lateRows=ignore has it.")
    if lost := [
        name for name in values.get("update_columns", ()) if name.lower() in _lower(*keys, *order_by)
    ]:
        problems.append(
            f"updateColumns contains {', '.join(lost)} of keys or orderBy, which every row must have."
        )
    return [*problems, *_problems_of_history(values)]


def _problems_of_history(values: Mapping[str, Any]) -> Iterator[str]:
    names = [values.get(of_field, _ONLY_HISTORY[of_field]) for of_field in _ONLY_HISTORY]
    if not values.get("has_history"):
        given = [_ONLY_UPSERTS[of_field] for of_field in _ONLY_HISTORY if of_field in values]
        yield from (f"{name}: only a query with history=true has it." for name in given)
        return
    if not values.get("order_by"):
        yield "history=true needs orderBy: its first column tells from when a version is valid."
    if values.get("late_rows") == "ignore":
        yield "history=true with lateRows=ignore is not supported: a late row is a version of its time."
    if values.get("update_columns"):
        yield (
            "history=true with updateColumns is not supported: which value a column keeps could change with "
            "each late row. Give whole rows."
        )
    if len(_lower(*names)) < len(names) or _lower(*names) & _lower(*values.get("keys", ())):
        yield "validFrom, validTo and isCurrent must differ from each other and from keys."


_ONLY_HISTORY = {"valid_from": "valid_from", "valid_to": "valid_to", "is_current": "is_current"}
"""Names of the columns by default, by field of the options that need `history=true`."""


def _lower(*names: str) -> set[str]:
    return {name.lower() for name in names}


def problems_of_late_rows(values: Mapping[str, Any], name: str) -> list[str]:
    """Return the problem of `lateRows=ignore` with a table that has no place for deletions."""
    if values.get("late_rows") != "ignore":
        return []
    return [
        f"lateRows=ignore is not supported by {name}, which does not remember which keys were deleted. Leave "
        "it out, and the batches are applied in their order."
    ]


_OF_MESSAGES = ("value_format", "value_columns", "avro_schema", "registry_properties")


def _problems_of_envelope(values: Mapping[str, Any]) -> list[str]:
    envelope = values.get("envelope")
    of_values = [name for name in _OF_MESSAGES if name in values]
    if envelope is None:
        return [f"{_ONLY_UPSERTS[name]}: only a query with changes has it." for name in of_values]
    problems = []
    if "delete_when" in values:
        problems.append(f"deleteWhen: with changes={envelope} the messages tell which rows are deleted.")
    if envelope in FEEDS:
        problems += [
            f"{_ONLY_UPSERTS[name]}: changes={envelope} has its rows in columns." for name in of_values
        ]
    if "avro_schema" in values and values.get("value_format") not in ("avro", "avro-confluent"):
        problems.append("avroSchema: only a query with valueFormat=avro or avro-confluent has it.")
    if "registry_properties" in values:
        if values.get("value_format") != "avro-confluent":
            problems.append("registry.*: only a query with valueFormat=avro-confluent has it.")
        if "avro_schema" in values:
            problems.append(
                "avroSchema: the messages have the ids of their schemas in the registry. Remove it."
            )
        try:
            SchemaRegistry.of(values["registry_properties"])
        except ValueError as error:
            problems.append(f"{error}.")
    return problems
