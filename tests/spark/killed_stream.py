"""Streams whose driver is killed again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.driver_process import SHORT_LIVED, DriverProcess
from tests.support.id_stream import write_source

FILES, ROWS_PER_FILE = 3, 200
ROWS = FILES * ROWS_PER_FILE


@dataclass(frozen=True)
class SourceFiles:
    """What streams read, a file in each batch."""

    schema: str
    """The columns, as Spark's DDL."""
    write: Callable[[Path], None]
    """Writes the files into a new folder."""


IDS = SourceFiles("id LONG, day STRING", lambda folder: write_source(folder, FILES, ROWS_PER_FILE, days=3))


@dataclass(frozen=True)
class KilledStream:
    """A stream, of `ROWS` ids by default; its driver gets SIGKILL at each of these crash points in turn.

    Args:
        root: folder of its checkpoint, and of its source if the driver has only this stream
        kills: crash points, with `@` and a number those of one batch
        environment: of the driver
    """

    root: Path
    data_source: str
    options: Mapping[str, str]
    kills: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def source(self) -> Path:
        return self.root / "source"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    def run(self) -> None:
        KilledDriver(self.root, [self], self.environment).run()


@dataclass
class KilledDriver:
    """One driver of several streams. It is killed once each of them has reached its next crash point.

    Each replay has other partitions. The next driver starts its Spark while the one before it still runs.

    Args:
        meanwhile: called once all streams have reached the crash point of this number, before the kill
    """

    root: Path
    streams: Sequence[KilledStream]
    environment: Mapping[str, str] = field(default_factory=dict)
    meanwhile: Callable[[int], None] = lambda _turn: None
    files: SourceFiles = IDS
    more_turns: int = 0
    """Kills after those at the crash points, when `meanwhile` returns."""

    def __post_init__(self) -> None:
        self._turns = max(len(stream.kills) for stream in self.streams) + self.more_turns
        self._source = self.root / "source"
        self.files.write(self._source)

    def run(self) -> None:
        """Kill the driver at every point, and then let it run to the end of the source."""
        with ExitStack() as drivers:
            driver = drivers.enter_context(self._start(0))
            for turn in range(self._turns):
                self._signal(turn).touch()
                following = drivers.enter_context(self._start(turn + 1))
                for stream in self.streams:
                    if turn < len(stream.kills):
                        driver.wait_for(self._reached(turn, stream))
                self.meanwhile(turn)
                driver.kill()
                driver = following
            self._signal(self._turns).touch()
            assert driver.wait() == 0, driver.tail()

    def _start(self, turn: int) -> DriverProcess:
        arguments = ["--master", f"local[{len(self.streams) + 1}]", "--after", str(self._signal(turn))]
        for number, stream in enumerate(self.streams):
            arguments += ["--and"] if number else []
            arguments += [stream.data_source, str(self._source), str(stream.checkpoint)]
            arguments += ["--schema", self.files.schema, "--partitions", str(1 + turn % 3)]
            options = dict(stream.options)
            if "recover.done" in stream.kills[:turn]:
                arguments += ["--column", "id * 2 AS twice"]
                options["schemaEvolution"] = "addColumns"
            point = stream.kills[turn] if turn < len(stream.kills) else ""
            arguments += ["--worker", f"PENSTOCK_PAUSE_AT={point}"]
            arguments += ["--worker", f"PENSTOCK_PAUSE_FILE={self._reached(turn, stream)}"]
            arguments += as_options(options)
        return start_driver(arguments, self.root / f"driver-{turn}.log", self.environment)

    def _signal(self, turn: int) -> Path:
        return self.root / f"start-{turn}"

    def _reached(self, turn: int, stream: KilledStream) -> Path:
        """The file that the stream's paused process writes."""
        return stream.root / f"reached-{turn}"


def start_driver(arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> DriverProcess:
    """Start the driver program of the kill tests."""
    settings = [part for key, value in SHORT_LIVED.items() for part in ("--conf", f"{key}={value}")]
    return DriverProcess([*settings, *arguments], log, environment)


def as_options(options: Mapping[str, str]) -> list[str]:
    """Arguments of the driver program."""
    return [part for key, value in options.items() for part in ("--option", f"{key}={value}")]
