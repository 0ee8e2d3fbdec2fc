"""The harnesses of the built-in destinations for the conformance suite."""

from __future__ import annotations

import json
import re
import uuid
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import psycopg
import pymysql
from deltalake import DeltaTable
from nats.js.errors import NotFoundError
from pyiceberg.catalog.sql import SqlCatalog
from servers.aws import REGION, AwsServer
from servers.http_rows import HttpRows
from servers.lossy_proxy import LossyProxy
from servers.lossy_tcp import LossyTcp
from servers.nats import NatsServer
from servers.opensearch import OpenSearchServer
from servers.redis import RedisServer
from tests.support.ducklakes import DuckLake, losing_commit
from tests.support.harness import CRASH_POINTS, FileTableHarness
from tests.support.hudi import HudiLake
from tests.support.lakes import DeltaLake, IcebergLake, Lake
from tests.support.lossy_requests import ProxiedHarness
from tests.support.mysql import MySqlTable
from tests.support.postgres import PostgresTable
from tests.support.sql_table import SqlTableHarness

from penstock import testing
from penstock.committers.database.staging import query_hash
from penstock.committers.delta.log_files import LocalLogFiles
from penstock.committers.hudi.publishing import Publishing
from penstock.datasource.aws import dynamodb, firehose, kinesis, sqs
from penstock.datasource.http.sink import DESTINATION
from penstock.datasource.nats import sink as nats_sink
from penstock.datasource.redis import sink as redis_sink
from penstock.datasource.search import elasticsearch, opensearch
from penstock.testing.conformance import SECRET, Lost, Promises, RequestHarness
from penstock.testing.conformance.harness import ChangedRow, VersionRow
from penstock.testing.conformance.request_harness import quoted
from penstock.testing.faults import lossy

if TYPE_CHECKING:
    from typing_extensions import Self


class LakeHarness(Lake, FileTableHarness):
    """A table of files on the local disk, read by duckdb."""

    @property
    def read_options(self) -> dict[str, str]:
        return self.options

    def changed_rows(self) -> Sequence[ChangedRow]:
        return cast("Sequence[ChangedRow]", self.rows("id, n, text"))

    def version_rows(self) -> Sequence[VersionRow]:
        return cast("Sequence[VersionRow]", self.rows("id, valid_from, valid_to, is_current, text"))

    def uncommitted(self) -> Collection[str]:
        """Data files only: metadata files belong to commits."""
        named = self._newest().live if self.exists else ()
        return {name for name in self.data_files() if str(self.folder / name) not in named}

    def delete_uncommitted(self) -> None:
        for name in self.uncommitted():
            (self.folder / name).unlink()

    def problems(self) -> list[str]:
        """No file referenced twice, none missing, tokens ascending: see `testing.invariant`."""
        if not self.exists:
            return []
        source = f"(SELECT unnest({self.ids()}::BIGINT[]) AS id)"
        return testing.check(self, source).problems


class DeltaHarness(DeltaLake, LakeHarness):
    promises = Promises(
        name="Delta tables",
        payload="Parquet files in the table's folder, which no version of its log names",
        commit="the next file of the log, created if it is not there",
        token="transaction identifiers (`txn`) in the same log entry",
        shows_secrets_to_tasks=True,
        changes="masks them with deletion vectors, or writes their files again",
        computes_rows=True,
        narrows=True,
        evolves=True,
        quarantines=True,
        reserved_columns=("__delta_internal_row_index",),
        crash_points=(*CRASH_POINTS, "evolve.done"),
    )
    secrets: ClassVar = {"storage.AWS_SECRET_ACCESS_KEY": SECRET}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "table")

    @property
    def evolving(self) -> Mapping[str, str]:
        return {"typeWidening": "true"}

    def options_by(self, column: str) -> Mapping[str, str]:
        return {"partitionBy": column}

    def losing(self, lost: Lost) -> AbstractContextManager[None]:
        return lossy(LocalLogFiles, "put", lost, OSError("the connection was lost"))


