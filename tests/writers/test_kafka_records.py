"""Rows become records: columns with the names of Spark's own sink, or whole rows as JSON."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from penstock import ConfigurationError, SchemaMismatchError
from penstock.datasource.kafka.options import KafkaOptions
from penstock.writers.kafka.records import HEADERS, KafkaRecords, ValueFormat
from penstock.writers.requests.template import Template


def records_of(
    rows: Mapping[str, pa.Array],
    value_format: ValueFormat = "columns",
    topic: str = "rows",
    keys: tuple[str, ...] = (),
    size: int = 1000,
) -> list[Any]:
    """Check the rows and convert them, as tasks and the delivery do."""
    records = KafkaRecords(Template.parse("topic", topic), value_format, keys, size)
    batch = pa.record_batch(dict(rows))
    records.check_schema(batch.schema)
    records.check(batch)
    return list(records.entries(batch))


def test_columns_have_the_names_of_sparks_own_sink() -> None:
    micros = pa.array([1_700_000_000_123_456, None], pa.int64()).cast(pa.timestamp("us", "UTC"))
    found = records_of(
        {
            "value": pa.array([b"\xff", None], pa.binary()),
            "key": pa.array(["a", None]),
            "topic": pa.array(["x", "y"]),
            "partition": pa.array([3, None], pa.int32()),
            "timestamp": micros,
            "headers": pa.array([[{"key": "h", "value": b"1"}], None], HEADERS),
        },
        topic="{topic}",
    )
    assert found == [
        ("x", b"\xff", b"a", 3, 1_700_000_000_123, [("h", b"1")]),
        ("y", None, None, -1, 0, None),
    ]


def test_whole_rows_are_json_objects_and_keys_have_columns() -> None:
    rows = {"id": pa.array([1, None]), "name": pa.array(["ä", "b"])}
    values = [b'{"id":1,"name":"\xc3\xa4"}', b'{"id":null,"name":"b"}']

    of_one, of_text, of_both = (
        records_of(rows, "json", "t-{name}" if names == ("x",) else "rows", names)
        for names in (("id",), ("name",), ("id", "name"))
    )
    assert [one[1] for one in of_one] == values
    assert [one[2] for one in of_one] == [b"1", None]
    assert [one[2] for one in of_text] == ["ä".encode(), b"b"]
    assert [json.loads(one[2]) for one in of_both] == [{"id": 1, "name": "ä"}, {"id": None, "name": "b"}]


def test_rows_that_delete_are_tombstones() -> None:
    rows = pa.record_batch({"id": [1, 2, 3], "op": pa.array(["u", "d", None])})
    given = {"bootstrapServers": "h", "topic": "t", "valueFormat": "json", "keyColumns": "id"}
    for condition, has_value in (("op = 'd'", [True, False, True]), ("id > 1", [True, False, False])):
        records = pickle.loads(pickle.dumps(KafkaOptions.parse({**given, "deleteWhen": condition}).records))
        records.check_schema(rows.schema)
        found = records.entries(rows)
        assert [value is not None for _, value, *_ in found] == has_value
        assert [key for _, _, key, *_ in found] == [b"1", b"2", b"3"]
    with pytest.raises(ConfigurationError, match="nothing"):
        KafkaOptions.parse({**given, "deleteWhen": "nothing = 1"}).records.check_schema(rows.schema)


@pytest.mark.parametrize("value_format", ["columns", "json"])
def test_the_size_of_each_record_counts_by_itself(value_format: ValueFormat) -> None:
    """A large key in one row, and a large value in another."""
    texts = {"value": pa.array(["x" * 600, "y"]), "key": pa.array(["k", "l" * 600])}
    assert len(records_of(texts, value_format)) == 2
    with pytest.raises(SchemaMismatchError, match="maxRecordBytes"):
        records_of(texts, value_format, size=650)


def test_the_topic_can_name_columns() -> None:
    found = records_of({"id": pa.array([1]), "land": pa.array(["de"])}, "json", "orders-{land}")
    assert [one[0] for one in found] == ["orders-de"]


WRONG_COLUMNS = {
    "the column value is missing": {"key": pa.array(["a"])},
    "id would be lost": {"value": pa.array(["a"]), "id": pa.array([1])},
    "value is int64 and must be STRING or BINARY": {"value": pa.array([1])},
    "partition is string and must be INT": {"value": pa.array(["a"]), "partition": pa.array(["0"])},
    "headers is": {"value": pa.array(["a"]), "headers": pa.array([["x"]])},
    "'topic', which the query does not have": {"value": pa.array(["a"])},
}


@pytest.mark.parametrize("problem", list(WRONG_COLUMNS))
def test_columns_that_cannot_be_sent_are_refused(problem: str) -> None:
    topic = "{topic}" if "topic" in problem else "rows"
    with pytest.raises(SchemaMismatchError, match=problem):
        records_of(WRONG_COLUMNS[problem], topic=topic)


VALUE = pa.array(["a"])
WRONG_VALUES = {
    "has 1,001 bytes": {"value": pa.array(["x" * 1000]), "key": pa.array(["k"])},
    "has 1,411 bytes": {
        "value": VALUE,
        "headers": pa.array([[{"key": "h" * 700, "value": b"x" * 700}]], HEADERS),
    },
    "a header without a name": {
        "value": VALUE,
        "headers": pa.array([[{"key": None, "value": b""}]], HEADERS),
    },
    "the partition -2": {"value": VALUE, "partition": pa.array([-2], pa.int32())},
    "a timestamp that Kafka cannot store": {
        "value": VALUE,
        "timestamp": pa.array([-1], pa.int64()).cast(pa.timestamp("us", "UTC")),
    },
    "the topic 'a/b'": {"value": VALUE, "topic": pa.array(["a/b"])},
    "NULL in the column 'topic'": {"value": VALUE, "topic": pa.array([None], pa.string())},
}


@pytest.mark.parametrize("problem", list(WRONG_VALUES))
def test_values_that_cannot_be_sent_are_bad_rows(problem: str) -> None:
    rows = WRONG_VALUES[problem]
    with pytest.raises(SchemaMismatchError, match=problem):
        records_of(rows, topic="{topic}" if "topic" in rows else "rows")
