"""Demo (`make demo-fanout`): one query streams real flights into a Delta table, OpenSearch and Kinesis.

OpenSearch is down for 30 seconds in the middle. The driver and the delivery process are killed. At the end
every destination is compared with the source. Kinesis has no way to recognize a record that it already has:
after a kill of the delivery process, the requests that were in flight arrive a second time, and are counted.

The servers are real ones on the loopback: OpenSearch from Maven, and moto in the place of AWS.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this file is run as a script

from notebooks.backlog_plot import plot_backlogs
from notebooks.demo import REPOSITORY, DemoFailedError
from notebooks.flights import write_flights
from notebooks.lake import Lake
from notebooks.proof import compare, connect
from notebooks.screen import console, heading, print_path, print_text, shown
from notebooks.store import PENSTOCK, batches, streams
from servers.aws import KEY, SECRET, AwsServer, aws_server
from servers.maven import MavenUnreachableError
from servers.opensearch import OpenSearchServer, opensearch_server
from servers.ports import free_port

from penstock.testing import RunningJob

PROGRAM = Path(__file__).with_name("fanout_stream.py")
FILES_OF_YEAR = 365
TARGETS = {"lake": "Delta", "search": "OpenSearch", "events": "Kinesis"}
OUTAGE_S = 30
WINDOW = 4 * 250 + 500
"""What a kill may repeat: maxInFlightRequests * maxBatchSize + maxBufferedRequests of the program."""
TIMEOUT_S = 600
POLL_S = 1.0


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
    started = time.monotonic()
    try:
        with ExitStack() as stack:
            FanoutDemo(Lake(directory.resolve()), files, stack).run()
    except KeyboardInterrupt:
        console.print("\nStopped. No process is left; the next demo starts from the beginning.")
        raise SystemExit(130) from None
    except (DemoFailedError, FileExistsError, MavenUnreachableError) as error:
        console.print(f"\nThe demo failed: {error}", style="red", soft_wrap=True)
        raise SystemExit(1) from None
    console.print(f"\nThe demo took {time.monotonic() - started:.0f} s.", style="dim")


class FanoutDemo:
    """One run. The stack stops its servers and processes."""

    def __init__(self, lake: Lake, files: int, stack: ExitStack) -> None:
        self._lake = lake
        self._files = files
        self._stack = stack
        self._checkpoint = lake.root / "checkpoint"
        self._kills: dict[str, datetime] = {}

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
        delivery, driver = self._start_delivery(), self._start_driver(server.url, aws.url)
        self._wait("All destinations have rows", lambda: min(self._delivered()) > 0, driver)
        heading(f"OpenSearch is down for {OUTAGE_S} s", style="bold red")
        search.close()
        down_at, down_s = _now(), time.monotonic()
        time.sleep(8)
        self._kill("driver", driver)
        driver = self._start_driver(server.url, aws.url)
        self._wait("The restarted driver prepares batches", self._is_ahead(self._prepared()), driver)
        self._kill("delivery process", delivery)
        self._start_delivery()
        time.sleep(max(OUTAGE_S - (time.monotonic() - down_s), 0))
        self._print_backlogs()
        search.enter_context(opensearch_server(self._lake.root / "opensearch", port))
        outage = ("OpenSearch", down_at, _now())
        print_text("OpenSearch is back", style="bold")
        if driver.wait() != 0:
            raise DemoFailedError(f"the driver failed. Its log ends:\n{driver.tail()}")
        self._wait("Everything is delivered", lambda: set(self._pending().values()) == {0})

        self._prove(server, aws)
        found = {name: batches(self._checkpoint, f"flights.{target}") for target, name in TARGETS.items()}
        plot = self._lake.root / "backlogs.png"
        plot_backlogs(found, outage, self._kills).savefig(plot)
        heading("Next steps")
        print_path("The three backlogs", shown(plot))
        print_path("The streams", f"{shown(PENSTOCK)} status -c {shown(self._checkpoint)}")
        print_path("The killed program", shown(PROGRAM))
        print_path("The logs", f"{shown(self._lake.log)} {shown(self._delivery_log)}")

    def _write_source(self) -> int:
        write_flights(self._lake.source, FILES_OF_YEAR)
        for path in sorted(self._lake.source.iterdir())[self._files :]:
            path.unlink()
        return compare(self._lake.source, f"read_parquet('{self._lake.source}/*.parquet')").source_rows

    # Processes ----------------------------------------------------------------------------------------

    @property
    def _delivery_log(self) -> Path:
        return self._lake.root / "delivery.log"

    def _start_driver(self, search: str, aws: str) -> RunningJob:
        environment = {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.enabled=false --conf spark.ui.showConsoleProgress=false "
            "pyspark-shell",
            "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
            **_CREDENTIALS,
        }
        program: list[str | Path] = [
            sys.executable,
            PROGRAM,
            str(self._lake.source),
            str(self._lake.root),
            search,
            aws,
        ]
        return self._stack.enter_context(RunningJob(program, self._lake.log, environment))

    def _start_delivery(self) -> RunningJob:
        store = f"sqlite:///{self._checkpoint}/penstock.sqlite"
        command = [str(PENSTOCK), "deliver", "--wait", "--lease-seconds", "5", "--store", store]
        return self._stack.enter_context(RunningJob(command, self._delivery_log, _CREDENTIALS))

    def _kill(self, name: str, job: RunningJob) -> None:
        self._kills[f"{name} killed"] = _now()
        print_text(f"SIGKILL of the {name}, {job.kill()} processes", style="bold red")

    def _wait(self, what: str, is_so: Callable[[], bool], driver: RunningJob | None = None) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not is_so():
            if driver is not None and not driver.is_running():
                raise DemoFailedError(f"the driver ended before {what}. Its log ends:\n{driver.tail()}")
            if time.monotonic() > deadline:
                raise DemoFailedError(f"not after {TIMEOUT_S} s: {what}. See {shown(self._delivery_log)}")
            time.sleep(POLL_S)
        print_text(f"{what}: {self._words()}")

    # What the store says ------------------------------------------------------------------------------

    def _streams(self) -> dict[str, dict[str, object]]:
        """By target."""
        found = streams(self._checkpoint) if self._checkpoint.exists() else []
        return {str(stream["query_name"]).rpartition(".")[2]: stream for stream in found}

    def _pending(self) -> dict[str, int]:
        return {target: int(str(stream["pending"])) for target, stream in self._streams().items()}

    def _delivered(self) -> list[int]:
        known = self._streams()
        return [int(str(known[target]["committed_batches"])) if target in known else 0 for target in TARGETS]

    def _prepared(self) -> int:
        last = self._streams()["lake"]["last_batch"]
        return int(last["batch_id"]) if isinstance(last, dict) else -1

    def _is_ahead(self, batch_id: int) -> Callable[[], bool]:
        return lambda: self._prepared() >= batch_id + 2

    def _words(self) -> str:
        return ", ".join(
            f"{TARGETS[target]} {waits} waiting" for target, waits in sorted(self._pending().items())
        )

    def _print_backlogs(self) -> None:
        print_text(f"Batches: {self._words()}. Nobody waits for OpenSearch.")

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


def _now() -> datetime:
    return datetime.now(timezone.utc)


if __name__ == "__main__":
    typer.run(main)
