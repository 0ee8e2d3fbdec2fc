"""Hudi tables on S3: lost requests and responses in the steps of a commit."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa
import pytest
from hudi import HudiTableBuilder
from servers.lossy_proxy import Fault, LossyProxy
from servers.s3 import BUCKET, s3_client

from penstock.committers.contract import AlreadyCommitted, Committed, Conflict
from penstock.committers.errors import CommitStateUnknownError, PenstockError
from penstock.committers.hudi import table as hudi_table
from penstock.committers.hudi.storage import HudiStorage
from penstock.committers.hudi.table import HudiTableFiles
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.destinations import DestinationType
from penstock.datasource.hudi.sink import DESTINATION
from penstock.datasource.hudi.source import HudiDataSource
from penstock.datasource.spark.base_source import PenstockDataSource
from penstock.testing.conformance import Query
from penstock.testing.conformance.query import ids
from penstock.testing.conformance.upserts import OPTIONS, changes
from penstock.testing.table_stream import TableStream


@dataclass
class HudiOnS3:
    """A table in a bucket, reached through the proxy."""

    storage: dict[str, str]
    proxy: LossyProxy
    folder: str
    version: int = 6
    data_source: ClassVar[type[PenstockDataSource]] = HudiDataSource
    destination: ClassVar[DestinationType] = DESTINATION

    @property
    def options(self) -> dict[str, str]:
        storage = {**self.storage, "AWS_ENDPOINT_URL": self.proxy.url, "max_retries": "0"}
        named = {f"storage.{key}": value for key, value in storage.items()}
        return {"path": self.uri, "tableVersion": str(self.version), **named}

    @property
    def uri(self) -> str:
        return f"s3://{BUCKET}/{self.folder}"

    def ids(self) -> list[int]:
        builder = HudiTableBuilder.from_base_uri(self.uri).with_options(self.storage)
        return sorted(row for one in builder.build().read() for row in one.column("id").to_pylist())

    def objects(self) -> list[str]:
        listed = s3_client(self.storage).list_objects_v2(Bucket=BUCKET, Prefix=f"{self.folder}/")
        return [one["Key"].removeprefix(f"{self.folder}/") for one in listed["Contents"]]


@pytest.fixture
def table(s3: dict[str, str], s3_proxy: LossyProxy) -> HudiOnS3:
    return HudiOnS3(s3, s3_proxy, f"tables/{uuid.uuid4()}")


@pytest.fixture
def table9(table: HudiOnS3) -> HudiOnS3:
    return replace(table, version=9)


@pytest.fixture
def query(table: HudiOnS3, store: SqlManifestStore) -> Query:
    return query_of(table, store)


def query_of(table: HudiOnS3, store: SqlManifestStore) -> Query:
    """With one committed batch."""
    query = Query(table, options={"partitionBy": "id"}, store=store)
    query.run(store, query.batch(0), ids(0))
    return query


STEPS: dict[str, tuple[str, list[Fault]]] = {
    "claim": ("PUT claims", []),
    "request": ("PUT requested", []),
    "marker": ("PUT marker", []),
    "copy": ("PUT id%3D1 parquet", ["sent twice"]),  # the marker comes first
    "complete": ("PUT .commit", ["sent twice"]),  # the request comes first
}
STEPS_9 = {"complete": STEPS["complete"], "record": ("PUT completions", [])}
"""Words of the request, and harmless faults of the requests with these words before it."""


@pytest.mark.parametrize("fault", ["request lost", "response lost", "committed, answered 503"])
@pytest.mark.parametrize("step", sorted(STEPS))
def test_a_fault_in_a_step_of_the_commit_adds_the_batch_once(
    table: HudiOnS3, query: Query, store: SqlManifestStore, step: str, fault: Fault
) -> None:
    add_with_fault(table, query, store, step, fault)


@pytest.mark.parametrize("fault", ["request lost", "response lost", "committed, answered 503"])
@pytest.mark.parametrize("step", sorted(STEPS_9))
def test_a_fault_in_a_step_that_only_version_9_has_adds_the_batch_once(
    table9: HudiOnS3, store: SqlManifestStore, step: str, fault: Fault
) -> None:
    add_with_fault(table9, query_of(table9, store), store, step, fault)
    keys = [key.rpartition("/")[2] for key in table9.objects() if key.endswith(".commit")]
    instants = [key.partition("_")[0] for key in keys]
    assert len(instants) == len(set(instants)) == 3


def add_with_fault(table: HudiOnS3, query: Query, store: SqlManifestStore, step: str, fault: Fault) -> None:
    manifest = query.prepare(store, query.batch(1), ids(1))
    words, before = {**STEPS, **STEPS_9}[step]
    table.proxy.spend(*before, fault, on=f"{words} {table.folder}")
    try:
        first: object = query.target().commit(manifest)
    except Exception as error:  # noqa: BLE001  looked at below
        first = error
    assert len(table.proxy.spent()) == len(before) + 1
    table.proxy.spend()
    assert isinstance(query.target().commit(manifest), Committed | AlreadyCommitted)

    if step == "complete" and fault == "request lost":
        assert isinstance(first, CommitStateUnknownError)
    assert table.ids() == [0, 1]
    left = [key for key in table.objects() if "/staged/" in key or "/.temp/" in key or "heartbeat" in key]
    assert left == []


CHANGE_STEPS = {
    "record": "PUT changes",
    "slice": "PUT slices",
    "complete": "PUT .commit",
}


@pytest.mark.parametrize("fault", ["request lost", "response lost", "committed, answered 503"])
@pytest.mark.parametrize("step", sorted(CHANGE_STEPS))
def test_a_fault_in_a_step_of_changes_applies_them_once(
    table: HudiOnS3, store: SqlManifestStore, step: str, fault: Fault
) -> None:
    query = Query(table, options=OPTIONS, store=store)
    query.run(store, query.batch(0), changes((1, 1, "a"), (2, 1, "b"), (3, 1, "c")))
    manifest = query.prepare(store, query.batch(1), changes((1, 2, "A"), (2, 2)))
    before: list[Fault] = ["sent twice"] if step == "complete" else []  # the request comes first
    table.proxy.spend(*before, fault, on=f"{CHANGE_STEPS[step]} {table.folder}")
    outcome: object = Conflict("")
    while isinstance(outcome, Conflict | PenstockError):
        try:
            outcome = query.target().commit(manifest)
        except PenstockError as error:
            outcome = error
    assert len(table.proxy.spent()) == len(before) + 1
    table.proxy.spend()
    assert table.ids() == [1, 3]
    query.run(store, query.batch(2), changes((3, 2)), run_id="r2")
    assert table.ids() == [1]
    left = [key for key in table.objects() if "/staged/" in key or "/slices/" in key or "/.temp/" in key]
    # a file is left to clean-up if it is not known to be there, or whether the commit was decided on
    assert len(left) <= (0 if step == "complete" else 1)


def test_a_commit_on_s3_leaves_only_what_readers_and_the_token_need(table: HudiOnS3, query: Query) -> None:
    kinds = sorted({key.rpartition("/")[0] for key in table.objects()})

    assert kinds == [".hoodie", ".hoodie/.penstock/claims/q1", "id=0"]
    token = query.target().token("q1")
    assert token is not None
    assert token.batch_id == 0


def test_an_archival_between_two_pages_of_a_list_leaves_no_gap(
    table: HudiOnS3, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that neither page has would count as rolled back."""
    monkeypatch.setattr(hudi_table, "PAGE", 10)
    instants = put_commits(table, 30)
    client, names = s3_client(table.storage), HudiStorage.names

    def while_it_is_archived(storage: HudiStorage, folder: str) -> list[str]:
        found = names(storage, folder)
        for instant in instants[:20]:
            client.delete_object(Bucket=BUCKET, Key=f"{table.folder}/.hoodie/{instant}.commit")
        return [name for name in found if not instants[10] <= name[:17] < instants[20]]

    monkeypatch.setattr(HudiStorage, "names", while_it_is_archived)
    timeline = HudiTableFiles(table.uri, table.storage).timeline()

    assert timeline.first == instants[20]
    assert timeline.is_archived(instants[15])


