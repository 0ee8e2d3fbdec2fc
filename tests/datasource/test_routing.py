"""Queries with `routeBy`: which table gets which rows, what is prepared together, and what stays apart."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import polars as pl
import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql.types import StringType, StructField, StructType
from servers.http_rows import HttpRows
from tests.support.cli import Ended, penstock
from tests.support.lakes import DeltaLake, IcebergLake
from tests.support.postgres import PostgresTable
from tests.support.routes import QUERY_ID, Place, RoutedTables, of_tenants, routed_tables

from penstock.committers.contract import AttemptId, Batch, ManifestState, StreamKey
from penstock.committers.errors import (
    CheckpointMismatchError,
    ConfigurationError,
    FencedError,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
)
from penstock.committers.row_log.log import LoggedBatch, RowLog
from penstock.committers.store.deliveries import SqlDeliveries
from penstock.committers.store.sql import open_store
from penstock.datasource.aws.kinesis import DESTINATION as KINESIS
from penstock.datasource.delta.sink import DeltaTarget
from penstock.datasource.delta.source import DeltaDataSource
from penstock.datasource.http.sink import DESTINATION as HTTP
from penstock.datasource.iceberg.sink import DESTINATION as ICEBERG
from penstock.datasource.postgres.stored import DESTINATION as POSTGRES
from penstock.datasource.sink import Partitioned
from penstock.testing.conformance import Query
from penstock.testing.faults import crash_at
from penstock.writers.row_log import routes
from penstock.writers.row_log.route_names import RouteColumns
from penstock.writers.row_log.routes import RouteWriters

PREPARED, COMMITTED = ManifestState.PREPARED, ManifestState.COMMITTED


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[RoutedTables]:
    with routed_tables(tmp_path) as tables:
        yield tables


# One pass ------------------------------------------------------------------------------------------------


def test_each_table_appears_with_its_first_rows(tables: RoutedTables) -> None:
    query = tables.query()
    tables.run(query, 0, of_tenants(0, "a", "b", "a"), of_tenants(3, "b"))
    assert len(tables.row_log()) == 3, "a file for each task and table"
    assert not (tables.root / "lake").exists(), "nothing is created before the delivery"
    tables.run(query, 1, of_tenants(4, "a"))
    tables.run(query, 2, of_tenants(5, "c"))
    assert [tables.state("a", 0), tables.state("a", 1), tables.state("a", 2)] == [PREPARED, PREPARED, None]

    assert tables.deliver().code == 0
    assert {name: tables.table(name).ids() for name in "abc"} == {"a": [0, 2, 4], "b": [1, 3], "c": [5]}
    assert tables.table("a").load().version() == 1, "both batches in one commit after that of the table"
    assert tables.row_log() == []


def test_tables_are_planned_with_the_columns_of_the_query(tables: RoutedTables) -> None:
    """Spark may send other Arrow types (`arrow.useLargeVarTypes`), which some formats do not have."""
    rows = of_tenants(0, "a", "a", data=[b"x", None])
    large = pa.schema([("id", pa.int64()), ("tenant", pa.large_string()), ("data", pa.large_binary())])
    query = tables.query()
    plan = query.plan(tables.store, query.batch(0), rows.schema)
    query.commit(tables.store, query.write(plan, [rows.cast(large)]))
    plan_batch = mock.patch.object(
        DeltaTarget, "plan_batch", autospec=True, side_effect=DeltaTarget.plan_batch
    )
    with plan_batch as planned:
        assert tables.deliver().code == 0
    assert planned.call_args.args[1] == rows.schema
    assert tables.table("a").rows() == [(0, "a", b"x"), (1, "a", None)]


def test_batches_with_other_columns_are_delivered_together(tables: RoutedTables) -> None:
    tables.run(tables.query(), 0, of_tenants(0, "a", old=[1]))
    tables.run(tables.query(), 1, of_tenants(1, "a", new=["x"]))
    assert tables.deliver().code == 0
    assert tables.table("a").rows("id, old, new") == [(0, 1, None), (1, None, "x")]


def test_routes_of_several_types_and_columns(tables: RoutedTables) -> None:
    rows = pa.table(
        {
            "id": pa.array([0, 1, 2], pa.int64()),
            "tenant": ["ä b", "x", "x"],
            "number": pa.array([-1, 2, 2], pa.int32()),
            "day": pa.array([0, 1, 2], pa.date32()),
            "flag": [True, False, False],
        }
    )
    path = f"{tables.root}/lake/{{tenant}}/{{number}}_{{day}}_{{flag}}"
    tables.run(tables.query(path=path, routeBy="tenant, number, day, flag"), 0, rows)
    assert tables.deliver().code == 0
    found = sorted(
        str(one.parent.relative_to(tables.root / "lake")) for one in tables.root.rglob("_delta_log")
    )
    assert found == ["x/2_1970-01-02_false", "x/2_1970-01-03_false", "ä b/-1_1970-01-01_true"]


# Apart from each other -----------------------------------------------------------------------------------


def test_a_table_that_cannot_be_written_is_parked_alone(tables: RoutedTables) -> None:
    DeltaLake(tables.root / "lake" / "b").create(pa.schema([("id", pa.string())]))
    query = tables.query(deliveryTries="1", backlogBatches="2", backlogWaitSeconds="0")
    for number in range(4):
        tables.run(query, number, of_tenants(2 * number, "a", "b"))
        assert tables.deliver().code == 1
    assert tables.table("a").ids() == [0, 2, 4, 6], "a parked table does not fill the backlog of the query"
    assert [tables.state("b", number) for number in range(4)] == [PREPARED] * 4
    assert len(tables.row_log()) == 4

    shown = penstock(tables.store_url, "status")
    assert "{tenant}" in shown
    assert "2 tables" in shown
    assert "1 parked" in shown
    assert shown.count(str(tables.stream("a").table_uri)) == 0, "one row for the query"
    assert "lake/b" in shown, "what is parked is named"
    streams = json.loads(penstock(tables.store_url, "status", "--json"))["streams"]
    assert {one["routes_of"] for one in streams if "routes_of" in one} == {f"{tables.root}/lake/{{tenant}}"}

    shutil.rmtree(tables.root / "lake" / "b")
    penstock(tables.store_url, "retry", str(tables.stream("b").table_uri))
    assert tables.deliver().code == 0
    assert tables.table("b").ids() == [1, 3, 5, 7]


def test_a_full_backlog_of_one_table_holds_up_the_query_before_it_writes(tables: RoutedTables) -> None:
    query = tables.query(backlogBatches="2", backlogWaitSeconds="0")
    for number in range(2):
        tables.run(query, number, of_tenants(number, "a"))
    with pytest.raises(RetryableError, match=r"2 batches wait \(backlogBatches=2\)"):
        tables.run(query, 2, of_tenants(2, "b"))
    assert tables.deliver().code == 0
    tables.run(query, 2, of_tenants(2, "b"))


def test_commands_read_what_waits_for_a_table(tables: RoutedTables) -> None:
    tables.run(tables.query(), 0, of_tenants(0, "a", "b"), of_tenants(2, "a"))
    shown = json.loads(penstock(tables.store_url, "show", str(tables.stream("a")), "0", "--rows", "--json"))
    assert [row["values"]["id"] for row in shown["waiting_rows"]] == [0, 2]
    refused = Ended("recover", "--store", tables.store_url)
    assert "penstock deliver --once" in refused.out + refused.err
    assert tables.deliver().code == 0
    assert penstock(tables.store_url, "recover")


def test_the_clean_up_of_the_row_log_keeps_what_a_table_needs(tables: RoutedTables) -> None:
    query = tables.query()
    tables.run(query, 0, of_tenants(0, "a", "b"))
    plan = query.plan(tables.store, query.batch(1), of_tenants(0, "a").schema)
    query.write_and_die(plan, of_tenants(9, "a")).finish()
    tables.run(query, 1, of_tenants(2, "a"), run_id="r2")
    anchor = str(query.stream)
    age_all(tables)
    penstock(tables.store_url, "gc", anchor, "--delete")
    assert len(tables.row_log()) == 4, "batch 0 waits, so that of batch 1 nothing is settled"
    assert tables.deliver().code == 0
    age_all(tables)
    penstock(tables.store_url, "gc", anchor, "--delete")
    assert tables.row_log() == []
    assert tables.table("a").ids() == [0, 2]


def age_all(tables: RoutedTables) -> None:
    import os

    for path in tables.row_log():
        os.utime(path, (1, 1))


# Rows without a route ------------------------------------------------------------------------------------

BAD_NAMES = (
    None,
    "",
    ".",
    "..",
    "a/b",
    "../up",
    "a\\b",
    "a\nb",
    " a",
    "a ",
    "%2e%2e",
    "x" * 201,
    "a?b",
    "{id}",
)


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_a_text_that_cannot_be_a_name_is_refused(tables: RoutedTables, name: str | None) -> None:
    query = tables.query()
    plan = query.plan(tables.store, query.batch(0), of_tenants(0, "a").schema)
    with pytest.raises(SchemaMismatchError, match=r"^A row has no route: its tenant, which routeBy names"):
        query.write(plan, [of_tenants(0, "a", name)])
    assert tables.row_log() == []


def test_rows_without_a_route_go_to_the_default(tables: RoutedTables) -> None:
    tables.run(tables.query(routeDefault="none"), 0, of_tenants(0, "a", *BAD_NAMES))
    assert tables.deliver().code == 0
    assert tables.table("a").ids() == [0]
    assert tables.table("none").ids() == list(range(1, 1 + len(BAD_NAMES)))


def test_rows_without_a_route_are_dead_letters_once(tables: RoutedTables) -> None:
    query = tables.query(badRows="deadLetter", deadLetter=f"{tables.root}/letters")
    with crash_at("mark.done"):
        tables.run(query, 0, of_tenants(0, "a", None, ".."))
    tables.run(query, 0, of_tenants(0, "a", None, ".."), run_id="r2")
    tables.run(query, 1, of_tenants(3, "a"), run_id="r2")
    assert tables.deliver().code == 0
    assert tables.table("a").ids() == [0, 3]
    letters = pl.read_delta(f"{tables.root}/letters")
    assert sorted(json.loads(row)["id"] for row in letters["row"]) == [1, 2]
    shown = penstock(tables.store_url, "status")
    assert shown.count("dead letters") == 1, "those of the query; the tables have none of their own"


@pytest.mark.parametrize("is_marked_late", [False, True])
def test_rows_that_a_table_does_not_accept_are_dead_letters_once(
    tables: RoutedTables, is_marked_late: bool
) -> None:
    """Also if the delivery is killed after its commit: the store does not have them yet."""
    DeltaLake(tables.root / "lake" / "b").create(pa.schema([("id", pa.int32()), ("tenant", pa.string())]))
    query = tables.query(badRows="deadLetter", deadLetter=f"{tables.root}/letters")
    tables.run(query, 0, of_tenants(2**31 - 1, "b", "b"))
    fails = mock.patch.object(SqlDeliveries, "finish", side_effect=RetryableError("down"))
    with fails if is_marked_late else crash_at("commit.landed"):
        tables.deliver()
    tables.run(query, 1, of_tenants(2**31 + 1, "a"))
    for _ in range(2):
        assert tables.deliver().code == 0
    assert tables.table("b").ids() == [2**31 - 1]
    assert tables.table("a").ids() == [2**31 + 1]
    letters = pl.read_delta(f"{tables.root}/letters")
    assert [json.loads(row)["id"] for row in letters["row"]] == [2**31]


def test_dead_letters_of_several_files_of_a_task_are_all_kept(
    tables: RoutedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task writes several files of a table if its memory is full. Here all rows are bad."""
    monkeypatch.setattr(routes, "CHUNK_BYTES", 1)
    monkeypatch.setattr(routes, "HELD_BYTES_MAX", 1)
    DeltaLake(tables.root / "lake" / "b").create(pa.schema([("id", pa.int32()), ("tenant", pa.string())]))
    query = tables.query(badRows="deadLetter", deadLetter=f"{tables.root}/letters")
    tables.run(query, 0, of_tenants(2**40, *["b"] * 5))
    assert len(tables.row_log()) > 1
    assert tables.deliver().code == 0
    assert tables.table("b").ids() == []
    letters = pl.read_delta(f"{tables.root}/letters")
    assert sorted(json.loads(row)["id"] for row in letters["row"]) == list(range(2**40, 2**40 + 5))


