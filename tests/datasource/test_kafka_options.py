"""Options of `penstock.kafka`."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest

from penstock import ConfigurationError
from penstock.committers.kafka.cluster import KafkaAddress, KafkaCluster
from penstock.datasource.kafka.options import KafkaOptions
from penstock.datasource.kafka.sink import KafkaTarget

GIVEN = {"bootstrapServers": "h:9092", "topic": "rows"}


def refused(options: Mapping[str, str]) -> str:
    with pytest.raises(ConfigurationError) as failure:
        KafkaOptions.parse({**GIVEN, **options})
    return str(failure.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"bootstrapServers": "h:0"}, "must be host:port"),
        ({"bootstrapServers": "http://h/x"}, "must be host:port"),
        ({"topic": "a b"}, "must be the name of a topic"),
        ({"topic": ".."}, "must be the name of a topic"),
        ({"progressTopic": "a/b"}, "must be the name of a topic"),
        ({"valueFormat": "csv"}, "must be one of columns, json"),
        ({"keyColumns": "id"}, "keyColumns is an option of valueFormat=json"),
        ({"valueFormat": "json", "deleteWhen": "x"}, "deleteWhen needs keyColumns"),
        ({"requestTimeout": "0s"}, "requestTimeout must be at least 1s"),
        ({"transactionTimeout": "0s"}, "transactionTimeout must be at least 1s"),
        ({"kafka.transaction.timeout.ms": "1"}, "is the option transactionTimeout"),
        ({"parallelTransactions": "17"}, "must be a whole number from 1 to 16"),
        ({"valueSchema": "{}"}, "valueSchema: only a query with valueFormat=avro or protobuf has it"),
        ({"valueFormat": "avro", "registry.url": "h"}, "registry.url must be the address"),
        ({"valueFormat": "avro", "recordName": "a-b"}, "must be a name such as Order"),
        (
            {"valueFormat": "avro", "topic": "{t}", "valueSchema": "latest"},
            "valueSchema=latest with a topic that rows name",
        ),
        ({"valueFormat": "protobuf", "topic": "{t}"}, "the numbers of the fields"),
        ({"rowlog": "/x", "routeDefault": "x"}, "routeDefault: only a query with routeBy has it"),
        *(
            ({f"kafka.{name}": "x"}, f"kafka.{name} cannot be set")
            for name in ("acks", "enable.idempotence", "transactional.id", "partitioner", "isolation.level")
        ),
    ],
)
def test_wrong_options_are_refused_by_name(options: Mapping[str, str], problem: str) -> None:
    assert problem in refused(options)


def test_servers_and_topic_are_required() -> None:
    with pytest.raises(ConfigurationError, match=r'bootstrapServers is missing: give \.option\("bootstrap'):
        KafkaOptions.parse({})


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ({}, "kafka://h:9092/rows"),
        ({"bootstrapServers": "B , a:1,b:9092"}, "kafka://a:1,b:9092/rows"),
        ({"topic": "orders-{land}", "progressTopic": "p"}, "kafka://h:9092/orders-{land}?progressTopic=p"),
        ({"bootstrapServers": "[::1]:9"}, "kafka://[::1]:9/rows"),
    ],
)
def test_one_topic_has_one_address(options: Mapping[str, str], address: str) -> None:
    parsed = KafkaOptions.parse({**GIVEN, **options}).address
    assert parsed.uri == address
    assert KafkaAddress.parse(address) == parsed


def test_the_servers_can_be_given_as_for_sparks_own_sink() -> None:
    options = KafkaOptions.parse({"kafka.bootstrap.servers": "h", "topic": "rows"})
    assert options.servers == "h:9092"
    assert options.given["bootstrapServers"] == "h"


def test_properties_of_the_client_are_passed_on_and_never_shown_or_stored() -> None:
    options = KafkaOptions.parse({**GIVEN, "kafka.sasl.password": "geheim", "kafka.linger.ms": "7"})
    cluster = options.cluster
    assert cluster.config({"acks": "all"}) == {
        "bootstrap.servers": "h:9092",
        "sasl.password": "geheim",
        "linger.ms": "7",
        "acks": "all",
    }
    assert cluster.secrets.message("not geheim") == "not ***"
    shown = repr(options) + repr(cluster) + repr(options.given)
    assert "geheim" not in shown


def test_the_key_of_a_marker_does_not_depend_on_the_servers() -> None:
    """The brokers may be replaced; and the key is not shared by two topics of a query."""
    keys = {KafkaAddress(servers, "rows").transactional_id("q") for servers in ("a:1", "b:1")}
    assert len(keys) == 1
    assert KafkaAddress("a:1", "other").transactional_id("q") not in keys
    assert KafkaCluster("a:1").config({}) == {"bootstrap.servers": "a:1"}


ROWS = pa.schema([("value", pa.string())])


def test_a_query_that_cannot_be_written_ends_before_it_asks_the_brokers() -> None:
    target = KafkaTarget(KafkaOptions.parse({**GIVEN, "checkpointLocation": "s3://b/checkpoint"}))
    with pytest.raises(ConfigurationError, match="records cannot be taken back"):
        target.plan_batch(ROWS, "overwrite", 0)
    with pytest.raises(ConfigurationError, match="rowLog is missing"):
        target.plan_batch(ROWS, "append", 0)


def test_another_text_is_no_address() -> None:
    assert KafkaAddress.parse(KafkaAddress("h:1", "r{t}", "p").uri) == KafkaAddress("h:1", "r{t}", "p")
    with pytest.raises(ConfigurationError, match="is not the address of a Kafka topic"):
        KafkaAddress.parse("nats://h:1/rows")
