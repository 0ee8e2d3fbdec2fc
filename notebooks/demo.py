"""Demo (`make demo`): streams real flights into a Delta and an Iceberg table and kills the driver in between.

The program `flights_stream.py` runs the two streams in a separate process. The demo starts it, watches the
manifest stores, kills it between prepare and commit, starts it again, and compares the tables with the
source.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this file is run as a script

from notebooks.batch_plot import plot_batches
from notebooks.flights import FILES_MAX, write_flights
from notebooks.lake import DemoStream, Lake
from notebooks.proof import compare, count_rows
from notebooks.screen import BatchProgress, console, heading, print_path, print_text, shown
from notebooks.store import PENSTOCK
from servers.maven import MavenUnreachableError

from penstock.testing import RunningJob

REPOSITORY = Path(__file__).resolve().parents[1]
PROGRAM = Path(__file__).with_name("flights_stream.py")
CRASH_POINT = "prepare.done"
CRASH_AT = 0.4
"""Share of the batches that are committed before the driver is killed."""

DRIVER_TIMEOUT_S = 600
POLL_S = 1.0


class DemoFailedError(Exception):
    """The demo did not finish, or a check failed."""


def main(
    files: Annotated[
        int, typer.Option(min=5, max=FILES_MAX, help="Files that the year is split into; each is one batch.")
    ] = 36,
    directory: Annotated[
        Path, typer.Option(help="Working directory. Emptied at the start if an earlier demo created it.")
    ] = REPOSITORY / "demo-data",
) -> None:
    """Stream a year of real flights into a Delta and an Iceberg table, kill the driver, restart it, and prove
    every row.
    """
    signal.signal(signal.SIGTERM, _stop)
    with reported():
        run(Lake(directory.resolve()), files)


@contextmanager
def reported() -> Iterator[None]:
    """Print how long the demo took, or in one line why it failed.

    Raises:
        SystemExit: it was stopped or failed.
    """
    started = time.monotonic()
    try:
        yield
    except KeyboardInterrupt:
        console.print("\nStopped. No process is left; the next demo starts from the beginning.")
        raise SystemExit(130) from None
    except (DemoFailedError, FileExistsError, MavenUnreachableError) as error:
        console.print(f"\nThe demo failed: {error}", style="red", soft_wrap=True)
        raise SystemExit(1) from None
    console.print(f"\nThe demo took {time.monotonic() - started:.0f} s.", style="dim")


def _stop(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def run(lake: Lake, files: int) -> None:
    lake.empty()
    heading("Source: the flights that left New York in 2013")
    rows = write_flights(lake.source, files)
    print_text(f"{rows:,} flights in {files} Parquet files, in time order: {shown(lake.source)}")
    batch_id = stream_until_killed(lake, files)
    stream_to_the_end(lake, files, batch_id)
    prove(lake)
    heading("The streams in their stores")
    for stream in lake.streams:
        show_command("status", "--checkpoint", shown(stream.checkpoint))
    plot = lake.root / "batches.png"
    plot_batches({stream.format_name: stream.batches() for stream in lake.streams}).savefig(plot)
    print_next_steps(lake, plot, batch_id)


# The streams, twice ---------------------------------------------------------------------------------


def stream_until_killed(lake: Lake, files: int) -> int:
    """Kill the driver and its child processes when both streams have prepared a batch; return its id."""
    batch_id = int(files * CRASH_AT)
    heading("Stream: each file is a batch, once into a Delta table and once into an Iceberg table")
    print_text("Delta is partitioned by origin and month, Iceberg by month(time_hour) and origin.")
    pause = {
        "PENSTOCK_PAUSE_AT": f"{CRASH_POINT}@{batch_id}",
        "PENSTOCK_PAUSE_FILE": str(lake.root / "paused"),
    }

    def all_paused() -> bool:
        return all(last_prepared(stream) == batch_id for stream in lake.streams)

    with start_driver(lake, pause) as driver:
        watch(driver, lake, files, all_paused)
        if not all_paused():
            raise DemoFailedError(f"the driver ended before batch {batch_id}. Its log ends:\n{driver.tail()}")
        processes = driver.kill()
    heading("SIGKILL between prepare and commit", style="bold red")
    print_text(
        f"Batch {batch_id} is prepared in both streams: its files are written and its manifests are durable, "
        "but no table names them yet. The driver, its JVM and its Python workers were killed, "
        f"{processes} processes."
    )
    for stream in lake.streams:
        print_state(stream, batch_id)
    return batch_id


def last_prepared(stream: DemoStream) -> int | None:
    """Return the stream's last batch if it is PREPARED."""
    status = stream.status()
    last = None if status is None else status["last_batch"]
    return last["batch_id"] if last is not None and last["state"] == "PREPARED" else None


