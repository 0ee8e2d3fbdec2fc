"""SIGKILL to a driver that streams into many destinations at once: each of them has every row once.

All streams of a group are in one driver, as starting a Spark takes longer than the rest. Each stream has
crash points of its own; the driver is killed once all of them have reached theirs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest
from servers.aws import KEY, SECRET, aws_server
from servers.clickhouse import clickhouse
from servers.http_rows import http_rows
from servers.kafka import kafka_server
from servers.mysql import MariaDB, MySQL, MySqlProcess, running
from servers.nats import nats_server
from servers.postgres import postgres
from servers.redis import redis_server
from servers.unreachable import UnreachableError
from tests.conformance.harnesses import (
    DeduplicatingHttpHarness,
    DuckLakeHarness,
    HudiHarness,
    KinesisHarness,
    MySqlHarness,
    NatsIdHarness,
    PostgresHarness,
    PreparedMySqlHarness,
    PreparedPostgresHarness,
    RedisFenceHarness,
)
from tests.spark.killed_stream import FILES, ROWS, ROWS_PER_FILE, KilledDriver, KilledStream
from tests.support.cli import Ended
from tests.support.clickhouse_table import ClickHouseHarness
from tests.support.duckdb_table import DuckDbHarness
from tests.support.ducklakes import sqlite_lake
from tests.support.files import FilesHarness
from tests.support.kafka_topic import KafkaHarness
from tests.support.lance_table import LanceHarness
from tests.support.sqlite_table import SqliteHarness

import penstock
from penstock.testing.conformance import DestinationHarness
from penstock.testing.conformance.query import source_of

pytestmark = [pytest.mark.spark, pytest.mark.kills, pytest.mark.timeout(1200)]

PREPARED = ("prepared.decided", "prepared.ended")
BETWEEN_THE_PHASES = ("prepare.done", "commit.landed")


@dataclass(frozen=True)
class Killed:
    """A destination, and what a query into it is killed at.

    Args:
        new: makes the harness of an empty destination in a folder
    """

    new: Callable[[Path], DestinationHarness]
    kills: Sequence[str] = BETWEEN_THE_PHASES
    options: Mapping[str, str] = field(default_factory=dict)


Destinations: TypeAlias = dict[str, Killed]


def tables(_stack: ExitStack, _new_postgres_url: Callable[[], str]) -> Destinations:
    def json_lines(folder: Path) -> DestinationHarness:
        from tests.plug_in.harness import JsonLinesHarness

        return JsonLinesHarness(folder)

    starts = ("commit.start", "commit.landed")
    return {
        "ducklake": Killed(lambda folder: DuckLakeHarness(folder, sqlite_lake(folder).catalog)),
        "files": Killed(FilesHarness, ("write.files_closed", "commit.landed")),
        "hudi": Killed(HudiHarness, starts, {"partitionBy": "day", "recordKey": "id"}),
        "hudi9": Killed(lambda folder: HudiHarness(folder, 9), starts),
        "lance": Killed(LanceHarness),
        "plug-in": Killed(json_lines, ("prepare.done", "mark.done")),
    }


def databases(stack: ExitStack, new_postgres_url: Callable[[], str]) -> Destinations:
    def mysql(
        harness: type[MySqlHarness], server: type[MySqlProcess]
    ) -> Callable[[Path], DestinationHarness]:
        return lambda _: harness(stack.enter_context(running(server)).new_url)

    return {
        "clickhouse": Killed(
            lambda _: ClickHouseHarness(stack.enter_context(clickhouse())),
            ("clickhouse.decided", "clickhouse.moved"),
        ),
        "duckdb": Killed(DuckDbHarness),
        "postgres": Killed(lambda _: PostgresHarness(new_postgres_url)),
        "postgres-prepared": Killed(
            lambda _: PreparedPostgresHarness(stack.enter_context(postgres()).new_url), PREPARED
        ),
        "mariadb": Killed(mysql(MySqlHarness, MariaDB)),
        "mariadb-prepared": Killed(mysql(PreparedMySqlHarness, MariaDB), PREPARED),
        "mysql": Killed(mysql(MySqlHarness, MySQL)),
        "mysql-prepared": Killed(mysql(PreparedMySqlHarness, MySQL), PREPARED),
        "sql": Killed(SqliteHarness),
    }


def services(stack: ExitStack, _new_postgres_url: Callable[[], str]) -> Destinations:
    def http(folder: Path) -> DestinationHarness:
        """The service takes each key once, and the rows have ids."""
        return DeduplicatingHttpHarness(folder, stack.enter_context(http_rows()))

    def kinesis(folder: Path) -> DestinationHarness:
        server = stack.enter_context(aws_server())
        return stack.enter_context(KinesisHarness(folder, server).created())

    def redis(folder: Path) -> DestinationHarness:
        return RedisFenceHarness(folder, stack.enter_context(redis_server()))

    def nats(folder: Path) -> DestinationHarness:
        server = stack.enter_context(nats_server())
        return stack.enter_context(NatsIdHarness(folder, server).created())

    def kafka(folder: Path) -> DestinationHarness:
        harness = KafkaHarness(folder, stack.enter_context(kafka_server(folder / "broker")))
        harness.create()
        return harness

    prepares = ("prepare.start", "prepare.done")
    written, decoupled = ("write.files_closed", "prepare.done"), {"delivery": "decoupled"}
    return {
        "http": Killed(http, prepares),
        "http-decoupled": Killed(http, written, decoupled),
        "kinesis": Killed(kinesis, prepares, {"accessKeyId": KEY, "secretAccessKey": SECRET}),
        "redis-decoupled": Killed(redis, written, decoupled),
        "kafka": Killed(kafka),
        "nats": Killed(nats, prepares),
    }


REPEATED_MAX = {"kinesis": ROWS_PER_FILE}
"""Rows that may be there twice: those of the batch whose manifest was not stored."""

GROUPS = {"tables": tables, "databases": databases, "services": services}


AfterKills: TypeAlias = Callable[[str], Mapping[str, DestinationHarness]]


@pytest.fixture(scope="module")
def after_kills(
    tmp_path_factory: pytest.TempPathFactory, new_postgres_url: Callable[[], str], plug_in: Path
) -> Iterator[AfterKills]:
    """Returns the destinations of a group after all kills, and one run to the end of the source. Those whose
    server cannot be downloaded are left out.
    """
    with ExitStack() as servers:

        @cache
        def harnesses(group: str) -> Mapping[str, DestinationHarness]:
            root, streams = tmp_path_factory.mktemp(group), []
            made: dict[str, DestinationHarness] = {}
            for name, killed in GROUPS[group](servers, new_postgres_url).items():
                (folder := root / name).mkdir()
                try:
                    made[name] = harness = killed.new(folder)
                except UnreachableError:
                    continue
                options = {**harness.options, **killed.options}
                streams.append(KilledStream(folder, source_of(harness).name(), options, killed.kills))
            source = str(Path(penstock.__file__).absolute().parents[1])
            KilledDriver(root, streams, {"PYTHONPATH": os.pathsep.join([str(plug_in), source])}).run()
            for name in {"http-decoupled", "redis-decoupled"}.intersection(made):
                delivered = Ended("deliver", "--once", "--checkpoint", str(root / name / "checkpoint"))
                assert delivered.code == 0, delivered.err
            return made

        yield harnesses


@pytest.mark.parametrize(
    ("group", "name"), [(group, name) for group, of in GROUPS.items() for name in of(ExitStack(), str)]
)
def test_a_driver_that_is_killed_between_the_phases_loses_and_doubles_nothing(
    group: str, name: str, after_kills: AfterKills
) -> None:
    """SIGKILL once written or prepared, and once in the destination."""
    harnesses = after_kills(group)
    if name not in harnesses:
        pytest.skip("Debian's packages cannot be reached, or Maven cannot be reached")
    ids = harnesses[name].ids()
    assert sorted(set(ids)) == list(range(ROWS))
    assert len(ids) - ROWS <= REPEATED_MAX.get(name, 0)
    assert harnesses[name].problems() == []


def test_killed_drivers_leave_nothing_pending_in_a_hudi_table(after_kills: AfterKills) -> None:
    lake = after_kills("tables")["hudi"]
    assert isinstance(lake, HudiHarness)
    assert {path.partition("/")[0] for path in lake.visible_files()} == {"day=d0", "day=d1", "day=d2"}
    assert not lake.pending()


def test_each_batch_is_one_file_of_the_plug_in(after_kills: AfterKills) -> None:
    folder = Path(after_kills("tables")["plug-in"].options["path"])
    assert len(list(folder.glob("*.jsonl"))) == FILES
