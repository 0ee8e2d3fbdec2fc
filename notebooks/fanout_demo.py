"""Demo (`make demo-fanout`): one query streams real flights into a Delta table, OpenSearch and Kinesis.

OpenSearch is down for 30 seconds in the middle. The driver and the delivery process are killed. At the end
every destination is compared with the source. Kinesis has no way to recognize a record that it already has:
after a kill of the delivery process, the requests that were in flight arrive a second time, and are counted.

The servers are real ones on the loopback: OpenSearch from Maven, and moto in the place of AWS.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this file is run as a script

from notebooks.backlog_plot import plot_backlogs
from notebooks.demo import REPOSITORY, DemoFailedError, reported
from notebooks.flights import write_flights
from notebooks.lake import Lake
from notebooks.processes import Processes, now
from notebooks.proof import compare, connect
from notebooks.screen import heading, print_path, print_text, shown
from notebooks.store import PENSTOCK, batches
from servers.aws import KEY, SECRET, AwsServer, aws_server
from servers.opensearch import OpenSearchServer, opensearch_server
from servers.ports import free_port

PROGRAM = Path(__file__).with_name("fanout_stream.py")
FILES_OF_YEAR = 365
TARGETS = {"lake": "Delta", "search": "OpenSearch", "events": "Kinesis"}
OUTAGE_S = 30
WINDOW = 4 * 250 + 500
"""What a kill may repeat: maxInFlightRequests * maxBatchSize + maxBufferedRequests of the program."""


def main(
    files: Annotated[
        int, typer.Option(min=12, max=FILES_OF_YEAR, help="Files to stream, of one day each.")
    ] = 31,
    directory: Annotated[
        Path, typer.Option(help="Working directory. Emptied at the start if an earlier demo created it.")
    ] = REPOSITORY / "demo-data",
) -> None:
    """Stream flights into a Delta table, OpenSearch and Kinesis at once, with an outage and two kills, and
    prove every row.
    """
    with reported(), ExitStack() as stack:
        FanoutDemo(Lake(directory.resolve()), files, stack).run()


class FanoutDemo:
    """One run. The stack stops its servers and processes."""

    def __init__(self, lake: Lake, files: int, stack: ExitStack) -> None:
        self._lake = lake
        self._files = files
        self._stack = stack
        self._processes = Processes(lake, PROGRAM, TARGETS, _CREDENTIALS, stack)

    def run(self) -> None:
        self._lake.empty()
        heading("Source: flights that left New York in 2013")
        rows = self._write_source()
        print_text(
            f"{rows:,} flights in {self._files} Parquet files, in time order: {shown(self._lake.source)}"
        )
        heading("Servers: OpenSearch, and moto in the place of AWS")
        port, aws = free_port(), self._stack.enter_context(aws_server())
        aws.create("kinesis", "flights")
        search = ExitStack()
        self._stack.callback(search.close)
        server = search.enter_context(opensearch_server(self._lake.root / "opensearch", port))
        print_text(f"{server.url} and {aws.url}")

        heading("Stream: each file is a batch, read once and written to three destinations")
        processes = self._processes
        arguments = (str(self._lake.source), str(self._lake.root), server.url, aws.url)
        delivery, driver = processes.start_delivery(), processes.start_driver(*arguments)
        processes.wait("All destinations have rows", lambda: min(processes.delivered()) > 0, driver)
        heading(f"OpenSearch is down for {OUTAGE_S} s", style="bold red")
        search.close()
        down_at, down_s = now(), time.monotonic()
        time.sleep(8)
        processes.kill("driver", driver)
        driver = processes.start_driver(*arguments)
        is_ahead = processes.is_ahead(processes.prepared())
        processes.wait("The restarted driver prepares batches", is_ahead, driver)
        processes.kill("delivery process", delivery)
        processes.start_delivery()
        time.sleep(max(OUTAGE_S - (time.monotonic() - down_s), 0))
        print_text(f"Batches: {processes.words()}. Nobody waits for OpenSearch.")
        search.enter_context(opensearch_server(self._lake.root / "opensearch", port))
        outage = ("OpenSearch", down_at, now())
        print_text("OpenSearch is back", style="bold")
        processes.wait_for_end(driver)
        processes.wait("Everything is delivered", processes.is_delivered)

        self._prove(server, aws)
        found = {name: batches(processes.checkpoint, f"flights.{target}") for target, name in TARGETS.items()}
        plot = self._lake.root / "backlogs.png"
        count = sum(batch.rows for batch in found["Delta"])
        title = f"{count:,} flights into {', '.join(found)}: who is down holds up nobody else"
        plot_backlogs(found, outage, processes.kills, title).savefig(plot)
        heading("Next steps")
        print_path("The three backlogs", shown(plot))
        print_path("The streams", f"{shown(PENSTOCK)} status -c {shown(processes.checkpoint)}")
        print_path("The killed program", shown(PROGRAM))
        print_path("The logs", f"{shown(self._lake.log)} {shown(processes.delivery_log)}")

    def _write_source(self) -> int:
        write_flights(self._lake.source, FILES_OF_YEAR)
        for path in sorted(self._lake.source.iterdir())[self._files :]:
            path.unlink()
        return compare(self._lake.source, f"read_parquet('{self._lake.source}/*.parquet')").source_rows

    # Results ------------------------------------------------------------------------------------------

    def _prove(self, search: OpenSearchServer, aws: AwsServer) -> None:
        heading("Proof: each destination is read by a library that has not written it")
        delta = compare(self._lake.source, f"delta_scan('{self._lake.root / 'delta'}')")
        self._tell("Delta", delta.source_rows, delta.table_rows, delta.lost, delta.added, doubled_max=0)
        source = Counter(self._source_ids())
        for name, found, doubled_max in (
            ("OpenSearch", Counter(_documents(search)), 0),
            ("Kinesis", Counter(str(row["id"]) for row in aws.rows("kinesis", "flights")), WINDOW),
        ):
            lost, added = (source - found).total(), (found - source).total()
            self._tell(name, source.total(), found.total(), lost, added, doubled_max)

    def _tell(self, name: str, source: int, rows: int, lost: int, doubled: int, doubled_max: int) -> None:
        is_right = not lost and doubled <= doubled_max
        allowed = f", at most {doubled_max:,} by one kill" if doubled_max else ""
        print_text(
            f"{name:<10} {source:,} rows in the source, {rows:,} there: {lost:,} lost, "
            f"{doubled:,} doubled{allowed}",
            style="bold green" if is_right else "bold red",
        )
        if not is_right:
            raise DemoFailedError(f"{name} differs from the source")

    def _source_ids(self) -> Iterable[str]:
        with connect() as duck:
            files = f"read_parquet('{self._lake.source}/*.parquet')"
            flight_id = "concat_ws('-', epoch(time_hour)::BIGINT, carrier, flight)"
            return [str(row[0]) for row in duck.execute(f"SELECT {flight_id} FROM {files}").fetchall()]


_CREDENTIALS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}


def _documents(search: OpenSearchServer) -> Iterator[str]:
    """The field `id` of all documents."""
    search.ask("POST", "flights/_refresh")
    page = search.ask("POST", "flights/_search?scroll=1m", {"size": 10_000, "_source": ["id"]})
    while page["hits"]["hits"]:
        yield from (str(hit["_source"]["id"]) for hit in page["hits"]["hits"])
        page = search.ask("POST", "_search/scroll", {"scroll": "1m", "scroll_id": page["_scroll_id"]})


if __name__ == "__main__":
    typer.run(main)