def print_state(stream: DemoStream, batch_id: int) -> None:
    """Print the killed batch in store and table."""
    batch, token = stream.batches()[-1], stream.token_batch_id(batch_id)
    if batch.state != "PREPARED" or token != batch_id - 1:
        raise DemoFailedError(
            f"batch {batch_id} should be PREPARED and not in the {stream.format_name} table, whose last "
            f"batch is {token}"
        )
    name = f"{stream.format_name:<8}"
    print_text(f"{name} store  batch {batch_id} is {batch.state}, {batch.rows:,} rows in {batch.files} files")
    print_text(f"{name} table  batch {token} is the last, {count_rows(stream.relation):,} rows are readable")


def stream_to_the_end(lake: Lake, files: int, batch_id: int) -> None:
    """Start the same program again, as a supervisor would, and wait for its end."""
    before = [files_of(stream, batch_id) for stream in lake.streams]
    heading("Restart: the same program with the same checkpoints")
    print_text(
        f"Recovery finds batch {batch_id} PREPARED and not in the table, and commits its files. Spark runs "
        "the batch again; its tasks skip it and write nothing."
    )
    with start_driver(lake, {}) as driver:
        watch(driver, lake, files, is_over=lambda: False)
        if driver.wait() != 0:
            raise DemoFailedError(f"the restarted driver failed. Its log ends:\n{driver.tail()}")
    for stream, files_before in zip(lake.streams, before, strict=True):
        recovered = stream.batches()[batch_id]
        if recovered.finished_at is None or files_of(stream, batch_id) != files_before:
            raise DemoFailedError(f"batch {batch_id} was not finished with its {len(files_before)} files")
        waited_s = (recovered.finished_at - recovered.prepared_at).total_seconds()
        print_text(
            f"{stream.format_name:<8} batch {batch_id} was committed {waited_s:.1f} s after it was prepared, "
            f"with the same {len(files_before)} files"
        )


def start_driver(lake: Lake, environment: dict[str, str]) -> RunningJob:
    settings = {
        "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.enabled=false --conf spark.ui.showConsoleProgress=false "
        "pyspark-shell",
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
    }
    arguments = [str(lake.source), str(lake.root)]
    python = {"PYSPARK_PYTHON": sys.executable}
    return RunningJob([sys.executable, PROGRAM, *arguments], lake.log, {**python, **settings, **environment})


def watch(driver: RunningJob, lake: Lake, files: int, is_over: Callable[[], bool]) -> None:
    """Show the committed batches of the stores until `is_over` or the end of the driver."""
    deadline = time.monotonic() + DRIVER_TIMEOUT_S
    with BatchProgress([stream.format_name for stream in lake.streams], files) as progress:
        while True:
            ends = is_over() or not driver.is_running()
            for stream in lake.streams:
                status = stream.status()
                if status is not None:
                    batches, rows = status["committed_batches"], status["committed_rows"]
                    progress.show(stream.format_name, batches, rows)
            if ends:
                return
            if time.monotonic() > deadline:
                raise DemoFailedError(
                    f"the driver was not done after {DRIVER_TIMEOUT_S} s. Its log ends:\n{driver.tail()}"
                )
            time.sleep(POLL_S)


def files_of(stream: DemoStream, batch_id: int) -> set[Path]:
    """Return the data files of a batch on disk, in the table or not."""
    return {path for path in stream.data_files() if f"-{batch_id:08}-" in path.name}


# Results --------------------------------------------------------------------------------------------


def prove(lake: Lake) -> None:
    heading("Proof: DuckDB compares all columns of all rows with the source")
    for stream in lake.streams:
        proof = compare(lake.source, stream.relation)
        print_text(
            f"{stream.format_name:<8} {proof.source_rows:,} rows in the source, {proof.table_rows:,} in the "
            f"table: {proof.lost:,} lost, {proof.added:,} doubled",
            style="bold green" if proof.holds else "bold red",
        )
        if not proof.holds:
            raise DemoFailedError(f"the {stream.format_name} table differs from the source")
        unfinished = [b.batch_id for b in stream.batches() if b.state != "COMMITTED"]
        if unfinished:
            raise DemoFailedError(f"these batches are not COMMITTED: {unfinished}")


def show_command(*arguments: str) -> None:
    """Print and run a command."""
    console.print(f"  $ {shown(PENSTOCK)} {' '.join(arguments)}", style="dim", soft_wrap=True)
    environment = {**os.environ, "COLUMNS": str(console.width)}
    subprocess.run([str(PENSTOCK), *arguments], check=True, env=environment)


def print_next_steps(lake: Lake, plot: Path, batch_id: int) -> None:
    penstock, checkpoint = shown(PENSTOCK), shown(lake.streams[-1].checkpoint)
    heading("Next steps")
    print_path("All batches, with the crash", shown(plot))
    print_path("The recovered batch", f"{penstock} show flights-iceberg {batch_id} -c {checkpoint}")
    print_path("Orphaned files", f"{penstock} gc -c {checkpoint}")
    print_path("The killed program", shown(PROGRAM))
    print_path("The log of both drivers", shown(lake.log))
    print_path("Step by step, with outputs", shown(PROGRAM.with_name("01_quickstart.ipynb")))
    print_path("Guarantees and limits", shown(REPOSITORY / "README.md"))


if __name__ == "__main__":
    typer.run(main)