class DeltaLibraryHarness(DeltaHarness):
    """The same, committed to by the Delta library."""

    def losing(self, lost: Lost) -> AbstractContextManager[None]:
        return lossy(DeltaTable, "create_write_transaction", lost, OSError("the connection was lost"))


class IcebergHarness(IcebergLake, LakeHarness):
    """In the embedded catalog. Others write it through pyiceberg itself."""

    promises = Promises(
        name="Iceberg tables",
        payload="Parquet files in the table's location, which no snapshot names",
        commit="the next metadata file, swapped in by the catalog",
        token="a table property in the same metadata file, which names the snapshot",
        changes="masks them with position deletes, or writes their files again",
        computes_rows=True,
        narrows=True,
        evolves=True,
        quarantines=True,
        reserved_columns=(
            "_file",
            "_pos",
            "_deleted",
            "_spec_id",
            "_partition",
            "_row_id",
            "_last_updated_sequence_number",
        ),
        crash_points=CRASH_POINTS,
    )

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "warehouse")

    @property
    def secret_options(self) -> dict[str, str]:
        properties = {"type": "sql", "token": SECRET, **self.sql_catalog.properties}
        catalog = {f"catalog.{key}": value for key, value in properties.items()}
        return {"table": self.table, "catalog": "penstock", **catalog}

    @property
    def unreachable_options(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self.unreachable_port}"
        catalog = {"catalog.type": "rest", "catalog.uri": url, "catalog.token": SECRET}
        return {"table": self.table, "catalog": "far", **catalog}

    def options_by(self, column: str) -> Mapping[str, str]:
        return {"partitionSpec": column}

    def losing(self, lost: Lost) -> AbstractContextManager[None]:
        return lossy(SqlCatalog, "commit_table", lost, ConnectionError("the connection was lost"))


class HudiHarness(HudiLake, FileTableHarness):
    """A table on the local disk, read by the package hudi."""

    promises = Promises(
        name="Hudi tables",
        payload="Parquet files in a folder of the table that no reader lists",
        commit="the completed instant, created if it is not there; before it, the files go to their places",
        token="the claim of the batch, which names the instant; also `extraMetadata` of the commit",
        overwrites=False,
        changes="writes their files again, as the next slices of their file groups",
        computes_rows=True,
        shows_secrets_to_tasks=True,
        narrows=True,
        quarantines=True,
        reserved_columns=("_hoodie_record_key", "_hoodie_operation", "_hoodie_is_deleted"),
        crash_points=CRASH_POINTS,
    )
    secrets: ClassVar = {"storage.AWS_SECRET_ACCESS_KEY": SECRET}

    @property
    def read_options(self) -> dict[str, str]:
        return {"path": str(self.folder)}

    def options_by(self, column: str) -> Mapping[str, str]:
        return {"partitionBy": column, "hiveStylePartitions": "false"}

    def options_of_keys(self, keys: Sequence[str]) -> Mapping[str, str] | None:
        return None  # a record key has strings and integers

    def changed_rows(self) -> Sequence[ChangedRow]:
        return cast("Sequence[ChangedRow]", self._columns("id", "n", "text"))

    def version_rows(self) -> Sequence[VersionRow]:
        names = ("id", "valid_from", "valid_to", "is_current", "text")
        return cast("Sequence[VersionRow]", self._columns(*names))

    def _columns(self, *names: str) -> list[tuple[Any, ...]]:
        return [tuple([row.get(name) for name in names]) for row in self.rows()]

    def losing(self, lost: Lost) -> AbstractContextManager[None]:
        return lossy(Publishing, "complete", lost, OSError("the connection was lost"))

    def delete_uncommitted(self) -> None:
        for name in self.uncommitted():
            (self.folder / name).unlink()


