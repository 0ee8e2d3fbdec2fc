"""Hudi tables, of other writers too, are read as the package hudi reads them, or refused by name."""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.hudi import META, HudiLake
from tests.support.hudi_table import HudiTable
from tests.support.lakes import IDS

from penstock import ConfigurationError, RetryableError, TableNotSupportedError, reader
from penstock.committers.file_tables.files import TableFiles
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance import Query


@pytest.fixture(params=[6, 9])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> HudiLake:
    return HudiLake(tmp_path, request.param)


def read(lake: HudiLake, **options: str) -> pa.Table:
    return reader.read("penstock.hudi", path=str(lake.folder), **options).read_all()


def ids(lake: HudiLake, **options: str) -> list[int]:
    return sorted(read(lake, columns="id", **options)["id"].to_pylist())


def at(instant: str) -> str:
    """An instant as a time."""
    found = datetime.strptime(instant[:14], "%Y%m%d%H%M%S").replace(tzinfo=timezone.utc)
    return f"{found:%Y-%m-%dT%H:%M:%S}.{instant[14:]}Z"


def three_commits(lake: HudiLake) -> list[str]:
    lake.create()
    for number in range(3):
        lake.append(number)
    return lake.commits()


def check_rows(lake: HudiLake) -> None:
    ours, theirs = read(lake), lake.read()
    assert ours.schema.names == [*META, "id"]
    expected = theirs.select(ours.schema.names).to_pylist()
    assert sorted(map(repr, ours.to_pylist())) == sorted(map(repr, expected))
    assert ids(lake) == [0, 1, 2]


def test_rows_are_those_that_hudi_reads(lake: HudiLake) -> None:
    """Also Hudi's own columns, and after files were replaced by another one."""
    three_commits(lake)
    check_rows(lake)
    lake.cluster()
    check_rows(lake)
    assert ids(lake, where="id >= 1") == [1, 2]
    assert read(lake, columns="_hoodie_file_name, id", where="id = 1").num_rows == 1


def test_commits_of_a_time_are_read(lake: HudiLake) -> None:
    """A file that was replaced later counts, and one of a later commit does not."""
    instants = three_commits(lake)
    lake.cluster()
    lake.append(7)
    assert [ids(lake, timestampAsOf=at(instant)) for instant in instants] == [[0], [0, 1], [0, 1, 2]]
    assert ids(lake) == [0, 1, 2, 7]
    with pytest.raises(
        ConfigurationError, match="has no commit at instant 20200101000000000, or it was archived"
    ):
        ids(lake, timestampAsOf="2020-01-01")


def test_files_of_pending_instants_are_not_read(lake: HudiLake) -> None:
    instants = three_commits(lake)
    done = next(path for path in lake.timeline.glob("*.commit") if path.name.startswith(instants[-1]))
    done.unlink()
    assert ids(lake) == [0, 1]


def test_archived_commits_are_read(lake: HudiLake) -> None:
    three_commits(lake)
    lake.archive()
    assert ids(lake) == [0, 1, 2]


def test_the_newest_slice_of_a_file_group_is_read(lake: HudiLake) -> None:
    instants = three_commits(lake)
    instant = lake.later()
    name = f"other-1-0_0-0-0_{instant}.parquet"
    rows = pq.read_table(next(lake.folder.glob("other-1-0_*")))
    rows = rows.set_column(rows.schema.get_field_index("id"), "id", pa.array([100], pa.int64()))
    pq.write_table(rows, lake.folder / name)
    assert ids(lake) == [0, 1, 2]
    stat = {"fileId": "other-1-0", "path": name, "partitionPath": "", "numWrites": 1}
    lake.complete(instant, "commit", stat)
    assert ids(lake) == [0, 2, 100] == lake.ids()
    assert ids(lake, timestampAsOf=at(instants[-1])) == [0, 1, 2]


def test_columns_that_a_file_does_not_have_are_null(tmp_path: Path) -> None:
    lake = HudiLake(tmp_path)
    lake.create({"id": "long", "more": "string"})
    lake.append(1)
    assert read(lake, columns="id, more").to_pylist() == [{"id": 1, "more": None}]
    assert ids(lake, where="more IS NULL") == [1]


