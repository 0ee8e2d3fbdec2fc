"""Manifests of Kafka, and what commands get to open a topic by its address. Without a broker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock import ConfigurationError
from penstock.committers.contract import Batch, DataFile, Manifest, StreamKey
from penstock.committers.errors import ManifestCorruptError
from penstock.committers.kafka import content
from penstock.committers.row_log.names import row_log_path
from penstock.datasource.kafka.stored import DESTINATION, StoredKafka
from penstock.datasource.stored.table_access import TableAccess
from penstock.testing.conformance.query import attempt

STREAM = StreamKey("q1", "kafka://h:9092/rows")


def manifest(batch_id: int, target: str = "c/t", size_bytes: int = 10) -> Manifest:
    batch = Batch(STREAM, batch_id, f"{batch_id:064x}")
    file = DataFile(row_log_path(attempt(batch, 0, "r1")), size_bytes, 1, (), "crc32=00000001")
    return content.encode(batch, target, [(file,)])


def test_a_delivery_has_batches_for_one_topic_and_of_a_limited_size() -> None:
    many = [manifest(number) for number in range(3)]
    assert content.mergeable(many) == many
    assert content.mergeable([*many[:2], manifest(2, "c/other")]) == many[:2]
    large = [manifest(number, size_bytes=content.BYTES_MAX) for number in range(2)]
    assert content.mergeable(large) == large[:1]

    merged = content.merge(many)
    assert content.decode(merged).target_id == "c/t"
    assert [one.batch.batch_id for one in content.batches_in(merged)] == [0, 1, 2]


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": "nats"},
        {"version": 2},
        {"content": b"{"},
        {"content": b'{"files": {}}'},
        {"content": manifest(0).content.replace(b'"c/t"', b"1")},
    ],
)
def test_a_manifest_that_cannot_be_read_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(ManifestCorruptError, match="cannot be read as one of kind 'kafka'"):
        content.decode(replace(manifest(0), **changed))  # type: ignore[arg-type]


def test_commands_get_the_properties_of_the_client_for_its_servers_alone() -> None:
    """Not those of the registry, and none for other servers, which the store could name."""
    secrets = {"kafka.sasl.password": "geheim", "registry.url": "http://h", "AWS_REGION": "x"}

    def opened(servers: str) -> StoredKafka:
        table = DESTINATION.stored_table(STREAM, TableAccess({**secrets, "bootstrapServers": servers}, {}))
        assert isinstance(table, StoredKafka)
        return table

    assert opened("h:9092").properties == {"sasl.password": "geheim"}
    assert opened("other:9092").properties == {}
    with pytest.raises(ConfigurationError, match="Say for which endpoint they are"):
        DESTINATION.stored_table(STREAM, TableAccess(secrets, {}))
