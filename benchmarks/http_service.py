"""A small HTTP service in a process of its own: it answers after a time, and can limit the rows a second.

    python -m benchmarks.http_service LATENCY_MS [ROWS_PER_SECOND BURST_ROWS]

Prints its port, and a line for each signal. The rows of a request are lines. GET answers with what was
counted so far, as JSON. SIGUSR1 closes all connections and the port, SIGUSR2 opens the port again.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_BUSY = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"


@dataclass
class Counts:
    at_s: float = 0.0
    """Time of the service's clock."""
    rows: int = 0
    """Of admitted requests."""
    requests: int = 0
    rejected: int = 0
    ids: int = 0
    """Different ids of these rows, if they begin with an id."""


class Bucket:
    """Fills with rows at a rate; a request takes its rows out, or is rejected."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._rows, self._filled_at = burst, time.monotonic()

    def admits(self, rows: int) -> bool:
        now = time.monotonic()
        self._rows = min(self._burst, self._rows + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._rows < rows:
            return False
        self._rows -= rows
        return True


class Ids:
    """Which of the numbers from 0 on were received, a byte each."""

    def __init__(self) -> None:
        self._known = bytearray()

    def add(self, body: bytearray) -> int:
        """Return how many ids are new."""
        new = 0
        for number in map(int, _ID.findall(body)):
            if number >= len(self._known):
                self._known.extend(bytes(number + 1_000_000 - len(self._known)))
            new += not self._known[number]
            self._known[number] = 1
        return new


_ID = re.compile(rb'^\{"id":(\d+)', re.MULTILINE)


class Connection(asyncio.Protocol):
    """Just enough of HTTP/1.1 for the clients that are measured: the service must not be what is slow."""

    def __init__(self, latency_s: float, bucket: Bucket | None, counts: Counts, ids: Ids) -> None:
        self._latency_s, self._bucket, self._counts, self._ids = latency_s, bucket, counts, ids
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._received[:end]).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or b"0")
            if len(self._received) < end + 4 + length:
                return
            body = self._received[end + 4 : end + 4 + length]
            del self._received[: end + 4 + length]
            if head.startswith(b"get"):
                self._tell()
            else:
                self._take(body)

    def _take(self, body: bytearray) -> None:
        rows = body.count(b"\n")
        counts = self._counts
        counts.requests += 1
        is_admitted = self._bucket is None or self._bucket.admits(rows)
        if is_admitted:
            counts.rows += rows
            counts.ids += self._ids.add(body)
        else:
            counts.rejected += 1
        loop = asyncio.get_running_loop()
        loop.call_later(self._latency_s, self._transport.write, _OK if is_admitted else _BUSY)

    def _tell(self) -> None:
        self._counts.at_s = time.monotonic()
        body = json.dumps(asdict(self._counts)).encode()
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


async def serve(latency_ms: float, rate: float = 0, burst: float = 0) -> None:
    bucket = Bucket(rate, burst) if rate else None
    counts, ids = Counts(), Ids()
    loop = asyncio.get_running_loop()
    switched = asyncio.Event()
    for signal_ in (signal.SIGUSR1, signal.SIGUSR2):
        loop.add_signal_handler(signal_, switched.set)
    port = 0
    while True:
        made: list[Connection] = []

        def connection(made: list[Connection] = made) -> Connection:
            made.append(Connection(latency_ms / 1000, bucket, counts, ids))
            return made[-1]

        server = await loop.create_server(connection, "127.0.0.1", port, backlog=1000)
        port = server.sockets[0].getsockname()[1]
        print(port, flush=True)
        await switched.wait()
        switched.clear()
        server.close()
        for one in made:
            one.abort()
        print("down", flush=True)
        await switched.wait()
        switched.clear()


class Service:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._process, self._printed = process, process.stdout
        self.url = f"http://127.0.0.1:{int(self._printed.readline())}/"

    @contextmanager
    def down(self) -> Iterator[None]:
        """No connection is accepted in the block; open ones are closed at its begin."""
        self._process.send_signal(signal.SIGUSR1)
        self._printed.readline()
        yield
        self._process.send_signal(signal.SIGUSR2)
        self._printed.readline()

    def counts(self) -> Counts:
        with urllib.request.urlopen(self.url) as response:
            return Counts(**json.load(response))


@contextmanager
def http_service(latency_ms: float, rate: float = 0, burst: float = 0) -> Iterator[Service]:
    command = [sys.executable, "-m", "benchmarks.http_service", *map(str, (latency_ms, rate, burst))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    try:
        yield Service(process)
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    asyncio.run(serve(*map(float, sys.argv[1:])))
