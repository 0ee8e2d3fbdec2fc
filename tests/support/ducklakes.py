"""A table of a DuckLake that a query writes, as others see it: through a duckdb of their own."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from servers.s3 import BUCKET
from tests.support.faults import in_next_call

from penstock.committers.ducklake import connection
from penstock.committers.ducklake.address import DuckLakeAddress, DuckLakeCatalog
from penstock.committers.ducklake.connection import Lake, LakeServer
from penstock.datasource.destinations import DestinationType
from penstock.datasource.ducklake.sink import DESTINATION
from penstock.testing.conformance import Lost
from penstock.testing.duckdb_reader import load_extensions


@cache
def reader() -> duckdb.DuckDBPyConnection:
    """A duckdb that shares nothing with the writer's. Loading its extensions takes a second."""
    reader = duckdb.connect()
    load_extensions(reader, "sqlite-scanner", "postgres-scanner", "httpfs", "ducklake")
    return reader


@dataclass(frozen=True)
class DuckLake:
    """The table `main.events` of a DuckLake.

    Args:
        folder: of the data path and of a catalog in a file
        catalog: the option `catalog`
        s3: options of a server of S3 that has the data instead
    """

    folder: Path
    catalog: str
    s3: dict[str, str] = field(default_factory=dict)
    destination: ClassVar[DestinationType] = DESTINATION

    @property
    def options(self) -> dict[str, str]:
        named = {"catalog": self.catalog, "table": "main.events", "dataPath": self.data_path}
        return {**named, **self.storage_options}

    @property
    def storage_options(self) -> dict[str, str]:
        return {f"storage.{key}": value for key, value in self.s3.items()}

    @property
    def data_path(self) -> str:
        return f"s3://{BUCKET}{self.folder}/data/" if self.s3 else f"{self.folder}/data/"

    @property
    def files(self) -> Path:
        """Where the files of tasks are."""
        return self.folder / "data.penstock" / "main.events"

    @property
    def exists(self) -> bool:
        """Return True if there is the DuckLake and the table."""
        kind, _, path = self.catalog.partition(":")
        if kind != "postgresql" and not Path(path).exists():
            return False
        found = self.sql(
            "SELECT 1 FROM duckdb_tables() WHERE database_name = 'lake' AND table_name = 'events'"
        )
        return bool(found)

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements in one connection; return the rows of the last. The table is `events`."""
        with reader().cursor() as other:
            if self.s3:
                endpoint = self.s3["AWS_ENDPOINT_URL"].removeprefix("http://")
                other.execute(
                    "CREATE OR REPLACE SECRET s (TYPE s3, KEY_ID 'key', SECRET 'secret', REGION 'us-east-1', "
                    f"ENDPOINT '{endpoint}', URL_STYLE 'path', USE_SSL false)"
                )
            other.execute(f"ATTACH '{self.source}' AS lake (DATA_PATH '{self.data_path}')")
            try:
                other.execute("USE lake")
                for statement in statements:
                    rows = other.execute(statement).fetchall()
                return rows
            finally:
                other.execute("USE memory")
                other.execute("DETACH lake")

    @property
    def source(self) -> str:
        kind, _, path = self.catalog.partition(":")
        if kind == "postgresql":
            return f"ducklake:postgres:{make_conninfo(self.catalog)}"
        return f"ducklake:{'sqlite:' if kind == 'sqlite' else ''}{path}"

    def named(self) -> set[str]:
        """Names of the files of tasks that the newest snapshot lists."""
        rows = self.sql("SELECT data_file FROM ducklake_list_files('lake', 'events')") if self.exists else []
        return {Path(path).name for (path,) in rows}


def server_of(lake: DuckLake) -> LakeServer:
    return LakeServer(DuckLakeAddress(DuckLakeCatalog.parse(lake.catalog), "main", "events"))


def sqlite_lake(folder: Path) -> DuckLake:
    return DuckLake(folder, f"sqlite:{folder}/catalog.sqlite")


def duckdb_lake(folder: Path) -> DuckLake:
    return DuckLake(folder, f"duckdb:{folder}/catalog.ducklake")


def postgres_lake(folder: Path, new_url: Callable[[], str]) -> DuckLake:
    """In a new database of the server: a DuckLake takes the schema `public`."""
    url = new_url().replace("+psycopg", "")
    name = f"lake_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
    return DuckLake(folder, f"postgresql://postgres:@/{name}?host={conninfo_to_dict(url)['host']}")


NEW_LAKES = ("sqlite", "duckdb", "postgresql and S3")


def new_lake_of(kind: str, request: pytest.FixtureRequest) -> Callable[[Path], DuckLake]:
    """Return what makes a DuckLake in a folder.

    Args:
        kind: one of `NEW_LAKES`
    """
    if kind == "postgresql and S3":
        new_url = request.getfixturevalue("new_postgres_url")
        s3 = request.getfixturevalue("s3")
        return lambda folder: replace(postgres_lake(folder, new_url), s3=s3)
    return {"sqlite": sqlite_lake, "duckdb": duckdb_lake}[kind]


def losing_commit(lost: Lost) -> AbstractContextManager[None]:
    """Inside the block the next COMMIT is lost, or its response."""

    def commit(real: Callable[[Lake], duckdb.Error | None], lake: Lake) -> duckdb.Error:
        if lost == "response":
            assert real(lake) is None
        else:
            lake.cursor.execute("ROLLBACK")
        return duckdb.IOException("the connection was lost")

    return in_next_call(connection, "commit", commit)