class PostgresHarness(PostgresTable, SqlTableHarness):
    """A table in a schema of its own, read by psycopg."""

    promises = Promises(
        name="Postgres tables",
        payload="a staging table for each task",
        commit="one transaction that moves the rows into the table",
        token="a row of the table `penstock_fence`, changed in the same transaction",
        shows_secrets_to_tasks=True,
        changes="`ON CONFLICT DO UPDATE` and `DELETE` in its transaction",
        computes_rows=True,
        narrows=True,
        evolves=True,
        quarantines=True,
        reserved_columns=("xmin", "ctid"),
        crash_points=CRASH_POINTS,
    )
    lost_connection: ClassVar[Exception] = psycopg.OperationalError("the connection was lost")

    @property
    def read_options(self) -> dict[str, str]:
        return {name: self.options[name] for name in ("url", "dbtable")}

    def __init__(self, new_url: Callable[[], str]) -> None:
        super().__init__(new_url())

    @property
    def secret_options(self) -> dict[str, str]:
        return {**self.options, "url": self.url.replace("//postgres:@", f"//postgres:{SECRET}@", 1)}

    @property
    def unreachable_options(self) -> dict[str, str]:
        return {**self.options, "url": f"postgresql://me:{SECRET}@127.0.0.1:{self.unreachable_port}/db"}

    def ids(self) -> list[int]:
        ((is_there,),) = self.sql("SELECT to_regclass('events') IS NOT NULL")
        return PostgresTable.ids(self) if is_there else []

    def version_rows(self) -> Sequence[VersionRow]:
        columns = "id, valid_from, valid_to, is_current, text"
        return cast("Sequence[VersionRow]", self.sql(f"SELECT {columns} FROM events"))

    def uncommitted(self) -> Collection[str]:
        return self.staged()


def _with_prepared(promises: Promises, name: str) -> Promises:
    """The promises of a database table with `commit=prepared`."""
    return replace(
        promises,
        name=name,
        payload="a prepared transaction for each task",
        commit="one transaction that decides, after which the prepared ones are committed",
        token="a row of the table `penstock_fence`, changed in the deciding transaction",
        is_atomic=False,
        undoes_attempts=True,
        overwrites=False,
        adds_columns=False,
        narrows=False,
        evolves=False,
        quarantines=False,
        changes="",
        computes_rows=False,
    )


class PreparedPostgresHarness(PostgresHarness):
    """The same with `commit=prepared`."""

    promises = _with_prepared(PostgresHarness.promises, "Postgres tables with commit=prepared")

    @property
    def options(self) -> dict[str, str]:
        return {**super().options, "commit": "prepared"}

    @property
    def secret_options(self) -> dict[str, str]:
        return {**self.options, "url": self.url.replace("//postgres@", f"//postgres:{SECRET}@", 1)}

    @property
    def unreachable_options(self) -> dict[str, str]:
        return {}  # decoupled delivery is refused

    def uncommitted(self) -> Collection[str]:
        return [*self.staged(), *self._kept(), *self._verdicts()]

    def delete_uncommitted(self) -> None:
        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True) as other:
            for name in self._kept():
                other.execute(f"ROLLBACK PREPARED '{name}'")

    def _kept(self) -> list[str]:
        table = f'"{self.schema}"."events"'
        found = [gid for (gid,) in self.sql("SELECT gid FROM pg_prepared_xacts")]
        return [gid for gid in found if query_hash(gid.partition("/")[0], table) in gid]

    def _verdicts(self) -> list[str]:
        ((is_there,),) = self.sql("SELECT to_regclass('penstock_prepared') IS NOT NULL")
        return (
            [one for (one,) in self.sql("SELECT transaction_id FROM penstock_prepared")] if is_there else []
        )


