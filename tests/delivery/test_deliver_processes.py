"""`penstock deliver` and `penstock.start_delivery` as processes: how they end, and who takes over."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.backlogs import QUERY, SOON, DecoupledLake, decoupled, start_cli, wait_until
from tests.support.scraped_metrics import metrics_url, samples

import penstock
from penstock import ConfigurationError, RetryableError
from penstock.committers.store.sql import open_store

DRIVER = """
import os, sys, time
import penstock
handle = penstock.start_delivery({store!r}, process={process}, lease_seconds=2)
print("started", flush=True)
{then}
"""


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[DecoupledLake]:
    with decoupled(tmp_path, **SOON) as lake:
        yield lake


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit code and the output."""
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        kill(process)
        raise
    return process.returncode, (out or "") + (err or "")


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


# penstock deliver -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_well_and_frees_the_streams(lake: DecoupledLake, number: int) -> None:
    process = start_cli("deliver", "--store", lake.store_url)
    wait_until(lambda: lake.left == 0)
    process.send_signal(number)
    code, output = ended(process)
    assert code == 0, output
    (line,) = [line for line in output.splitlines() if "delivered batches" in line]
    assert re.search(
        r"ids 8d9a1c2b: delivered batches 0\.\.3, 8 rows, 8 -> 2 files, by age, in [\d.]+ s", line
    )
    assert lake.store.deliveries.acquire(lake.stream, "another", 10) is not None


@pytest.mark.parametrize("is_stopped", [False, True])
def test_once_waits_for_a_store_that_is_not_there_yet(tmp_path: Path, is_stopped: bool) -> None:
    url = f"sqlite:///{tmp_path}/checkpoint/penstock.sqlite"
    process = start_cli("deliver", "--once", "--wait", "--store", url, "--metrics-port", "0")
    assert process.stderr is not None
    assert "Metrics are served at" in process.stderr.readline()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    assert not (tmp_path / "checkpoint").exists()
    if is_stopped:
        process.terminate()
        code, output = ended(process)
        assert code == 3
        assert "Nothing was delivered" in output
        return
    staged = f"sqlite:///{tmp_path}/staged/penstock.sqlite"
    lake = DecoupledLake(tmp_path, staged, QUERY)
    lake.decouple()
    lake.fill(2)
    lake.store.close()
    (tmp_path / "staged").rename(tmp_path / "checkpoint")
    code, output = ended(process)
    assert code == 0, output
    assert len(lake.rows()) == 4


def test_waiting_creates_no_store(new_postgres_url: Callable[[], str]) -> None:
    """Otherwise `status` would find an empty store, and no longer say that the name may be wrong."""
    url = new_postgres_url()
    process = start_cli("deliver", "--wait", "--store", url)
    assert process.stderr is not None
    assert "Delivery has started" in process.stderr.readline()
    assert "Waiting for a store: There is no manifest store" in process.stderr.readline()
    process.terminate()
    code, output = ended(process)
    assert code == 0, output
    with pytest.raises(ConfigurationError, match="There is no manifest store"):
        open_store(url, must_exist=True)


