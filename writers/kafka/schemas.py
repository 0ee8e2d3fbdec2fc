"""Schemas of values: derived from the columns, given, or the newest of the registry; their subjects and ids.

The driver registers them, or finds them, before any row is written; and so does the process that sends,
which may be another one. Tasks only check rows, and do not reach the registry.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from ...committers.errors import ConfigurationError
from ...committers.schema_registry import HEADER_BYTES, RegisteredSchema, SchemaRegistry, header
from . import avro, protobuf

if TYPE_CHECKING:
    import pyarrow as pa

SchemaFormat: TypeAlias = Literal["avro", "protobuf"]
SubjectStrategy: TypeAlias = Literal["topic", "record", "topicRecord"]
LATEST = "latest"
LATEST_S = 60.0
"""How long the newest schema of a subject is believed to be the newest."""


class Encoder(Protocol):
    """Writes rows with one schema."""

    def values(self, rows: pa.RecordBatch) -> list[bytes]:
        """
        Raises:
            SchemaMismatchError: a value cannot be written with the schema.
        """
        ...


@dataclass(frozen=True, slots=True)
class ValueSchemas:
    """The schemas of a query's values. From its options."""

    format: SchemaFormat
    registry: SchemaRegistry | None
    """None: in tasks; or the options of this process do not have it."""
    strategy: SubjectStrategy = "topic"
    record_name: str = "Row"
    """Full name of a derived record, and of the subject."""
    given: str = ""
    """The schema; `latest`: the newest one of the subject; empty: it is derived from the columns."""
    registers: bool = True
    """False: the registry must have the schema."""
    is_in_task: bool = False

    @property
    def kind(self) -> str:
        return self.format.upper()

    @property
    def is_derived(self) -> bool:
        return not self.given

    def subject(self, topic: str, text: str = "") -> str:
        """Return the name of the schema in the registry."""
        if self.strategy == "topic":
            return f"{topic}-value"
        name = self._name_in(text) if text else self.record_name
        return name if self.strategy == "record" else f"{topic}-{name}"

    def _name_in(self, text: str) -> str:
        if self.format == "avro":
            schema = json.loads(text)
            name, space = str(schema["name"]), schema.get("namespace")
            return f"{space}.{name}" if space and "." not in name else name
        return protobuf.full_name(text, self.record_name)

    def check_schema(self, rows: pa.Schema) -> None:
        """Check the columns, without the registry.

        Raises:
            SchemaMismatchError: they do not fit.
            ConfigurationError: the given schema is none.
        """
        if self.given != LATEST:
            self._encoder(self._text(rows, ""), rows)

    def planned(self, rows: pa.Schema, topic: str | None) -> ValueSchemas:
        """Find or register the schema, and return what checks rows in tasks.

        Args:
            topic: None: only the rows tell it; their schemas are registered when they are sent

        Raises:
            ConfigurationError: the registry does not have the schema, or refuses it as incompatible.
            SchemaMismatchError: the columns do not fit it.
            RetryableError: the registry does not answer.
        """
        text = self._text(rows, topic)
        self._encoder(text, rows)
        if topic is not None:
            self._id(text, topic)
        given = text if self.given == LATEST else self.given
        return replace(self, registry=None, given=given, is_in_task=True)

    def values(self, rows: pa.RecordBatch, topics: Sequence[str]) -> list[bytes]:
        """Return the values of rows, in the wire format of the registry. Raises as `planned`."""
        if self.is_in_task:  # to check the rows
            text = self._text(rows.schema, "")
            return [bytes(HEADER_BYTES) + one for one in self._encoder(text, rows.schema).values(rows)]
        texts = {topic: self._text(rows.schema, topic) for topic in sorted(set(topics))}
        heads = {topic: header(self._id(text, topic)) for topic, text in texts.items()}
        by_text = {text: self._encoder(text, rows.schema).values(rows) for text in set(texts.values())}
        if len(by_text) == 1:
            (only,) = by_text.values()
            return [heads[topic] + value for topic, value in zip(topics, only, strict=True)]
        return [heads[topic] + by_text[texts[topic]][number] for number, topic in enumerate(topics)]

    def _encoder(self, text: str, rows: pa.Schema) -> Encoder:
        rows = rows.remove_metadata()
        return (
            avro.encoder(text, rows)
            if self.format == "avro"
            else protobuf.encoder(text, rows, self.record_name)
        )

    def _text(self, rows: pa.Schema, topic: str | None) -> str:
        if self.given == LATEST:
            subject = self.subject(topic or "")
            if (latest := self._latest(subject)) is None:
                raise ConfigurationError(
                    f"The schema registry has no schema for the subject {subject}, and the option is "
                    "valueSchema=latest. Nothing was written. Register one, or leave the option out."
                )
            return latest.text
        if self.given:
            return self.given
        if self.format == "avro":
            return avro.derived(rows, self.record_name)
        is_known = topic != "" and not self.is_in_task
        before = self._latest(self.subject(topic or "")) if is_known else None
        return protobuf.derived(rows, self.record_name, before.text if before else "")

    def _latest(self, subject: str) -> RegisteredSchema | None:
        registry = self._registry
        key = (registry.urls, subject)
        found, at = _latest.get(key, (None, 0.0))
        if found is None or time.monotonic() > at + LATEST_S:
            found = registry.latest(subject)
            if found is None:
                return None
            _latest[key] = found, time.monotonic()
        if found.kind != self.kind:
            raise ConfigurationError(
                f"The schema of the subject {subject} is {found.kind}, and the option is "
                f"valueFormat={self.format}. Nothing was written."
            )
        return found

    @property
    def _registry(self) -> SchemaRegistry:
        if self.registry is None:
            raise ConfigurationError(
                f"valueFormat={self.format} needs registry.url: the address of the Schema Registry. Nothing "
                "was written. Set the option. It is not stored, as it goes with credentials: other processes "
                "get it as\n    --storage registry.url=https://registry:8081\nor in the options file."
            )
        return self.registry

    def _id(self, text: str, topic: str) -> int:
        subject = self.subject(topic, text)
        if self.given == LATEST and (latest := self._latest(subject)) is not None and latest.text == text:
            return latest.schema_id
        if self.registers:
            return self._registry.register(subject, text, self.kind)
        found = self._registry.find(subject, text, self.kind)
        if found is None:
            raise ConfigurationError(
                f"The schema registry does not have the schema of the query in the subject {subject}, and "
                f"the option is registerSchemas=false. Nothing was written. Register it:\n    {text}"
            )
        return found


_latest: dict[tuple[tuple[str, ...], str], tuple[RegisteredSchema | None, float]] = {}
