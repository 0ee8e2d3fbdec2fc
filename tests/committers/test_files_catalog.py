"""Partitions of a folder of files in a Hive metastore and in Glue: added last, once, and after a crash."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.external_tables import PARTITIONS, ExternalTable, GlueTable, HiveTable
from tests.support.file_rows import stage, target_of

from penstock.committers.contract import AttemptId, Committed, Manifest, StreamKey
from penstock.committers.errors import (
    CommitStateUnknownError,
    ConfigurationError,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
    TableChangedError,
)
from penstock.committers.files.catalog import add_partitions
from penstock.committers.files.committer import FilesCommitter
from penstock.committers.files.glue import GluePartitions
from penstock.committers.files.hive import HivePartitions
from penstock.committers.files.partitions import NewPartitions, Partition, TableName
from penstock.committers.iceberg.catalog import CatalogConfig, open_catalog
from penstock.datasource.files.options import FilesOptions
from penstock.datasource.files.sink import DESTINATION, sink_of
from penstock.datasource.files.target import FilesTarget
from penstock.datasource.stored.table_access import TableAccess
from penstock.testing.faults import crash_at

ROWS = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("kind", pa.string())])
NULL = "__HIVE_DEFAULT_PARTITION__"
DAY = date(2024, 1, 1)
FIRST = [(0, DAY, "x"), (1, None, "a:b/c=d %é")]
"""A batch of two partitions, with values that folders and catalogs write in different ways."""
VALUES = [("2024-01-01", "x"), (NULL, "a:b/c=d %é")]
FOLDERS = ["day=2024-01-01/kind=x", f"day={NULL}/kind=a%3Ab%2Fc%3Dd %25é"]


@pytest.fixture(params=["glue", "hive"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> ExternalTable:
    """The table, created by its owner."""
    server = request.getfixturevalue(request.param)
    made: ExternalTable = {"glue": GlueTable, "hive": HiveTable}[request.param](server, tmp_path)
    made.create()
    return made


def target_with(table: ExternalTable, changed: Mapping[str, str]) -> FilesTarget:
    """The target of a query; `changed` properties of its catalog."""
    return target_of(table, **{f"catalog.{name}": value for name, value in changed.items()})


def committer_of(table: ExternalTable) -> Any:
    """As commands open it, such as `penstock recover`: without the options of the query."""
    target = target_of(table)
    access = TableAccess(dict(target.storage_options), table.properties)
    return DESTINATION.stored_table(StreamKey("q1", target.folder), access).committer()


def staged(table: ExternalTable, batch_id: int = 0, rows: list[tuple[Any, ...]] = FIRST) -> Manifest:
    written = [dict(zip(ROWS.names, row, strict=True)) for row in rows]
    return stage(target_of(table), pa.Table.from_pylist(written, schema=ROWS), batch_id)


def locations(table: ExternalTable) -> dict[tuple[str, ...], str]:
    """Of the first batch."""
    return {values: f"{table.location}/{folder}" for values, folder in zip(VALUES, FOLDERS, strict=True)}


# A batch -------------------------------------------------------------------------------------------------


def test_each_batch_adds_its_new_partitions_and_readers_find_their_rows(table: ExternalTable) -> None:
    assert isinstance(target_of(table).commit(staged(table)), Committed)
    assert table.partitions() == locations(table)
    assert table.ids() == [0, 1]

    by_command = committer_of(table)
    assert isinstance(by_command.commit(staged(table, 1, [(2, DAY, "x"), (3, DAY, None)])), Committed)
    new: dict[tuple[str, ...], str] = {("2024-01-01", NULL): f"{table.location}/day=2024-01-01/kind={NULL}"}
    assert table.partitions() == {**locations(table), **new}
    assert table.ids() == [0, 1, 2, 3]


def test_partitions_have_the_format_and_the_columns_of_the_table(table: ExternalTable) -> None:
    target_of(table).commit(staged(table))
    if isinstance(table, GlueTable):
        of_table = table.client.get_table(DatabaseName=table.database, Name="rows")["Table"]
        wanted = {**of_table["StorageDescriptor"], "Location": ""}
        assert [{**one["StorageDescriptor"], "Location": ""} for one in table.stored()] == [wanted] * 2
    elif isinstance(table, HiveTable):
        with table.client as client:
            descriptor = client.get_table(table.database, "rows").sd
        for one in table.stored():
            assert "COLUMN_STATS_ACCURATE" not in one.parameters  # Hive would answer count(*) from them
            descriptor.location = one.sd.location
            assert one.sd == descriptor


@pytest.mark.parametrize("point", ["commit.landed", "partitions.start", "partitions.added"])
def test_partitions_that_a_dead_process_has_not_added_are_added_with_the_token(
    table: ExternalTable, point: str
) -> None:
    """By a process that does not know the options of the query. The files are visible before."""
    manifest = staged(table)
    with crash_at(point):
        target_of(table).commit(manifest)
    assert bool(table.partitions()) == (point == "partitions.added")
    if point != "commit.landed":
        assert not table.harness.uncommitted()

    token = committer_of(table).token("q1")
    assert token is not None
    assert table.partitions() == locations(table)
    assert table.ids() == [0, 1]


def test_a_catalog_that_is_down_leaves_the_partitions_to_the_next_attempt(table: ExternalTable) -> None:
    manifest = staged(table)
    for _ in range(2):
        with pytest.raises(CommitStateUnknownError, match=r"is committed, but its partitions .*continues"):
            target_with(table, table.unreachable).commit(manifest)
    assert not table.harness.uncommitted()
    assert table.partitions() == {}

    target_of(table).commit(manifest)
    assert table.partitions() == locations(table)


def test_a_process_without_the_options_of_the_catalog_leaves_the_partitions_to_another_one(
    table: ExternalTable,
) -> None:
    with crash_at("partitions.start"):
        target_of(table).commit(staged(table))
    target = target_of(table)
    with pytest.raises(CommitStateUnknownError, match="--catalog"):
        FilesCommitter(target.folder, target.storage_options).token("q1")
    target.token("q1")
    assert table.partitions() == locations(table)


def test_a_dropped_partition_comes_back_with_its_next_files(table: ExternalTable) -> None:
    target = target_of(table)
    target.commit(staged(table))
    table.drop_partition(*VALUES[0])
    target.commit(staged(table, 1, [(2, DAY, "x")]))
    assert table.partitions() == locations(table)


@contextmanager
def before_adding(monkeypatch: pytest.MonkeyPatch, action: Any) -> Iterator[None]:
    """Another process acts after this one has found no partition, and before it adds them."""
    with monkeypatch.context() as patch:
        for client in (GluePartitions, HivePartitions):

            def slow(self: Any, *args: Any, _add: Any = client.add) -> None:
                action()
                _add(self, *args)

            patch.setattr(client, "add", slow)
        yield


def test_a_partition_that_another_process_adds_meanwhile_stays(
    table: ExternalTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = locations(table)[VALUES[0]]
    with before_adding(monkeypatch, lambda: table.add_partition(*VALUES[0], location=location)):
        assert isinstance(target_of(table).commit(staged(table)), Committed)
    assert table.partitions() == locations(table)


@pytest.mark.parametrize("is_meanwhile", [False, True])
def test_a_partition_elsewhere_is_not_changed_and_reported(
    table: ExternalTable, monkeypatch: pytest.MonkeyPatch, is_meanwhile: bool
) -> None:
    elsewhere = f"{table.location}-2"

    def add() -> None:
        table.add_partition(*VALUES[0], location=elsewhere)

    target, manifest = target_of(table), staged(table)
    if is_meanwhile:
        with before_adding(monkeypatch, add), pytest.raises(TableChangedError, match=elsewhere):
            target.commit(manifest)
    else:
        add()
    with pytest.raises(TableChangedError, match=elsewhere):
        target.commit(manifest)
    assert table.partitions()[VALUES[0]] == elsewhere

    table.drop_partition(*VALUES[0])
    target.token("q1")
    assert table.partitions() == locations(table)


def test_a_table_that_was_dropped_stops_the_query_until_it_is_back(table: ExternalTable) -> None:
    manifest = staged(table)
    table.drop()
    with pytest.raises(TableChangedError, match="no longer exists in the catalog"):
        target_of(table).commit(manifest)
    table.create(location=f"{table.location}-2")
    with pytest.raises(TableChangedError, match="is at"):
        target_of(table).token("q1")
    table.drop()
    table.create()
    assert target_of(table).token("q1") is not None
    assert table.partitions() == locations(table)


def test_a_query_without_the_option_gives_up_the_partitions_of_its_last_batch(
    table: ExternalTable, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = staged(table), staged(table, 1)
    with crash_at("partitions.start"):
        target_of(table).commit(first)
    table.drop()
    options = {**table.harness.options, "partitionBy": "day, kind"}
    target = sink_of(FilesOptions.parse(options)).open_table()
    with caplog.at_level(logging.WARNING):
        assert target.token("q1") is not None
    assert f"2 partitions were not added to the table {table.name}" in caplog.text
    assert isinstance(target.commit(second), Committed)


# Limits and errors of Glue -------------------------------------------------------------------------------


@pytest.fixture
def in_glue(glue: Any, tmp_path: Path) -> GlueTable:
    table = GlueTable(glue, tmp_path)
    table.create()
    return table


def test_many_partitions_are_added_in_requests_that_glue_accepts(in_glue: GlueTable) -> None:
    """`servers.glue` refuses more than 100 at once."""
    days = [str(DAY + timedelta(number)) for number in range(101)]
    partitions = tuple(Partition(f"day={day}/kind=x", (day, "x")) for day in days)
    new = NewPartitions(TableName("default", in_glue.database, "rows"), partitions)
    add_partitions(new, in_glue.location, in_glue.properties)
    assert len(in_glue.partitions()) == len(days)


def test_a_partition_that_glue_does_not_add_is_left_to_the_next_attempt(in_glue: GlueTable) -> None:
    manifest, events = staged(in_glue), glue_client(in_glue).meta.events
    failed = {"PartitionValues": ["x"], "ErrorDetail": {"ErrorCode": "InternalServiceException"}}

    def fail(parsed: dict[str, Any], **_: Any) -> None:
        parsed["Errors"] = [failed]

    events.register("after-call.glue.BatchCreatePartition", fail)
    try:
        with pytest.raises(CommitStateUnknownError, match="InternalServiceException"):
            target_of(in_glue).commit(manifest)
    finally:
        events.unregister("after-call.glue.BatchCreatePartition", fail)
    target_of(in_glue).commit(manifest)
    assert in_glue.partitions() == locations(in_glue)


def test_partitions_that_glue_has_not_looked_up_are_asked_for_again(in_glue: GlueTable) -> None:
    target_of(in_glue).commit(staged(in_glue))
    events, left, created = glue_client(in_glue).meta.events, [1], []

    def process_nothing(parsed: dict[str, Any], **_: Any) -> None:
        if left:
            left.pop()
            parsed["Partitions"] = []
            parsed["UnprocessedKeys"] = [{"Values": list(values)} for values in VALUES]

    def create(**_: Any) -> None:
        created.append(1)

    events.register("after-call.glue.BatchGetPartition", process_nothing)
    events.register("before-call.glue.BatchCreatePartition", create)
    try:
        assert isinstance(target_of(in_glue).commit(staged(in_glue, 1)), Committed)
    finally:
        events.unregister("after-call.glue.BatchGetPartition", process_nothing)
        events.unregister("before-call.glue.BatchCreatePartition", create)
    assert not left
    assert not created


def glue_client(table: GlueTable) -> Any:
    """The client that the commits of this process use."""
    catalog: Any = open_catalog(CatalogConfig.of("default", table.properties))
    return catalog.glue


# The check of the table ----------------------------------------------------------------------------------


def test_a_table_that_does_not_exist_is_an_error_that_says_how_to_create_it(table: ExternalTable) -> None:
    table.drop()
    statement = (
        f"CREATE EXTERNAL TABLE {table.name} (`id` bigint) PARTITIONED BY (`day` date, `kind` string) "
        "STORED AS PARQUET LOCATION"
    )
    with pytest.raises(ConfigurationError) as error:
        staged(table)
    assert statement in str(error.value)
    assert not table.harness.uncommitted()


@pytest.mark.parametrize(
    ("created", "message"),
    [
        ({"location": "elsewhere"}, "location: the table is at"),
        ({"serde": "org.apache.hadoop.hive.ql.io.orc.OrcSerde"}, "fileFormat: the table is stored as .*Orc"),
        ({"parameters": {"table_type": "ICEBERG"}}, "fileFormat: the table is stored as ICEBERG"),
        ({"partitions": PARTITIONS[::-1]}, "partitionBy: .* by kind string, day date, and the query by day"),
        ({"partitions": [("day", "string"), PARTITIONS[1]]}, "partitionBy: .* by day string"),
        ({"columns": [("number", "bigint")]}, r"id: .* no such column. ALTER TABLE .* \(`id` bigint\)"),
        ({"columns": [("id", "int")]}, "id: the table has int, and the rows have bigint"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_any_row_is_written(
    in_glue: GlueTable, created: dict[str, Any], message: str
) -> None:
    in_glue.drop()
    if "location" in created:
        created = {"location": f"{in_glue.location}-2"}
    in_glue.create(**created)
    with pytest.raises(SchemaMismatchError, match=message):
        staged(in_glue)
    assert not in_glue.harness.uncommitted()


def test_rows_that_overflow_a_column_of_the_table_can_be_bad_rows(in_glue: GlueTable) -> None:
    """The folder has no files that show the type."""
    in_glue.drop()
    in_glue.create(columns=[("id", "int")])
    planned = target_of(in_glue, badRows="drop").plan_batch(ROWS, "append", 0)
    writer = planned.writers.open(AttemptId("q1", "run", 0, 0, 0))
    try:
        rows = [pa.record_batch([[one], [DAY], ["x"]], schema=ROWS) for one in (2**31 - 1, 2**31)]
        writer.write(rows[0])
        with pytest.raises(SchemaMismatchError, match="Column id"):
            writer.write(rows[1])
    finally:
        writer.abort()


def test_a_table_may_have_more_columns_and_its_names_any_case(table: ExternalTable) -> None:
    table.drop()
    table.create(columns=[("more", "map<string,int>"), ("id", "bigint")])
    rows = pa.schema([("ID", pa.int64()), ("Day", pa.date32()), ("Kind", pa.string())])
    target_of(table, partitionBy="Day, Kind").plan_batch(rows, "append", 0)


def test_a_catalog_that_does_not_answer_and_one_of_another_type_are_errors(table: ExternalTable) -> None:
    with pytest.raises(RetryableError, match="The catalog 'default' has failed"):
        target_with(table, table.unreachable).plan_batch(ROWS, "append", 0)
    other = {"type": "rest", "uri": "http://127.0.0.1:1"}
    with pytest.raises(ConfigurationError, match=r"set catalog.type to glue or hive, not to rest"):
        target_with(table, other).plan_batch(ROWS, "append", 0)


# Options and secrets -------------------------------------------------------------------------------------

_GLUE = {"catalog.type": "glue", "catalogTable": "shop.events", "partitionBy": "day"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"catalog.type": "glue"}, "catalogTable is missing"),
        ({**_GLUE, "catalogTable": "events"}, "catalogTable='events': must be the name of a database and a"),
        ({"catalogTable": "shop.events", "partitionBy": "day"}, "catalogTable needs a catalog"),
        ({"catalogTable": "shop.events", "catalog": "prod"}, "catalogTable needs partitionBy"),
        ({**_GLUE, "fileFormat": "csv"}, "Use another fileFormat"),
    ],
)
def test_options_that_do_not_fit_each_other_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as error:
        FilesOptions.parse({"path": "/rows", **options})
    assert str(error.value).count("  - ") == 1


def test_no_secret_of_the_catalog_reaches_tasks_the_journal_or_a_message(in_glue: GlueTable) -> None:
    secret = in_glue.properties["glue.secret-access-key"]
    target = target_of(in_glue)
    planned = target.plan_batch(ROWS, "append", 0)
    shown = pickle.dumps(planned)
    for name in ("glue", in_glue.database, secret):
        assert name.encode() not in shown
    with crash_at("partitions.start"):
        target.commit(staged(in_glue))
    stored = target.place.read_journal("q1")
    assert stored is not None
    assert in_glue.name.encode() in stored.content
    assert secret.encode() not in stored.content
    with pytest.raises(PenstockError) as error:
        target_with(in_glue, in_glue.unreachable).token("q1")
    assert secret not in "".join(traceback.format_exception(error.value)) + repr(target)


def test_deliveries_get_the_options_of_the_catalog_from_their_process(in_glue: GlueTable) -> None:
    """And only for streams that name a table: others of the process may have another catalog."""
    given = target_of(in_glue).options.given
    assert not [name for name in given if name.startswith("catalog.")]
    stream = StreamKey("q1", in_glue.location)
    access = TableAccess(in_glue.files.storage, in_glue.properties)
    target = DESTINATION.sink(stream, given, access).open_table()
    assert target.catalog_properties == in_glue.properties  # type: ignore[attr-defined]
    target.commit(staged(in_glue))
    assert in_glue.partitions() == locations(in_glue)

    plain = {"path": in_glue.location, "partitionBy": "day, kind"}
    assert DESTINATION.sink(stream, plain, TableAccess({}, {"type": "rest"})).open_table() is not None