def clean(lake: HudiLake, kept: str) -> None:
    """As Hudi's cleaner leaves its instant."""
    schema = {
        "type": "record",
        "name": "HoodieCleanMetadata",
        "fields": [{"name": "earliestCommitToRetain", "type": "string"}],
    }
    with lake.completed(lake.later(), "clean").open("wb") as file:
        fastavro.writer(file, schema, [{"earliestCommitToRetain": kept}])


def test_versions_whose_files_were_cleaned_are_refused(lake: HudiLake) -> None:
    """Their rows would be missing, and nothing else would show it."""
    instants = three_commits(lake)
    clean(lake, instants[1])
    assert ids(lake, timestampAsOf=at(instants[1])) == [0, 1]
    with pytest.raises(TableNotSupportedError, match=f"deleted files before {instants[1]}. Nothing was read"):
        ids(lake, timestampAsOf=at(instants[0]))
    clean(lake, "")
    with pytest.raises(TableNotSupportedError, match="deleted files of earlier versions"):
        ids(lake, timestampAsOf=at(instants[2]))
    assert ids(lake) == [0, 1, 2]


@pytest.mark.parametrize("is_listing", [False, True])
@pytest.mark.parametrize("done", [False, True])
def test_files_that_a_cleaner_deletes_meanwhile_are_not_missed(
    is_listing: bool, done: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that was loaded has no later slices, so without the earlier ones it would lack their rows."""
    lake = HudiTable(tmp_path)
    lake.create(IDS)
    lake.append(1)
    lake.append(2)
    table = reader.open_table("penstock.hudi", path=str(lake.folder))
    old = lake.file_of(1)
    lake.append(3, before=old)
    real = TableFiles.walk

    def walk(files: TableFiles) -> object:
        if is_listing:
            lake.clean(old, done=done)
        return real(files)

    monkeypatch.setattr(TableFiles, "walk", walk)
    if not is_listing:
        lake.clean(old, done=done)
    with pytest.raises(
        RetryableError, match=f"its cleaner has deleted 1 files of it meanwhile, such as {old}"
    ):
        list(table.files())


def test_a_cleaner_may_delete_older_files_meanwhile(tmp_path: Path) -> None:
    lake = HudiTable(tmp_path, 9)
    lake.create(IDS)
    lake.append(1)
    old = lake.file_of(1)
    lake.append(2, before=old)
    table = reader.open_table("penstock.hudi", path=str(lake.folder), columns="id")
    lake.clean(old)
    assert table.to_reader().read_all()["id"].to_pylist() == [1, 2]


def test_a_file_that_was_deleted_meanwhile_is_an_error(lake: HudiLake) -> None:
    three_commits(lake)
    table = reader.open_table("penstock.hudi", path=str(lake.folder))
    files = list(table.files())
    (lake.folder / files[0].path).unlink()
    with pytest.raises(RetryableError, match="is missing: the table was changed"):
        list(table.scan().read(files))


REFUSED = {
    "hoodie.table.type": ("MERGE_ON_READ", "rows of log files would be missing"),
    "hoodie.table.version": ("5", "table version 5: Penstock reads 6, 8, 9"),
    "hoodie.table.base.file.format": ("ORC", "Penstock reads Parquet"),
    "hoodie.datasource.write.drop.partition.columns": ("true", "files lack the partition columns"),
    "hoodie.populate.meta.fields": ("false", "files lack Hudi's own columns"),
    "hoodie.bootstrap.base.path": ("/other", "bootstrapped files"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_cannot_be_read_is_refused_by_name(key: str, tmp_path: Path) -> None:
    lake = HudiLake(tmp_path)
    value, problem = REFUSED[key]
    lake.create(properties={key: value})
    with pytest.raises(TableNotSupportedError, match=problem) as refused:
        read(lake)
    assert "Nothing was read." in str(refused.value)


def test_tables_that_penstock_does_not_write_are_read(tmp_path: Path) -> None:
    """Readers need no metadata table and no keys."""
    lake = HudiLake(tmp_path)
    lake.create(
        properties={
            "hoodie.table.metadata.partitions": "files,record_index",
            "hoodie.table.keygenerator.type": "CUSTOM",
            "hoodie.table.cdc.enabled": "true",
        }
    )
    lake.append(5)
    assert ids(lake) == [5]


def test_schemas_on_read_are_refused(tmp_path: Path) -> None:
    lake = HudiLake(tmp_path)
    instants = three_commits(lake)
    path = lake.timeline / f"{instants[-1]}.commit"
    content = json.loads(path.read_text())
    content["extraMetadata"]["latest_schema"] = "{}"
    path.write_text(json.dumps(content))
    with pytest.raises(TableNotSupportedError, match="schema on read"):
        read(lake)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"path": "/nowhere"}, "There is no Hudi table /nowhere"),
        ({"columns": "nothing"}, "'nothing' is not in instant"),
        ({"versionAsOf": "1"}, "versionAsOf is not an option"),
    ],
)
def test_what_is_not_there_is_said(options: dict[str, str], problem: str, tmp_path: Path) -> None:
    lake = HudiLake(tmp_path)
    three_commits(lake)
    with pytest.raises(ConfigurationError, match=problem):
        reader.read("penstock.hudi", {"path": str(lake.folder), **options})


def test_a_table_without_commits_is_empty(tmp_path: Path) -> None:
    lake = HudiLake(tmp_path)
    lake.create()
    assert read(lake, columns="id").to_pydict() == {"id": []}


PARTITIONED = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("day", pa.date32()), ("n", pa.int32())])
"""With rows of which each is in a partition of its own."""
KINDS = ["a/b=%c d", "default", "", None, "\u00e9", "x"]
DAYS = [date(1969, 12, 31), date(2026, 11, 30), None, date(2026, 12, 1), date(1970, 1, 1), date(9999, 12, 31)]


@pytest.mark.parametrize("hive_style", ["true", "false"])
def test_folders_of_partitions_are_skipped(lake: HudiLake, store: SqlManifestStore, hive_style: str) -> None:
    numbers = [-5, 0, None, 7, 8, 9]
    rows = pa.table([range(6), KINDS, DAYS, numbers], schema=PARTITIONED)
    options = {"partitionBy": "kind, day, n", "hiveStylePartitions": hive_style}
    query = Query(lake, options=options, store=store)
    query.run(store, query.batch(0), rows)
    for where, found, files in [
        ("kind = 'a/b=%c d'", [0], 4),
        ("kind IS NULL", [3], 3),
        ("kind = ''", [2], 3),
        ("kind = 'default'", [1], 3),
        ("kind > 'x'", [4], 4),
        ("day = '2026-11-30'", [1], 2),
        ("day < '1970-01-01'", [0], 2),
        ("n > 7", [4, 5], 3),
        ("n = 0 AND kind = 'x'", [], 2),
    ]:
        assert ids(lake, where=where) == found, where
        table = reader.open_table("penstock.hudi", {"path": str(lake.folder)}, where=where)
        assert len(list(table.files())) == files, where


@pytest.mark.parametrize(
    "line",
    [
        "hoodie.table.keygenerator.type=TIMESTAMP",
        "hoodie.table.metadata.partitions=files,record_index",
        "penstock.table.id=",
    ],
)
def test_folders_of_other_writers_say_nothing(lake: HudiLake, store: SqlManifestStore, line: str) -> None:
    """They may have formatted values, or left rows in the folder of an earlier value."""
    query = Query(lake, options={"partitionBy": "kind"}, store=store)
    query.run(store, query.batch(0), pa.table([range(6), KINDS], schema=pa.schema(list(PARTITIONED)[:2])))
    options, of_x = {"path": str(lake.folder)}, "kind = 'x'"
    assert len(list(reader.open_table("penstock.hudi", options, where=of_x).files())) == 3
    properties = lake.meta / "hoodie.properties"
    properties.write_text(f"{properties.read_text()}\n{line}\n")
    assert len(list(reader.open_table("penstock.hudi", options, where=of_x).files())) == 5
