"""Demo (`make demo-kafka`): events in a Kafka topic become a table of all events and a table of all orders.

Avro events whose schema evolves; three brokers; Spark's Kafka source on a cluster of two workers; an
Iceberg table in a REST catalog and a Delta table with the newest state of each order, both on S3; a store in
Postgres; and a delivery process. A broker, a worker, driver, catalog and delivery process are killed in turn.
At the end Polars reads both tables, DuckDB compares them with the events, and `penstock lineage` tells from
which offsets a version of the table is.

The servers are real ones on the loopback, except for S3's emulator. `kafka_to_lake.py`, the program that is
killed, is the one of docs/kafka-to-lake.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import duckdb
import polars as pl
import pyarrow as pa
import typer
from polars.exceptions import PerformanceWarning

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this file is run as a script

from notebooks import order_events
from notebooks.demo import REPOSITORY, DemoFailedError, reported
from notebooks.lake import Lake
from notebooks.processes import Processes
from notebooks.screen import heading, print_path, print_text, shown
from notebooks.store import PENSTOCK
from pyiceberg.catalog import load_catalog
from pyiceberg.table.snapshots import Snapshot
from servers.kafka_cluster import KafkaNodes, kafka_nodes
from servers.postgres import Postgres
from servers.rest_catalog import S3_WAREHOUSE, RestCatalogServer, rest_catalog_server
from servers.s3 import s3_properties, s3_server
from servers.spark_cluster import spark_kafka_jars, spark_master, spark_worker

from penstock.testing import RunningJob

PROGRAM = Path(__file__).with_name("kafka_to_lake.py")
TARGETS = {"events": "Iceberg", "orders": "Delta"}
TOPIC, TABLE, ORDERS = "orders", "shop.events", "s3://lake/orders"
PARTITIONS = 6
WORKERS = 2
DOWN_S = 5
"""How long a server stays down."""

T = TypeVar("T")


def main(
    events: Annotated[int, typer.Option(min=10_000, help="Events in the topic.")] = 2_000_000,
    orders: Annotated[int, typer.Option(min=10, help="Orders at most.")] = 100_000,
    directory: Annotated[
        Path, typer.Option(help="Working directory. Emptied at the start if an earlier demo created it.")
    ] = REPOSITORY / "demo-data",
) -> None:
    """Stream a Kafka topic into an Iceberg and a Delta table, with kills, and prove every event."""
    with reported(), ExitStack() as stack:
        KafkaDemo(Lake(directory.resolve()), events, orders, stack).run()


class Server(Generic[T]):
    """A server that is killed with SIGKILL and starts again with its data. It starts at once.

    Args:
        opened: starts it, and kills it at the end of the block
        stack: stops it
    """

    def __init__(self, opened: Callable[[], AbstractContextManager[T]], stack: ExitStack) -> None:
        self._opened = opened
        self._running = ExitStack()
        stack.callback(self.kill)
        self.info = self.start()

    def start(self) -> T:
        return self._running.enter_context(self._opened())

    def kill(self) -> None:
        self._running.close()


@dataclass(frozen=True)
class Broker:
    """One of the brokers: the others go on without it."""

    nodes: KafkaNodes
    number: int

    def start(self) -> None:
        self.nodes.start(self.number)

    def kill(self) -> None:
        self.nodes.kill(self.number)


class KafkaDemo:
    """One run. The stack stops its servers and processes."""

    BATCHES = 40
    """About as many as Spark makes of all events."""
    SECONDS = 80
    """In which all events are sent."""

    def __init__(self, lake: Lake, events: int, orders: int, stack: ExitStack) -> None:
        self._lake = lake
        self._events = events
        self._orders = orders
        self._stack = stack
        self._told = 0

    def run(self) -> None:
        self._start_servers()
        self._first_half()
        self._second_half()
        heading("Proof: Polars reads the tables, DuckDB compares them with the events")
        self._prove()
        heading("Lineage: from a version of the table to the records of the topic, and back")
        self._show_lineage()
        heading("Next steps")
        print_path("The killed program", shown(PROGRAM))
        print_path("Its options", shown(self._pipeline))
        print_path("The logs", f"{shown(self._lake.log)} {shown(self._processes.delivery_log)}")

    # Servers ------------------------------------------------------------------------------------------

    def _start_servers(self) -> None:
        lake, root, stack = self._lake, self._lake.root, self._stack
        lake.empty()
        os.environ["SPARK_LOCAL_DIRS"] = str(root / "spark")
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        heading("Servers: Kafka, S3, an Iceberg REST catalog, Postgres, and a Spark cluster")
        jars = spark_kafka_jars()
        self._kafka = stack.enter_context(kafka_nodes(root / "kafka"))
        self._kafka.create(TOPIC, PARTITIONS)
        self._s3 = stack.enter_context(s3_server())
        (root / "catalog").mkdir()
        self._catalog = Server(self._open_catalog, stack)
        self._port = int(self._catalog.info.uri.rpartition(":")[2])
        (root / "postgres").mkdir()
        postgres = Postgres(root / "postgres")
        stack.callback(postgres.stop)
        self._store = f"postgresql+psycopg://postgres@127.0.0.1:{postgres.port}/postgres"
        master = stack.enter_context(spark_master(root / "spark"))
        self._workers = [
            Server(partial(spark_worker, master, root / f"worker-{number}"), stack)
            for number in range(WORKERS)
        ]
        for what in (self._kafka.servers, self._catalog.info.uri, self._store, master):
            print_text(what)
        self._write_options()
        self._processes = Processes(
            lake, PROGRAM, TARGETS, self._environment(master, jars), stack, self._store
        )

    _port: int | None = None

    def _open_catalog(self) -> AbstractContextManager[RestCatalogServer]:
        return rest_catalog_server(self._lake.root / "catalog", s3_properties(self._s3), self._port)

    @property
    def _catalog_properties(self) -> dict[str, str]:
        return {
            "type": "rest",
            "uri": self._catalog.info.uri,
            "warehouse": S3_WAREHOUSE,
            **s3_properties(self._s3),
        }

    @property
    def _pipeline(self) -> Path:
        return self._lake.root / "pipeline.json"

    def _write_options(self) -> None:
        """Write the options of the program."""
        catalog = {f"catalog.{name}": value for name, value in self._catalog_properties.items()}
        storage = {f"storage.{name}": value for name, value in self._s3.items()}
        options = {
            "schemas": str(self._lake.root / "schemas"),
            "kafka": {
                "subscribe": TOPIC,
                "kafka.bootstrap.servers": self._kafka.servers,
                "maxOffsetsPerTrigger": str(self._events // self.BATCHES),
            },
            "events": {"catalog": "lake", **catalog, "table": TABLE},
            "orders": {"path": ORDERS, **storage},
            "query": {
                "checkpointLocation": str(self._lake.root / "checkpoint"),
                "store": self._store,
                "deliverAfterSeconds": "3",
            },
        }
        self._pipeline.touch(mode=0o600)
        self._pipeline.write_text(json.dumps(options, indent=2))

    def _environment(self, master: str, jars: list[str]) -> Mapping[str, str]:
        """Return the variables of driver and delivery process."""
        settings = {
            "spark.jars": ",".join(jars),
            "spark.executor.memory": "1g",
            "spark.executor.cores": "1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": str(WORKERS),
        }
        given = " ".join(f"--conf {name}={value}" for name, value in settings.items())
        return {
            "PYSPARK_SUBMIT_ARGS": f"--master {master} {given} pyspark-shell",
            "PENSTOCK_STORAGE": json.dumps(self._s3),
            "PENSTOCK_CATALOG": json.dumps(self._catalog_properties),
        }

    # The stream ---------------------------------------------------------------------------------------

    def _first_half(self) -> None:
        heading("The first half of the events: broker, worker and driver are killed")
        order_events.write_schema(self._lake.root / "schemas", 1)
        producer = self._produce(0, self._events // 2, schema_id=1)
        self._delivery = self._processes.start_delivery()
        driver = self._start_driver()
        self._kill_at(3, "broker", Broker(self._kafka, 1), driver)
        self._kill_at(6, "worker", self._workers[0], driver)
        self._wait_for_batch(10, driver)
        self._processes.kill("driver", driver)
        self._driver = self._start_driver()
        self._wait_for_producer(producer)

    def _second_half(self) -> None:
        processes = self._processes
        heading("The second half has a field more: the driver does not know its schema, and fails")
        producer = self._produce(self._events // 2, self._events, schema_id=2)
        if self._driver.wait() == 0 or "no schema with the id 2" not in self._driver.tail():
            raise DemoFailedError(f"the driver has not missed the schema:\n{self._driver.tail()}")
        print_text("The driver: no schema with the id 2. It starts again with the schema, and goes on")
        order_events.write_schema(self._lake.root / "schemas", 2)
        driver = self._start_driver()
        batch = processes.prepared()
        self._kill_at(batch + 3, "catalog", self._catalog, driver)
        self._wait_for_batch(batch + 6, driver)
        processes.kill("delivery process", self._delivery)
        processes.start_delivery()
        self._wait_for_producer(producer)
        processes.wait("Everything is delivered", self._telling(self._is_complete), driver)
        driver.kill()

    def _produce(self, first: int, end: int, schema_id: int) -> RunningJob:
        numbers = (first, end, schema_id, self._orders, max(self._events // self.SECONDS, 1))
        command = [sys.executable, order_events.__file__, self._kafka.servers, TOPIC, *map(str, numbers)]
        return self._stack.enter_context(RunningJob(command, self._lake.root / "producer.log"))

    def _wait_for_producer(self, producer: RunningJob) -> None:
        if producer.wait() != 0:
            raise DemoFailedError(f"the events could not be sent. The log ends:\n{producer.tail()}")

    def _start_driver(self) -> RunningJob:
        return self._processes.start_driver(str(self._pipeline))

    def _wait_for_batch(self, batch_id: int, driver: RunningJob) -> None:
        is_there = self._telling(lambda: self._processes.prepared() >= batch_id)
        self._processes.wait(f"Batch {batch_id} is prepared", is_there, driver)

    def _telling(self, is_so: Callable[[], bool]) -> Callable[[], bool]:
        """Print how many events the tables have, whenever it is a tenth more."""

        def told() -> bool:
            rows = self._processes.committed_rows()
            if tenth := min(rows.values(), default=0) * 10 // self._events - self._told:
                self._told += tenth
                both = ", ".join(f"{name} {rows[target]:,}" for target, name in TARGETS.items())
                print_text(f"Events of {self._events:,} that are committed: {both}", style="dim")
            return is_so()

        return told

    def _kill_at(self, batch_id: int, name: str, server: Server[Any] | Broker, driver: RunningJob) -> None:
        """Kill a server once the batch is prepared, and start it again."""
        self._wait_for_batch(batch_id, driver)
        print_text(f"SIGKILL of the {name}, for {DOWN_S} seconds", style="bold red")
        server.kill()
        time.sleep(DOWN_S)
        server.start()

    def _is_complete(self) -> bool:
        committed = self._processes.committed_rows()
        return set(committed.values()) == {self._events} and self._processes.is_delivered()

    # Results ------------------------------------------------------------------------------------------

    def _prove(self) -> None:
        table = load_catalog("lake", **self._catalog_properties).load_table(TABLE)
        in_microseconds = pl.col("sent_at").dt.epoch("us")
        warnings.simplefilter("ignore", PerformanceWarning)  # about a plug-in that would plan faster
        written_events = (
            pl.scan_iceberg(table, storage_options=self._s3)
            .with_columns(in_microseconds)
            .collect()
            .to_arrow()
        )
        found = pl.scan_delta(ORDERS, storage_options=self._s3)
        written_orders = found.with_columns(in_microseconds).collect().to_arrow()
        with duckdb.connect() as duck:
            self._prove_in(duck, written_events, written_orders)

    def _prove_in(self, duck: duckdb.DuckDBPyConnection, events: pa.Table, orders: pa.Table) -> None:
        """Compare what was read from the tables."""
        duck.register("written_events", events)
        duck.register("written_orders", orders)
        sent = order_events.events_sql(self._events, self._orders, self._events // 2)
        duck.execute(f"CREATE TABLE events AS {sent}")
        duck.execute(
            """CREATE VIEW open_orders AS
               WITH newest AS (SELECT order_id, max(event_id) AS event_id FROM events GROUP BY ALL)
               SELECT events.* FROM events JOIN newest USING (order_id, event_id) WHERE status <> 'cancelled'
               """
        )
        self._compare(duck, "Iceberg", "events", "written_events")
        self._compare(duck, "Delta", "open_orders", "written_orders")

    def _compare(self, duck: duckdb.DuckDBPyConnection, name: str, expected: str, written: str) -> None:
        columns = "event_id, order_id, status, cents, sent_at, channel"
        row = duck.execute(
            f"""SELECT (SELECT count(*) FROM {expected}), (SELECT count(*) FROM {written}),
                    (SELECT count(*) FROM (SELECT {columns} FROM {expected}
                                           EXCEPT ALL SELECT {columns} FROM {written})),
                    (SELECT count(*) FROM (SELECT {columns} FROM {written}
                                           EXCEPT ALL SELECT {columns} FROM {expected}))"""
        ).fetchone()
        assert row is not None
        expects, found, lost, added = row
        is_right = lost == added == 0
        print_text(
            f"{name:<8} {expects:,} rows expected, {found:,} there: {lost:,} lost, {added:,} too many",
            style="bold green" if is_right else "bold red",
        )
        if not is_right:
            raise DemoFailedError(f"{name} differs from the events")

    def _show_lineage(self) -> None:
        """Show the offsets of the table's newest version, and find the version again by one of them."""
        table = load_catalog("lake", **self._catalog_properties).load_table(TABLE)
        snapshots = [one for one in table.metadata.snapshots if _batch_of(one) is not None]
        newest = max(snapshots, key=lambda one: one.timestamp_ms)
        print(self._lineage(str(newest.snapshot_id)), flush=True)
        found = json.loads(self._lineage(str(newest.snapshot_id), "--json"))
        read = [one for source in found["sources"] for one in source["partitions"]]
        records = sum(one["until_offset"] - one["from_offset"] for one in read)
        assert newest.summary is not None
        rows = int(newest.summary.additional_properties["penstock.rows"])
        last = read[-1]
        record = ("--topic", TOPIC, "--partition", last["partition"], "--offset", last["until_offset"] - 1)
        back = json.loads(self._lineage(*map(str, record), "--json"))
        if (records, back["version"]) != (rows, newest.snapshot_id):
            raise DemoFailedError(f"{records} offsets for {rows} rows, and back to version {back['version']}")
        again = " ".join(map(str, record))
        print_text(f"{records:,} offsets, {rows:,} rows. Back: penstock lineage lake:{TABLE} {again}")

    def _lineage(self, *arguments: str) -> str:
        """Run the command with the table alone: without the store."""
        ended = subprocess.run(
            [PENSTOCK, "lineage", f"lake:{TABLE}", *arguments],
            env={**os.environ, "PENSTOCK_CATALOG": json.dumps(self._catalog_properties)},
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode != 0:
            raise DemoFailedError(ended.stderr)
        return ended.stdout


def _batch_of(snapshot: Snapshot) -> str | None:
    properties = snapshot.summary.additional_properties if snapshot.summary else {}
    return properties.get("penstock.batch-id")


if __name__ == "__main__":
    typer.run(main)