@pytest.mark.parametrize("bad_rows", ["fail", "drop", "deadLetter"])
def test_a_text_that_the_destination_refuses_in_a_name_is_a_bad_row(tmp_path: Path, bad_rows: str) -> None:
    """A name of a Kinesis stream has no space."""
    letters = tmp_path / "letters"
    options = {
        "stream": "events-{tenant}",
        "region": "eu-west-1",
        "routeBy": "tenant",
        "checkpointLocation": f"{tmp_path}/checkpoint",
        "badRows": bad_rows,
        **({"deadLetter": str(letters)} if bad_rows == "deadLetter" else {}),
    }
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        query = Query(Place(options, KINESIS), QUERY_ID, store=store)
        rows = of_tenants(0, "a", "b c", "a", "b c")
        if bad_rows == "fail":
            with pytest.raises(SchemaMismatchError, match=r"2 rows of batch 0 .* tenant = 'b c'"):
                query.run(store, query.batch(0), rows)
            assert not list(tmp_path.rglob("*.arrow"))
            return
        query.run(store, query.batch(0), rows)
        (table,) = store.streams(is_pending=True)
    assert (table.key.table_uri, table.backlog.rows) == ("kinesis://eu-west-1/events-a", 2)
    if bad_rows == "deadLetter":
        found = pl.read_delta(str(letters))
        assert sorted(json.loads(row)["id"] for row in found["row"]) == [1, 3]
        assert set(found["code"]) == {"no_table"}


