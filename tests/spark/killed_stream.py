"""A stream whose driver is killed again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.support.driver_process import SHORT_LIVED, DriverProcess
from tests.support.id_stream import write_ids

FILES, ROWS_PER_FILE = 5, 200
ROWS = FILES * ROWS_PER_FILE


class KilledStream:
    """A stream of `ROWS` ids; its driver gets SIGKILL at each of these crash points in turn.

    Each replay has other partitions. The next driver starts its Spark while the one before it still runs.
    """

    def __init__(
        self,
        root: Path,
        data_source: str,
        options: Mapping[str, str],
        kills: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.source = root / "source"
        self._root = root
        self._data_source = data_source
        self._options = options
        self._kills = kills
        self._environment = environment or {}
        self.source.mkdir()
        for number in range(FILES):
            ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
            write_ids(self.source / f"{number:05}.parquet", ids, number, days=3)

    def run(self) -> None:
        """Kill the driver at every point, and then let it run to the end of the source."""
        with ExitStack() as drivers:
            driver = drivers.enter_context(self._start(0))
            for turn in range(len(self._kills)):
                self._signal(turn).touch()
                following = drivers.enter_context(self._start(turn + 1))
                driver.wait_for(self._reached(turn))
                driver.kill()
                driver = following
            self._signal(len(self._kills)).touch()
            assert driver.wait() == 0, driver.tail()

    def _start(self, turn: int) -> DriverProcess:
        options, arguments = dict(self._options), ["--partitions", str(1 + turn % 3)]
        if "recover.done" in self._kills[:turn]:
            arguments += ["--column", "id * 2 AS twice"]
            options["schemaEvolution"] = "addColumns"
        environment = dict(self._environment)
        if turn < len(self._kills):
            environment["PENSTOCK_PAUSE_AT"] = self._kills[turn]
            environment["PENSTOCK_PAUSE_FILE"] = str(self._reached(turn))
        checkpoint, log = self._root / "checkpoint", self._root / f"driver-{turn}.log"
        arguments += ["--after", str(self._signal(turn))]
        return start_driver(self._data_source, self.source, checkpoint, options, log, environment, *arguments)

    def _signal(self, turn: int) -> Path:
        return self._root / f"start-{turn}"

    def _reached(self, turn: int) -> Path:
        return self._root / f"reached-{turn}"


def start_driver(
    data_source: str,
    source: Path,
    checkpoint: Path,
    options: Mapping[str, str],
    log: Path,
    environment: Mapping[str, str],
    *arguments: str,
) -> DriverProcess:
    """Start the driver program of the kill tests."""
    command = [data_source, str(source), str(checkpoint), *arguments]
    for key, value in options.items():
        command += ["--option", f"{key}={value}"]
    for key, value in SHORT_LIVED.items():
        command += ["--conf", f"{key}={value}"]
    return DriverProcess(command, log, environment)