def put_commits(table: HudiOnS3, count: int) -> list[str]:
    """Commits of others before all that the table has."""
    client = s3_client(table.storage)
    instants = [str(20250101000000000 + number) for number in range(count)]
    for instant in instants:
        name = instant if table.version == 6 else f"timeline/{instant}_{instant}"
        client.put_object(Bucket=BUCKET, Key=f"{table.folder}/.hoodie/{name}.commit", Body=b"{}")
    return instants


@pytest.mark.parametrize("version", [6, 9])
def test_a_batch_lists_only_the_ends_of_a_long_timeline(
    table: HudiOnS3, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """So that the number of its requests does not grow. Here a page has 10 names instead of 1000."""
    table = replace(table, version=version)
    query = query_of(table, store)
    monkeypatch.setattr(hudi_table, "PAGE", 10)
    put_commits(table, 120)
    files = HudiTableFiles(table.uri, table.storage)
    whole = files.timeline()
    recent = files.recent_timeline()
    harmless: list[Fault] = ["sent twice"]
    table.proxy.spend(*harmless * 100, on=f"GET list-type {table.folder.rpartition('/')[2]}")
    query.run(store, query.batch(1), ids(1))

    assert recent.commits == (*whole.commits[:10], *whole.commits[-100:])
    assert (recent.first, recent.latest) == (whole.first, whole.latest)
    lists = [line for line in table.proxy.spent() if ".penstock" not in line]
    assert lists
    assert all("start-after" in line for line in lists)
    token = query.target().token("q1")
    assert token is not None
    assert token.batch_id == 1


def test_changes_of_partitions_with_escaped_names_are_read(table: HudiOnS3, store: SqlManifestStore) -> None:
    """Their folders are listed by name."""
    options = {"writeMode": "upsert", "keys": "id", "partitionBy": "day"}
    query = Query(table, options=options, store=store)
    days = ["2026/1", "50% & more", "é"]
    query.run(store, query.batch(0), pa.table({"id": [0, 1, 2, 3], "day": [*days, days[0]]}))
    source = {name: value for name, value in table.options.items() if name != "tableVersion"}
    stream = TableStream("penstock.hudi", {**source, "changes": "true", "columns": "id, day, _change_type"})

    def read() -> list[tuple[int, str, str]]:
        return sorted((row["id"], row["day"], row["_change_type"]) for row in stream.next() or ())

    assert len(read()) == 4
    query.run(store, query.batch(1), pa.table({"id": [0, 1, 2], "day": [*days[1:], days[0]]}))
    moved = days[1:] + days[:1]
    gone = [(number, day, "delete") for number, day in enumerate(days)]
    added = [(number, day, "insert") for number, day in enumerate(moved)]
    assert read() == sorted(gone + added)