def test_services_that_the_rows_name_leave_nothing_in_the_row_log(
    tmp_path: Path, http_service: HttpRows
) -> None:
    """Each file of the log is for one of them."""
    options = {"url": f"{http_service.base}/rows/{{tenant}}", "routeBy": "tenant"}
    url = f"sqlite:///{tmp_path}/store.db"
    with open_store(url) as store:
        place = Place({**options, "checkpointLocation": f"{tmp_path}/checkpoint"}, HTTP)
        query = Query(place, QUERY_ID, store=store)
        for number in range(2):
            query.run(store, query.batch(number), of_tenants(3 * number, "a", "b ö", "a"))
        assert Ended("deliver", "--once", "--store", url).code == 0
    assert sorted(http_service.ids()) == list(range(6))
    assert {one.path for one in http_service.received()} == {"/rows/a", "/rows/b%20%C3%B6"}
    assert not list(tmp_path.rglob("*.arrow"))


def test_names_that_one_catalog_takes_for_the_same_are_refused(tmp_path: Path) -> None:
    """Each would have the token of the other, and its batches would seem to be there."""
    lake = IcebergLake(tmp_path / "warehouse")
    options = {**lake.options, "table": "db.{tenant}", "routeBy": "tenant", "rowLog": f"{tmp_path}/log"}
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        query = Query(Place(options, ICEBERG), QUERY_ID, store=store)
        query.run(store, query.batch(0), of_tenants(0, "a"))
        with pytest.raises(SchemaMismatchError, match="their names differ only in case"):
            query.run(store, query.batch(1), of_tenants(1, "A", "b"))
        assert not list((tmp_path / "log").rglob("*-0000000001-*")), "what the tasks have written is deleted"
        query.run(store, query.batch(1), of_tenants(1, "a", "b"), run_id="r2")


