"""`make demo`: real flights stream into a Delta table, the driver dies at the worst moment, nothing is lost.

The stream is the program `flights_stream.py`, in a process of its own. This one starts it, watches the
manifest store, kills it between prepare and commit, starts it again, and proves what the table then holds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this file is run as a script

from notebooks.batch_plot import plot_batches
from notebooks.flights import FILES_MAX, write_flights
from notebooks.lake import Lake
from notebooks.proof import compare, count_rows
from notebooks.screen import BatchProgress, console, heading, say, say_path, shown
from tests.spark.processes import DriverProcess

from penstock.committers.contract import ManifestRecord, ManifestState

REPOSITORY = Path(__file__).resolve().parents[1]
PROGRAM = Path(__file__).with_name("flights_stream.py")
PENSTOCK = Path(sys.executable).with_name("penstock")
CRASH_POINT = "prepare.done"
CRASH_AT = 0.4
"""The driver is killed when this part of the batches is committed."""

DRIVER_TIMEOUT_S = 600
POLL_S = 0.2


class DemoFailedError(Exception):
    """The demo did not come to its end, or did not show what it promises."""


def main(
    files: Annotated[
        int, typer.Option(min=5, max=FILES_MAX, help="Files that the year is split into; each is one batch.")
    ] = 52,
    directory: Annotated[
        Path, typer.Option(help="Where to work. Wiped at the start if an earlier demo has made it.")
    ] = REPOSITORY / "demo-data",
) -> None:
    """Stream a year of real flights into a Delta table, kill the driver, restart it, and prove every row."""
    signal.signal(signal.SIGTERM, _stop)
    started = time.monotonic()
    try:
        run(Lake(directory.resolve()), files)
    except KeyboardInterrupt:
        console.print("\nStopped. No process is left running; the next demo starts afresh.")
        raise SystemExit(130) from None
    except (DemoFailedError, FileExistsError) as error:
        console.print(f"\nThe demo failed: {error}", style="red", soft_wrap=True)
        raise SystemExit(1) from None
    console.print(f"\nAll of it took {time.monotonic() - started:.0f} s.", style="dim")


def _stop(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def run(lake: Lake, files: int) -> None:
    lake.empty()
    heading("Source: the flights that left New York in 2013")
    rows = write_flights(lake.source, files)
    say(f"{rows:,} flights in {files} Parquet files, in time order: {shown(lake.source)}")
    killed = stream_until_killed(lake, files)
    stream_to_the_end(lake, files, killed)
    prove(lake)
    heading("The stream, as the store knows it")
    show_command("status", "--checkpoint", shown(lake.checkpoint))
    plot = lake.root / "batches.png"
    plot_batches(lake.batches()).savefig(plot)
    say_what_next(lake, plot, killed)


# The stream, twice ----------------------------------------------------------------------------------


def stream_until_killed(lake: Lake, files: int) -> ManifestRecord:
    """Kill the driver and everything it started when it has prepared a batch; that batch."""
    batch_id = int(files * CRASH_AT)
    paused = lake.root / "paused"
    heading("Stream: each file is a batch, the Delta table is partitioned by origin and month")
    pause = {"PENSTOCK_PAUSE_AT": f"{CRASH_POINT}@{batch_id}", "PENSTOCK_PAUSE_FILE": str(paused)}
    with start_driver(lake, pause) as driver:
        watch(driver, lake, files, paused.exists)
        if not paused.exists():
            raise DemoFailedError(f"the driver ended before batch {batch_id}. Its log ends:\n{driver.tail()}")
        processes = driver.kill()
    batch, token = lake.batches()[-1], lake.token()
    heading("SIGKILL, at the worst moment", style="bold red")
    say(
        f"Batch {batch_id} is prepared: its files are written and its manifest is durable, but the table "
        f"does not name them yet. The driver, its JVM and its Python workers are gone, {processes} processes."
    )
    say(
        f"the store says  batch {batch_id} is {batch.state.value}, {batch.rows:,} rows in {batch.files} files"
    )
    if batch.state is not ManifestState.PREPARED or token is None or token.batch_id != batch_id - 1:
        raise DemoFailedError(
            f"batch {batch_id} should be PREPARED and not in the table, whose token is {token}"
        )
    say(f"the table says  batch {token.batch_id} is the last, {count_rows(lake.table):,} rows can be read")
    return batch


def stream_to_the_end(lake: Lake, files: int, killed: ManifestRecord) -> None:
    """Start the same program again, as a supervisor would, and let it finish."""
    batch_id = killed.batch.batch_id
    before = data_files(lake, batch_id)
    heading("Restart: the same program, the same checkpoint, nothing else")
    say(
        f"Recovery finds batch {batch_id} PREPARED, sees that the table does not hold it, and commits the "
        "files that lie ready. Spark knows nothing of that and runs the batch again: its tasks are told "
        "that it is committed and write nothing."
    )
    with start_driver(lake, {}) as driver:
        watch(driver, lake, files, is_over=lambda: False)
        if driver.wait() != 0:
            raise DemoFailedError(f"the restarted driver failed. Its log ends:\n{driver.tail()}")
    recovered, after = lake.batches()[batch_id], data_files(lake, batch_id)
    if recovered.finished_at is None or after != before:
        raise DemoFailedError(f"batch {batch_id} was not finished with the {len(before)} files that it had")
    waited_s = (recovered.finished_at - recovered.prepared_at).total_seconds()
    say(
        f"Batch {batch_id} was committed {waited_s:.1f} s after it was prepared, with the very same "
        f"{len(after)} files: none was written for it after the crash."
    )


def start_driver(lake: Lake, environment: dict[str, str]) -> DriverProcess:
    arguments = [str(lake.source), str(lake.table), str(lake.checkpoint)]
    settings = {
        "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.enabled=false --conf spark.ui.showConsoleProgress=false "
        "pyspark-shell",
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
    }
    return DriverProcess(arguments, lake.log, {**settings, **environment}, program=PROGRAM)


def watch(driver: DriverProcess, lake: Lake, files: int, is_over: Callable[[], bool]) -> None:
    """Show what the store says is committed until `is_over` or the end of the driver."""
    deadline = time.monotonic() + DRIVER_TIMEOUT_S
    with BatchProgress(files) as progress:
        while True:
            ends = is_over() or not driver.is_running()
            stream = lake.stream()
            if stream is not None:
                progress.show(stream.committed_batches, stream.committed_rows)
            if ends:
                return
            if time.monotonic() > deadline:
                raise DemoFailedError(
                    f"the driver was not done after {DRIVER_TIMEOUT_S} s. Its log ends:\n{driver.tail()}"
                )
            time.sleep(POLL_S)


def data_files(lake: Lake, batch_id: int) -> set[Path]:
    """The data files on disk that were written for a batch, whether the table names them or not."""
    return {path for path in lake.data_files() if f"-{batch_id:08}-" in path.name}


# What came of it ------------------------------------------------------------------------------------


def prove(lake: Lake) -> None:
    heading("Proof: DuckDB, which wrote none of it, compares all columns of all rows")
    proof = compare(lake.source, lake.table)
    say(f"{proof.source_rows:>9,} rows in the source")
    say(f"{proof.table_rows:>9,} rows in the table")
    say(f"{proof.lost:>9,} lost", style="bold green" if proof.lost == 0 else "bold red")
    say(f"{proof.added:>9,} doubled", style="bold green" if proof.added == 0 else "bold red")
    if not proof.holds:
        raise DemoFailedError("the table is not its source")
    unfinished = [b.batch.batch_id for b in lake.batches() if b.state is not ManifestState.COMMITTED]
    if unfinished:
        raise DemoFailedError(f"these batches are not COMMITTED: {unfinished}")


def show_command(*arguments: str) -> None:
    """Run the command line for real."""
    console.print(f"  $ {shown(PENSTOCK)} {' '.join(arguments)}", style="dim", soft_wrap=True)
    environment = {**os.environ, "COLUMNS": str(console.width)}
    subprocess.run([str(PENSTOCK), *arguments], check=True, env=environment)


def say_what_next(lake: Lake, plot: Path, killed: ManifestRecord) -> None:
    penstock, checkpoint = shown(PENSTOCK), shown(lake.checkpoint)
    heading("Look around")
    say_path("All batches, the crash marked", shown(plot))
    say_path(
        "The batch that was recovered", f"{penstock} show flights {killed.batch.batch_id} -c {checkpoint}"
    )
    say_path("Files that nothing needs", f"{penstock} gc -c {checkpoint}")
    say_path("The program that was killed", shown(PROGRAM))
    say_path("The log of both drivers", shown(lake.log))
    say_path("Step by step, with outputs", shown(PROGRAM.with_name("01_quickstart.ipynb")))
    say_path("What is promised, and what not", shown(REPOSITORY / "README.md"))


if __name__ == "__main__":
    typer.run(main)
