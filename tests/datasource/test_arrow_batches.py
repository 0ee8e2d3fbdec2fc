"""Arrow batches of rows for Python: their size by number of rows, and their coalescing."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from penstock.datasource.spark import coalescing
from penstock.datasource.spark.arrow_batches import BYTES_MAX, NO_BOUND, ROWS_MAX, ROWS_PER_GIB, cut_by_rows
from penstock.datasource.spark.coalescing import COALESCED_ROWS, coalesced
from penstock.datasource.spark.registration import DATA_SOURCES, register


class Conf(dict[str, str]):
    """A session's, which knows its own settings from Spark's defaults."""

    def set(self, key: str, value: str) -> None:
        self[key] = value


def tuned(given: dict[str, str]) -> dict[str, str]:
    session: Any = SimpleNamespace(conf=Conf(given))
    cut_by_rows(session)
    return dict(session.conf)


def test_batches_are_bounded_by_rows_alone() -> None:
    """With any other bound than the largest, Spark checks the size after every row."""
    assert tuned({}) == {BYTES_MAX: "2147483647", ROWS_MAX: str(ROWS_PER_GIB)}
    assert NO_BOUND == 2147483647


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ({"spark.executor.memory": "512m"}, 500),
        ({"spark.executor.memory": "2047m"}, 500),
        ({"spark.executor.memory": "3G", "spark.driver.memory": "1g"}, 1500),
        ({"spark.executor.memory": "30gb"}, 2000),
        ({"spark.executor.memory": "3072"}, 1500),
        ({"spark.executor.memory": "much"}, 500),
        ({"spark.master": "local[2]", "spark.driver.memory": "2g", "spark.executor.memory": "9g"}, 1000),
        ({"spark.master": "local-cluster[2,1,4096]", "spark.driver.memory": "9g"}, 500),
    ],
)
def test_a_larger_heap_takes_more_rows(given: dict[str, str], rows: int) -> None:
    assert tuned(given)[ROWS_MAX] == str(rows)


@pytest.mark.parametrize("key", [BYTES_MAX, ROWS_MAX])
def test_what_the_session_has_set_stays_and_nothing_is_added(key: str) -> None:
    """With rows set to more, a batch without a bound on its size may not fit into memory."""
    assert tuned({key: "10000"}) == {key: "10000"}


class ConfOfAPipeline(Conf):
    """Of a session in a definition file of Spark's declarative pipelines."""

    error = "[SESSION_MUTATION_IN_DECLARATIVE_PIPELINE.SET_RUNTIME_CONF] Session mutation is not allowed."

    def set(self, key: str, value: str) -> None:
        raise PySparkException(self.error)


def test_a_declarative_pipeline_which_refuses_settings_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    session: Any = SimpleNamespace(conf=ConfOfAPipeline({"spark.executor.memory": "2g"}))
    with caplog.at_level(logging.INFO):
        cut_by_rows(session)
    assert f"{BYTES_MAX}: '{NO_BOUND}', {ROWS_MAX}: '1000'" in caplog.text
    session.conf.error = "[SOMETHING_ELSE] No."
    with pytest.raises(PySparkException, match="SOMETHING_ELSE"):
        cut_by_rows(session)


@pytest.mark.parametrize(("tune", "keys"), [(True, {BYTES_MAX, ROWS_MAX}), (False, set())])
def test_registering_sets_both_unless_tune_is_false(tune: bool, keys: set[str]) -> None:
    registered: list[Any] = []
    sources = SimpleNamespace(register=registered.append)
    session: Any = SimpleNamespace(conf=Conf(), dataSource=sources)
    register(session, tune=tune)

    assert set(session.conf) == keys
    assert registered == list(DATA_SOURCES)


def test_one_line_reports_the_settings_and_the_option_to_keep_them(caplog: pytest.LogCaptureFixture) -> None:
    session: Any = SimpleNamespace(conf=Conf())
    with caplog.at_level(logging.INFO, "penstock"):
        cut_by_rows(session)
        cut_by_rows(session)

    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert f"{BYTES_MAX}=2147483647 and {ROWS_MAX}={ROWS_PER_GIB}" in record.getMessage()
    assert "tune=False" in record.getMessage()


def batches(count: int, rows: int, text: str = "x") -> list[pa.RecordBatch]:
    schema = pa.schema([("id", pa.int64()), pa.field("text", pa.string(), metadata={"a": "b"})])
    return [
        pa.record_batch({"id": range(index * rows, (index + 1) * rows), "text": [text] * rows}, schema=schema)
        for index in range(count)
    ]


def test_small_batches_are_gathered_in_order() -> None:
    given = batches(45, 500)
    taken = list(coalesced(given))

    assert [batch.num_rows for batch in taken] == [COALESCED_ROWS, COALESCED_ROWS, 2500]
    assert pa.Table.from_batches(taken).equals(pa.Table.from_batches(given), check_metadata=True)


def test_gathered_rows_are_bounded_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the task would hold 10,000 wide rows, whatever the settings of Spark are."""
    monkeypatch.setattr(coalescing, "COALESCED_BYTES", 2_000_000)
    taken = list(coalesced(batches(6, 10, text="x" * 100_000)))

    assert [batch.num_rows for batch in taken] == [20, 20, 20]


def test_no_batches_stay_none_and_a_batch_without_rows_stays_one() -> None:
    assert list(coalesced([])) == []
    assert [batch.num_rows for batch in coalesced(batches(1, 0))] == [0]


def test_nested_batches_stay_as_they_come() -> None:
    """Joining what Spark 4.0 makes of empty lists would end the process."""
    batches = [pa.record_batch({"a": [[1], []]}), pa.record_batch({"a": pa.array([], pa.list_(pa.int64()))})]
    assert list(coalesced(batches)) == batches