# The batches of the query --------------------------------------------------------------------------------


def test_a_prepared_batch_that_comes_back_with_other_rows_is_refused(tables: RoutedTables) -> None:
    """The tables may have delivered it."""
    query = tables.query()
    with crash_at("prepare.done"):
        tables.run(query, 0, of_tenants(0, "a"))
    with pytest.raises(CheckpointMismatchError, match="prepared from other source offsets"):
        query.plan(tables.store, query.batch(0, "other"), of_tenants(0, "a").schema)
    assert tables.state("a", 0) is PREPARED


def test_a_query_whose_store_is_lost_does_not_go_on(tables: RoutedTables) -> None:
    query = tables.query()
    tables.run(query, 0, of_tenants(0, "a"))
    with (
        open_store(f"sqlite:///{tables.root}/other.db") as other,
        pytest.raises(CheckpointMismatchError, match="lost with the store"),
    ):
        query.plan(other, query.batch(1), of_tenants(0, "a").schema)


def test_a_driver_that_was_replaced_prepares_nothing_for_any_table(tables: RoutedTables) -> None:
    """Also for a table that the new one has not written yet."""
    query = tables.query()
    tables.run(query, 0, of_tenants(0, "a", "b"))
    plan = query.plan(tables.store, query.batch(1), of_tenants(0, "a").schema)
    late = query.write(plan, [of_tenants(2, "b", "c")])
    tables.run(query, 1, of_tenants(2, "a"), run_id="r2")
    with pytest.raises(FencedError):
        query.commit(tables.store, late)
    assert tables.store.record(tables.stream("b"), 1) is None
    assert tables.store.record(tables.stream("c"), 1) is None
    assert tables.deliver().code == 0
    assert tables.table("b").ids() == [1]