def test_sigterm_lets_the_running_delivery_end(lake: DecoupledLake) -> None:
    """It arrives while the commit is on its way."""
    program = (
        "import os, signal\n"
        "from penstock.committers import crash_points\n"
        "def reach(point, batch_id):\n"
        "    if point == 'deliver.prepared': os.kill(os.getpid(), signal.SIGTERM)\n"
        "crash_points.install(reach)\n"
        "from penstock.cli.app import app\n"
        f"app(['deliver', '--store', {lake.store_url!r}])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    code, output = ended(process)
    assert code == 0, output
    assert lake.left == 0
    assert len(lake.rows()) == 8


@pytest.mark.parametrize("point", ["deliver.start", "deliver.prepared", "commit.landed"])
def test_a_killed_process_is_replaced_within_seconds(lake: DecoupledLake, tmp_path: Path, point: str) -> None:
    reached = tmp_path / "reached"
    arguments = ("deliver", "--store", lake.store_url, "--lease-seconds", "2")
    first = start_cli(*arguments, PENSTOCK_PAUSE_AT=point, PENSTOCK_PAUSE_FILE=str(reached))
    wait_until(reached.exists)
    second = start_cli(*arguments)
    time.sleep(4)
    assert lake.left == 4, "a process that is slow keeps its lease"
    kill(first)
    killed_at = time.monotonic()
    wait_until(lambda: lake.left == 0)
    took = time.monotonic() - killed_at
    second.terminate()
    assert ended(second)[0] == 0
    assert lake.row_ids() == list(range(1, 9))
    assert took < 2 + 1 + 3  # the lease, a poll of the store, and the delivery on a busy machine


def test_two_processes_deliver_each_row_once(lake: DecoupledLake) -> None:
    processes = [start_cli("deliver", "--store", lake.store_url) for _ in range(2)]
    for first in (4, 7, 10):
        wait_until(lambda: lake.left == 0)
        lake.fill(3, first=first)
    wait_until(lambda: lake.left == 0)
    for process in processes:
        process.terminate()
    for process in processes:
        assert ended(process)[0] == 0
    assert lake.row_ids() == list(range(1, 27))


def damage_log(lake: DecoupledLake) -> Path:
    """Replace the log of the Delta table by a file, and keep it as `away`."""
    log = lake.lake.data_folder / "_delta_log"
    log.rename(log.with_name("away"))
    log.write_text("no directory")
    return log


def test_an_outage_is_a_line_in_the_log_for_each_try(lake: DecoupledLake) -> None:
    """With its cause and the wait. The query is not asked to do anything, and continues."""
    damage_log(lake)
    process = start_cli("deliver", "--store", lake.store_url)
    wait_until(lambda: lake.store.deliveries.state(lake.stream).tries >= 2)
    process.terminate()
    code, output = ended(process)
    assert code == 0
    tries = [line for line in output.splitlines() if "not delivered" in line]
    assert len(tries) >= 2
    for line in tries:
        assert re.search(
            r" WARNING ids 8d9a1c2b: not delivered, next attempt in [\d.]+ s: .* cannot be", line
        )
        assert "tart the query again" not in line


def test_a_warning_of_a_library_with_a_traceback_is_a_line_in_the_log() -> None:
    program = """
import logging
from penstock.cli.deliver import set_up_logging
set_up_logging()
for name in ("pyiceberg.table", "penstock.delivery"):
    try:
        raise ConnectionError("s3cret")
    except ConnectionError:
        logging.getLogger(name).warning("Failed to delete %s", "a file", exc_info=True)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second, *traceback = ended.stderr.splitlines()
    assert first.endswith("WARNING pyiceberg.table: Failed to delete a file (ConnectionError)")
    assert second.endswith("WARNING Failed to delete a file")
    assert traceback, "unexpected errors of Penstock have it"


def test_metrics_are_served_for_prometheus(lake: DecoupledLake) -> None:
    process = start_cli("deliver", "--store", lake.store_url, "--metrics-port", "0")
    try:
        url = metrics_url(process)
        wait_until(lambda: lake.left == 0)
        wait_until(lambda: scraped(url).get("penstock_deliveries_total") == 1)
        wait_until(lambda: scraped(url)["penstock_backlog_batches"] == 0)
        values = scraped(url)
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert values["penstock_delivered_rows_total"] == 8
    assert values["penstock_delivered_batches_total"] == 4
    assert values["penstock_failures_total"] == values["penstock_parked"] == 0
    assert values["penstock_backlog_bytes"] == values["penstock_backlog_age_seconds"] == 0
    assert values["penstock_freshness_seconds_count"] == values["penstock_delivery_seconds_count"] == 1
    assert 1 <= values["penstock_freshness_seconds_sum"] < 60
    assert time.time() - 60 < values["penstock_last_success_timestamp"] <= time.time()


def scraped(url: str) -> dict[str, float]:
    """The metrics of the one stream and its store."""
    ours = samples(url)
    of_stream = [sample for sample in ours if "store" not in sample.labels]
    assert {sample.labels["query_name"] for sample in of_stream} <= {"ids"}
    assert {sample.labels["table"] for sample in of_stream} != {""}
    return {sample.name: sample.value for sample in ours}


def test_metrics_of_a_coupled_query_need_no_delivery_process(tmp_path: Path) -> None:
    lake = DecoupledLake(tmp_path, None, QUERY)
    lake.store.register_stream(lake.stream, lake.kind, "ids")
    lake.commit(0, lake.write(0))
    lake.fill(1, first=1)
    process = start_cli("metrics", "--store", lake.store_url, "--port", "0")
    try:
        url = metrics_url(process)
        wait_until(lambda: scraped(url).get("penstock_store_up") == 1)
        values = scraped(url)
    finally:
        process.terminate()
        code, output = ended(process)
    assert code == 0, output
    assert values["penstock_committed_batches_total"] == 1
    assert values["penstock_committed_rows_total"] == 2
    assert values["penstock_backlog_batches"] == 1
    assert 0 < values["penstock_backlog_age_seconds"] < 60
    assert time.time() - 60 < values["penstock_last_prepare_timestamp_seconds"] <= time.time()
    assert lake.left == 1
    lake.store.close()


# penstock.start_delivery ----------------------------------------------------------------------------


@pytest.fixture
def children() -> Callable[[], list[psutil.Process]]:
    """The processes that the test has started and that run. Servers of other tests may run too."""
    before = {child.pid for child in psutil.Process().children()}
    return lambda: [child for child in psutil.Process().children() if child.pid not in before]


@pytest.mark.parametrize("process", [False, True])
def test_a_handle_delivers_until_its_block_ends(
    lake: DecoupledLake, process: bool, children: Callable[[], list[psutil.Process]]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with penstock.start_delivery(lake.store_url, process=process) as handle:
        wait_until(lambda: lake.left == 0)
        was_alive, error = handle.is_alive, handle.last_error
    assert (was_alive, error, handle.is_alive) == (True, None, False)
    assert len(lake.rows()) == 8
    assert signal.getsignal(signal.SIGTERM) is before
    assert children() == []


@pytest.mark.parametrize("process", [False, True])
def test_a_handle_waits_for_a_store_that_a_query_has_yet_to_make(tmp_path: Path, process: bool) -> None:
    url = f"sqlite:///{tmp_path}/checkpoint/penstock.sqlite"
    with penstock.start_delivery(checkpoint=f"{tmp_path}/checkpoint", process=process) as handle:
        time.sleep(1)
        assert not (tmp_path / "checkpoint").exists()
        lake = DecoupledLake(tmp_path, url, QUERY)
        lake.decouple(**SOON)
        lake.fill(2)
        wait_until(lambda: lake.left == 0)
        assert handle.last_error is None
    lake.store.close()


def test_a_delivery_process_that_dies_is_started_again_and_leaves_no_zombie(
    lake: DecoupledLake, children: Callable[[], list[psutil.Process]]
) -> None:
    with penstock.start_delivery(lake.store_url, process=True, lease_seconds=1) as handle:
        wait_until(lambda: lake.left == 0)
        (child,) = children()
        child.kill()
        wait_until(lambda: "exit code -9" in str(handle.last_error))
        lake.fill(1, first=4)
        wait_until(lambda: lake.left == 0)
        wait_until(lambda: handle.last_error is None)
        assert [other.pid for other in children()] != [child.pid]
    assert children() == []
    assert len(lake.rows()) == 10


@pytest.mark.parametrize("process", [False, True])
def test_the_last_error_is_kept_until_something_is_delivered(lake: DecoupledLake, process: bool) -> None:
    log = damage_log(lake)
    with penstock.start_delivery(lake.store_url, process=process) as handle:
        wait_until(lambda: handle.last_error is not None)
        assert isinstance(handle.last_error, RetryableError)
        assert "cannot be" in str(handle.last_error)
        log.unlink()
        log.with_name("away").rename(log)
        wait_until(lambda: lake.left == 0)
        wait_until(lambda: handle.last_error is None)


def test_a_failed_thread_is_started_again(lake: DecoupledLake, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.delivery.service import DeliveryService

    faults, poll = iter(range(1)), DeliveryService._poll

    def fail(service: DeliveryService) -> None:
        if next(faults, None) is not None:
            raise ZeroDivisionError
        poll(service)

    monkeypatch.setattr(DeliveryService, "_poll", fail)
    with penstock.start_delivery(lake.store_url) as handle:
        wait_until(lambda: isinstance(handle.last_error, ZeroDivisionError))
        wait_until(lambda: lake.left == 0)
        assert handle.last_error is None


@pytest.mark.parametrize("process", [False, True])
@pytest.mark.parametrize(
    ("then", "number", "code"),
    [
        ("input()", None, 0),
        ("time.sleep(60)", signal.SIGTERM, -signal.SIGTERM),
        ("time.sleep(60)", signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_delivery_ends_with_its_driver(
    lake: DecoupledLake, process: bool, then: str, number: int | None, code: int
) -> None:
    """At its end, on SIGTERM, and when it is killed. The driver ends as without delivery."""
    text = DRIVER.format(store=lake.store_url, process=process, then=then)
    command = [sys.executable, "-c", text]
    driver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert driver.stdin is not None
    assert driver.stdout is not None
    assert driver.stdout.readline() == "started\n"
    wait_until(lambda: lake.left == 0)
    children = psutil.Process(driver.pid).children()
    assert len(children) == (1 if process else 0)
    if number is None:
        driver.stdin.write("\n")
        driver.stdin.flush()
    else:
        os.kill(driver.pid, number)
    assert ended(driver)[0] == code
    wait_until(lambda: not any(child.is_running() for child in children), 15)


def test_a_handler_for_sigterm_that_was_there_before_is_called_too(lake: DecoupledLake) -> None:
    handler = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"
    text = DRIVER.format(store=lake.store_url, process=False, then="time.sleep(60)").replace(
        "import penstock\n", f"import penstock, signal\n{handler}\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    wait_until(lambda: lake.left == 0)
    driver.terminate()
    assert ended(driver)[0] == 7


@pytest.mark.parametrize("process", [False, True])
@pytest.mark.parametrize("asked_for", [None, "127.0.0.2"])
def test_metrics_are_served_on_loopback_or_the_address_that_is_asked_for(
    lake: DecoupledLake, process: bool, asked_for: str | None
) -> None:
    address, other = ("127.0.0.1", "127.0.0.2") if asked_for is None else (asked_for, "127.0.0.1")
    with socket.create_server((address, 0)) as free:
        port = free.getsockname()[1]
    given: dict[str, Any] = {} if asked_for is None else {"metrics_address": asked_for}
    with penstock.start_delivery(lake.store_url, process=process, metrics_port=port, **given):
        metrics = f"http://{address}:{port}/metrics"
        wait_until(lambda: lake.left == 0)
        wait_until(lambda: scraped(metrics).get("penstock_delivered_rows_total") == 8)  # after the mark
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((other, port)).close()


def test_the_secrets_of_a_delivery_process_are_neither_arguments_nor_environment(
    lake: DecoupledLake, children: Callable[[], list[psutil.Process]]
) -> None:
    storage = {"aws_secret_access_key": "geheim"}
    with penstock.start_delivery(lake.store_url, process=True, storage=storage):
        wait_until(lambda: lake.left == 0)
        (child,) = children()
        assert "geheim" not in str(child.cmdline()) + str(child.environ())
        assert lake.store_url not in str(child.cmdline()) + str(child.environ())


@pytest.mark.parametrize(
    ("variable", "value"),
    [("PENSTOCK_OPTIONS_FILE", "/nowhere"), ("PENSTOCK_STORAGE", "no JSON"), ("PENSTOCK_CATALOG", "no JSON")],
)
def test_a_delivery_process_uses_its_arguments_and_not_the_driver_s_environment(
    lake: DecoupledLake, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with penstock.start_delivery(lake.store_url, process=True) as handle:
        wait_until(lambda: lake.left == 0 or handle.last_error is not None)
        assert handle.last_error is None


def test_arguments_that_do_not_fit_together_are_refused(lake: DecoupledLake) -> None:
    with pytest.raises(ConfigurationError, match="either `store` or `checkpoint`"):
        penstock.start_delivery()
    with pytest.raises(ConfigurationError, match="either `spark` or `process"):
        penstock.start_delivery(lake.store_url, process=True, spark=object())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="not on a local disk"):
        penstock.start_delivery(checkpoint="s3://bucket/checkpoint")
    with pytest.raises(ConfigurationError, match="from 1 to 64"):
        penstock.start_delivery(lake.store_url, parallel=0)
