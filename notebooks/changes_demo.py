"""Demo (`make demo-changes`): a change feed of Debezium becomes five copies of a table of a database.

One query reads the feed once, and changes tables of Delta, Iceberg and Postgres, documents in
OpenSearch and hashes in Redis by key. Events come late and twice; in the middle a column is added, another
one gets larger numbers, and the table is snapshotted again. Driver and delivery process are killed. At the
end each destination is read by its own engine, and compared with the source table row by row.

The servers are real ones on the loopback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import psycopg
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this file is run as a script

from notebooks.backlog_plot import plot_backlogs
from notebooks.debezium_events import CustomerFeed, Row
from notebooks.demo import REPOSITORY, DemoFailedError, reported
from notebooks.lake import Lake, open_iceberg
from notebooks.processes import Processes
from notebooks.proof import connect
from notebooks.screen import heading, print_path, print_text, shown
from notebooks.store import PENSTOCK, batches
from servers.opensearch import OpenSearchServer, opensearch_server
from servers.ports import free_port
from servers.postgres import Postgres
from servers.redis import RedisServer, redis_server

PROGRAM = Path(__file__).with_name("changes_stream.py")
TARGETS = {
    "delta": "Delta",
    "iceberg": "Iceberg",
    "postgres": "Postgres",
    "search": "OpenSearch",
    "cache": "Redis",
}
BEFORE = "id BIGINT, name STRING, notes STRING, city STRING, balance INT"
AFTER = "id BIGINT, name STRING, notes STRING, city STRING, balance BIGINT, level INT"
LARGE = 10**12
"""More than 32 bits."""


def main(
    changes: Annotated[int, typer.Option(min=1_000, help="Changes of the source table.")] = 1_000_000,
    keys: Annotated[int, typer.Option(min=10, help="Rows of the source table at most.")] = 100_000,
    directory: Annotated[
        Path, typer.Option(help="Working directory. Emptied at the start if an earlier demo created it.")
    ] = REPOSITORY / "demo-data",
) -> None:
    """Stream a change feed into five destinations at once, with kills, and prove every row."""
    with reported(), ExitStack() as stack:
        ChangesDemo(Lake(directory.resolve()), changes, CustomerFeed(keys), stack).run()


class ChangesDemo:
    """One run. The stack stops its servers and processes."""

    BATCHES = 10
    """Of each half of the feed."""

    def __init__(self, lake: Lake, changes: int, feed: CustomerFeed, stack: ExitStack) -> None:
        self._lake = lake
        self._changes_per_batch = changes // (2 * self.BATCHES)
        self._feed = feed
        self._stack = stack
        self._files = 0
        self._processes = Processes(lake, PROGRAM, TARGETS, {"PGUSER": "postgres"}, stack)

    def run(self) -> None:
        lake, processes = self._lake, self._processes
        lake.empty()
        lake.source.mkdir()
        heading("Servers: OpenSearch, Redis and Postgres")
        search = self._stack.enter_context(opensearch_server(lake.root / "opensearch", free_port()))
        redis = self._stack.enter_context(redis_server())
        (lake.root / "postgres").mkdir()
        postgres = Postgres(lake.root / "postgres")
        self._stack.callback(postgres.stop)
        url = f"postgresql://postgres@127.0.0.1:{postgres.port}/postgres"
        print_text(f"{search.url}, {redis.url} and {url}")
        servers = (search.url, redis.url, url)

        heading("The first half of the feed: each file is a batch, read once for five destinations")
        self._write_files()
        delivery = processes.start_delivery()
        driver = processes.start_driver(str(lake.root), BEFORE, *servers)
        processes.wait("The driver prepares batches", processes.is_ahead(0), driver)
        processes.kill("driver", driver)
        driver = processes.start_driver(str(lake.root), BEFORE, *servers)
        processes.wait_for_end(driver)
        processes.wait("The first half is delivered", processes.is_delivered)

        heading("The source table gets a column, larger numbers, and a new snapshot")
        self._feed.add_level(LARGE)
        self._feed.write_snapshot(self._next_file())
        self._write_files()
        driver = processes.start_driver(str(lake.root), AFTER, *servers)
        is_ahead = processes.is_ahead(processes.prepared())
        processes.wait("The driver prepares batches with the new columns", is_ahead, driver)
        processes.kill("delivery process", delivery)
        processes.kill("driver", driver)
        processes.start_delivery()
        processes.wait_for_end(processes.start_driver(str(lake.root), AFTER, *servers))
        processes.wait("Everything is delivered", processes.is_delivered)

        self._prove(search, redis, url)
        found = {
            name: batches(processes.checkpoint, f"customers.{target}") for target, name in TARGETS.items()
        }
        plot = lake.root / "backlogs.png"
        title = f"{self._files} batches of changes into {', '.join(found)}: five equal tables"
        plot_backlogs(found, None, processes.kills, title).savefig(plot)
        heading("Next steps")
        print_path("The five backlogs", shown(plot))
        print_path("The streams", f"{shown(PENSTOCK)} status -c {shown(processes.checkpoint)}")
        print_path("The killed program", shown(PROGRAM))
        print_path("The logs", f"{shown(lake.log)} {shown(processes.delivery_log)}")

    def _write_files(self) -> None:
        for _ in range(self.BATCHES):
            self._feed.write(self._next_file(), self._changes_per_batch)
        print_text(
            f"{self._files} files of events, now of {len(self._feed.rows):,} rows: {shown(self._lake.source)}"
        )

    def _next_file(self) -> Path:
        self._files += 1
        return self._lake.source / f"{self._files:04d}.parquet"

    # Results ------------------------------------------------------------------------------------------

    def _prove(self, search: OpenSearchServer, redis: RedisServer, postgres: str) -> None:
        heading("Proof: each destination is read by an engine that has not written it")
        columns = [column.split()[0] for column in AFTER.split(", ")]
        self._tell("Delta", _in_duckdb(f"delta_scan('{self._lake.root / 'delta'}')", columns))
        iceberg = open_iceberg(self._lake.root / "iceberg", ("shop", "customers"))
        self._tell("Iceberg", _in_duckdb(f"iceberg_scan('{iceberg.metadata_location}')", columns))
        with psycopg.connect(postgres) as server:
            rows = server.execute(f"SELECT {', '.join(columns)} FROM customers").fetchall()
        self._tell("Postgres", {row[0]: dict(zip(columns, row, strict=True)) for row in rows})
        self._tell("OpenSearch", {int(row["id"]): row for row in _documents(search)})
        self._tell("Redis", {int(row["id"]): row for row in _hashes(redis)}, of=str)

    def _tell(self, name: str, found: Mapping[int, Row], of: Callable[[Any], Any] = lambda one: one) -> None:
        """
        Args:
            of: converts a value of the source to the type that the destination has
        """
        source = {
            key: {column: of(value) for column, value in row.items()} for key, row in self._feed.rows.items()
        }
        lost = source.keys() - found.keys()
        extra = found.keys() - source.keys()
        wrong = [key for key in source.keys() & found.keys() if _plain(source[key]) != _plain(found[key])]
        is_right = not lost and not extra and not wrong
        print_text(
            f"{name:<10} {len(source):,} rows in the source, {len(found):,} there: {len(lost):,} lost, "
            f"{len(extra):,} too many, {len(wrong):,} different",
            style="bold green" if is_right else "bold red",
        )
        if not is_right:
            first = next(iter([*lost, *extra, *wrong]))
            raise DemoFailedError(f"{name} differs: {source.get(first)} and {found.get(first)}")


def _plain(row: Mapping[str, Any]) -> dict[str, str]:
    """Leave out columns without a value."""
    return {name: value for name, value in row.items() if value is not None}


def _in_duckdb(relation: str, columns: list[str]) -> dict[int, Row]:
    with connect() as duck:
        rows = duck.execute(f"SELECT {', '.join(columns)} FROM {relation}").fetchall()
    if len({row[0] for row in rows}) != len(rows):
        raise DemoFailedError(f"{relation} has a key twice")
    return {row[0]: dict(zip(columns, row, strict=True)) for row in rows}


def _documents(search: OpenSearchServer) -> Iterator[Row]:
    search.ask("POST", "customers/_refresh")
    page = search.ask("POST", "customers/_search?scroll=1m", {"size": 10_000})
    while page["hits"]["hits"]:
        yield from (one["_source"] for one in page["hits"]["hits"])
        page = search.ask("POST", "_search/scroll", {"scroll": "1m", "scroll_id": page["_scroll_id"]})


def _hashes(redis: RedisServer) -> Iterator[Row]:
    with redis.connect() as client:
        keys = list(client.scan_iter("customer:*", count=10_000))
        for first in range(0, len(keys), 10_000):
            with client.pipeline(transaction=False) as pipeline:
                for key in keys[first : first + 10_000]:
                    pipeline.hgetall(key)
                yield from pipeline.execute()


if __name__ == "__main__":
    typer.run(main)
