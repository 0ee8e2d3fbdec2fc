"""A real Spark that writes a Delta table and an Iceberg table with the same files."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from tests.support.backlogs import start_cli, wait_until
from tests.support.driver_process import SHORT_LIVED, DriverProcess
from tests.support.id_stream import write_ids
from tests.support.lake_pairs import lake_pair

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.kills]

FILES, ROWS = 4, 100


def test_kills_of_driver_and_delivery_process_leave_both_tables_with_the_same_rows(tmp_path: Path) -> None:
    """SIGKILL of the driver before and after it has prepared a batch, and of a delivery process that has
    committed one batch to one of the tables and not yet to the other.
    """
    source = tmp_path / "source"
    source.mkdir()
    for number in range(FILES):
        write_ids(source / f"{number:05}.parquet", range(number * ROWS, (number + 1) * ROWS), number)
    url = f"sqlite:///{tmp_path}/checkpoint/penstock.sqlite"
    deliveries: list[subprocess.Popen[str]] = []

    def deliver(**environment: str) -> None:
        deliveries.append(start_cli("deliver", "--store", url, "--lease-seconds", "1", **environment))

    with lake_pair(tmp_path, url) as pair:
        options = pair.options(partitionBy="day")
        checkpoint = options.pop("checkpointLocation")
        for turn, point in enumerate(("prepare.start@1", "prepare.done@2", None)):
            reached, landed = tmp_path / f"reached-{turn}", tmp_path / f"landed-{turn}"
            arguments = ["penstock.lake", str(source), checkpoint, "--partitions", str(1 + turn % 3)]
            for key, value in options.items():
                arguments += ["--option", f"{key}={value}"]
            for key, value in SHORT_LIVED.items():
                arguments += ["--conf", f"{key}={value}"]
            environment = {"PENSTOCK_PAUSE_AT": point, "PENSTOCK_PAUSE_FILE": str(reached)} if point else {}
            with DriverProcess(arguments, tmp_path / f"driver-{turn}.log", environment) as driver:
                if point:
                    driver.wait_for(reached)
                    deliver(PENSTOCK_PAUSE_AT="commit.landed", PENSTOCK_PAUSE_FILE=str(landed))
                    wait_until(landed.exists)
                    time.sleep(0.5)
                    deliveries[-1].kill()
                    driver.kill()
                else:
                    assert driver.wait() == 0, driver.tail()
        deliver()
        try:
            wait_until(lambda: [stream.pending for stream in pair.store.streams()] == [0, 0], 120)
        finally:
            for process in deliveries:
                process.kill()
                process.communicate()
        assert pair.ids() == [list(range(FILES * ROWS))] * 2
        delta, iceberg = (sorted(table.rows("id, day")) for table in pair.tables)
        assert delta == iceberg
        in_delta, in_iceberg = pair.named()
        assert in_delta == in_iceberg
        assert {stream.query_name for stream in pair.store.streams()} == {"ids.delta", "ids.iceberg"}