class MySqlHarness(MySqlTable, SqlTableHarness):
    """A table in a database of its own, read by PyMySQL."""

    promises = Promises(
        name="MySQL tables",
        payload="a staging table for each task",
        commit="one transaction that moves the rows into the table",
        token="a row of the table `penstock_fence`, changed in the same transaction",
        shows_secrets_to_tasks=True,
        changes="`UPDATE`, `INSERT` and `DELETE` in its transaction",
        narrows=True,
        quarantines=True,
        reserved_columns=("penstock_row",),
        crash_points=CRASH_POINTS,
    )
    lost_connection = pymysql.OperationalError(2013, "Lost connection to MySQL server during query")

    def __init__(self, new_url: Callable[[], str]) -> None:
        super().__init__(new_url())

    @property
    def secret_options(self) -> dict[str, str]:
        return self.options  # its password is SECRET

    @property
    def unreachable_options(self) -> dict[str, str]:
        return {**self.options, "url": f"mysql://me:{SECRET}@127.0.0.1:{self.unreachable_port}/db"}

    def ids(self) -> list[int]:
        return MySqlTable.ids(self) if "events" in self.tables() else []

    def uncommitted(self) -> Collection[str]:
        return self.staged()


class PreparedMySqlHarness(MySqlHarness):
    """The same with `commit=prepared`."""

    promises = _with_prepared(MySqlHarness.promises, "MySQL tables with commit=prepared")

    @property
    def options(self) -> dict[str, str]:
        return {**super().options, "commit": "prepared"}

    @property
    def unreachable_options(self) -> dict[str, str]:
        return {}  # decoupled delivery is refused

    def uncommitted(self) -> Collection[str]:
        verdicts = []
        if "penstock_prepared" in self.tables():
            verdicts = [one for (one,) in self.sql("SELECT transaction_id FROM penstock_prepared")]
        return [*self.staged(), *(name for _, name in self._kept()), *verdicts]

    def delete_uncommitted(self) -> None:
        for query_id, name in self._kept():
            self.sql(f"XA ROLLBACK '{query_id}', '{name}'")

    def _kept(self) -> list[tuple[str, str]]:
        table = f"`{self.schema}`.`events`"
        found = [
            (data[:length].decode(), data[length:].decode()) for _, length, _, data in self.sql("XA RECOVER")
        ]
        return [(query_id, name) for query_id, name in found if query_hash(query_id, table) in name]


class DuckLakeHarness(DuckLake, FileTableHarness):
    """Read by duckdb in a connection of its own, which knows nothing of the writer's."""

    promises = Promises(
        name="DuckLake tables",
        payload="Parquet files beside the data path, which the catalog does not list",
        commit="one transaction of the catalog that registers the files",
        token="a row of the table `penstock_fence` in the DuckLake, changed in the same transaction",
        changes="`DELETE` in its transaction",
        ignores_late_rows=False,
        narrows=True,
        quarantines=True,
        reserved_columns=("_ducklake_internal_row_id", "_ducklake_internal_snapshot_id"),
        crash_points=CRASH_POINTS,
    )

    @property
    def read_options(self) -> dict[str, str]:
        return {name: value for name, value in self.options.items() if name != "dataPath"}

    @property
    def secret_options(self) -> dict[str, str]:
        if not self.catalog.startswith("postgresql"):
            return {}
        return {**self.options, "catalog": self.catalog.replace("//postgres:@", f"//postgres:{SECRET}@", 1)}

    @property
    def unreachable_options(self) -> dict[str, str]:
        if not self.secret_options:
            return {}
        catalog = f"postgresql://me:{SECRET}@127.0.0.1:{self.unreachable_port}/db"
        return {**self.options, "catalog": catalog}

    def options_by(self, column: str) -> Mapping[str, str]:
        return {"partitionBy": column}

    def ids(self) -> list[int]:
        return [row[0] for row in self.sql("SELECT id FROM events")] if self.exists else []

    def changed_rows(self) -> Sequence[ChangedRow]:
        return cast("Sequence[ChangedRow]", self.sql("SELECT id, n, text FROM events") if self.exists else [])

    def uncommitted(self) -> Collection[str]:
        written = {path.name for path in self.files.rglob("*") if path.is_file()}
        return written - self.named()

    def losing(self, lost: Lost) -> AbstractContextManager[None]:
        return losing_commit(lost)

    def delete_uncommitted(self) -> None:
        for name in self.uncommitted():
            (self.files / name).unlink()

    def append(self, row_id: int) -> None:
        self.sql(f"INSERT INTO events (id) VALUES ({row_id})")

    def drop(self) -> None:
        self.sql("DROP TABLE events", "DROP TABLE penstock_fence")

    def recreate(self) -> None:
        self.sql("DROP TABLE events", "CREATE TABLE events (id BIGINT)")

    def roll_back(self) -> None:
        """After a restore, only the fence says which batches the table has."""
        self.sql("UPDATE penstock_fence SET batch_id = batch_id - 1 WHERE batch_id >= 0")


