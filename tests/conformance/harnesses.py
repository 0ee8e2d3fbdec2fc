"""The destinations of this package, as the conformance suite asks for them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path

import psycopg
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from tests.committers.lakes import named_files
from tests.committers.postgres_tables import PostgresQuery, commit_answers
from tests.tables import DeltaOnDisk, IcebergOnDisk, TableOnDisk, rows

from penstock import testing
from penstock.committers.delta.log_files import LocalLogFiles
from penstock.datasource.delta.sink import DESTINATION as DELTA
from penstock.datasource.delta.source import DeltaDataSource
from penstock.datasource.iceberg.sink import DESTINATION as ICEBERG
from penstock.datasource.iceberg.source import IcebergDataSource
from penstock.datasource.postgres.source import PostgresDataSource
from penstock.datasource.postgres.stored import DESTINATION as POSTGRES
from penstock.testing.conformance import SECRET, DestinationHarness, Lost, Promises
from penstock.testing.faults import lossy

IDS = pa.schema([("id", pa.int64())])


def invariant_problems(table: TableOnDisk, ids: list[int]) -> list[str]:
    """No file named twice, none missing, tokens ascending: see `testing.invariant`."""
    source = f"(SELECT unnest({ids}::BIGINT[]) AS id)"
    return testing.check(table, source).problems


class DeltaHarness(DestinationHarness):
    """A folder on the local disk, read by duckdb."""

    data_source = DeltaDataSource
    destination = DELTA
    promises = Promises(
        name="Delta tables",
        payload="Parquet files in the table's folder, which no version of its log names",
        commit="the next file of the log, created if it is not there",
        token="transaction identifiers (`txn`) in the same log entry",
        shows_secrets_to_tasks=True,
        crash_points=(
            "table.created",
            "write.file_open",
            "write.files_closed",
            "commit.start",
            "commit.landed",
        ),
    )

    def __init__(self, folder: Path) -> None:
        self._table = DeltaOnDisk(folder / "table")

    @property
    def path(self) -> str:
        return str(self._table.folder)

    @property
    def options(self) -> dict[str, str]:
        return {"path": self.path}

    @property
    def secret_options(self) -> dict[str, str]:
        return {**self.options, "storage.AWS_SECRET_ACCESS_KEY": SECRET}

    @property
    def small_buffer(self) -> dict[str, str]:
        return {"bufferSize": "4mb"}

    def ids(self) -> list[int]:
        return [int(str(row[0])) for row in rows(self._table, "id")] if self._exists else []

    def uncommitted(self) -> Collection[str]:
        named = set(self._table.added()) if self._exists else set()
        return {name for name in self._table.data_files() if str(self._table.folder / name) not in named}

    def problems(self) -> list[str]:
        return invariant_problems(self._table, self.ids()) if self._exists else []

    def losing(self, lost: Lost) -> AbstractContextManager[None]:
        return lossy(LocalLogFiles, "put", lost, OSError("the connection was lost"))

    def delete_uncommitted(self) -> None:
        for name in self.uncommitted():
            (self._table.folder / name).unlink()

    def append(self, row_id: int) -> None:
        write_deltalake(self.path, pa.table({"id": [row_id]}), mode="append")

    def drop(self) -> None:
        shutil.rmtree(self.path)

    def recreate(self) -> None:
        self.drop()
        DeltaTable.create(self.path, IDS)

    def roll_back(self) -> None:
        table = DeltaTable(self.path)
        table.restore(table.version() - 1)

    @property
    def _exists(self) -> bool:
        return (self._table.folder / "_delta_log").exists()


class DeltaLibraryHarness(DeltaHarness):
    """The same, committed to by the Delta library."""

    def losing(self, lost: Lost) -> AbstractContextManager[None]:
        return lossy(DeltaTable, "create_write_transaction", lost, OSError("the connection was lost"))


class IcebergHarness(DestinationHarness):
    """A table in the embedded catalog, read by duckdb. Others write it through pyiceberg itself."""

    data_source = IcebergDataSource
    destination = ICEBERG
    promises = Promises(
        name="Iceberg tables",
        payload="Parquet files in the table's location, which no snapshot names",
        commit="the next metadata file, swapped in by the catalog",
        token="a table property in the same metadata file, which names the snapshot",
        crash_points=(
            "table.created",
            "write.file_open",
            "write.files_closed",
            "commit.start",
            "commit.landed",
        ),
    )

    def __init__(self, folder: Path) -> None:
        self._warehouse = folder / "warehouse"
        self._table = IcebergOnDisk(self._warehouse)

    @property
    def options(self) -> dict[str, str]:
        return {"warehouse": str(self._warehouse), "table": self._table.table}

    @property
    def secret_options(self) -> dict[str, str]:
        self._warehouse.mkdir(exist_ok=True)
        properties = {"type": "sql", "token": SECRET, **self._properties}
        catalog = {f"catalog.{key}": value for key, value in properties.items()}
        return {"table": self._table.table, "catalog": "penstock", **catalog}

    @property
    def unreachable_options(self) -> dict[str, str]:
        catalog = {"catalog.type": "rest", "catalog.uri": "http://127.0.0.1:1", "catalog.token": SECRET}
        return {"table": self._table.table, "catalog": "far", **catalog}

    @property
    def small_buffer(self) -> dict[str, str]:
        return {"bufferSize": "4mb"}

    def ids(self) -> list[int]:
        return [int(str(row[0])) for row in rows(self._table, "id")] if self._table.exists else []

    def uncommitted(self) -> Collection[str]:
        """Metadata belongs to commits, which are not at issue."""
        named = set(named_files(self._load())) if self._table.exists else set()
        found = self._table.folder.rglob("*.parquet")
        return {str(path) for path in found if f"file://{path}" not in named}

    def problems(self) -> list[str]:
        return invariant_problems(self._table, self.ids()) if self._table.exists else []

    def losing(self, lost: Lost) -> AbstractContextManager[None]:
        return lossy(SqlCatalog, "commit_table", lost, ConnectionError("the connection was lost"))

    def delete_uncommitted(self) -> None:
        for path in self.uncommitted():
            Path(path).unlink()

    def append(self, row_id: int) -> None:
        self._load().append(pa.table({"id": [row_id]}))

    def drop(self) -> None:
        self._catalog().drop_table(self._table.table)
        shutil.rmtree(self._table.folder)

    def recreate(self) -> None:
        self.drop()
        self._catalog().create_table(self._table.table, IDS)

    def roll_back(self) -> None:
        table = self._load()
        head = table.current_snapshot()
        assert head is not None
        assert head.parent_snapshot_id is not None
        table.manage_snapshots().rollback_to_snapshot(head.parent_snapshot_id).commit()

    @property
    def _properties(self) -> dict[str, str]:
        return {
            "uri": f"sqlite:///{self._warehouse}/catalog.sqlite",
            "warehouse": f"file://{self._warehouse}",
        }

    def _catalog(self) -> SqlCatalog:
        """As anybody else opens the embedded catalog."""
        return SqlCatalog("penstock", **self._properties)

    def _load(self) -> Table:
        return self._catalog().load_table(self._table.table)


class PostgresHarness(DestinationHarness):
    """A table in a schema of its own, read by psycopg."""

    data_source = PostgresDataSource
    destination = POSTGRES
    promises = Promises(
        name="Postgres tables",
        payload="a staging table for each task",
        commit="one transaction that moves the rows into the table",
        token="a row of the table `penstock_fence`, changed in the same transaction",
        shows_secrets_to_tasks=True,
        crash_points=(
            "table.created",
            "write.file_open",
            "write.files_closed",
            "commit.start",
            "commit.landed",
        ),
    )

    def __init__(self, new_url: Callable[[], str]) -> None:
        self._others = PostgresQuery(new_url())

    @property
    def options(self) -> dict[str, str]:
        return {"url": self._others.url, "dbtable": f"{self._others.schema}.events"}

    @property
    def secret_options(self) -> dict[str, str]:
        return {**self.options, "url": self._others.url.replace("//postgres:@", f"//postgres:{SECRET}@", 1)}

    @property
    def unreachable_options(self) -> dict[str, str]:
        return {**self.options, "url": f"postgresql://me:{SECRET}@localhost:1/db"}

    def ids(self) -> list[int]:
        ((is_there,),) = self._others.sql("SELECT to_regclass('events') IS NOT NULL")
        return self._others.ids() if is_there else []

    def uncommitted(self) -> Collection[str]:
        return self._others.staged()

    def losing(self, lost: Lost) -> AbstractContextManager[None]:
        def answer(connection: psycopg.Connection) -> None:
            if lost == "response":
                connection.commit()
            else:
                connection.close()  # the server sees only that the connection has ended
            raise psycopg.OperationalError("the connection was lost")

        return commit_answers(answer)

    def delete_uncommitted(self) -> None:
        for name in self.uncommitted():
            self._others.sql(f"DROP TABLE {name}")

    def append(self, row_id: int) -> None:
        self._others.sql(f"INSERT INTO events (id) VALUES ({row_id})")

    def drop(self) -> None:
        self._others.sql("DROP TABLE events")

    def recreate(self) -> None:
        self.drop()
        self._others.sql("CREATE TABLE events (id bigint)")

    def roll_back(self) -> None:
        """Of what Postgres itself can put back, only the fence says what the table holds."""
        self._others.sql("UPDATE penstock_fence SET batch_id = batch_id - 1")