def test_another_template_on_the_same_checkpoint_is_another_target(tables: RoutedTables) -> None:
    tables.run(tables.query(), 0, of_tenants(0, "a"))
    moved = tables.query(path=f"{tables.root}/moved/{{tenant}}")
    with pytest.raises(CheckpointMismatchError, match="newTarget"):
        tables.run(moved, 1, of_tenants(1, "a"))


# Many tables ---------------------------------------------------------------------------------------------


def test_a_batch_costs_the_same_for_any_number_of_other_tables(tables: RoutedTables) -> None:
    """Statements of the store, from the plan to the end of the commit."""
    query = tables.query()
    tables.run(query, 0, of_tenants(0, "a", "b"))
    first = statements_of(tables, query, 1)
    tables.run(query, 2, of_tenants(10, *(f"t{number}" for number in range(300))))
    assert statements_of(tables, query, 3) == first


def statements_of(tables: RoutedTables, query: Query, number: int) -> int:
    count = 0

    def counted(*_: object) -> None:
        nonlocal count
        count += 1

    sa.event.listen(tables.store.engine, "before_cursor_execute", counted)
    tables.run(query, number, of_tenants(0, "a", "b"))
    sa.event.remove(tables.store.engine, "before_cursor_execute", counted)
    return count


def test_rows_of_two_tables_do_not_have_the_same_place(tmp_path: Path) -> None:
    """The ids of entries are derived from it, and two tables may be of one service."""
    rows = of_tenants(0, "a", "b", "a", "b", "a")
    config = RouteWriters(str(tmp_path), {}, RouteColumns(("tenant",)), rows.schema)
    writer = config.open(AttemptId("q", "r", 0, 3, 7))
    for batch in rows.to_batches():
        writer.write(batch)
    log, batch = RowLog(str(tmp_path), {}), Batch(StreamKey("q", "t"), 0, "d")
    logged = [LoggedBatch.of(batch, [file]) for file in writer.finish()]
    places = [
        some.row + number for one in logged for some in log.read(one) for number in range(len(some.rows))
    ]
    assert sorted(places) == list(range(5))
    assert {some.partition for one in logged for some in log.read(one)} == {3}


def test_a_task_holds_no_more_for_many_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "CHUNK_BYTES", 2000)
    monkeypatch.setattr(routes, "HELD_BYTES_MAX", 50_000)
    columns = RouteColumns(("tenant",))
    rows = of_tenants(0, *(f"t{number % 50}" for number in range(1000)), text=["x" * 10] * 1000)
    writer = RouteWriters(str(tmp_path), {}, columns, rows.schema).open(AttemptId("q", "r", 0, 3, 7))
    held = []
    for batch in rows.to_batches(max_chunksize=40):
        writer.write(batch)
        held.append(writer._held_bytes)
    files = writer.finish()
    assert max(held) < 50_000
    assert len(files) > 50, "some routes have several files"
    assert sum(file.rows for file in files) == 1000
    assert len({file.path for file in files}) == len(files)