class ServiceHarness(ProxiedHarness):
    """A place of its own in a service, read without Penstock."""

    def create(self) -> None:
        """Create the place, if rows do not."""

    @contextmanager
    def created(self) -> Iterator[Self]:
        """Delete it afterwards."""
        self.create()
        yield self
        self.drop()

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Return all rows that the service has; none if the place was dropped."""

    def ids(self) -> list[int]:
        return [int(row["id"]) for row in self.rows()]

    def changed_rows(self) -> Sequence[ChangedRow]:
        return [(int(row["id"]), _number(row.get("n")), row.get("text")) for row in self.rows()]


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


class HttpHarness(ServiceHarness):
    """An endpoint that takes every request, whether it knows its key or not."""

    promises = replace(RequestHarness.promises, name="HTTP endpoints")
    destination = DESTINATION
    sees_all_names = True
    secrets: ClassVar = {"header.x-api-key": SECRET}
    rows_in = "POST /rows"
    unacknowledging = ("answered a page",)

    def __init__(self, folder: Path, server: HttpRows, proxy: LossyProxy | None = None) -> None:
        super().__init__(folder)
        self._server, self._proxy = server, proxy
        self._base = proxy.url if proxy else server.base

    @property
    def options(self) -> dict[str, str]:
        return {"url": f"{self._base}/rows", **self.row_log_options}

    def create(self) -> None:
        self._server.clear()
        self._server.set(deduplicate=self.promises.is_exactly_once)

    def rows(self) -> list[dict[str, Any]]:
        return self._server.rows()

    def append(self, row_id: int) -> None:
        self._server.add(row_id)

    def drop(self) -> None:
        self._server.clear()


class DeduplicatingHttpHarness(HttpHarness):
    """An endpoint that takes each key once; the rows have ids of their own."""

    promises = replace(
        HttpHarness.promises, name="HTTP endpoints that know the Idempotency-Key", is_exactly_once=True
    )

    def __init__(self, folder: Path, server: HttpRows, proxy: LossyProxy | None = None) -> None:
        super().__init__(folder, server, proxy)
        server.set(deduplicate=True)

    @property
    def options(self) -> dict[str, str]:
        return {**super().options, "format": "row", "idColumn": "id"}


class HttpResourcesHarness(HttpHarness):
    """An endpoint with a path for each row, whose requests can be repeated."""

    promises = replace(
        HttpHarness.promises,
        name="HTTP endpoints with a URL for each key",
        is_exactly_once=True,
        changes="a request with `method` or `deleteMethod`, by default `DELETE`",
        ignores_late_rows=False,
    )
    rows_in = "/rows/"

    @property
    def options(self) -> dict[str, str]:
        return {**super().options, "format": "row", "method": "PUT", **self.options_by("id")}

    def options_by(self, column: str) -> Mapping[str, str]:
        return {"url": f"{self._base}/rows/{{{column}}}"}

    def options_of_keys(self, keys: Sequence[str]) -> Mapping[str, str] | None:
        """Rows with an empty text in a key have no URL."""
        return None

    def rows(self) -> list[dict[str, Any]]:
        return self._server.resources()

    def append(self, row_id: int) -> None:
        self._server.put(row_id)


class AwsHarness(ServiceHarness):
    """A stream, table or queue of its own, read by boto3. Credentials come from the environment."""

    secrets: ClassVar = {"accessKeyId": "key", "secretAccessKey": SECRET}
    url_option = "endpointUrl"
    kind: str
    named_by = "stream"
    """The option with its name."""
    suffix = ""
    row_bytes = 256 * 1024

    def __init__(self, folder: Path, server: AwsServer, proxy: LossyProxy | None = None) -> None:
        super().__init__(folder)
        self.server, self._proxy = server, proxy
        self._url = (proxy or server).url
        self.name = f"rows-{uuid.uuid4()}{self.suffix}"
        self._seen: list[dict[str, Any]] | None = []

    def create(self) -> None:
        self.server.create(self.kind, self.name)

    @property
    def options(self) -> dict[str, str]:
        place = {self.named_by: self.name, "region": REGION, self.url_option: self._url}
        return {**place, **self.row_log_options}

    @property
    def small_buffer(self) -> Mapping[str, str]:
        sizes = {"maxRecordBytes": "300kb", "maxBatchBytes": "1mb", "maxBufferedBytes": "2mb"}
        return {**super().small_buffer, **sizes}

    @property
    def echoed_options(self) -> dict[str, str]:
        """The secret key is never sent."""
        return {**self.unreachable_options, "sessionToken": SECRET}

    def rows(self) -> list[dict[str, Any]]:
        if self._seen is None:
            return []
        read = self.server.rows(self.kind, self.name)
        if self.kind != "sqs":
            return read
        self._seen += read
        return self._seen

    def append(self, row_id: int) -> None:
        self.server.append(self.kind, self.name, row_id)

    def drop(self) -> None:
        if self._seen is not None:
            self.server.delete(self.kind, self.name)
        self._seen = None


class KinesisHarness(AwsHarness):
    promises = replace(RequestHarness.promises, name="Kinesis streams")
    destination = kinesis.DESTINATION
    kind = "kinesis"
    rows_in = "PutRecords"

    def options_by(self, column: str) -> Mapping[str, str]:
        return {"partitionKey": column}


class FirehoseHarness(AwsHarness):
    promises = replace(RequestHarness.promises, name="Firehose streams")
    destination = firehose.DESTINATION
    kind = "firehose"
    rows_in = "PutRecordBatch"


class DynamoDbHarness(AwsHarness):
    """Rows with a key are there once, however often they are sent."""

    promises = replace(
        RequestHarness.promises,
        name="DynamoDB tables",
        is_exactly_once=True,
        changes="`PutRequest`, `DeleteRequest` and `UpdateItem`",
        ignores_late_rows=False,
        updates_fields=True,
    )
    destination = dynamodb.DESTINATION
    kind, named_by = "dynamodb", "table"
    rows_in = "BatchWriteItem"

    def options_of_keys(self, keys: Sequence[str]) -> Mapping[str, str] | None:
        """The key of its table is `id`."""
        return None

    @property
    def options(self) -> dict[str, str]:
        return {**super().options, "keyColumns": "id"}


class SqsHarness(AwsHarness):
    promises = replace(RequestHarness.promises, name="SQS queues")
    destination = sqs.DESTINATION
    kind, named_by = "sqs", "queue"
    rows_in = "SendMessageBatch"


class SqsFifoHarness(SqsHarness):
    """The queue takes each id once in five minutes; the rows have ids of their own."""

    promises = replace(
        RequestHarness.promises, name="SQS FIFO queues, within five minutes", is_exactly_once=True
    )
    suffix = ".fifo"

    @property
    def options(self) -> dict[str, str]:
        return {**super().options, "messageGroupId": "id", "idColumn": "id"}

    def options_by(self, column: str) -> Mapping[str, str]:
        return {"messageGroupId": column}


AWS = (KinesisHarness, FirehoseHarness, DynamoDbHarness, SqsHarness, SqsFifoHarness)


class OpenSearchHarness(ServiceHarness):
    """An index of its own, read through HTTP; the rows have ids of their own."""

    promises = replace(
        RequestHarness.promises,
        name="OpenSearch indexes",
        is_exactly_once=True,
        changes="`index`, `update` and `delete`",
        updates_fields=True,
    )
    destination = opensearch.DESTINATION
    secrets: ClassVar = {"username": "me", "password": SECRET}
    rows_in = "_bulk"

    def __init__(
        self,
        folder: Path,
        server: OpenSearchServer,
        proxy: LossyProxy | None = None,
        url: str | None = None,
    ) -> None:
        """
        Args:
            url: of another proxy, before the first one
        """
        super().__init__(folder)
        self._server, self._proxy = server, proxy
        self._url = url or (proxy or server).url
        self._index = f"rows-{uuid.uuid4()}"

    @property
    def options(self) -> dict[str, str]:
        place = {"url": self._url, "index": self._index, "createIndex": "true"}
        return {**place, "idColumn": "id", **self.row_log_options}

    @property
    def options_of_changes(self) -> dict[str, str]:
        """The id is that of `keys`."""
        return {name: value for name, value in self.options.items() if name != "idColumn"}

    def options_by(self, column: str) -> Mapping[str, str]:
        return {"routing": column}

    def rows(self) -> list[dict[str, Any]]:
        return self._server.rows(self._index)

    def append(self, row_id: int) -> None:
        self._server.put(self._index, str(row_id), {"id": row_id})

    def drop(self) -> None:
        self._server.delete(self._index)


class ElasticsearchHarness(OpenSearchHarness):
    promises = replace(OpenSearchHarness.promises, name="Elasticsearch indexes")
    destination = elasticsearch.DESTINATION


_WRITES = re.compile(rb"\*\d+\r\n\$\d+\r\n(?:SET|HSET|RPUSH|XADD|EVAL)\r\n")


class RedisHarness(ServiceHarness):
    """A database, read by the library's other client."""

    promises = replace(
        RequestHarness.promises,
        name="Redis strings and hashes, by their key",
        is_exactly_once=True,
        changes="`SET` and `DEL`; `HSET` and `HDEL`",
        ignores_late_rows=False,
    )
    destination = redis_sink.DESTINATION
    sees_all_names = True
    place: ClassVar[Mapping[str, str]] = {"structure": "set", "key": "rows:{id}"}
    url = "redis://127.0.0.1:{}/0"
    rows_in = b'{"id":'

    def __init__(self, folder: Path, server: RedisServer, proxy: LossyTcp | None = None) -> None:
        super().__init__(folder)
        self.server, self._proxy = server, proxy
        self._url = self.url.format((proxy or server).port)

    @property
    def options(self) -> dict[str, str]:
        return {"url": self._url, **self.place, **self.row_log_options}

    def reply_without_acknowledgements(self, request: bytes) -> bytes:
        return b"$-1\r\n" * len(_WRITES.findall(request))

    @property
    def secret_options(self) -> dict[str, str]:
        self.server.add_user("writer", SECRET)
        return {**self.options, "username": "writer", "password": SECRET}

    def echo(self, request: bytes, *, is_of_row: bool) -> bytes:
        return b"-NOPERM %s\r\n" % quoted(request).encode()

    def options_by(self, column: str) -> Mapping[str, str]:
        return self.options_of_keys([column]) if self.promises.is_exactly_once else {}

    def options_of_keys(self, keys: Sequence[str]) -> Mapping[str, str]:
        return {"key": ":".join(["rows", *(f"{{{key}}}" for key in keys)])}

    def rows(self) -> list[dict[str, Any]]:
        return self.server.rows("rows*")

    def append(self, row_id: int) -> None:
        with self.server.connect() as client:
            client.set(f"rows:{row_id}", json.dumps({"id": row_id}))

    def drop(self) -> None:
        with self.server.connect() as client:
            client.flushdb()


