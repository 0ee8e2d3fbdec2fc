"""Options of `penstock.kafka`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from ...committers.kafka.cluster import PROGRESS_TOPIC, KafkaAddress, KafkaCluster
from ...committers.kafka.split import PARALLEL_MAX, WHOLE, Split
from ...committers.schema_registry import SchemaRegistry
from ...committers.texts.secrets import Secrets, names_a_secret
from ...writers.kafka.records import KafkaRecords, ValueFormat, topic_problem
from ...writers.kafka.schemas import LATEST, SubjectStrategy, ValueSchemas
from ...writers.requests.template import Template
from ..options.changes import refused_changes
from ..options.declaring import declared, option, optional, options_of, passed_on
from ..options.delivery import MANY_BATCHES, DeliveryOptions, backlog_batches, backlog_seconds
from ..options.file_tables import refused_file_options
from ..options.parsing import MIB, columns, count, duration_s, flag, one_of, size, text
from ..options.row_log import ROW_LOG, row_log_of
from ..options.stream import parse_as

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

_SERVERS = "bootstrapServers"
_NO_SERVERS = (
    "must be host:port, several with commas, such as kafka1.example.com:9092,kafka2.example.com:9092"
)
_FORMATS: Mapping[str, ValueFormat] = {
    "columns": "columns",
    "json": "json",
    "avro": "avro",
    "protobuf": "protobuf",
}
_WITH_SCHEMA = ("avro", "protobuf")
_STRATEGIES: Mapping[str, SubjectStrategy] = {
    "topic": "topic",
    "record": "record",
    "topicRecord": "topicRecord",
}
_OF_SCHEMAS = {
    "value_schema": "valueSchema",
    "registers_schemas": "registerSchemas",
    "subject_strategy": "subjectNameStrategy",
    "record_name": "recordName",
    "registry_properties": "registry.*",
}
"""Options of `_WITH_SCHEMA`, by field."""
_BY_OPTION = {
    "bootstrap.servers": _SERVERS,
    "metadata.broker.list": _SERVERS,
    "transaction.timeout.ms": "transactionTimeout",
    "message.max.bytes": "maxRecordBytes",
    "max.request.size": "maxRecordBytes",
}
"""Properties that are options of their own."""
_PROMISED = (
    *("acks", "request.required.acks", "enable.idempotence", "transactional.id", "isolation.level"),
    *("max.in.flight", "max.in.flight.requests.per.connection", "retries", "message.send.max.retries"),
    *(
        "enable.gapless.guarantee",
        "partitioner",
        "partitioner.class",
        "message.timeout.ms",
        "request.timeout.ms",
    ),
    *("delivery.timeout.ms", "delivery.report.only.error", "group.id", "enable.auto.commit"),
    *("enable.auto.offset.store", "auto.offset.reset", "enable.partition.eof", "allow.auto.create.topics"),
    *("batch.size", "plugin.library.paths", "debug", "opaque", "key.serializer", "value.serializer"),
)
"""Properties on which the promise depends, or that Penstock sets itself."""


def servers_of(given: str) -> str:
    """Normalize bootstrap servers: `host:port`, sorted.

    Raises:
        ValueError: they have another form. The message does not contain them.
    """
    servers = set()
    for one in text(given).split(","):
        match = re.fullmatch(
            r"(?:[A-Za-z_]+://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?", one.strip()
        )
        if match is None or not 0 < int(match[2] or 9092) < 65536:
            raise ValueError(_NO_SERVERS)
        servers.add(f"{match[1].lower()}:{int(match[2] or 9092)}")
    return ",".join(sorted(servers))


def _topic(given: str) -> Template:
    template = Template.parse("topic", text(given).strip())
    if (problem := topic_problem(template.example)) is not None:
        raise ValueError(f"{problem}; columns in braces are allowed, such as orders-{{country}}")
    return template


def _progress_topic(given: str) -> str:
    if (problem := topic_problem(given)) is not None:
        raise ValueError(problem)
    return given


def _record_name(given: str) -> str:
    name = text(given).strip()
    if not re.fullmatch(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", name, re.ASCII):
        raise ValueError("must be a name such as Order or com.example.Order")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions(DeliveryOptions):
    """Options of `penstock.kafka`."""

    NAME: ClassVar[str] = "penstock.kafka"
    REQUIRED: ClassVar[Mapping[str, str]] = {_SERVERS: "kafka.example.com:9092"}
    has_row_log: ClassVar[bool] = True

    servers: str = field(
        metadata=declared(
            _SERVERS,
            servers_of,
            "The brokers: `host:port`, several with commas. As `kafka.bootstrap.servers`, too.",
        )
    )
    topic: Template = option(  # noqa: RUF009  it returns a field
        "topic",
        _topic,
        "Topic of a row, with columns in braces: `orders-{country}`. Topics must exist.",
        default="{topic}",
    )
    value_format: ValueFormat = option(  # noqa: RUF009  likewise
        "valueFormat",
        one_of(_FORMATS),
        "`columns`: the columns `value`, `key`, `headers`, `topic`, `partition` and `timestamp`, of which "
        "only `value` is required, as those of Spark's own sink. `json`: the whole row, as a JSON object. "
        "`avro`, `protobuf`: the whole row, with the id of its schema in a Schema Registry.",
        default="columns",
    )
    key_columns: tuple[str, ...] | None = optional(
        "keyColumns",
        columns,
        "With whole rows, such as `valueFormat=json`: columns of the key. One column: its text or bytes. "
        "Several: a JSON object.",
        default="records without a key",
    )
    delete_when: str = field(
        default="",
        metadata=declared(
            "deleteWhen",
            text,
            "With `keyColumns`: which rows are tombstones of their key, without a "
            "value, as an expression over the columns such as `op = 'd'`, or the name of a boolean column.",
        ),
    )
    registry_properties: Mapping[str, str] = passed_on(
        "registry.",
        str.lower,
        "The Schema Registry of `valueFormat=avro` and `protobuf`: `registry.url`, "
        "`registry.basic.auth.user.info` or `registry.bearer.auth.token`, `registry.ssl.ca.location`, "
        "`registry.ssl.certificate.location` and `registry.ssl.key.location`.",
    )
    value_schema: str = field(
        default="",
        metadata=declared(
            "valueSchema",
            text,
            "With `avro` and `protobuf`: the schema of the values, as JSON or as the text of a `.proto` "
            "file; `latest`: the newest one of the subject. Default: derived from the columns of the query.",
        ),
    )
    registers_schemas: bool = option(
        "registerSchemas",
        flag,
        "`false`: the registry must have the schema; it is not added.",
        default="true",
    )
    subject_strategy: SubjectStrategy = option(  # noqa: RUF009  it returns a field
        "subjectNameStrategy",
        one_of(_STRATEGIES),
        "Subject of the schema: `topic` is `<topic>-value`, `record` the name of the record, `topicRecord` "
        "`<topic>-<name of the record>`.",
        default="topic",
    )
    record_name: str = option(
        "recordName",
        _record_name,
        "Name of the record of a derived schema, with its namespace: `com.example.Order`. Of a schema that "
        "is given: which of the messages of a `.proto` file.",
        default="Row",
    )
    record_bytes_max: int = option(
        "maxRecordBytes",
        size(1024, 1024 * MIB),
        "Maximum size of key, value and headers of a record. A larger one is a bad row, see `badRows`. At "
        "most `max.message.bytes` of the topic.",
        default="1000000",
    )
    transaction_timeout_s: float = option(
        "transactionTimeout",
        duration_s,
        "After this time, the broker ends a transaction that is not committed. At most "
        "`transaction.max.timeout.ms` of the brokers.",
        default="5min",
    )
    parallel_transactions: int = option(
        "parallelTransactions",
        count(1, PARALLEL_MAX),
        "Number of transactions for a batch, each with a part of the rows and a producer of its own. Rows "
        "with the same key are in one of them. A batch is visible part by part.",
        default="1",
    )
    request_timeout_s: float = option(
        "requestTimeout", duration_s, "How long to wait for the brokers.", default="60s"
    )
    progress_topic: str = option(
        "progressTopic",
        _progress_topic,
        "The compacted topic that has the last batch of each query.",
        default=PROGRESS_TOPIC,
    )
    client_properties: Mapping[str, str] = passed_on(
        "kafka.",
        str.lower,
        "Properties of librdkafka, such as `kafka.security.protocol`, `kafka.sasl.username` and "
        "`kafka.compression.type`. Those that the promise depends on are refused.",
    )
    row_log: str | None = optional(
        "rowLog",
        text,
        "The directory or URL of the row log, to which tasks write the rows that wait for their commit.",
        default=f"`{ROW_LOG}` in the checkpoint directory, if that is on a local disk",
    )
    storage_options: Mapping[str, str] = passed_on(
        "storage.",
        str.upper,
        "For a row log or a checkpoint in an object store, such as `storage.AWS_REGION`.",
    )
    backlog_batches_max: int = backlog_batches(MANY_BATCHES)
    backlog_s_max: int = backlog_seconds("31536000", " With the default, `backlogBytes` is reached first.")

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> KafkaOptions:
        """Parse the options that Spark passes; see `parse_as`."""
        given = {key.lower(): value for key, value in options.items()}
        as_spark = given.pop("kafka.bootstrap.servers", None)
        if as_spark is not None:
            given.setdefault(_SERVERS.lower(), as_spark)
        parsed = parse_as(
            cls,
            cls.NAME,
            given,
            examples=cls.REQUIRED,
            refused={
                **refused_file_options(cls.NAME, options_of(cls), "topic"),
                **refused_changes(cls.NAME, options_of(cls)),
            },
            problems_of_values=_problems,
        )
        location = row_log_of(parsed.row_log, parsed.checkpoint_location)
        if location is None:
            return parsed
        return replace(parsed, given={**parsed.given, "rowLog": location})  # for processes anywhere

    @property
    def address(self) -> KafkaAddress:
        return KafkaAddress(self.servers, self.topic.text, self.progress_topic)

    @property
    def cluster(self) -> KafkaCluster:
        return cluster_of(self.address, self.client_properties, self.request_timeout_s)

    @property
    def split(self) -> Split:
        if self.parallel_transactions == 1:
            return WHOLE
        key = "key" if self.value_format == "columns" else f"keyColumns={','.join(self.key_columns or ())}"
        return Split(self.parallel_transactions, key)

    @property
    def records(self) -> KafkaRecords:
        return KafkaRecords(
            self.topic,
            self.value_format,
            self.key_columns or (),
            self.record_bytes_max,
            self.delete_when,
            _condition if self.delete_when else None,
            self.schemas,
        )

    @property
    def schemas(self) -> ValueSchemas | None:
        if self.value_format not in ("avro", "protobuf"):
            return None
        given = self.registry_properties
        return ValueSchemas(
            self.value_format,
            SchemaRegistry.of(given) if given else None,
            self.subject_strategy,
            self.record_name,
            self.value_schema,
            self.registers_schemas,
        )


def _condition(given: str, rows: pa.Schema) -> pc.Expression:
    from ..changes.condition import condition  # loads pyiceberg

    return condition(given, rows)


def cluster_of(address: KafkaAddress, properties: Mapping[str, str], timeout_s: float) -> KafkaCluster:
    secrets = Secrets.of(
        [value for name, value in properties.items() if names_a_secret(name) or "config" in name]
    )
    given = tuple(sorted(properties.items()))
    return KafkaCluster(address.servers, address.progress_topic, given, secrets, timeout_s)


def _problems_of_schemas(values: Mapping[str, Any], value_format: str) -> Iterator[str]:
    if value_format not in _WITH_SCHEMA:
        yield from (
            f"{name}: only a query with valueFormat=avro or protobuf has it."
            for of_field, name in _OF_SCHEMAS.items()
            if of_field in values
        )
        return
    if "registry_properties" in values:
        try:
            SchemaRegistry.of(values["registry_properties"])
        except ValueError as error:
            yield f"{error}."
    topic = values.get("topic")
    is_of_rows = topic is None or topic.columns
    if values.get("value_schema") == LATEST and is_of_rows and values.get("subject_strategy") != "record":
        yield (
            "valueSchema=latest with a topic that rows name: set subjectNameStrategy=record and recordName, "
            "as the subject must be known before there are rows."
        )
    is_numbered = value_format == "protobuf" and "value_schema" not in values
    if is_numbered and is_of_rows and values.get("subject_strategy") != "record":
        yield (
            "valueFormat=protobuf with a topic that rows name needs valueSchema, or "
            "subjectNameStrategy=record: the numbers of the fields are those of the version before."
        )


def _problems(values: Mapping[str, Any]) -> list[str]:
    problems = [
        f"kafka.{name} is the option {_BY_OPTION[name]}. Give that one."
        for name in values.get("client_properties", {})
        if name in _BY_OPTION
    ]
    problems += [
        f"kafka.{name} cannot be set: Penstock sets it, as the promise depends on it. Remove it."
        for name in values.get("client_properties", {})
        if name in _PROMISED
    ]
    value_format = values.get("value_format", "columns")
    if "key_columns" in values and value_format == "columns":
        problems.append(
            "keyColumns is an option of valueFormat=json, avro and protobuf. Otherwise the column key has "
            "the key."
        )
    problems += _problems_of_schemas(values, value_format)
    if "delete_when" in values and "key_columns" not in values:
        problems.append("deleteWhen needs keyColumns: a tombstone deletes what has its key.")
    problems += [
        f"{name} must be at least 1s."
        for name, its in (
            ("transactionTimeout", "transaction_timeout_s"),
            ("requestTimeout", "request_timeout_s"),
        )
        if values.get(its, 1) < 1
    ]
    return problems
