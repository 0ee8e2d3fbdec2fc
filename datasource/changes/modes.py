"""The mode of queries whose rows are messages of a source of changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ...committers.contract import Changes
from ...committers.schema_registry import SchemaRegistry

FORMATS = ("debezium", "maxwell", "dms", "delta-cdf", "iceberg-changelog")
FEEDS = ("delta-cdf", "iceberg-changelog")
"""Those whose rows are always columns."""
VALUE_FORMATS = ("json", "avro", "avro-confluent")


@dataclass(frozen=True, slots=True)
class Envelope:
    """The form of the messages, from the options of the query."""

    format: str
    """One of `FORMATS`."""
    value_format: str | None = None
    """One of `VALUE_FORMATS`; None: the fields of the messages are columns, or JSON."""
    value_columns: str = ""
    """The columns of the table, as in SQL."""
    avro_schema: str = field(default="", repr=False)
    """The writer's schema, as JSON."""
    registry: SchemaRegistry | None = field(default=None, repr=False)
    """Has the schemas of messages with a schema id, in the place of `avro_schema`."""


@dataclass(frozen=True, slots=True)
class EnvelopeChanges(Changes):
    """The changes of a query before its messages are planned. `plan_changes` returns those of their rows, so
    no other code needs to know messages.
    """

    envelope: Envelope = Envelope("debezium")

    @classmethod
    def of(cls, changes: Changes, envelope: Envelope) -> EnvelopeChanges:
        return cls(**_values(changes), envelope=envelope)

    def of_rows(self, **known: Any) -> Changes:
        """Return the changes of the rows of the messages.

        Args:
            known: fields that these tell
        """
        return Changes(**{**_values(self), **known})


def _values(changes: Changes) -> Mapping[str, Any]:
    return {one.name: getattr(changes, one.name) for one in fields(Changes)}