class RedisRowHarness(RedisHarness):
    """A hash for each row."""

    promises = replace(RedisHarness.promises, updates_fields=True)
    place: ClassVar[Mapping[str, str]] = {"structure": "row", "key": "rows:{id}"}
    rows_in = b"\r\nid\r\n"

    def rows(self) -> list[dict[str, Any]]:
        return [*self.server.hashes("rows*")]

    def append(self, row_id: int) -> None:
        with self.server.connect() as client:
            client.hset(f"rows:{row_id}", "id", row_id)


class RedisStreamHarness(RedisHarness):
    promises = replace(RequestHarness.promises, name="Redis streams and lists")
    place: ClassVar[Mapping[str, str]] = {"structure": "stream", "key": "rows"}

    def append(self, row_id: int) -> None:
        with self.server.connect() as client:
            client.xadd("rows", {"row": json.dumps({"id": row_id})})


class RedisFenceHarness(RedisStreamHarness):
    """Decoupled only."""

    promises = replace(
        RequestHarness.promises,
        name="Redis streams and lists with `exactlyOnce`, decoupled",
        is_exactly_once=True,
    )
    place: ClassVar[Mapping[str, str]] = {
        **RedisStreamHarness.place,
        "exactlyOnce": "true",
        "delivery": "decoupled",
    }


