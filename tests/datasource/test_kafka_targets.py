"""Kafka as one of several targets of a query, and as the place of dead letters."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from servers.kafka import KafkaServer
from tests.support.fanouts import FanoutPlace
from tests.support.lakes import DeltaLake

from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance import Query
from penstock.testing.conformance.deliveries import deliver
from penstock.testing.faults import crash_at

pytestmark = pytest.mark.slow

BIG = 2
"""Id of a row that is larger than `maxRecordBytes`."""


@pytest.mark.parametrize("point", ["", "commit.landed", "deliver.done"])
def test_a_fan_out_into_kafka_has_each_row_once_or_as_a_dead_letter_in_kafka(
    kafka_process: KafkaServer, store: SqlManifestStore, tmp_path: Path, point: str
) -> None:
    """Two topics share the row log. A crash between the commit and the mark loses no dead letter."""
    topics = [f"{name}-{uuid.uuid4().hex}" for name in ("all", "small", "refused")]
    for topic in topics:
        kafka_process.create(topic)
    lake = DeltaLake(tmp_path / "table")
    servers = kafka_process.servers
    json_rows = {"bootstrapServers": servers, "valueFormat": "json"}
    targets = {
        "lake": {"": "penstock.delta", **lake.options},
        "all": {"": "penstock.kafka", **json_rows, "topic": topics[0]},
        "small": {"": "penstock.kafka", **json_rows, "topic": topics[1], "maxRecordBytes": "1024"},
    }
    letters = {
        **json_rows,
        "format": "penstock.kafka",
        "topic": topics[2],
        "rowLog": str(tmp_path / "letters"),
    }
    options = {
        **{
            f"target.{one}.{key}".rstrip("."): text for one, of in targets.items() for key, text in of.items()
        },
        **{f"deadLetter.{key}": text for key, text in letters.items()},
        "badRows": "deadLetter",
        "checkpointLocation": str(tmp_path / "checkpoint"),
    }
    query = Query(FanoutPlace(options))
    for batch_id in range(2):
        numbers = [2 * batch_id, 2 * batch_id + 1]
        rows = pa.table({"id": numbers, "text": ["x" * (2000 if one == BIG else 1) for one in numbers]})
        query.run(store, query.batch(batch_id), rows)
    if point:
        with crash_at(point, time=3):  # of the last target
            deliver(store)
    deliver(store)

    found = [sorted(row["id"] for row in kafka_process.rows(topic)) for topic in topics[:2]]
    assert found == [[0, 1, 2, 3], [0, 1, 3]]
    assert sorted(lake.ids()) == [0, 1, 2, 3]
    (letter,) = kafka_process.rows(topics[2])
    assert (json.loads(letter["row"])["id"], letter["code"]) == (BIG, "does_not_fit")
    assert not store.streams(is_pending=True)
    assert not list((tmp_path / "letters").rglob("*.arrow"))
    assert point or not list((tmp_path / "checkpoint").rglob("*.arrow"))