# Options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"path": "/lake/{other}"}, "does not contain {tenant}"),
        ({"delivery": "coupled"}, "always decoupled"),
        ({"routeDefault": "a/b"}, "routeDefault: it contains"),
        ({"routeBy": "tenant, tenant"}, "twice"),
        ({"checkpointLocation": "s3://bucket/checkpoint"}, "rowLog is missing: with routeBy"),
    ],
    ids=str,
)
def test_wrong_options_are_named(tmp_path: Path, options: dict[str, str], problem: str) -> None:
    with routed_tables(tmp_path) as tables, pytest.raises(ConfigurationError) as raised:
        tables.query(**options).with_targets()
    assert problem in str(raised.value)


def test_a_row_log_that_cannot_be_created_is_named(tables: RoutedTables) -> None:
    query = tables.query(rowLog="/proc/nothing/log")
    with pytest.raises(
        PenstockError, match=r"row log /proc/nothing/log cannot be created: .* give another place"
    ):
        query.plan(tables.store, query.batch(0), of_tenants(0, "a").schema)


def test_options_of_routes_without_routes_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="rowLog: only a query with routeBy has it"):
        DeltaDataSource({"path": "/t", "rowlog": "/log"}).query()


@pytest.mark.parametrize(
    ("column", "what"), [("missing", "does not have"), ("number", "cast the column to STRING")]
)
def test_columns_that_cannot_be_routes_are_refused_before_the_batch(
    tables: RoutedTables, column: str, what: str
) -> None:
    query = tables.query(routeBy=column, path=f"{tables.root}/{{{column}}}")
    with pytest.raises(SchemaMismatchError, match=what):
        query.plan(tables.store, query.batch(0), pa.schema([("id", pa.int64()), ("number", pa.float64())]))


def test_a_batch_write_is_refused() -> None:
    source = DeltaDataSource({"path": "/lake/{a}", "routeby": "a", "checkpointlocation": "/none"})
    with pytest.raises(ConfigurationError, match="routeBy is only for streams"):
        source.writer(StructType([StructField("a", StringType())]), False)


def test_rows_are_distributed_by_route(tables: RoutedTables) -> None:
    (sink,) = tables.query().with_targets().targets.values()
    assert isinstance(sink, Partitioned)
    assert [(field.name, field.transform) for field in sink.partitioning()] == [("tenant", "identity")]


def test_secrets_of_a_query_with_routes_are_not_shown(tables: RoutedTables) -> None:
    targets = tables.query(**{"storage.AWS_SECRET_ACCESS_KEY": "geheim-4711"}).with_targets()
    assert "geheim" not in repr(targets)
    assert "geheim" not in repr(targets.routes)


# Postgres ------------------------------------------------------------------------------------------------


def test_rows_that_postgres_refuses_in_the_commit_are_dead_letters_once(
    tmp_path: Path, new_postgres_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the delivery is killed after its commit."""
    monkeypatch.setenv("PGUSER", "postgres")
    place = PostgresTable(new_postgres_url())
    schema = place.options["dbtable"].partition(".")[0]
    place.sql(f"CREATE TABLE {schema}.a (id bigint CHECK (id <> 1), tenant text)")
    options = {
        **place.options,
        "dbtable": f"{schema}.{{tenant}}",
        "routeBy": "tenant",
        "checkpointLocation": f"{tmp_path}/checkpoint",
        "badRows": "deadLetter",
        "deadLetter": f"{tmp_path}/letters",
    }
    url = f"sqlite:///{tmp_path}/store.db"
    with open_store(url) as store:
        query = Query(Place(options, POSTGRES), QUERY_ID, store=store)
        query.run(store, query.batch(0), of_tenants(0, "a", "a"))
        with crash_at("commit.landed"):
            Ended("deliver", "--once", "--store", url)
        query.run(store, query.batch(1), of_tenants(2, "b", "a", "a", "b"))
        for _ in range(2):
            assert Ended("deliver", "--once", "--store", url).code == 0
    assert sorted(place.sql(f"SELECT id FROM {schema}.a")) == [(0,), (3,), (4,)]
    assert sorted(place.sql(f"SELECT id FROM {schema}.b")) == [(2,), (5,)]
    letters = pl.read_delta(f"{tmp_path}/letters")
    assert [json.loads(row)["id"] for row in letters["row"]] == [1]
    assert place.staged() == []