class NatsHarness(ServiceHarness):
    """A stream of JetStream, read by its consumers."""

    promises = replace(RequestHarness.promises, name="NATS JetStream")
    destination = nats_sink.DESTINATION
    secrets: ClassVar = {"username": "writer", "password": SECRET}
    stream = "ROWS"
    row_bytes = 256 * 1024  # a message has at most 1 MiB
    url = "nats://127.0.0.1:{}"
    rows_in = b"HPUB rows."
    greeting = b'INFO {"server_id": "", "headers": true, "max_payload": 1048576, "auth_required": true}\r\n'

    def echo(self, request: bytes, *, is_of_row: bool) -> bytes:
        return b"-ERR 'Authorization Violation: %s'\r\n" % quoted(request).encode()

    def __init__(self, folder: Path, server: NatsServer, proxy: LossyTcp | None = None) -> None:
        super().__init__(folder)
        self.server, self._proxy = server, proxy
        self._url = self.url.format((proxy or server).port)

    def reply_without_acknowledgements(self, request: bytes) -> bytes:
        inboxes = re.findall(rb"HPUB \S+ (\S+) ", request)
        return b"".join(b"MSG %s 1 2\r\n{}\r\n" % inbox for inbox in inboxes)

    def create(self) -> None:
        self.server.create(self.stream, "rows.*")

    @property
    def options(self) -> dict[str, str]:
        return {"url": self._url, "subject": "rows.{id}", **self.row_log_options}

    def options_by(self, column: str) -> Mapping[str, str]:
        return {"subject": f"rows.{{{column}}}"}

    def rows(self) -> list[dict[str, Any]]:
        try:
            return self.server.rows(self.stream)
        except NotFoundError:  # it was dropped
            return []

    def append(self, row_id: int) -> None:
        self.server.publish(f"rows.{row_id}", json.dumps({"id": row_id}).encode())

    def drop(self) -> None:
        self.server.clear()


class NatsIdHarness(NatsHarness):
    """The stream takes each id once in its duplicate window; the rows have ids of their own."""

    promises = replace(
        RequestHarness.promises,
        name="NATS JetStream with `idColumn`, within its duplicate window",
        is_exactly_once=True,
    )

    @property
    def options(self) -> dict[str, str]:
        return {**super().options, "idColumn": "id", "exactlyOnce": "true"}
